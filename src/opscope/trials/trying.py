"""Trying changes on a program: what to try, which processes to run when, and what each is for.

The changes are switched on and off inside a running program (`rounds`), in two processes of it or more, for
ratios differ between processes too. The first times what does not compile. The second one is started as soon
as the first one's steps are steady, compiles meanwhile, and is timed when that has ended. What cannot be
switched runs in processes of its own, started anew, and so does every change of a program with few steps.
What is known after a process decides what the next one is for: the best sets first, then what is open.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from opscope.capture.program import Program, check_program
from opscope.capture.program_recorder import step_source
from opscope.errors import CaptureError, DependencyError, InputError, OpscopeError
from opscope.model.trial import TrialResult
from opscope.trials import catalog, child, processes, rounds
from opscope.trials.outcome import (
    BUDGET_S,
    HOPELESS,
    PROCESSES,
    ExpectedGains,
    Names,
    TrialPlan,
    TriedChanges,
)
from opscope.workloads.target import BUILTIN_WORKLOADS, resolve
from opscope.workloads.workload import WorkloadOptions

_FIRST = 0.4  # of the budget: the first process
_FEWEST_STEPS = 50  # with less, a program has too few steps for rounds
_LEAST_S, _LEAST_SHARE_S = 2.0, 20.0  # rounds that are worth a process, and that each is to have
_SPARE_S = 60.0  # what a process may take beyond what was planned
_CONSTANT_S = 2.0  # of steps with changes that stay on
_MOST_PROCESSES = 8  # of the program, while time is left
_RESTARTS = 3

Told = Callable[[str, int, int], object]


class Trial:
    """Tries the changes of a plan.

    Args:
        plan: What to try.
        told: Called before each process with what runs, how many ran and how many there will be.
    """

    def __init__(self, plan: TrialPlan, told: Told = lambda *_: None) -> None:
        self.plan, self._told, self._request = plan, told, plan.request
        self._known = TriedChanges(plan)
        self._processes = processes.ProgramRuns(in_place=plan.in_place)
        self._running: processes.ProgramRun | None = None
        self._next: processes.ProgramRun | None = None  # started early
        self._asked_next: tuple[Names, ...] = ()  # what it compiles
        self._has_read = False  # what advice says of the recording
        # Ranks would have to switch at the same step, and each decides by its own clock.
        self._is_constant = plan.request.kind == "ranks"
        self._runs, self._restarts = 0, 0
        self._began, self._startup_s, self._overhead_s = time.monotonic(), 0.0, 0.0
        self._is_interrupted = False

    def run(self) -> TrialResult:
        """Try all changes; interrupted, what is known by then.

        Raises:
            CaptureError: The program fails as it is, or has too few steps.
        """
        with self._processes.open():
            try:
                self._switch_first()
                self._go_on()
                self._read_recording()
            except KeyboardInterrupt:
                self._is_interrupted = True
                unfinished = self._running and self._running.found
                if unfinished and not unfinished.step_ns:
                    self._known.take(unfinished)
                if not self._known.bases:
                    raise
        return self._known.result(self._request, self._runs, is_interrupted=self._is_interrupted)

    @property
    def _left_s(self) -> float:
        return self._began + self._startup_s + self.plan.budget_s - time.monotonic()

    def _ordered(self, *, is_live: bool) -> list[catalog.TriedChange]:
        """The changes by promise; those that can be switched between steps, or the others."""

        def promise(change: catalog.TriedChange) -> tuple[bool, float]:
            gain_ns = said.estimated_gain_ns_per_step if (said := self._known.suggestion(change)) else None
            return change.is_costly, -(gain_ns or 0.0)

        return sorted((one for one in self.plan.changes if one.is_live is is_live), key=promise)

    def _switch_first(self) -> None:
        live = self._ordered(is_live=True)
        # What compiles waits for the next process, unless there is nothing else.
        first = [one for one in live if not one.is_costly] or live
        self._is_constant |= not live
        began = time.monotonic()
        if self._is_constant:
            run, said = self._stay(())
        else:
            run, said = self._switch([(one.name,) for one in first], _FIRST * self.plan.budget_s)
        self._require_program(run, said)
        assert run is not None
        self._startup_s = run.startup_s
        self._overhead_s = max(0.0, time.monotonic() - began - (run.rounds_s or _CONSTANT_S))
        # Every other process times steps of the same kind, whatever it would recognize.
        self._request = replace(self._request, steps=run.taken)
        if not self._is_constant and not run.is_enough and self._has_few(run):
            self._is_constant = True
            self._require_program(*self._stay(()))
        for change in self.plan.changes:
            reason = change.applies(self._known.bases[0].facts)
            if reason is not None:
                self._known.not_tried[change.name] = reason

    def _has_few(self, run: rounds.TrialRun) -> bool:
        return not run.base_logarithms or run.steps < _FEWEST_STEPS

    def _start_next(self, found: rounds.TrialRun) -> None:
        """Have the next process started while this one is timed, and compile what is promising.

        There is time for two of them, or for several if the program ends by itself.
        """
        # On a CPU both would need the same cores; in one folder they would write to the same files.
        is_alone = found.no_room or self.plan.in_place or found.facts.device_name is None
        is_last = self._known.bases and self._request.most_steps is None
        if not found.is_steady or is_alone or is_last:
            return
        sound = [one for one in found.arms if not one.error]
        compiling = [one.names for one in sound if self._compiles(one.names)]
        right = {one.names for one in sound if one.correctness in rounds.RIGHT}
        new = (one for one in self._compiled(found.facts, right) if one not in compiling)
        sets = tuple(compiling if self._known.bases else new)
        request = replace(self._request, steps=found.taken, is_waiting=True, arms=sets)
        if self._next is None:
            self._next = self._processes.start(request)
        elif sets != self._asked_next:
            self._next.ask(request)
        self._asked_next = sets

    def _compiles(self, names: Names) -> bool:
        return any(self._known.by_name[one].is_costly for one in names)

    def _compiled(
        self, facts: catalog.ProgramTraits, right: Collection[Names], beside: Sequence[str] = ()
    ) -> tuple[Names, ...]:
        """Sets with what compiles, the most promising first; `right` are those whose numbers are.

        There is time for one or two: with the fewest digits that are right, and with the same numerics; as
        graphs, which take the host's part away, where the model's own graph is right.
        """
        modes = [
            one
            for one in self._ordered(is_live=True)
            if one.is_costly and one.applies(facts) is None and not self._known.of((one.name,)).is_wrong
        ]
        graphs = [one for one in self.plan.changes if one.replays and not one.is_costly and one.is_live]
        captures = any((one.name,) in right for one in graphs) if graphs else not facts.is_training
        modes.sort(key=lambda one: one.replays is not captures)
        digits = [one for one in self.plan.changes if (one.name,) in right and one.group == "precision"]
        # Of those as coarse the last, which leaves nothing to cast.
        digits.sort(key=lambda one: one.rounding)
        coarser = tuple(one.name for one in digits[-1:])
        found: list[Names] = []
        for mode in modes:
            for others in dict.fromkeys(((), tuple(beside))):
                found += [(*coarser, *others, mode.name), (*others, mode.name)]
            coarser = ()
        return tuple(dict.fromkeys(found))

    def _go_on(self) -> None:
        """Further processes: of rounds for what is best and open; of what stays on; then of both together."""
        anew = self._ordered(is_live=False)
        if self._is_constant:
            anew = [*self._ordered(is_live=True), *anew]
        while self._left_s > 0:
            count = sum(1 for one in self._known.bases if self._is_constant or one.base_logarithms)
            self._leave_out_idle()
            waiting = [one for one in anew if self._is_waiting(one.name, count)]
            arms = [] if self._is_constant else self._next_arms()
            open_ones = list(filter(self._known.is_wanted, arms))
            cheap = [one for one in open_ones if not self._compiles(one)]
            if cheap and not self._is_next_ready:  # another one times these meanwhile
                arms = [one for one in arms if not self._compiles(one)]
            start_s = 0.0 if self._next else self._overhead_s
            processes_left = int(self._left_s / (max(_LEAST_SHARE_S, _FIRST * self.plan.budget_s) + start_s))
            seconds = (self._left_s / max(1, processes_left) - start_s) / (2 if waiting else 1)
            is_due = count < PROCESSES or (count < _MOST_PROCESSES and not waiting and open_ones)
            if arms and is_due and seconds >= _LEAST_S:
                if self._switch(arms, seconds)[0] is None:
                    break
            elif waiting:
                self._stay((waiting[0].name,))
            elif self._is_constant and count < PROCESSES:
                self._stay(())
            else:
                break
        for takes_coarser in (False, True):
            together = self._together(anew, takes_coarser=takes_coarser)
            while together and self._known.of(together).count < PROCESSES and self._left_s > 0:
                self._stay(together)
                if self._known.of(together).is_wrong:
                    break

    @property
    def _is_next_ready(self) -> bool:
        """Whether the next process, if it was started, is worth to be waited for, or need not be."""
        return self._next is None or self._next.is_ready or self._request.most_steps is None

    def _leave_out_idle(self) -> None:
        """What stays on costs two processes: it is tried if advice expects something of it, or if named."""
        doubtful = [one for one in self._ordered(is_live=False) if one.name not in self.plan.asked]
        doubtful = [one for one in doubtful if one.findings and one.name not in self._known.not_tried]
        if doubtful and (self._processes.scratch / "recording").exists():
            self._read_recording()
        for one in doubtful if self._known.expected.findings else ():
            if self._known.suggestion(one) is None:
                self._known.not_tried[one.name] = "advice on a recording says nothing that it would help"

    def _is_waiting(self, name: str, count: int) -> bool:
        tried = self._known.of((name,))
        if name in self._known.not_tried or tried.is_wrong or tried.count >= min(PROCESSES, count):
            return False
        return not tried.count or self._known.ratio(tried) < HOPELESS

    def _together(self, anew: Sequence[catalog.TriedChange], *, takes_coarser: bool) -> Names:
        """The best set that was switched, with all that stays on and helps; empty if that is nothing more."""
        of = [] if self._is_constant else self._known.switched()
        best = self._known.best_of(takes_coarser=takes_coarser, is_final=False, of=of)
        held = [] if best is None else [self._known.by_name[name] for name in best.names]
        alone = [
            (change, math.log(self._known.ratio(single)))
            for change in anew
            if (single := self._known.of((change.name,))).count
            and self._known.is_right(single, takes_coarser=takes_coarser)
        ]
        count = len(held)
        while more := catalog.addable(held, alone):
            held.append(more[0])
        return tuple(one.name for one in held) if len(held) > max(count, 1) else ()

    def _next_arms(self) -> list[Names]:
        """Sets for the next process: what compiles and was not tried, the best, then what is open."""
        coarser, same = (
            self._known.best_of(takes_coarser=one, is_final=False, of=self._known.switched())
            for one in (True, False)
        )
        beside = [
            one
            for one in (same.names if same else ())
            if self._known.by_name[one].group != "capture"
            and math.log(self._known.ratio(self._known.of((one,)))) < rounds.HELPS
        ]
        right = [one.names for one in self._known.switched() if self._known.is_right(one, takes_coarser=True)]
        sets = self._compiled(self._known.bases[0].facts, right, beside)
        live = [one for one in self._ordered(is_live=True) if one.name not in self._known.not_tried]
        singles = [self._known.of((one.name,)) for one in live]
        new = [one for one in singles if not (one.count or one.is_wrong or one.names in sets)]
        open_ones = sorted(
            filter(self._known.is_open, singles), key=lambda one: -abs(self._known.ratio(one) - 1)
        )
        rest = [one.names for one in (coarser, same, *new, *open_ones) if one is not None]
        compiled = [one for one in sets if not (self._known.of(one).count or self._known.of(one).is_wrong)]
        # Compiling takes as long as many steps; a program that ends soon has too few for both.
        is_short = self._request.most_steps is not None and len(self._known.bases) < PROCESSES
        if is_short and self._next is None and (new or open_ones):
            compiled = []
        return [*dict.fromkeys([*compiled[:1], *rest, *compiled[1:]])]

    def _switch(self, arms: Sequence[Names], seconds: float) -> tuple[rounds.TrialRun | None, str]:
        """One process with rounds of these sets; once more without a change that ended the program."""
        right = tuple(one for one in arms if not any(self._known.of((name,)).error for name in one))
        limit_s = (self._startup_s if self._known.bases else self.plan.run_s) + 2 * seconds + _SPARE_S
        seconds = max(_LEAST_S, seconds)
        run, said = self._run("rounds", limit_s, replace(self._request, arms=right, seconds=seconds))
        if run is None:
            return None, said
        self._known.take(run)
        has_broken = run.active or any(one.error for one in run.arms)
        if not run.is_enough and run.exit_code == 0:
            self._request = replace(self._request, most_steps=run.steps)
        if run.is_enough or run.exit_code == 0 or not has_broken or self._restarts >= _RESTARTS:
            return run, said
        if run.active:
            end = run.error or said or f"exit code {run.exit_code}"
            self._known.of(run.active).error = f"the program ended with it: {end}"
        self._restarts += 1
        return self._switch(arms, seconds)

    def _stay(self, names: Names) -> tuple[rounds.TrialRun | None, str]:
        live = tuple(one for one in names if self._known.by_name[one].is_live)
        asked = replace(
            self._request,
            arms=(live,) if live else (),
            installed=tuple(one for one in names if one not in live),
            is_constant=True,
            seconds=_CONSTANT_S,
        )
        limit_s = self._startup_s + _SPARE_S if self._known.bases else self.plan.run_s
        run, said = self._run(" + ".join(names) or "baseline", limit_s, asked)
        if run is not None:
            self._known.take_constant(run, names, said)
        elif names:
            self._known.of(names).error = said
        return run, said

    def _run(
        self, told: str, limit_s: float, request: rounds.TrialRequest
    ) -> tuple[rounds.TrialRun | None, str]:
        self._told(told, self._runs, max(self._runs + 1, 1 + PROCESSES))
        self._runs += 1
        folder = self._processes.scratch / "recording"
        if self.plan.predict and not request.installed and not folder.exists():
            folder.mkdir()
            request = replace(request, recording=str(folder))
        if self._next is not None and (request.is_constant or not self._next.is_alive):
            self._next.end()
            self._next = None
        if self._next is not None and (self._is_next_ready or any(map(self._compiles, request.arms))):
            self._running, self._next = self._next, None
            self._running.ask(request)
        else:
            self._running = self._processes.start(request)
        if not request.recording and folder.exists():
            self._read_recording()  # of an earlier one, while this one runs
        look = (lambda found: None) if request.is_constant else self._start_next
        found = self._running.result(limit_s, look)
        if request.recording and not any(folder.iterdir()):  # the program ended before
            folder.rmdir()
        return found

    def _read_recording(self) -> None:
        """What advice says of the recording, or why there is none; it takes seconds."""
        if self.plan.predict is not None and not self._has_read:
            self._has_read = True
            self._known.expected = self.plan.predict(self._processes.scratch / "recording")

    def _require_program(self, run: rounds.TrialRun | None, said: str) -> None:
        error, hint = None, None
        if run is None:
            error = said
        elif not self._known.bases and run.exit_code:
            error = said or run.error
        elif not self._known.bases and not (
            self._has_few(run) and run.steps >= rounds.LEAST_STEPS and not run.step_ns
        ):
            end = f"ended by itself ({said})" if said else "ended by itself"
            error = (
                f"too few steps to time: it made {run.steps} of {2 * rounds.LEAST_STEPS} and "
                f"{'was ended' if run.is_enough else end}"
            )
        if error is None:
            return
        # It may have failed for a file by a path that is relative to its folder.
        own, words = Path(self.plan.request.target).name, re.findall(r"[\w./-]*[./][\w./-]*\w", error)
        others = [one for one in words if not one.startswith("/") and Path(one).name != own]
        names_file_here = "FileNotFoundError" in error or any(Path(one).exists() for one in others)
        if names_file_here and not self.plan.in_place:
            hint = "It ran in an empty folder: to run it in this one, whose files it reads, use --in-place"
        elif "steps" in error:
            hint = "Name what ends a step (--steps FUNCTION), or let it make more of them"
        raise CaptureError(f"the program fails without any change: {error}", hint=hint)


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
    budget_s: float = BUDGET_S,  # for all, after the program's own start
    seed: int = 0,  # of torch and random, and of the order of rounds
    allow_precision: bool = False,
    in_place: bool = False,
    predict: bool = True,  # record the program after its rounds, for what advice says of it
    note: Callable[[str], object] = lambda text: None,  # told why there are no predictions
) -> TrialPlan:
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
    request = replace(request, seed=seed, change_files=files, origin=str(Path.cwd()))
    if predict and request.kind == "ranks":
        note("no predictions of a program of several ranks: record it with torchrun --no-python opscope run")
        predict = False
    return TrialPlan(
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


def expected(folder: Path, *, note: Callable[[str], object]) -> ExpectedGains:
    """What advice says of the recording that a process of the trial made; `note` is told if it fails."""
    from opscope.advice import assess  # noqa: PLC0415 - no trial needs them to start
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.ingest.reader import load  # noqa: PLC0415
    from opscope.provenance.kernel_names.cxx_name import demangle  # noqa: PLC0415
    from opscope.provenance.packaged import cache_folder  # noqa: PLC0415

    failed, trace = folder / rounds.NO_RECORDING, folder / "trace.json"
    if failed.exists() or not trace.exists():
        said = failed.read_text(encoding="utf-8").strip() if failed.exists() else "the program ended before"
        note(f"no predictions: the recording failed ({said})")
        return ExpectedGains({}, None)
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
            return ExpectedGains(gains, None if timed is None else timed.median)
    except OpscopeError as error:
        note(f"no predictions: {error}")
        return ExpectedGains({}, None)
