"""`opscope explain`: explain an operator, a kernel, a category or a source file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from opscope import api
from opscope.cli import console
from opscope.errors import InputError
from opscope.model.sidecar import kernels_folder
from opscope.report.document import Document
from opscope.report.explanation import explanation_document
from opscope.report.json_encoding import versions
from opscope.report.summary_json import explanation_json


def explain(
    name: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    trace: Annotated[list[str] | None, console.Several] = None,
    checkout: Path | None = None,
    torch_version: str | None = None,
    report: console.Showing = console.SHOWING,
) -> int:
    """Explain an operator, a kernel, a category or a source file: from the operator to its lines of code.

    Example: opscope explain aten::gelu --trace trace.json.gz --full

    Args:
        name: An operator (aten::gelu, gelu, aten::add.Tensor), a kernel name in quotes (demangled or mangled;
            with a trace also its function's name, or as a report shortens it), a category (matrix) or a
            source file (SoftMax.cu); with a trace also a change of its report ("Change 1"), a module or a
            section, by a word of its title (waits).
        trace: Also show this recording's calls: a trace, a folder of rank files, or a saved session.
        checkout: Print lines of code, as --full does, from a PyTorch checkout, before the installed torch's
            headers.
        torch_version: Release to answer for without a trace; the installed torch, else the newest known
            release.
    """
    console.check_outputs(report.output, force=report.force, inputs=trace or ())
    read_source = None
    if report.full or checkout:
        from opscope.provenance.sources import source_reader  # noqa: PLC0415 - seldom asked

        traces = [Path(one) for one in trace or ()]
        read_source = source_reader(checkout, [*map(kernels_folder, traces)], [one.parent for one in traces])
    # What is printed is computed when it is asked for.
    with console.open_source(trace, merge=True) if trace else nullcontext() as session:
        with console.status("Explaining"):
            try:
                explanation = api.explain(name, session, torch_version=torch_version)
            except InputError:
                from opscope.report.analysis import named_part  # noqa: PLC0415 - seldom asked
                from opscope.results import advised  # noqa: PLC0415

                if session is None:
                    raise
                values, words = named_part(
                    name, advised(session), is_full=report.full, spoken=console.in_language
                )
                if not words:
                    raise
                report.show(
                    lambda: {**versions(1), "named": msgspec.to_builtins(values)},
                    lambda: Document("", sections=words),
                )
                return 0
        report.show(
            lambda: explanation_json(explanation, read_source),
            lambda: explanation_document(explanation, read_source, is_full=report.full),
        )
    return 0
