"""`opscope try`: apply changes to your own program and measure each."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli import console
from opscope.cli.app import EXIT_INTERRUPTED, EXIT_REGRESSION
from opscope.errors import InputError
from opscope.report.trial import trial_document, trial_json
from opscope.trials.trying import Trial, trial_plan


def try_changes(
    target: Annotated[str, Parameter(name="SCRIPT")],
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module: Annotated[bool, Parameter(name=["-m", "--module"])] = False,
    steps: str = "auto",
    param: Annotated[console.Words, console.Several] = (),
    only: Annotated[list[str] | None, console.Several] = None,
    change: Annotated[list[Path] | None, console.Several] = None,
    budget: Annotated[timedelta | float, Parameter(validator=Number(gt=0))] = 60.0,
    allow_precision: bool = False,
    in_place: bool = False,
    skip: tuple[Literal["predict"], ...] = (),
    fail_below: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    report: console.ProgramShowing = console.PROGRAM_SHOWING,
) -> int:
    """Apply changes to your own program and measure each: opscope try [OPTIONS] SCRIPT [ARGS…].

    The program runs twice or more. Between its steps opscope switches applicable changes on and off, alone
    and together. Your source and files stay as they are: the program runs in an empty folder. A change is
    recommended if it is faster, and outputs, gradients and losses stay the same.

    Example: opscope try --budget 10m infer.py --batch 8

    Exit codes: 3 if the best is slower than --fail-below requires.

    Args:
        target: A Python file, or bert, transformer, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY.
        arguments: Arguments of the script; options of opscope come before SCRIPT.
        module: SCRIPT is a module name, to run as with python -m.
        steps: What ends a step of a script: optimizer, forward, loop, auto (the first of these that
            exists), FUNCTION, or MODULE:FUNCTION.
        param: How a workload is built, NAME=VALUE: batch_size, seq_len, device, train=yes, use_real_bert=yes,
            dtype, layers, hidden, attn_implementation, weights.
        only: Try only these changes, e.g. --only tf32 compile; also those that take minutes.
        change: Files with your own changes, each with a function on(hooks) or change(hooks).
        budget: Total time after the program's own start, e.g. 10m; changes not reached are listed.
        allow_precision: Also recommend changes of the number type if results stay within its rounding.
        in_place: Run in this folder, for programs that read files relative to it.
        skip: Leave out: predict (recording two steps at the end of one run, to show advice beside the
            measurements).
        fail_below: Exit with 3 if the best is not this many times as fast as the program.
    """
    console.check_outputs(report.output, force=report.force, inputs=[target, *(change or ())])
    # How a workload is built, with its batch size and sequence length: of a trial each has one value.
    given = dict(text.partition("=")[::2] for text in param)
    sizes = [given.pop(name, default) for name, default in (("batch_size", "8"), ("seq_len", "128"))]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise InputError(f"{' × '.join(sizes)} are no sizes", hint="Such as --param batch_size=8 seq_len=128")
    fixed: dict[str, Any] = {"device": given.pop("device", "auto")}
    fixed |= {name: given.pop(name) != "no" for name in ("train", "use_real_bert") if name in given}
    plan = trial_plan(
        target,
        arguments,
        module=module,
        steps=steps,
        sizes=(int(sizes[0]), int(sizes[1])),
        options=console.workload_options([f"{name}={value}" for name, value in given.items()], **fixed),
        only=only,
        change=change or (),
        budget_s=budget.total_seconds() if isinstance(budget, timedelta) else budget,
        allow_precision=allow_precision,
        in_place=in_place,
        predict="predict" not in skip,
        note=console.note,
    )
    with console.progress() as told:
        result = Trial(plan, told).run()
    report.show(lambda: trial_json(result), lambda: trial_document(result, console.command_line()))
    if result.is_interrupted:
        return EXIT_INTERRUPTED
    speedup = 1.0 if result.best is None else 1 / result.best.ratio
    if fail_below is not None and speedup < fail_below:
        console.note(f"fails --fail-below {fail_below:g}: the best is {speedup:.2f} times as fast")
        return EXIT_REGRESSION
    return 0
