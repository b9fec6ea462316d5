"""`opscope extract`: write a recorded operator call as a Python file that runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from opscope.cli import console
from opscope.model.files import write_text


def extract(
    source: Annotated[str, Parameter(name="SOURCE")],
    call: Annotated[str | None, Parameter(name="CALL")] = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("call.py"),
    start: Literal["aten", "triton", "cuda"] | None = None,
    top: console.Top = 10,
    force: console.Force = False,
) -> int:
    """Write a recorded call as a Python file: its inputs, the call, and a place for your own version.

    Without CALL, those with most avoidable time are listed. The file runs alone and is compared and timed by
    `opscope bench call.py`. Inputs have the recorded shapes, strides and types, and random values.

    Example: opscope extract trace.json.gz linear -o call.py

    Args:
        source: A trace, or a saved session, recorded with shapes.
        call: Its number in the list, or words of its operator, shapes (16x256) or kernel.
        output: The file.
        start: What your own version begins with: the call itself, or a kernel in Triton or CUDA that computes
            the same; by default in Triton where there is a template for the operator.
    """
    from opscope.analysis.extraction import alone_calls, chosen_call  # noqa: PLC0415 - import DuckDB
    from opscope.analysis.summary import Summary  # noqa: PLC0415
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.operators.call_file import call_file  # noqa: PLC0415
    from opscope.operators.starts import StartKind  # noqa: PLC0415
    from opscope.provenance.cache import cache_folder  # noqa: PLC0415
    from opscope.report.extraction import call_list_document, call_text  # noqa: PLC0415

    if call is not None:
        console.check_outputs([output], force=force, inputs=[source])
    with console.open_source([source]) as session, console.status("Looking for calls"):
        summary = Summary(session, measured_dir=cache_folder() / LIMITS_FOLDER)
        calls = alone_calls(session, summary.efficiency)
        if call is None:
            console.print_document(call_list_document(summary, calls, top=None if top == "all" else top))
            return 0
        chosen = chosen_call(calls, call)
        what = call_text(summary, chosen, source)
        kind = None if start is None else StartKind(start)
        text, notes = call_file(chosen.call, what=what, name=output.name, start=kind)
    for one in notes:
        console.note(one)
    console.say_wrote([write_text(output, text)], on_stderr=False)
    return 0
