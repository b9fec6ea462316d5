"""`opscope stats`: print nsys' statistics of a trace: calls, kernels, copies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import mutually_exclusive

from opscope import api
from opscope.cli.console import (
    Merge,
    Output,
    Parts,
    check_outputs,
    open_source,
    print_document,
    print_json,
    say_wrote,
    write_page,
)
from opscope.model.files import write_text
from opscope.report.html.result_charts import statistics_charts
from opscope.report.json_encoding import to_json
from opscope.report.tables import stats_csv, stats_json, stats_tables_document

_READING = Parts()
_FORMAT = Group("Output format", validator=mutually_exclusive)


def stats(
    source: Annotated[list[str], Parameter(name="SOURCE")],
    /,
    *,
    report: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    json: Annotated[bool, Parameter(group=_FORMAT)] = False,
    csv: Annotated[bool, Parameter(group=_FORMAT)] = False,
    reading: Parts = _READING,
    merge: Merge = False,
    output: Output = None,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Print nsys' statistics of a trace: calls, kernels, copies by time and by size.

    Example: opscope stats trace.json.gz --report cuda_api_sum cuda_gpu_kern_sum

    Args:
        source: A Kineto trace, an nsys export (.sqlite), a saved session, a folder of rank files, an address.
        report: cuda_api_sum, cuda_gpu_kern_sum, cuda_gpu_mem_time_sum, cuda_gpu_mem_size_sum or cuda_gpu_sum
            (kernels and copies in one table, the default); several at once, or `all`. `:base` after a name
            shows kernels by their function's name alone.
        json: Print one JSON document, reports by name, and nothing else.
        csv: Print CSV, an empty line between reports.
        reading: How much of the report is printed.
        merge: Read traces together that are not of one job too.
        output: Write what --json or --csv would print (JSON by default) to this file instead.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite existing files.
    """
    check_outputs([output, html], force=force, inputs=source)
    with open_source(source, merge=merge) as session:
        tables = api.stats(session, report)
    if output is not None:
        text = stats_csv(tables) if csv else to_json(stats_json(tables))
        say_wrote([write_text(output, text)], on_stderr=json or csv)
    elif json:
        print_json(stats_json(tables))
    elif csv:
        sys.stdout.write(stats_csv(tables))
    else:
        print_document(stats_tables_document(tables), reading=reading)
    if html is not None:
        document = stats_tables_document(tables, title=f"Statistics of {', '.join(source)}")
        say_wrote([write_page(html, document, statistics_charts(tables))], on_stderr=json or csv)
    return 0
