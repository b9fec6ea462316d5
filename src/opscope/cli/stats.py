"""`opscope stats`: print nsys' statistics of a trace: calls, kernels, copies."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from opscope import api
from opscope.cli.console import FORMAT, Force, Json, Output, Showing, check_outputs, open_source
from opscope.report.tables import stats_csv, stats_json, stats_tables_document


def stats(
    source: Annotated[list[str], Parameter(name="SOURCE")],
    /,
    *,
    report: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    json: Annotated[Json, FORMAT] = False,
    csv: Annotated[bool, FORMAT] = False,
    output: Output = (),
    force: Force = False,
) -> int:
    """Print nsys' statistics of a trace: calls, kernels, copies by time and by size.

    Example: opscope stats trace.json.gz --report cuda_api_sum cuda_gpu_kern_sum

    Args:
        source: A Kineto trace, an nsys report or export (.nsys-rep, .sqlite), a saved session, a folder of
            rank files, an address.
        report: cuda_api_sum, cuda_gpu_kern_sum, cuda_gpu_mem_time_sum, cuda_gpu_mem_size_sum or cuda_gpu_sum
            (kernels and copies in one table, the default); several, or `all`.
        csv: Print CSV, with an empty line between reports.
    """
    check_outputs(output, force=force, inputs=source)
    with open_source(source, merge=True) as session:
        tables = api.stats(session, report)
    title = f"Statistics of {', '.join(source)}" if output else ""
    if csv:
        sys.stdout.write(stats_csv(tables))
    Showing(json=json, output=output).show(
        lambda: stats_json(tables), lambda: stats_tables_document(tables, title=title), is_printed=not csv
    )
    return 0
