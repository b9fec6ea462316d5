"""Trying changes on a program: which processes to run when, what they say together, which set is the best.

The changes are switched on and off inside a running program (`rounds`), in two processes of it or more, for
ratios differ between processes too. What cannot be switched runs in processes of its own, started anew, and
so does every change of a program with few steps. What is known after a process decides what the next one is
for: the best sets first, then what is open.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

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
from opscope.trials import catalog, patches, processes, replay, rounds
from opscope.trials.child import AHEAD
from opscope.units import format_duration
from opscope.visible_text import without_secrets

BUDGET_S = 60.0
_FIRST = 0.45  # of the budget: the first process
_FEWEST_STEPS = 50  # with less, a program has too few steps for rounds
_LEAST_S, _SPARE_S = 2.0, 60.0  # rounds that are worth a process; what it may take beyond what was planned
_CONSTANT_S = 2.0  # of steps with changes that stay on
_PROCESSES, _MOST_PROCESSES = 2, 8  # of the program: that decide, and while time is left
_HOPELESS, _NO_WORSE = 1.1, 1.005
_RESTARTS = 3

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
    source: Path | None = None  # The script, for diffs; None if there is none

    def edited(self, changes: Sequence[catalog.TriedChange]) -> tuple[str | None, list[catalog.TriedChange]]:
        """The source with the changes that it holds lines for, None if there are none; and the others."""
        text = "" if self.source is None else self.source.read_text(encoding="utf-8")
        edits = {one.name: one.edits for one in changes if one.edits and patches.edited(text, [one.edits])}
        rest = [one for one in changes if one.name not in edits]
        return patches.edited(text, edits.values()) if edits else None, rest


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
        self._tried: dict[frozenset[str], _Tried] = {}
        self._not_tried: dict[str, str] = {}
        self._bases: list[rounds.TrialRun] = []  # of the program as it is
        self._noise: rounds.RoundNoise | None = None  # of its rounds, with any change
        self._expected = ExpectedGains({}, None)
        # Ranks would have to switch at the same step, and each decides by its own clock.
        self._is_constant = plan.request.kind == "ranks"
        self._runs, self._restarts = 0, 0
        self._began, self._startup_s = time.monotonic(), 0.0
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
                if self.plan.predict and not (folder := self._processes.scratch / "recording").exists():
                    self.plan.predict(folder)  # it says why there is nothing
            except KeyboardInterrupt:
                self._is_interrupted = True
                if self._processes.unfinished is not None:
                    self._take(self._processes.unfinished)
                if not self._bases:
                    raise
        return self._result()

    @property
    def _left_s(self) -> float:
        return self._began + self._startup_s + self.plan.budget_s - time.monotonic()

    def _said(self, tried: _Tried) -> rounds.Pooled | None:
        """What its processes say; None if it was not timed."""
        if tried.switched:
            said = rounds.pooled(tried.switched, self._noise)
            is_enough = sum(map(len, tried.switched)) >= rounds.FEW_ROUNDS
            return said if is_enough else said._replace(verdict=TrialVerdict.INCONCLUSIVE)
        if not tried.apart:
            return None
        usual = [math.log(median(one.base_ns)) for one in self._bases]
        scatter = max(rounds.APART, stdev(usual) if len(usual) > 1 else 0.0)
        if len(tried.apart) == 1:  # one process may be faster than the next for reasons of its own
            scatter = max(scatter, rounds.ALONE_APART)
        return rounds.pooled([[one - fmean(usual)] for one in tried.apart], scatter=scatter)

    def _ratio(self, tried: _Tried) -> float:
        said = self._said(tried)
        return math.inf if said is None else said.ratio

    def _ordered(self) -> list[catalog.TriedChange]:
        def promise(change: catalog.TriedChange) -> tuple[bool, float]:
            gain_ns = said.estimated_gain_ns_per_step if (said := self._suggestion(change)) else None
            return change.is_costly, -(gain_ns or 0.0)

        return sorted(self.plan.changes, key=promise)

    def _switch_first(self) -> None:
        live = tuple((one.name,) for one in self._ordered() if one.is_live and not self._is_constant)
        self._is_constant |= not live
        seconds = _CONSTANT_S if self._is_constant else max(_LEAST_S, _FIRST * self._left_s)
        began = time.monotonic()
        run, said = self._stay(()) if self._is_constant else self._switch(live, seconds)
        self._require_program(run, said)
        assert run is not None
        self._startup_s = run.startup_s
        self._overhead_s = max(0.0, time.monotonic() - began - (run.rounds_s or seconds))
        # Every other process times steps of the same kind, whatever it would recognize.
        self._request = replace(self._request, steps=run.taken)
        if not self._is_constant and not run.is_enough and self._has_few(run):
            self._is_constant = True
            self._require_program(*self._stay(()))
        for change in self._ordered():
            reason = change.applies(self._bases[0].facts)
            if reason is not None:
                self._not_tried[change.name] = reason

    def _has_few(self, run: rounds.TrialRun) -> bool:
        return not run.base_logarithms or run.steps < _FEWEST_STEPS

    def _go_on(self) -> None:
        """Further processes: of rounds for what is best and open; then of what stays on, and sets of it."""
        anew = [one for one in self._ordered() if self._is_constant or not one.is_live]
        while self._left_s > 0:
            count = sum(1 for one in self._bases if self._is_constant or one.base_logarithms)
            idle = {  # what stays on costs two processes
                one.name: "advice on a recording says nothing that it would help"
                for one in anew
                if self._expected.findings and one.findings and self._suggestion(one) is None
                if not one.is_live and one.name not in self.plan.asked
            }
            self._not_tried = idle | self._not_tried
            waiting = [one for one in anew if self._is_waiting(one.name, count)]
            best, open_ones = self._next_arms()
            arms, seconds = (*best, *open_ones), min(self._left_s, max(20.0, _FIRST * self.plan.budget_s))
            seconds = (seconds - self._overhead_s) / (2 if waiting else 1)
            is_due = count < _PROCESSES or (count < _MOST_PROCESSES and not waiting and open_ones)
            if not self._is_constant and arms and is_due and seconds >= _LEAST_S:
                if self._switch(arms, seconds)[0] is None:
                    break
            elif waiting:
                self._stay((waiting[0].name,))
            elif self._is_constant and count < _PROCESSES:
                self._stay(())
            else:
                break
        for takes_coarser in (False, True):
            self._grow(anew, takes_coarser=takes_coarser)

    def _is_waiting(self, name: str, count: int) -> bool:
        tried = self._of((name,))
        if name in self._not_tried or tried.is_wrong or tried.count >= min(_PROCESSES, count):
            return False
        return not tried.count or self._ratio(tried) < _HOPELESS

    def _grow(self, anew: Sequence[catalog.TriedChange], *, takes_coarser: bool) -> None:
        of = None if self._is_constant else self._switched()
        best = self._best_of(takes_coarser=takes_coarser, is_final=False, of=of)
        alone = [
            (change, math.log(self._ratio(single)))
            for change in anew
            if (single := self._of((change.name,))).count
            and self._is_right(single, takes_coarser=takes_coarser)
        ]
        while best is not None and self._left_s > 0:
            held = [self._by_name[name] for name in best.names]
            sets = (self._of((*best.names, one.name)) for one in catalog.addable(held, alone))
            grown = next((one for one in sets if not one.count and not one.is_wrong), None)
            if grown is None:
                break
            self._stay(grown.names)
            if self._ratio(grown) < self._ratio(best) and self._left_s > 0:
                best = grown
                self._stay(grown.names)  # one process may be faster for reasons of its own

    def _next_arms(self) -> tuple[list[_Names], list[_Names]]:
        """Sets for the next process: the best, and what was not tried, then what is open."""
        best = [
            self._best_of(takes_coarser=one, is_final=False, of=self._switched()) for one in (True, False)
        ]
        open_ones = [
            self._by_name[tried.names[0]]
            for tried in sorted(self._switched(), key=lambda one: -abs(self._ratio(one) - 1))
            if len(tried.names) == 1 and not tried.is_wrong and self._is_open(tried)
        ]
        new = [
            one
            for one in self._ordered()
            if one.is_live and one.name not in self._not_tried
            if not ((of := self._of((one.name,))).count or of.is_wrong)
        ]
        waiting = [*new, *open_ones]
        # Compiling takes as long as many steps; a program that ends soon has too few for both.
        is_short = self._request.most_steps is not None and len(self._bases) < _PROCESSES
        if is_short:
            waiting = [one for one in waiting if not one.is_costly] or waiting
        names = dict.fromkeys(one.names for one in best if one is not None)
        return [*names], [(one.name,) for one in waiting if (one.name,) not in names]

    def _is_open(self, tried: _Tried) -> bool:
        said = self._said(tried)
        if said is None or said.ratio >= _HOPELESS:
            return False
        is_seen_once = said.verdict is TrialVerdict.FASTER and tried.count < _PROCESSES
        return is_seen_once or said.verdict is TrialVerdict.INCONCLUSIVE

    def _switched(self) -> list[_Tried]:
        return [one for one in self._tried.values() if one.switched]

    def _switch(self, arms: Sequence[_Names], seconds: float) -> tuple[rounds.TrialRun | None, str]:
        """One process with rounds of these sets; once more without a change that ended the program."""
        right = tuple(one for one in arms if not any(self._of((name,)).error for name in one))
        limit_s = (self._startup_s if self._bases else self.plan.run_s) + 2 * seconds + _SPARE_S
        # In the program's own folder a second process would write to the same files.
        is_first = not self._bases and not self.plan.in_place
        asked = replace(self._request, arms=right, seconds=seconds, compiles_ahead=is_first)
        run, said = self._run("rounds", limit_s, asked, ())
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
        environment = dict(pair for name in installed for pair in self._by_name[name].environment)
        folder, predict = self._processes.scratch / "recording", self.plan.predict
        if predict is None or installed or folder.exists():
            return self._processes.run(request, environment, limit_s)
        folder.mkdir()
        found = self._processes.run(replace(request, recording=str(folder)), environment, limit_s)
        if any(folder.iterdir()):
            self._expected = predict(folder)
        else:  # the program ended before
            folder.rmdir()
        return found

    def _of(self, names: _Names) -> _Tried:
        return self._tried.setdefault(frozenset(names), _Tried(names))

    def _take(self, run: rounds.TrialRun) -> None:
        if run.base_ns:
            self._bases.append(run)
        # What was compiled ahead is read from a cache here.
        ahead = processes.found_in(self._processes.scratch / AHEAD)
        cold_ns = {} if ahead is None else {one.names: one.check_ns for one in ahead.arms}
        for arm in run.arms:
            tried = self._of(arm.names)
            if arm.not_tried is not None and len(arm.names) == 1:
                self._not_tried.setdefault(arm.names[0], arm.not_tried)
                continue
            tried.error = arm.error or arm.not_tried or tried.error
            if arm.check_ns:
                tried.warm_up_ns = max(tried.warm_up_ns or 0, arm.check_ns, cold_ns.get(arm.names, 0))
                self._note_numbers(tried, arm.correctness, arm.numbers)
            if arm.logarithms:
                tried.switched.append(arm.logarithms)
        self._noise = rounds.noise_of(one for tried in self._tried.values() for one in tried.switched)

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
        tried.warm_up_ns = sum(one.check_ns for one in run.arms) or None
        tried.peak_bytes = run.peak_bytes if run.arms == [] else None
        for arm in run.arms:
            self._note_numbers(tried, arm.correctness, arm.numbers)
        if not run.arms:
            rounding = catalog.rounding_of([self._by_name[name] for name in names], run.facts.dtypes)
            base, again = self._bases[0].first_steps, self._bases[-1].first_steps
            self._note_numbers(tried, *replay.compare(run.first_steps, base, again, again, rounding))

    def _note_numbers(self, tried: _Tried, correctness: Correctness, numbers: str) -> None:
        worse = (Correctness.UNKNOWN, Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING, Correctness.CHANGED)
        both = (correctness, numbers), (tried.correctness, tried.numbers)
        tried.correctness, tried.numbers = max(both, key=lambda one: worse.index(one[0]))

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
        if tried.error is not None or tried.correctness not in {
            Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING
        }:  # fmt: skip
            return False
        return takes_coarser or not is_coarser or tried.correctness is Correctness.IDENTICAL

    def _best_of(
        self, *, takes_coarser: bool, is_final: bool = True, of: Sequence[_Tried] | None = None
    ) -> _Tried | None:
        """The set that makes the step shortest, of those about as good the one of fewest changes."""
        good: list[tuple[rounds.Pooled, _Tried]] = []
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
        """What to write for these changes: a diff of what the source holds lines for, then snippets."""
        source, (after, rest) = self.plan.source, self.plan.edited(changes)
        parts = [one.snippet for one in rest]
        if self._bases[0].facts.is_training:
            parts += dict.fromkeys(one.in_training for one in changes if one.in_training)
        if after is not None and source is not None:
            parts.insert(0, patches.unified_diff(source.read_text(encoding="utf-8"), after, source.name))
        return "\n".join(parts)

    def _suggestion(self, change: catalog.TriedChange) -> Finding | None:
        known = self._expected.findings
        return next((known[code] for code in change.findings if code in known), None)

    def _variant(self, change: catalog.TriedChange, tried: _Tried) -> Variant:
        finding, said, gain_ns, interval_ns = self._suggestion(change), self._said(tried), None, None
        if finding is not None and change.is_priced_by(finding.code, self._bases[0].facts):
            # The same program took longer, or less long, where it was recorded.
            scale = self._step_ns / self._expected.step_ns if self._expected.step_ns else 1.0
            gain_ns = scale * (finding.estimated_gain_ns_per_step or 0)
            ends = finding.gain_interval_ns_per_step
            interval_ns = ends and (scale * ends[0], scale * ends[1])
        known = Variant(
            name=change.name,
            finding=None if finding is None else finding.code,
            verdict=TrialVerdict.FAILED if tried.error or said is None else said.verdict,
            correctness=tried.correctness,
            predicted_gain_ns=gain_ns,
            predicted_interval_ns=interval_ns,
            error=tried.error,
            patch=self._patch_of([change]),
            warm_up_ns=tried.warm_up_ns,
            reason=tried.numbers,
        )
        if tried.error is not None:
            return known
        if said is None:  # refused before it was timed
            return replace(known, verdict=TrialVerdict.REFUSED)
        gain_ns = (1 - said.ratio) * self._step_ns
        is_right = self._is_right(tried, takes_coarser=self.plan.allow_precision)
        return replace(
            known,
            step_ns=said.ratio * self._step_ns,
            interval_ns=(said.interval[0] * self._step_ns, said.interval[1] * self._step_ns),
            ratio=said.ratio,
            ratio_interval=said.interval,
            process_ratios=said.by_process,
            reason=f"{said.reason}; {tried.numbers}",
            is_recommended=said.verdict is TrialVerdict.FASTER and is_right,
            peak_bytes=tried.peak_bytes,
            pays_off_after_steps=round(tried.warm_up_ns / gain_ns)
            if tried.warm_up_ns and gain_ns > 0
            else None,
        )

    def _result(self) -> TrialResult:
        target, here = self.plan.request.target, Path.cwd()
        if Path(target).is_relative_to(here):  # as a user would write it
            target = str(Path(target).relative_to(here))
        times_ns = [time_ns for run in self._bases for time_ns in run.base_ns]
        interval = median_interval(times_ns)
        against = [one.base_logarithms for one in self._bases if one.base_logarithms]
        noise = rounds.pooled(against) if against else None
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
                *(NotTried("compiling ahead", run.not_ahead) for run in self._bases if run.not_ahead),
                *own,
            ),
            best=self._changes_best(best),
            best_reduced_precision=self._changes_best(None if reduced is best else reduced),
            runs=self._runs,
            is_complete=not not_reached and not self._is_interrupted,
            is_interrupted=self._is_interrupted,
            device=self._bases[0].facts.device_name,
        )  # fmt: skip
