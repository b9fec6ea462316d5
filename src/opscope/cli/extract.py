"""`opscope extract`: write recorded operator calls as Python files that run alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli import console
from opscope.errors import InputError
from opscope.model.files import write_text


def extract(
    source: Annotated[str, Parameter(name="SOURCE")],
    call: Annotated[str | None, Parameter(name="CALL")] = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("call.py"),
    every: Annotated[Path | None, Parameter(name="--all")] = None,
    start: Literal["aten", "triton", "cuda"] | None = None,
    module: Annotated[str | None, Parameter(name="--import")] = None,
    scale: Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))] = None,
    top: console.Top = 10,
    force: console.Force = False,
) -> int:
    """Write a recorded call as a Python file: its inputs, the call, and a place for your own version.

    Without CALL, list the calls with most avoidable time. The file runs alone; `opscope bench call.py` checks
    and times it. Inputs have the recorded shapes, strides and types, and random values; of recordings by
    opscope run also alignment, shared memory and the spread of integers.

    Example: opscope extract trace.json.gz linear -o call.py

    Args:
        source: A trace, or a saved session, recorded with shapes.
        call: Its number in the list, or words of its operator, shapes (16x256), kernel, module or line
            (model.py:12).
        output: The file to write.
        every: A folder for files of the whole list, with a README.md; opscope bench takes it as a suite.
        start: What your own version begins with: the call itself, or a Triton or CUDA kernel that computes
            the same; by default Triton if there is a template for the operator.
        module: The module that registers an operator of another library: the file imports it.
        scale: A share of the call's leading dimension, for tensors larger than this GPU: the file makes these
            smaller.
        top: Number of calls to list or write.
    """
    from opscope.analysis.summary import Summary  # noqa: PLC0415
    from opscope.extraction.alone_calls import alone_calls, chosen_call, extracted  # noqa: PLC0415 - DuckDB
    from opscope.extraction.starts import StartKind  # noqa: PLC0415
    from opscope.hardware.driver import visible_gpus  # noqa: PLC0415
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.provenance.packaged import cache_folder  # noqa: PLC0415
    from opscope.report.extraction import call_list_document, call_text, readme  # noqa: PLC0415

    if call is not None and every is not None:
        raise InputError("--all writes the whole list, and a call is named too", hint="Leave one of them out")
    if call is not None:
        console.check_outputs([output], force=force, inputs=[source])
    if every is not None and every.exists() and not force:
        raise InputError("it exists", source=every, hint="Write into it with --force")
    with console.open_source([source]) as session, console.status("Looking for calls"):
        summary = Summary(session, measured_dir=cache_folder() / LIMITS_FOLDER)
        calls = alone_calls(session, summary.efficiency)
        listed = calls[: None if top == "all" else top]
        chosen = listed if call is None else (chosen_call(calls, call, session),)
        memory_bytes = (gpu.memory_bytes for gpu in visible_gpus() if gpu.memory_bytes is not None)
        write = partial(
            extracted,
            name=output.name if call is not None else None,
            start=StartKind(start) if start else None,
            module=module,
            scale=scale,
            memory_bytes=min(memory_bytes, default=None),
        )
        rows = [write(rank, one, what=call_text(summary, one, source)) for rank, one in enumerate(chosen, 1)]
        document = call_list_document(summary, calls, rows)
    if call is None and every is None:
        console.print_document(document)
        return 0
    for row in rows:
        if isinstance(row.file, Exception) and every is None:
            raise row.file
        if not isinstance(row.file, Exception):
            for note in row.file.notes:
                console.note(note if every is None else f"{row.name}: {note}")
            write_text(output if every is None else every / row.name, row.file.text)
    if every is not None:
        write_text(every / "README.md", console.markdown(readme(document, source)))
    console.say_wrote([every or output], on_stderr=False)
    return 0
