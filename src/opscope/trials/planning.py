"""What to try on a program, from its name and the options that a person gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from opscope.capture.program import Program, check_program
from opscope.capture.program_recorder import step_source
from opscope.errors import DependencyError, InputError
from opscope.trials.catalog import change_of_file, changes_named
from opscope.trials.child import TrialRequest
from opscope.trials.predictions import predicted
from opscope.trials.ranks import LAUNCHERS, is_rank
from opscope.trials.rounds import TrialPlan
from opscope.workloads.spec import BUILTIN_WORKLOADS, resolve
from opscope.workloads.workload import WorkloadOptions


def trial_plan(
    target: str,  # a script, a workload, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY
    arguments: Sequence[str] = (),  # of the script
    *,
    module: bool = False,  # the target is the name of a module
    steps: str = "auto",  # what ends a step of a script
    sizes: tuple[int, int] = (8, 128),  # batch size and sequence length of a workload
    options: WorkloadOptions | None = None,  # how a workload is built
    only: Sequence[str] | None = None,  # names of the changes to try; those that apply if None
    change: Sequence[Path] = (),  # files of changes of one's own
    rounds: int = 3,  # runs of every change
    seconds: float = 1.0,  # of steps to time in each run
    budget_s: float | None = None,  # time for all; None for any
    seed: int = 0,  # of torch and random, and of the order of runs
    allow_precision: bool = False,  # recommend changes of the type too
    in_place: bool = False,  # run in the working folder
    predict: bool = True,  # record the program once as well, for what advice says of it
    note: Callable[[str], object] = lambda text: None,  # told why there are no predictions
) -> TrialPlan:
    """The plan of a trial.

    Raises:
        InputError: There is no such program or change, or its steps cannot be recognized.
        DependencyError: torch is not installed.
    """
    if is_rank():
        raise InputError(
            "each rank would try changes by itself", hint="Let it start them: opscope try torchrun … SCRIPT"
        )
    if find_spec("torch") is None:
        raise DependencyError("PyTorch is not installed", hint="pip install 'opscope[torch]'")
    request = _request(target, arguments, steps, options or WorkloadOptions(), sizes, module=module)
    request = msgspec.structs.replace(request, seconds=seconds, seed=seed, origin=str(Path.cwd()))
    own = {one.name: (one, path.absolute()) for path in change for one in [change_of_file(path)]}
    named = () if only is None and own else changes_named(None if only is None else list(only))
    if predict and request.kind == "ranks":
        note("no predictions of a program of several ranks: record it with torchrun --no-python opscope run")
        predict = False
    return TrialPlan(
        request,
        (*named, *(one for one, _ in own.values())),
        {name: path for name, (_, path) in own.items()},
        rounds=rounds,
        budget_s=budget_s,
        allow_precision=allow_precision,
        in_place=in_place,
        predict=partial(predicted, note=note) if predict else None,
        source=Path(request.target) if request.kind == "script" else None,
    )


def target_of(function: Callable[..., object]) -> str:
    """FILE.py:FUNCTION of a function at the top of a file, by which other processes find it."""
    name, code = getattr(function, "__qualname__", repr(function)), getattr(function, "__code__", None)
    if code is None or "<" in name or not code.co_filename.endswith(".py"):
        raise InputError(
            f"'{name}' cannot be imported by other processes",
            hint="Pass a function that is defined at the top of a Python file, or name FILE.py:FUNCTION",
        )
    return f"{Path(code.co_filename).absolute()}:{name}"


def _request(
    target: str,
    arguments: Sequence[str],
    steps: str,
    options: WorkloadOptions,
    sizes: tuple[int, int],
    *,
    module: bool,
) -> TrialRequest:
    """The program that is meant; an InputError if there is none, or its steps cannot be recognized."""
    is_workload = target in BUILTIN_WORKLOADS or (":" in target and not target.endswith(".py"))
    if is_workload and not module:
        spec = resolve(target, options)
        where, colon, function = target.rpartition(":")
        name = f"{Path(where).absolute()}{colon}{function}" if where.endswith(".py") else target
        return TrialRequest(kind="workload", target=name, options=asdict(spec.options), sizes=sizes)
    if step_source(steps) is None:
        raise InputError(
            "--steps none leaves no steps to time: a whole run holds its start and warm-up",
            hint="Leave it out, or name what ends a step",
        )
    kind, name = "ranks" if target in LAUNCHERS else "module" if module else "script", target
    if kind == "script":
        check_program(Program(target, tuple(arguments)))
        name = str(Path(target).absolute())
    return TrialRequest(kind=kind, target=name, arguments=tuple(arguments), steps=steps)
