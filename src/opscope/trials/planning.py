"""What to try on a program, from its name and the options of a person; and what advice expects of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from opscope.capture.program import Program, check_program
from opscope.capture.program_recorder import step_source
from opscope.errors import DependencyError, InputError, OpscopeError
from opscope.trials import catalog, child, outcome, rounds
from opscope.workloads.target import BUILTIN_WORKLOADS, resolve
from opscope.workloads.workload import WorkloadOptions


def trial_plan(
    target: str,  # a script, a workload, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY
    arguments: Sequence[str] = (),  # of the script
    *,
    module: bool = False,
    steps: str = "auto",  # what ends a step of a script
    sizes: tuple[int, int] = (8, 128),  # batch size and sequence length of a workload
    options: WorkloadOptions | None = None,
    only: Sequence[str] | None = None,  # names of the changes to try; those that apply if None
    change: Sequence[Path] = (),  # files of one's own
    budget_s: float = outcome.BUDGET_S,  # for all, after the program's own start
    seed: int = 0,  # of torch and random, and of the order of rounds
    allow_precision: bool = False,
    in_place: bool = False,
    predict: bool = True,  # record the program after its rounds, for what advice says of it
    note: Callable[[str], object] = lambda text: None,  # told why there are no predictions
) -> outcome.TrialPlan:
    """The plan of a trial.

    Raises:
        InputError: There is no such program or change, or its steps cannot be recognized.
        DependencyError: torch is not installed.
    """
    if child.is_rank():
        raise InputError(
            "each rank would try changes by itself", hint="Let it start them: opscope try torchrun … SCRIPT"
        )
    if find_spec("torch") is None:
        raise DependencyError("PyTorch is not installed", hint="pip install 'opscope[torch]'")
    if not module and (target in BUILTIN_WORKLOADS or (":" in target and not target.endswith(".py"))):
        spec = resolve(target, options or WorkloadOptions())
        where, colon, function = target.rpartition(":")
        name = f"{Path(where).absolute()}{colon}{function}" if where.endswith(".py") else target
        request = rounds.TrialRequest(kind="workload", target=name, options=asdict(spec.options), sizes=sizes)
    elif step_source(steps) is None:
        raise InputError(
            "--steps none leaves no steps to time: a whole run holds its start and warm-up",
            hint="Leave it out, or name what ends a step",
        )
    else:
        kind, name = "ranks" if target in child.LAUNCHERS else "module" if module else "script", target
        if kind == "script":
            check_program(Program(target, tuple(arguments)))
            name = str(Path(target).absolute())
        request = rounds.TrialRequest(kind=kind, target=name, arguments=tuple(arguments), steps=steps)
    files = {path.stem: str(path.absolute()) for path in change}
    changes = [one for one in catalog.changes_named(only) if one.name not in files]
    changes += [catalog.change_of_file(Path(file)) for file in files.values()]
    request = msgspec.structs.replace(request, seed=seed, change_files=files, origin=str(Path.cwd()))
    if predict and request.kind == "ranks":
        note("no predictions of a program of several ranks: record it with torchrun --no-python opscope run")
        predict = False
    return outcome.TrialPlan(
        request,
        changes,
        asked=only or (),
        budget_s=budget_s,
        allow_precision=allow_precision,
        in_place=in_place,
        predict=partial(expected, note=note) if predict else None,
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


def expected(folder: Path, *, note: Callable[[str], object]) -> outcome.ExpectedGains:
    """What advice says of the recording that a process of the trial made; `note` is told if it fails."""
    from opscope.advice import assess  # noqa: PLC0415 - no trial needs them to start
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.ingest.reader import load  # noqa: PLC0415
    from opscope.provenance.cache import cache_folder  # noqa: PLC0415
    from opscope.provenance.demangle import demangle  # noqa: PLC0415

    failed, trace = folder / rounds.NO_RECORDING, folder / "trace.json"
    if failed.exists() or not trace.exists():
        said = failed.read_text(encoding="utf-8").strip() if failed.exists() else "the program ended before"
        note(f"no predictions: the recording failed ({said})")
        return outcome.ExpectedGains({}, None)
    try:
        with load([str(trace)], demangle=demangle) as session:
            summary = assess(session, measured_dir=cache_folder() / LIMITS_FOLDER)
            timed = summary.measured_step.unrecorded_ns
            # Of several findings of one code the first: they are sorted by their gain.
            gains = {
                one.code.removeprefix("advice."): one
                for one in reversed(summary.advice or ())
                if one.estimated_gain_ns_per_step is not None
            }
            return outcome.ExpectedGains(gains, None if timed is None else timed.median)
    except OpscopeError as error:
        note(f"no predictions: {error}")
        return outcome.ExpectedGains({}, None)
