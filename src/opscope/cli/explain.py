"""`opscope explain`: explain an operator, a kernel, a category or a source file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opscope import api
from opscope.cli.console import (
    Merge,
    Parts,
    check_outputs,
    open_source,
    say_wrote,
    show,
    status,
    write_page,
)
from opscope.model.sidecar import kernels_folder
from opscope.report.explanation import SourceReader, explanation_document
from opscope.report.summary_json import explanation_json

_READING = Parts()


def explain(
    name: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    trace: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    merge: Merge = False,
    json: bool = False,
    source: bool = False,
    checkout: Path | None = None,
    torch_version: str | None = None,
    reading: Parts = _READING,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Explain an operator, a kernel, a category or a source file: from the operator to its lines of code.

    Example: opscope explain aten::gelu --trace trace.json.gz --source

    Args:
        name: An operator (aten::gelu, gelu, aten::add.Tensor), a kernel name in quotes (demangled or mangled;
            with a trace also its function's name), a category (matrix) or a source file (SoftMax.cu).
        trace: Also show this recording's calls: a trace, a folder of rank files, or a saved session.
        merge: Read traces together that are not of one job too.
        json: Print one JSON document and nothing else.
        source: Also print the lines of code, where the files are on this machine.
        checkout: A PyTorch checkout to read lines from, before the installed torch's headers.
        torch_version: Release to answer for without a trace; the installed torch, else the newest known
            release.
        reading: How much of the report is printed.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite an existing file.
    """
    check_outputs([html], force=force, inputs=trace or ())
    read_source = _reader(checkout, trace or ()) if source else None
    with (
        open_source(trace, merge=merge) if trace else nullcontext() as session
    ):  # what is printed is computed when asked for
        with status("Explaining"):
            explanation = api.explain(name, session, torch_version=torch_version)
        document = partial(explanation_document, explanation, read_source, is_full=reading.full)
        show(lambda: explanation_json(explanation, read_source), document, json=json, reading=reading)
        if html is not None:
            say_wrote([write_page(html, document())], on_stderr=json)
    return 0


def _reader(checkout: Path | None, traces: Iterable[str]) -> SourceReader:
    from opscope.provenance.sources.at_hand import source_reader  # noqa: PLC0415 - only with --source

    paths = [Path(trace) for trace in traces]
    return source_reader(checkout, [kernels_folder(path) for path in paths], [path.parent for path in paths])
