"""What is known of a program's changes from the processes that ran it: verdicts, the best sets, the result.

`TriedChanges` takes what each process found. Nothing here runs anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from opscope.benchmarking.statistics import median_interval
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
from opscope.trials import catalog, replay, rounds
from opscope.trials.pooling import Pooled, ProgramNoise, noise_of, pooled
from opscope.units import format_duration
from opscope.visible_text import without_secrets

BUDGET_S = 60.0
PROCESSES = 2  # of the program, that decide
HOPELESS, _NO_WORSE = 1.1, 1.005
# Steps differ by so much between processes started anew (5 to 30 % on H100s), and of one that ran once.
_APART, _ALONE_APART = 0.05, 0.1

Names = tuple[str, ...]


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
class Tried:
    names: Names
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


class TriedChanges:
    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan
        self.by_name = {one.name: one for one in plan.changes}
        self.not_tried: dict[str, str] = {}
        self.bases: list[rounds.TrialRun] = []  # of the program as it is
        self.expected = ExpectedGains({}, None)
        self._tried: dict[frozenset[str], Tried] = {}
        self._noise: ProgramNoise | None = None  # of its rounds, with any change

    def said(self, tried: Tried) -> Pooled | None:
        """What its processes say; None if it was not timed."""
        if tried.switched:
            said = pooled(tried.switched, self._noise)
            is_enough = sum(map(len, tried.switched)) >= rounds.FEW_ROUNDS
            return said if is_enough else said._replace(verdict=TrialVerdict.INCONCLUSIVE)
        if not tried.apart:
            return None
        usual = [math.log(median(one.base_ns)) for one in self.bases]
        scatter = max(_APART, stdev(usual) if len(usual) > 1 else 0.0)
        if len(tried.apart) == 1:  # one process may be faster than the next for reasons of its own
            scatter = max(scatter, _ALONE_APART)
        return pooled([[one - fmean(usual)] for one in tried.apart], scatter=scatter)

    def ratio(self, tried: Tried) -> float:
        said = self.said(tried)
        return math.inf if said is None else said.ratio

    def of(self, names: Names) -> Tried:
        return self._tried.setdefault(frozenset(names), Tried(names))

    def suggestion(self, change: catalog.TriedChange) -> Finding | None:
        known = self.expected.findings
        return next((known[code] for code in change.findings if code in known), None)

    def switched(self) -> list[Tried]:
        return [one for one in self._tried.values() if one.switched]

    def is_open(self, tried: Tried) -> bool:
        said = self.said(tried)
        if said is None or tried.is_wrong or said.ratio >= HOPELESS:
            return False
        is_seen_once = said.verdict is TrialVerdict.FASTER and tried.count < PROCESSES
        return is_seen_once or said.verdict is TrialVerdict.INCONCLUSIVE

    def is_wanted(self, names: Names) -> bool:
        tried = self.of(names)
        return not tried.is_wrong and (not tried.count or (len(names) == 1 and self.is_open(tried)))

    def is_right(self, tried: Tried, *, takes_coarser: bool) -> bool:
        is_coarser = any(self.by_name[name].group == "precision" for name in tried.names)
        if tried.error is not None or tried.correctness not in rounds.RIGHT:
            return False
        return takes_coarser or not is_coarser or tried.correctness is Correctness.IDENTICAL

    def best_of(
        self, *, takes_coarser: bool, is_final: bool = True, of: Sequence[Tried] | None = None
    ) -> Tried | None:
        """The set that makes the step shortest, of those about as good the one of fewest changes."""
        good: list[tuple[Pooled, Tried]] = []
        for one in self._tried.values() if of is None else of:
            said = self.said(one)
            if said is None or not self.is_right(one, takes_coarser=takes_coarser):
                continue
            if said.verdict is TrialVerdict.FASTER or (not is_final and said.ratio < 1):
                good.append((said, one))
        if not good:
            return None
        leading, best = min(good, key=lambda one: one[0].ratio)
        # What does nothing alone is no part of it, unless the set is clear of the one without.
        alone = {name: self.said(self.of((name,))) for name in best.names}
        idle = {name for name, said in alone.items() if said and said.verdict is TrialVerdict.SAME}
        close = [
            one
            for said, one in good
            if said.ratio <= leading.ratio * _NO_WORSE
            or (
                set(best.names) - idle <= set(one.names) < set(best.names)
                and said.interval[0] <= leading.ratio
            )
        ]
        return min(close, key=lambda one: (len(one.names), self.ratio(one)))

    @property
    def step_ns(self) -> float:
        return median(time_ns for run in self.bases for time_ns in run.base_ns)

    def take(self, run: rounds.TrialRun) -> None:
        if run.base_ns:
            self.bases.append(run)
        for arm in run.arms:
            tried = self.of(arm.names)
            if arm.not_tried is not None and len(arm.names) == 1:
                self.not_tried.setdefault(arm.names[0], arm.not_tried)
                continue
            tried.error = arm.error or arm.not_tried or tried.error
            tried.note(arm)
            if arm.logarithms:
                tried.switched.append(arm.logarithms)
        self._noise = noise_of(one.switched for one in self._tried.values())

    def take_constant(self, run: rounds.TrialRun, names: Names, said: str) -> None:
        if not names:
            if len(run.step_ns) >= rounds.LEAST_STEPS:
                self.bases.append(run)
            return
        tried = self.of(names)
        failed = [one for one in run.arms if one.error or one.not_tried]
        if run.not_applied or (failed and failed[0].not_tried):
            if len(names) == 1:
                self.not_tried[names[0]] = "it found nothing to change in the program"
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
            rounding = catalog.rounding_of([self.by_name[name] for name in names], run.facts.dtypes)
            base, again = self.bases[0].first_steps, self.bases[-1].first_steps
            correctness, numbers = replay.compare(run.first_steps, base, again, again, rounding)
            tried.note(rounds.ArmRun(names=names, correctness=correctness, numbers=numbers))

    def _changes_best(self, best: Tried | None) -> BestChanges | None:
        said = None if best is None else self.said(best)
        if best is None or said is None:
            return None
        prefixes = [self.said(self.of(best.names[:count])) for count in range(1, len(best.names))]
        return BestChanges(
            names=best.names,
            step_ns=said.ratio * self.step_ns,
            ratio=said.ratio,
            ratio_interval=said.interval,
            steps_ns=tuple(one and one.ratio * self.step_ns for one in (*prefixes, said)),
            correctness=best.correctness,
            patch=self._patch_of([self.by_name[name] for name in best.names]),
            process_ratios=said.by_process,
        )

    def _patch_of(self, changes: Sequence[catalog.TriedChange]) -> str:
        """What to write for these changes."""
        parts = [one.patch for one in changes]
        if self.bases[0].facts.is_training:
            parts += dict.fromkeys(one.in_training for one in changes if one.in_training)
        return "\n".join(parts)

    def _variant(self, change: catalog.TriedChange, tried: Tried) -> Variant:
        finding, said, known = self.suggestion(change), self.said(tried), dict[str, Any]()
        if finding is not None and change.is_priced_by(finding.code, self.bases[0].facts):
            # The same program took longer, or less long, where it was recorded.
            scale = self.step_ns / self.expected.step_ns if self.expected.step_ns else 1.0
            ends = finding.gain_interval_ns_per_step
            known["predicted_gain_ns"] = scale * (finding.estimated_gain_ns_per_step or 0)
            known["predicted_interval_ns"] = ends and (scale * ends[0], scale * ends[1])
        if said is not None and tried.error is None:
            gain_ns = (1 - said.ratio) * self.step_ns
            is_right = self.is_right(tried, takes_coarser=self._plan.allow_precision)
            pays_off = round(tried.warm_up_ns / gain_ns) if tried.warm_up_ns and gain_ns > 0 else None
            known |= {
                "step_ns": said.ratio * self.step_ns,
                "interval_ns": (said.interval[0] * self.step_ns, said.interval[1] * self.step_ns),
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

    def result(self, request: rounds.TrialRequest, runs: int, *, is_interrupted: bool) -> TrialResult:
        target, here = self._plan.request.target, Path.cwd()
        if Path(target).is_relative_to(here):  # as a user would write it
            target = str(Path(target).relative_to(here))
        times_ns = [time_ns for run in self.bases for time_ns in run.base_ns]
        interval = median_interval(times_ns)
        against = [one.base_logarithms for one in self.bases if one.base_logarithms]
        noise = pooled(against) if against else None
        variants, not_reached = [], []
        for change in self._plan.changes:
            tried = self._tried.get(frozenset({change.name}))
            if change.name in self.not_tried:
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
            for code, said in self.expected.findings.items()
            if code not in remedied
        ]
        best = self.best_of(takes_coarser=self._plan.allow_precision)
        reduced = self.best_of(takes_coarser=True)
        return TrialResult(
            program=" ".join([target, *without_secrets(self._plan.request.arguments)]),
            baseline=Baseline(
                interval.median_ns,
                interval.bounds_ns if interval.coverage >= 0.95 else None,
                len(self.bases),
                len(times_ns),
                self.bases[0].peak_bytes,
                None if request.kind == "workload" else request.steps,
            ),
            noise=None if noise is None else Noise(noise.ratio, noise.interval),
            variants=tuple(variants),
            not_tried=(
                *(NotTried(*one) for one in self.not_tried.items()), *not_reached,
                *(NotTried("compiling ahead", run.no_room) for run in self.bases[:1] if run.no_room),
                *own,
            ),
            best=self._changes_best(best),
            best_reduced_precision=self._changes_best(None if reduced is best else reduced),
            runs=runs,
            is_complete=not not_reached and not is_interrupted,
            is_interrupted=is_interrupted,
            device=self.bases[0].facts.device_name,
        )  # fmt: skip
