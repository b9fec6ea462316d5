"""Trying changes on a program: which processes to run when, what they say together, which set is the best.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from msgspec.structs import replace

from opscope.benchmarking.statistics import median_interval
from opscope.errors import CaptureError
from opscope.model.finding import Finding
from opscope.model.trial import (
    Baseline,
    BestChanges,
    Correctness,
    Noise,
    NotTried,
    TrialResult,
    TrialVerdict,
    Variant,
)
from opscope.trials import catalog, processes, replay, rounds
from opscope.trials.pooling import Pooled, ProgramNoise, noise_of, pooled
from opscope.units import format_duration
from opscope.visible_text import without_secrets

BUDGET_S = 60.0
_FIRST = 0.4  # of the budget: the first process
_FEWEST_STEPS = 50  # with less, a program has too few steps for rounds
_LEAST_S, _LEAST_SHARE_S = 2.0, 20.0  # rounds that are worth a process, and that each is to have
_SPARE_S = 60.0  # what a process may take beyond what was planned
_CONSTANT_S = 2.0  # of steps with changes that stay on
_PROCESSES, _MOST_PROCESSES = 2, 8  # of the program: that decide, and while time is left
_HOPELESS, _NO_WORSE = 1.1, 1.005
_RESTARTS = 3
# Steps differ by so much between processes started anew (5 to 30 % on H100s), and of one that ran once.
_APART, _ALONE_APART = 0.05, 0.1

Told = Callable[[str, int, int], object]
_Names = tuple[str, ...]


class ExpectedGains(NamedTuple):
    """What advice says of a recording: findings with a gain, by code without `advice.`; and its step."""

    findings: Mapping[str, Finding]
    step_ns: float | None  # without the recorder; None if unknown


@dataclass(frozen=True)
class TrialPlan:
    request: rounds.TrialRequest  # The program; its changes are ours to fill in
    changes: Sequence[catalog.TriedChange]  # To try
    asked: Sequence[str] = ()  # Names of those that are tried whatever advice says
    budget_s: float = BUDGET_S  # Time for all, after the program's own start
    run_s: float = 300.0  # Time for a start of the program
    allow_precision: bool = False  # Recommend changes whose numbers are within rounding of a coarser type
    in_place: bool = False  # Run in the working folder instead of an empty one
    # What advice says of the recording in a folder; None to go without
    predict: Callable[[Path], ExpectedGains] | None = None


@dataclass
class _Tried:
    names: _Names
    switched: list[list[float]] = field(default_factory=list)  # logarithms of ratios by process and round
    apart: list[float] = field(default_factory=list)  # of its step, by process in which it stayed on
    correctness: Correctness = Correctness.UNKNOWN
    numbers: str = ""
    error: str | None = None
    peak_bytes: int | None = None
    warm_up_ns: float | None = None

    @property
    def count(self) -> int:
        return len(self.switched or self.apart)

    @property
    def is_wrong(self) -> bool:
        return self.error is not None or self.correctness is Correctness.CHANGED

    def note(self, arm: rounds.ArmRun) -> None:
        """What a check of it said: the worst counts."""
        order = (Correctness.UNKNOWN, *rounds.RIGHT, Correctness.CHANGED)
        both = (arm.correctness, arm.numbers), (self.correctness, self.numbers)
        self.correctness, self.numbers = max(both, key=lambda one: order.index(one[0]))
        if arm.check_ns:
            self.warm_up_ns = max(self.warm_up_ns or 0, arm.check_ns)


class Trial:
    """Tries the changes of a plan.

    Args:
        plan: What to try.
        told: Called before each process with what runs, how many ran and how many there will be.
    """

    def __init__(self, plan: TrialPlan, told: Told = lambda *_: None) -> None:
        self.plan, self._told, self._request = plan, told, plan.request
        self._by_name = {one.name: one for one in plan.changes}
        self._processes = processes.ProgramRuns(in_place=plan.in_place)
        self._running: processes.ProgramRun | None = None
        self._next: processes.ProgramRun | None = None  # started early
        self._asked_next: tuple[_Names, ...] = ()  # what it compiles
        self._tried: dict[frozenset[str], _Tried] = {}
        self._not_tried: dict[str, str] = {}
        self._bases: list[rounds.TrialRun] = []  # of the program as it is
        self._noise: ProgramNoise | None = None  # of its rounds, with any change
        self._expected, self._has_read = ExpectedGains({}, None), False
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
                    self._take(unfinished)
                if not self._bases:
                    raise
        return self._result()

    @property
    def _left_s(self) -> float:
        return self._began + self._startup_s + self.plan.budget_s - time.monotonic()

    def _said(self, tried: _Tried) -> Pooled | None:
        """What its processes say; None if it was not timed."""
        if tried.switched:
            said = pooled(tried.switched, self._noise)
            is_enough = sum(map(len, tried.switched)) >= rounds.FEW_ROUNDS
            return said if is_enough else said._replace(verdict=TrialVerdict.INCONCLUSIVE)
        if not tried.apart:
            return None
        usual = [math.log(median(one.base_ns)) for one in self._bases]
        scatter = max(_APART, stdev(usual) if len(usual) > 1 else 0.0)
        if len(tried.apart) == 1:  # one process may be faster than the next for reasons of its own
            scatter = max(scatter, _ALONE_APART)
        return pooled([[one - fmean(usual)] for one in tried.apart], scatter=scatter)

    def _ratio(self, tried: _Tried) -> float:
        said = self._said(tried)
        return math.inf if said is None else said.ratio

    def _of(self, names: _Names) -> _Tried:
        return self._tried.setdefault(frozenset(names), _Tried(names))

    def _ordered(self, *, is_live: bool) -> list[catalog.TriedChange]:
        """The changes by promise; those that can be switched between steps, or the others."""

        def promise(change: catalog.TriedChange) -> tuple[bool, float]:
            gain_ns = said.estimated_gain_ns_per_step if (said := self._suggestion(change)) else None
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
            reason = change.applies(self._bases[0].facts)
            if reason is not None:
                self._not_tried[change.name] = reason

    def _has_few(self, run: rounds.TrialRun) -> bool:
        return not run.base_logarithms or run.steps < _FEWEST_STEPS

    def _start_next(self, found: rounds.TrialRun) -> None:
        """Have the next process started while this one is timed, and compile what is promising.

        There is time for two of them, or for several if the program ends by itself.
        """
        # On a CPU both would need the same cores; in one folder they would write to the same files.
        is_alone = found.no_room or self.plan.in_place or found.facts.device_name is None
        is_last = self._bases and self._request.most_steps is None
        if not found.is_steady or is_alone or is_last:
            return
        sound = [one for one in found.arms if not one.error]
        compiling = [one.names for one in sound if self._compiles(one.names)]
        right = {one.names for one in sound if one.correctness in rounds.RIGHT}
        new = (one for one in self._compiled(found.facts, right) if one not in compiling)
        sets = tuple(compiling if self._bases else new)
        request = replace(self._request, steps=found.taken, is_early=True, arms=sets)
        if self._next is None:
            self._next = self._processes.start(request, {})
        elif sets != self._asked_next:
            self._next.ask(request)
        self._asked_next = sets

    def _compiles(self, names: _Names) -> bool:
        return any(self._by_name[one].is_costly for one in names)

    def _compiled(
        self, facts: catalog.ProgramTraits, right: Collection[_Names], beside: Sequence[str] = ()
    ) -> tuple[_Names, ...]:
        """Sets with what compiles, the most promising first; `right` are those whose numbers are.

        There is time for one or two: with the fewest digits that are right, and with the same numerics; as
        graphs, which take the host's part away, where the model's own graph is right.
        """
        modes = [
            one
            for one in self._ordered(is_live=True)
            if one.is_costly and one.applies(facts) is None and not self._of((one.name,)).is_wrong
        ]
        graphs = [one for one in self.plan.changes if one.replays and not one.is_costly and one.is_live]
        captures = any((one.name,) in right for one in graphs) if graphs else not facts.is_training
        modes.sort(key=lambda one: one.replays is not captures)
        digits = [one for one in self.plan.changes if (one.name,) in right and one.group == "precision"]
        # Of those as coarse the last, which leaves nothing to cast.
        digits.sort(key=lambda one: one.rounding)
        coarser = tuple(one.name for one in digits[-1:])
        found: list[_Names] = []
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
            count = sum(1 for one in self._bases if self._is_constant or one.base_logarithms)
            self._leave_out_idle()
            waiting = [one for one in anew if self._is_waiting(one.name, count)]
            arms = [] if self._is_constant else self._next_arms()
            open_ones = list(filter(self._is_wanted, arms))
            cheap = [one for one in open_ones if not self._compiles(one)]
            if cheap and not self._is_next_ready:  # another one times these meanwhile
                arms = [one for one in arms if not self._compiles(one)]
            start_s = 0.0 if self._next else self._overhead_s
            processes_left = int(self._left_s / (max(_LEAST_SHARE_S, _FIRST * self.plan.budget_s) + start_s))
            seconds = (self._left_s / max(1, processes_left) - start_s) / (2 if waiting else 1)
            is_due = count < _PROCESSES or (count < _MOST_PROCESSES and not waiting and open_ones)
            if arms and is_due and seconds >= _LEAST_S:
                if self._switch(arms, seconds)[0] is None:
                    break
            elif waiting:
                self._stay((waiting[0].name,))
            elif self._is_constant and count < _PROCESSES:
                self._stay(())
            else:
                break
        for takes_coarser in (False, True):
            together = self._together(anew, takes_coarser=takes_coarser)
            while together and self._of(together).count < _PROCESSES and self._left_s > 0:
                self._stay(together)
                if self._of(together).is_wrong:
                    break

    @property
    def _is_next_ready(self) -> bool:
        """Whether the next process, if it was started, is worth to be waited for, or need not be."""
        return self._next is None or self._next.is_ready or self._request.most_steps is None

    def _leave_out_idle(self) -> None:
        """What stays on costs two processes: it is tried if advice expects something of it, or if named."""
        doubtful = [one for one in self._ordered(is_live=False) if one.name not in self.plan.asked]
        doubtful = [one for one in doubtful if one.findings and one.name not in self._not_tried]
        if doubtful and (self._processes.scratch / "recording").exists():
            self._read_recording()
        for one in doubtful if self._expected.findings else ():
            if self._suggestion(one) is None:
                self._not_tried[one.name] = "advice on a recording says nothing that it would help"

    def _is_waiting(self, name: str, count: int) -> bool:
        tried = self._of((name,))
        if name in self._not_tried or tried.is_wrong or tried.count >= min(_PROCESSES, count):
            return False
        return not tried.count or self._ratio(tried) < _HOPELESS

    def _together(self, anew: Sequence[catalog.TriedChange], *, takes_coarser: bool) -> _Names:
        """The best set that was switched, with all that stays on and helps; empty if that is nothing more."""
        of = [] if self._is_constant else self._switched()
        best = self._best_of(takes_coarser=takes_coarser, is_final=False, of=of)
        held = [] if best is None else [self._by_name[name] for name in best.names]
        alone = [
            (change, math.log(self._ratio(single)))
            for change in anew
            if (single := self._of((change.name,))).count
            and self._is_right(single, takes_coarser=takes_coarser)
        ]
        count = len(held)
        while more := catalog.addable(held, alone):
            held.append(more[0])
        return tuple(one.name for one in held) if len(held) > max(count, 1) else ()

    def _next_arms(self) -> list[_Names]:
        """Sets for the next process: what compiles and was not tried, the best, then what is open."""
        coarser, same = (
            self._best_of(takes_coarser=one, is_final=False, of=self._switched()) for one in (True, False)
        )
        beside = [
            one
            for one in (same.names if same else ())
            if self._by_name[one].group != "capture"
            and math.log(self._ratio(self._of((one,)))) < rounds.HELPS
        ]
        right = [one.names for one in self._switched() if self._is_right(one, takes_coarser=True)]
        sets = self._compiled(self._bases[0].facts, right, beside)
        live = [one for one in self._ordered(is_live=True) if one.name not in self._not_tried]
        singles = [self._of((one.name,)) for one in live]
        new = [one for one in singles if not (one.count or one.is_wrong or one.names in sets)]
        open_ones = sorted(filter(self._is_open, singles), key=lambda one: -abs(self._ratio(one) - 1))
        rest = [one.names for one in (coarser, same, *new, *open_ones) if one is not None]
        compiled = [one for one in sets if not (self._of(one).count or self._of(one).is_wrong)]
        # Compiling takes as long as many steps; a program that ends soon has too few for both.
        is_short = self._request.most_steps is not None and len(self._bases) < _PROCESSES
        if is_short and self._next is None and (new or open_ones):
            compiled = []
        return [*dict.fromkeys([*compiled[:1], *rest, *compiled[1:]])]

    def _is_wanted(self, names: _Names) -> bool:
        tried = self._of(names)
        return not tried.is_wrong and (not tried.count or (len(names) == 1 and self._is_open(tried)))

    def _is_open(self, tried: _Tried) -> bool:
        said = self._said(tried)
        if said is None or tried.is_wrong or said.ratio >= _HOPELESS:
            return False
        is_seen_once = said.verdict is TrialVerdict.FASTER and tried.count < _PROCESSES
        return is_seen_once or said.verdict is TrialVerdict.INCONCLUSIVE

    def _switched(self) -> list[_Tried]:
        return [one for one in self._tried.values() if one.switched]

    def _switch(self, arms: Sequence[_Names], seconds: float) -> tuple[rounds.TrialRun | None, str]:
        """One process with rounds of these sets; once more without a change that ended the program."""
        right = tuple(one for one in arms if not any(self._of((name,)).error for name in one))
        limit_s = (self._startup_s if self._bases else self.plan.run_s) + 2 * seconds + _SPARE_S
        seconds = max(_LEAST_S, seconds)
        run, said = self._run("rounds", limit_s, replace(self._request, arms=right, seconds=seconds), ())
        if run is None:
            return None, said
        self._take(run)
        has_broken = run.active or any(one.error for one in run.arms)
        if not run.is_enough and run.exit_code == 0:
            self._request = replace(self._request, most_steps=run.steps)
        if run.is_enough or run.exit_code == 0 or not has_broken or self._restarts >= _RESTARTS:
            return run, said
        if run.active:
            end = run.error or said or f"exit code {run.exit_code}"
            self._of(run.active).error = f"the program ended with it: {end}"
        self._restarts += 1
        return self._switch(arms, seconds)

    def _stay(self, names: _Names) -> tuple[rounds.TrialRun | None, str]:
        live = tuple(one for one in names if self._by_name[one].is_live)
        asked = replace(
            self._request,
            arms=(live,) if live else (),
            installed=tuple(one for one in names if one not in live),
            is_constant=True,
            seconds=_CONSTANT_S,
        )
        limit_s = self._startup_s + _SPARE_S if self._bases else self.plan.run_s
        run, said = self._run(" + ".join(names) or "baseline", limit_s, asked, asked.installed)
        if run is not None:
            self._take_constant(run, names, said)
        elif names:
            self._of(names).error = said
        return run, said

    def _run(
        self, told: str, limit_s: float, request: rounds.TrialRequest, installed: _Names
    ) -> tuple[rounds.TrialRun | None, str]:
        self._told(told, self._runs, max(self._runs + 1, 1 + _PROCESSES))
        self._runs += 1
        folder = self._processes.scratch / "recording"
        if self.plan.predict and not installed and not folder.exists():
            folder.mkdir()
            request = replace(request, recording=str(folder))
        if self._next is not None and (request.is_constant or not self._next.is_alive):
            self._next.end()
            self._next = None
        if self._next is not None and (self._is_next_ready or any(map(self._compiles, request.arms))):
            self._running, self._next = self._next, None
            self._running.ask(request)
        else:
            environment = dict(pair for name in installed for pair in self._by_name[name].environment)
            self._running = self._processes.start(request, environment)
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
            self._expected = self.plan.predict(self._processes.scratch / "recording")

    def _take(self, run: rounds.TrialRun) -> None:
        if run.base_ns:
            self._bases.append(run)
        for arm in run.arms:
            tried = self._of(arm.names)
            if arm.not_tried is not None and len(arm.names) == 1:
                self._not_tried.setdefault(arm.names[0], arm.not_tried)
                continue
            tried.error = arm.error or arm.not_tried or tried.error
            tried.note(arm)
            if arm.logarithms:
                tried.switched.append(arm.logarithms)
        self._noise = noise_of(one.switched for one in self._tried.values())

    def _take_constant(self, run: rounds.TrialRun, names: _Names, said: str) -> None:
        if not names:
            if len(run.step_ns) >= rounds.LEAST_STEPS:
                self._bases.append(run)
            return
        tried = self._of(names)
        failed = [one for one in run.arms if one.error or one.not_tried]
        if run.not_applied or (failed and failed[0].not_tried):
            if len(names) == 1:
                self._not_tried[names[0]] = "it found nothing to change in the program"
            else:
                tried.error = f"{', '.join(run.not_applied or names)}: nothing is left to change"
            return
        if failed or len(run.step_ns) < rounds.LEAST_STEPS:
            end = run.error or said or f"too few steps to time: it made {run.steps}"
            tried.error = failed[0].error if failed else end
            return
        tried.apart.append(math.log(median(run.step_ns)))
        for arm in run.arms:
            tried.note(arm)
        if not run.arms:
            tried.peak_bytes = run.peak_bytes
            rounding = catalog.rounding_of([self._by_name[name] for name in names], run.facts.dtypes)
            base, again = self._bases[0].first_steps, self._bases[-1].first_steps
            correctness, numbers = replay.compare(run.first_steps, base, again, again, rounding)
            tried.note(rounds.ArmRun(names=names, correctness=correctness, numbers=numbers))

    def _require_program(self, run: rounds.TrialRun | None, said: str) -> None:
        error, hint = None, None
        if run is None:
            error = said
        elif not self._bases and run.exit_code:
            error = said or run.error
        elif not self._bases and not (
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

    def _is_right(self, tried: _Tried, *, takes_coarser: bool) -> bool:
        is_coarser = any(self._by_name[name].group == "precision" for name in tried.names)
        if tried.error is not None or tried.correctness not in rounds.RIGHT:
            return False
        return takes_coarser or not is_coarser or tried.correctness is Correctness.IDENTICAL

    def _best_of(
        self, *, takes_coarser: bool, is_final: bool = True, of: Sequence[_Tried] | None = None
    ) -> _Tried | None:
        """The set that makes the step shortest, of those about as good the one of fewest changes."""
        good: list[tuple[Pooled, _Tried]] = []
        for one in self._tried.values() if of is None else of:
            said = self._said(one)
            if said is None or not self._is_right(one, takes_coarser=takes_coarser):
                continue
            if said.verdict is TrialVerdict.FASTER or (not is_final and said.ratio < 1):
                good.append((said, one))
        if not good:
            return None
        least = min(said.ratio for said, _ in good)
        close = [one for said, one in good if said.ratio <= least * _NO_WORSE]
        return min(close, key=lambda one: (len(one.names), self._ratio(one)))

    @property
    def _step_ns(self) -> float:
        return median(time_ns for run in self._bases for time_ns in run.base_ns)

    def _changes_best(self, best: _Tried | None) -> BestChanges | None:
        said = None if best is None else self._said(best)
        if best is None or said is None:
            return None
        prefixes = [self._said(self._of(best.names[:count])) for count in range(1, len(best.names))]
        return BestChanges(
            names=best.names,
            step_ns=said.ratio * self._step_ns,
            ratio=said.ratio,
            ratio_interval=said.interval,
            steps_ns=tuple(one and one.ratio * self._step_ns for one in (*prefixes, said)),
            correctness=best.correctness,
            patch=self._patch_of([self._by_name[name] for name in best.names]),
            process_ratios=said.by_process,
        )

    def _patch_of(self, changes: Sequence[catalog.TriedChange]) -> str:
        """What to write for these changes."""
        parts = [one.patch for one in changes]
        if self._bases[0].facts.is_training:
            parts += dict.fromkeys(one.in_training for one in changes if one.in_training)
        return "\n".join(parts)

    def _suggestion(self, change: catalog.TriedChange) -> Finding | None:
        known = self._expected.findings
        return next((known[code] for code in change.findings if code in known), None)

    def _variant(self, change: catalog.TriedChange, tried: _Tried) -> Variant:
        finding, said, known = self._suggestion(change), self._said(tried), dict[str, Any]()
        if finding is not None and change.is_priced_by(finding.code, self._bases[0].facts):
            # The same program took longer, or less long, where it was recorded.
            scale = self._step_ns / self._expected.step_ns if self._expected.step_ns else 1.0
            ends = finding.gain_interval_ns_per_step
            known["predicted_gain_ns"] = scale * (finding.estimated_gain_ns_per_step or 0)
            known["predicted_interval_ns"] = ends and (scale * ends[0], scale * ends[1])
        if said is not None and tried.error is None:
            gain_ns = (1 - said.ratio) * self._step_ns
            is_right = self._is_right(tried, takes_coarser=self.plan.allow_precision)
            pays_off = round(tried.warm_up_ns / gain_ns) if tried.warm_up_ns and gain_ns > 0 else None
            known |= {
                "step_ns": said.ratio * self._step_ns,
                "interval_ns": (said.interval[0] * self._step_ns, said.interval[1] * self._step_ns),
                "ratio": said.ratio,
                "ratio_interval": said.interval,
                "process_ratios": said.by_process,
                "is_recommended": said.verdict is TrialVerdict.FASTER and is_right,
                "peak_bytes": tried.peak_bytes,
                "pays_off_after_steps": pays_off,
            }
        untimed = TrialVerdict.FAILED if tried.error else TrialVerdict.REFUSED
        return Variant(
            name=change.name,
            finding=None if finding is None else finding.code,
            verdict=untimed if tried.error or said is None else said.verdict,
            correctness=tried.correctness,
            error=tried.error,
            patch=self._patch_of([change]),
            warm_up_ns=tried.warm_up_ns,
            reason="; ".join(filter(None, [said.reason if said and not tried.error else "", tried.numbers])),
            **known,
        )

    def _result(self) -> TrialResult:
        target, here = self.plan.request.target, Path.cwd()
        if Path(target).is_relative_to(here):  # as a user would write it
            target = str(Path(target).relative_to(here))
        times_ns = [time_ns for run in self._bases for time_ns in run.base_ns]
        interval = median_interval(times_ns)
        against = [one.base_logarithms for one in self._bases if one.base_logarithms]
        noise = pooled(against) if against else None
        variants, not_reached = [], []
        for change in self.plan.changes:
            tried = self._tried.get(frozenset({change.name}))
            if change.name in self._not_tried:
                continue
            if tried is None or (not tried.count and not tried.is_wrong):
                not_reached.append(NotTried(change.name, "the trial ended before its turn"))
            else:
                variants.append(self._variant(change, tried))
        variants.sort(key=lambda one: (one.ratio is None, one.ratio or 0.0))
        remedied = {code for change in catalog.CATALOG for code in change.findings}
        inside = "only editing the program's own lines helps; advice predicts"
        own = [
            NotTried(
                said.code, f"{inside} −{format_duration(said.estimated_gain_ns_per_step)}: {said.message}"
            )
            for code, said in self._expected.findings.items()
            if code not in remedied
        ]
        best = self._best_of(takes_coarser=self.plan.allow_precision)
        reduced = self._best_of(takes_coarser=True)
        return TrialResult(
            program=" ".join([target, *without_secrets(self.plan.request.arguments)]),
            baseline=Baseline(
                interval.median_ns,
                interval.bounds_ns if interval.coverage >= 0.95 else None,
                len(self._bases),
                len(times_ns),
                self._bases[0].peak_bytes,
                None if self._request.kind == "workload" else self._request.steps,
            ),
            noise=None if noise is None else Noise(noise.ratio, noise.interval),
            variants=tuple(variants),
            not_tried=(
                *(NotTried(*one) for one in self._not_tried.items()), *not_reached,
                *(NotTried("compiling ahead", run.no_room) for run in self._bases[:1] if run.no_room),
                *own,
            ),
            best=self._changes_best(best),
            best_reduced_precision=self._changes_best(None if reduced is best else reduced),
            runs=self._runs,
            is_complete=not not_reached and not self._is_interrupted,
            is_interrupted=self._is_interrupted,
            device=self._bases[0].facts.device_name,
        )  # fmt: skip
