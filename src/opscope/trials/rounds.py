"""Trying changes on a program: which to run when, what their times say, and which set is the best.

Every run is a process of its own with the same seed; the program as it is runs twice, so that noise is known,
and a change is judged over all rounds both ran in. First every change runs once, those of which advice says
most before the others. From these single runs the best set is grown, the largest gain first: each addition
runs once, also one that alone brought nothing, because what limits the program is another thing by then. The
set, each of its steps and the program run in turns, in random order, until there are enough rounds, and what
does not stand is left out. What remains is for the other changes.

With a budget, single runs take half of the time that is left, then the set is grown from what they showed,
and so on: however short it is, something is found. What it leaves over goes to more rounds of what is
inconclusive.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from dataclasses import replace as _replace
from functools import lru_cache
from itertools import chain as chained
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean, median

import numpy as np
from msgspec.structs import replace

from opscope.analysis.measured_step import step_times
from opscope.benchmarking.statistics import (
    judge,
    median_interval,
    ratio_interval,
    samples_to_tell,
    student_quantile,
)
from opscope.errors import CaptureError
from opscope.model.benchmark import Interval, Verdict
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
from opscope.trials.catalog import CATALOG, ROUNDINGS, TriedChange
from opscope.trials.child import LEAST_STEPS, TrialRequest, TrialRun
from opscope.trials.observation import compare
from opscope.trials.patches import edited, unified_diff
from opscope.trials.predictions import SaidGain
from opscope.trials.processes import ProgramRuns
from opscope.units import counted, format_duration
from opscope.visible_text import without_secrets

BASELINE, _AGAIN = "baseline", "baseline again"
_SAME_WITHIN, _MOST_SAME_WITHIN = 0.02, 0.1
_VERDICTS = {
    Verdict.FASTER: TrialVerdict.FASTER,
    Verdict.SLOWER: TrialVerdict.SLOWER,
    Verdict.SAME: TrialVerdict.SAME,
    Verdict.AMBIGUOUS: TrialVerdict.INCONCLUSIVE,
}

# How far equal processes scatter; it counts like one round of the baseline against itself. One pair tells
# little: 12 runs of a training step on an H200 scattered by 9 %, and the first two agreed within 0.5 %.
_USUAL_SCATTER, _SCATTER_OF_ONE_PAIR, _USUAL_ROUNDS = 0.01, 0.08, 1
_MOST_ROUNDS = 12  # however much time is left
_MOST_WORTHWHILE = 100  # rounds that anybody would wait for
_SAME_ROUNDS = 3  # in which equal programs have shown how far they are apart
# What a run may take in any case, so that one which is nearly done when the budget ends still counts.
_LEAST_S = 10.0
_RECENT_RUNS = 8
_COSTLY_S = 20.0  # what a run that compiles takes longer: BERT on an H200, 18 to 22 s
_MUCH_SLOWER = 1.1
_NOT_COMBINED = frozenset({TrialVerdict.SLOWER, TrialVerdict.FAILED})

Told = Callable[[str, int, int], object]
_Changes = tuple[TriedChange, ...]


class _OutOfTimeError(Exception):
    """The budget is spent."""


@dataclass(frozen=True)
class TrialPlan:
    """What to try, and how."""

    request: TrialRequest  # The program; its changes are ours to fill in
    changes: Sequence[TriedChange]  # To try
    change_files: Mapping[str, Path] = field(default_factory=dict)  # Files of the user's own changes, by name
    rounds: int = 3  # Of every change that may be faster; more of what is inconclusive while a budget is left
    budget_s: float | None = None  # Time for all; None for any
    run_s: float = 300.0  # Time for one run
    allow_precision: bool = False  # Recommend changes whose numbers are within rounding of a coarser type
    in_place: bool = False  # Run in the working folder instead of an empty one
    # Records the program of a request for what advice says of it, by its code, in so many seconds; None to go
    # without
    predict: Callable[[TrialRequest, ProgramRuns, float], Mapping[str, SaidGain]] | None = None
    source: Path | None = None  # The script, for diffs; None if there is none

    def patch_of(self, changes: Sequence[TriedChange]) -> str:
        """What to write for these changes: a diff of what the source holds lines for, then snippets."""
        in_source, rest = self._split(changes)
        parts = [one.snippet for one in rest]
        if in_source and self.source is not None:
            before, after = self.source.read_text(encoding="utf-8"), self.edited(changes)
            assert after is not None
            parts.insert(0, unified_diff(before, after, self.source.name))
        return "\n".join(parts)

    def edited(self, changes: Sequence[TriedChange]) -> str | None:
        """The source with the changes that it holds lines for; None if there are none."""
        in_source, _ = self._split(changes)
        if self.source is None or not in_source:
            return None
        text = self.source.read_text(encoding="utf-8")
        return edited(text, [one.edits for one in in_source if one.edits is not None])

    def _split(self, changes: Sequence[TriedChange]) -> tuple[list[TriedChange], list[TriedChange]]:
        """Those that the source holds lines for, and the others."""
        text = None if self.source is None else self.source.read_text(encoding="utf-8")
        here = [one for one in changes if text and one.edits is not None and edited(text, [one.edits])]
        return here, [one for one in changes if one not in here]


@dataclass
class _Side:
    """All runs of one set of changes; times by round."""

    changes: _Changes
    label: str = ""
    times_ns: dict[int, list[float]] = field(default_factory=dict)
    warm_up_ns: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    facts: TrialRun | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.label = self.label or " + ".join(one.name for one in self.changes)

    @property
    def has_run(self) -> bool:
        return self.error is not None or bool(self.times_ns)

    @property
    def all_ns(self) -> list[float]:
        return [one for times in self.times_ns.values() for one in times]

    @property
    def median_ns(self) -> float:
        return float(np.median(self.all_ns))


# Asked again of the same runs at every decision.
_interval = lru_cache(maxsize=256)(ratio_interval)

# A ratio with its interval, the verdict, and what that rests on.
_Judged = tuple[tuple[float, Interval], TrialVerdict, str]


class Trial:
    """Tries the changes of a plan; `told` before each run what runs, how many ran and how many will."""

    def __init__(self, plan: TrialPlan, told: Told = lambda *_: None) -> None:
        self.plan, self._told, self._request = plan, told, plan.request
        self._random = random.Random(plan.request.seed)
        self._base, self._again = _Side((), BASELINE), _Side((), _AGAIN)
        self._sides: dict[_Changes, _Side] = {}  # single changes and sets of them
        self._not_tried: list[NotTried] = []
        self._runs, self._expected = 0, 2
        self._rounds = plan.rounds
        self._began = time.monotonic()
        self._is_complete, self._is_interrupted = True, False
        self._took_s: list[float] = []
        self._said: Mapping[str, SaidGain] = {}
        self._processes = ProgramRuns(in_place=plan.in_place)
        self._chain: list[_Side] = []

    def run(self) -> TrialResult:
        """Try all changes; interrupted, what is known by then. A CaptureError if the program itself fails."""
        with self._processes.open():
            self._run_once(self._base, 0)
            self._require_baseline()
            # Every other run times steps of the same kind, whatever it would recognize.
            self._request = replace(self._request, steps=self._base_facts.taken)
            try:
                self._predict()
                self._run_again()
                waiting = self._waiting()
                while waiting:
                    self._screen(waiting)
                    self._combine()
                self._rest()
                while self._is_worth_a_round():
                    self._rounds += 1
                    self._combine()
                    self._rest()
            except (KeyboardInterrupt, _OutOfTimeError) as end:
                self._is_interrupted = isinstance(end, KeyboardInterrupt)
                self._is_complete &= self._rounds > self.plan.rounds
                self._keep_best_alone()
        return self._result()

    @property
    def _base_facts(self) -> TrialRun:
        """What a run of the program as it is found."""
        facts = self._base.facts
        assert facts is not None
        return facts

    def _predict(self) -> None:
        """Ask advice what it expects of the program."""
        if self.plan.predict is not None:
            self._told("advice", self._runs, self._expected + 1)
            self._runs += 1
            limit_s = min(self.plan.run_s, self._left_s / 2)
            self._said = self.plan.predict(self._request, self._processes, limit_s)

    def _run_again(self) -> None:
        """Run the program as it is twice more, for the noise: the first process does not count.

        It imported on a machine that had read none of the files, and was slower than the second in 20 of 28
        trials on H100s, once by half.
        """
        second = _Side((), BASELINE)
        self._run_once(second, 0)
        if second.error is None:
            self._base = second
        self._run_once(self._again, 0)

    def _is_over(self, runs: int = 0, extra_s: float = 0.0) -> bool:
        """Whether the budget would be spent after so many more runs, and some time besides."""
        expected_s = runs * float(np.median(self._took_s[-_RECENT_RUNS:]))
        return expected_s + extra_s > self._left_s

    @property
    def _left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        budget_s = math.inf if self.plan.budget_s is None else self.plan.budget_s
        return self._began + budget_s - time.monotonic()

    def _require_baseline(self) -> None:
        error, hint = self._base.error, None
        if error is None:
            return
        # It may have failed for a file by a path that is relative to its folder.
        own, words = Path(self.plan.request.target).name, re.findall(r"[\w./-]*[./][\w./-]*\w", error)
        others = [one for one in words if not one.startswith("/") and Path(one).name != own]
        names_file_here = "FileNotFoundError" in error or any(Path(one).exists() for one in others)
        if names_file_here and not self.plan.in_place:
            hint = "It ran in an empty folder: to run it in this one, whose files it reads, use --in-place"
        elif "steps" in error:
            hint = "Name what ends a step (--steps FUNCTION or mark:NAME), or let it make more of them"
        raise CaptureError(f"the program fails without any change: {error}", hint=hint)

    def _waiting(self) -> list[_Side]:
        """The changes that apply; those that compile come last, those of which advice says most first."""
        for change in self.plan.changes:
            reason = change.applies(self._base_facts.facts)
            if reason is None:
                self._side_of((change,))
            else:
                self._not_tried.append(NotTried(change.name, reason))
        return sorted(
            self._singles(),
            key=lambda side: (side.changes[0].is_costly, -self._gain_said_ns(side.changes[0])),
        )

    def _screen(self, waiting: list[_Side]) -> None:
        """Run changes once, taken from those waiting, until half of the time that is left is spent.

        Or until those that are left compile: they are tried together with what these have shown first.
        """
        began, is_costly = time.monotonic(), waiting[0].changes[0].is_costly
        self._expected = max(self._expected, self._runs + len(waiting))
        while waiting:
            if self._is_over():
                raise _OutOfTimeError
            if waiting[0].changes[0].is_costly and not is_costly:
                return
            side = waiting.pop(0)
            if side.has_run:
                continue
            self._run_once(side, 0)
            if time.monotonic() - began > self._left_s:
                return

    def _round(self, number: int, sides: Sequence[_Side]) -> None:
        """One run of each side, in random order."""
        self._expected = max(self._expected, self._runs + len(sides))
        for side in self._random.sample(sides, len(sides)):
            if self._is_over():
                raise _OutOfTimeError
            self._run_once(side, number)

    def _rest(self) -> None:
        """More rounds of the changes of which they tell more, and of the program."""
        while open_sides := [
            side
            for side in (self._base, self._again, *self._singles())
            if len(side.times_ns) < self._rounds and not self._is_settled(side)
        ]:
            others = [side for side in open_sides if side is not self._base]
            self._round(max(self._base.times_ns) + 1, [self._base, *others])

    def _is_worth_a_round(self) -> bool:
        """Whether a budget is left, and something is inconclusive of which another round may tell."""
        is_open = any(
            not self._is_settled(side) and self._against(side)[1] is TrialVerdict.INCONCLUSIVE
            for side in self._tried()
        )
        has_time = self.plan.budget_s is not None and not self._is_over(runs=3)
        return is_open and has_time and self._rounds < _MOST_ROUNDS

    def _is_settled(self, side: _Side) -> bool:
        """Whether more rounds tell nothing: it failed, its numbers are others, or it is not faster."""
        if side.error is not None or not side.changes:
            return side.error is not None
        if self._correctness(side)[0] is Correctness.CHANGED:
            return True
        (ratio, (low, _)), verdict, _ = self._against(side)
        is_same = verdict is TrialVerdict.SAME and abs(ratio - 1) <= _SAME_WITHIN
        return is_same or low > _MUCH_SLOWER

    def _run_once(self, side: _Side, number: int) -> None:
        """One run of a side, added to what is known of it."""
        self._told(side.label, self._runs, max(self._expected, self._runs + 1))
        self._runs += 1
        left_s = math.inf if side.label == BASELINE else _LEAST_S + max(0.0, self._left_s)
        began = time.monotonic()
        facts, said = self._process(side.changes, min(self.plan.run_s, left_s))
        self._took_s.append(time.monotonic() - began)
        if facts is None and left_s < self.plan.run_s and self._is_over():
            raise _OutOfTimeError
        if facts is None:
            side.error = said
            return
        if facts.not_applied and len(side.changes) > 1:
            side.error = f"{', '.join(facts.not_applied)}: nothing is left to change"
            return
        if facts.not_applied and not facts.error:
            self._not_tried.append(NotTried(side.label, "it found nothing to change in the program"))
            self._sides.pop(side.changes, None)
            return
        has_device = facts.facts.device == "cuda"
        times_ns, warm_up_ns = step_times(facts.samples, has_device=has_device)
        if not facts.is_enough and facts.exit_code:
            side.error = said or facts.error
            return
        side.facts = side.facts or facts
        if not times_ns:
            end = f"ended by itself ({said})" if said else "ended by itself"
            side.error = side.error or (
                f"too few steps to time: it made {facts.steps} of {LEAST_STEPS} and "
                f"{'was ended' if facts.is_enough else end}"
            )
            return
        side.times_ns[number] = times_ns
        side.warm_up_ns.append(warm_up_ns + facts.first_calls_ns)
        side.peak_bytes = max(side.peak_bytes or 0, facts.peak_bytes or 0) or None

    def _process(self, changes: _Changes, limit_s: float) -> tuple[TrialRun | None, str]:
        """What a run found, None if it left nothing; and the last lines of what it said."""
        files = self.plan.change_files
        request = replace(
            self._request,
            changes=tuple(one.name for one in changes if one.name not in files),
            change_files=tuple(str(files[one.name]) for one in changes if one.name in files),
        )
        environment = dict(pair for one in changes for pair in one.environment)
        return self._processes.run(request, environment, limit_s)

    def _against(self, side: _Side, reference: _Side | None = None) -> _Judged:
        """A side beside another, the baseline if none is given, over the rounds both ran in."""
        reference = reference or self._base
        pairs = [
            pair
            for number in sorted(side.times_ns.keys() & reference.times_ns.keys())
            for pair in zip(side.times_ns[number], reference.times_ns[number], strict=False)
        ]
        ours, theirs = zip(*pairs, strict=True)
        rounds = len(side.times_ns.keys() & reference.times_ns.keys())
        noise = self._noise(rounds)
        within = _interval(ours, theirs, seed=self.plan.request.seed)
        has_rounds = rounds >= _SAME_ROUNDS
        same_within = min(max(_SAME_WITHIN, noise), _MOST_SAME_WITHIN) if has_rounds else _SAME_WITHIN
        verdict, reason = judge(within, same_within)
        down, up = (abs(math.log(end / within.ratio)) for end in (within.low, within.high))
        low = within.ratio * math.exp(-math.hypot(down, noise))
        high = within.ratio * math.exp(math.hypot(up, noise))
        if verdict in {Verdict.FASTER, Verdict.SLOWER} and low <= 1 <= high:
            verdict, reason = Verdict.AMBIGUOUS, _lost_in_noise(within.ratio, noise)
        if verdict is Verdict.AMBIGUOUS:
            more = samples_to_tell(_replace(within, low=low, high=high), _SAME_WITHIN)
            needed = rounds + math.ceil(more * rounds / within.rounds)
            if needed <= _MOST_WORTHWHILE:
                reason += f"; about {counted(more, 'more step')} would settle it (--rounds {needed})"
            else:
                reason += "; more rounds alone would hardly settle it"
        return (within.ratio, (low, high)), _VERDICTS[verdict], reason

    def _noise(self, rounds: int) -> float:
        """Half of the 95 % interval of the logarithm of a ratio of two equal programs over so many rounds.

        Two processes of one program differ by more than the steps of each of them tell: addresses, clocks and
        neighbors are others. The baseline against itself shows by how much, one number a round, and so do the
        rounds of every other side around their mean. That two processes agree by chance does not make the
        third agree, so a usual scatter counts too.

        Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, §2.6 and §3.2 (scaled inverse χ² prior
        of a variance; the posterior interval is Student's).
        """
        pairs = self._logarithms(self._again)
        by_side = [ratios for side in self._sides.values() if (ratios := self._logarithms(side))]
        others = [[one - fmean(ratios) for one in ratios] for ratios in by_side]
        usual = _USUAL_SCATTER if len(pairs) > 1 else _SCATTER_OF_ONE_PAIR
        freedom = _USUAL_ROUNDS + len(pairs) + sum(len(ratios) - 1 for ratios in others)
        squares = _USUAL_ROUNDS * usual**2 + sum(one**2 for one in chained(pairs, *others)) / 2
        return student_quantile(freedom) * math.sqrt(squares / freedom) * math.sqrt(2 / rounds)

    def _logarithms(self, side: _Side) -> list[float]:
        """Of the ratios of its median step to the baseline's, by round."""
        base = self._base.times_ns
        return [
            math.log(median(side.times_ns[one]) / median(base[one]))
            for one in base.keys() & side.times_ns.keys()
        ]

    def _correctness(self, side: _Side) -> tuple[Correctness, str]:
        base, again = self._base.facts, self._again.facts
        if side.facts is None or base is None or again is None:
            return Correctness.UNKNOWN, "the baseline ran once only"
        rounding = max((one.rounding for one in side.changes), default=0.0)
        if rounding:  # other operations, in the types that the program computes in
            rounding = max([rounding, *(ROUNDINGS.get(one, 0.0) for one in base.facts.dtypes)])
        found, reason = compare(base.observation, again.observation, side.facts.observation, rounding)
        if (
            found is Correctness.CHANGED
            and any(one.redraws for one in side.changes)
            and base.facts.has_dropout
        ):
            return (
                Correctness.UNKNOWN,
                "compiled, dropout drops other elements, so numbers cannot be compared",
            )
        return found, reason

    def _variant(self, side: _Side) -> Variant:
        (change,) = side.changes
        code, said = self._suggested(change)
        is_priced = code is not None and change.is_priced_by(code, self._base_facts.facts)
        said = said.of(self._base.median_ns) if said is not None and is_priced else None
        known = Variant(
            name=change.name,
            finding=None if code is None else f"advice.{code}",
            verdict=TrialVerdict.FAILED,
            predicted_gain_ns=None if said is None else said.gain_ns,
            predicted_interval_ns=None if said is None else said.interval_ns,
            error=side.error,
            patch=self.plan.patch_of([change]),
        )
        if side.error is not None:
            return known
        (ratio, bounds), verdict, reason = self._against(side)
        noise = self._noise(len(side.times_ns))
        if verdict is TrialVerdict.SAME and noise > _MOST_SAME_WITHIN:
            verdict, reason = TrialVerdict.INCONCLUSIVE, _lost_in_noise(ratio, noise)
        correctness, numbers = self._correctness(side)
        interval, gain_ns = median_interval(side.all_ns), self._base.median_ns - side.median_ns
        warm_up_ns = max(side.warm_up_ns)
        extra_ns = max(0.0, warm_up_ns - max(self._base.warm_up_ns))
        return replace(
            known,
            step_ns=interval.median_ns,
            interval_ns=interval.bounds_ns,
            ratio=ratio,
            ratio_interval=bounds,
            verdict=verdict,
            reason=f"{reason}; {numbers}",
            correctness=correctness,
            is_recommended=verdict is TrialVerdict.FASTER and self._is_right(side, correctness),
            peak_bytes=side.peak_bytes,
            warm_up_ns=warm_up_ns,
            pays_off_after_steps=round(extra_ns / gain_ns) if gain_ns > 0 else None,
        )

    def _suggested(self, change: TriedChange) -> tuple[str | None, SaidGain | None]:
        """The finding that suggests a change, and what it says that is gained."""
        code = next((code for code in change.findings if code in self._said), None)
        return code, None if code is None else self._said[code]

    def _gain_said_ns(self, change: TriedChange) -> float:
        said = self._suggested(change)[1]
        return 0.0 if said is None else said.gain_ns

    def _is_right(self, side: _Side, correctness: Correctness) -> bool:
        is_coarser = any(one.group == "precision" for one in side.changes)
        if correctness is Correctness.WITHIN_ROUNDING:
            return self.plan.allow_precision or not is_coarser
        return correctness is Correctness.IDENTICAL

    def _combine(self) -> None:
        """Grow the best set from single runs, and measure it until every step of it stands."""
        self._keep_best_alone()
        refused: set[_Changes] = set()
        while self._grow(refused):
            baselines = [self._base, self._again]
            for _ in range(max(0, self._rounds - min(len(side.times_ns) for side in self._chain))):
                self._round(max(baselines[0].times_ns) + 1, [*baselines, *self._chain])
            standing = self._standing()
            if len(standing) == len(self._chain):
                return
            refused.add(self._chain[len(standing)].changes)

    def _grow(self, refused: Set[_Changes]) -> bool:
        """Add changes to the best set one by one while each helps; those alone most gainful come first.

        Costly changes, which compile, are tried on top of that, and alone when there is time: what limits the
        program is another thing by then, and one compilation is saved.
        """
        chain: list[_Side] = []
        candidates = [(self._variant(side), side) for side in self._tried()]
        candidates.sort(key=lambda one: one[0].ratio or 1.0)
        helpful = [
            side.changes[0]
            for variant, side in candidates
            if variant.verdict not in _NOT_COMBINED
            and (variant.ratio or 1.0) < _MUCH_SLOWER
            and self._is_right(side, variant.correctness)
        ]
        costly = [
            side.changes[0] for side in self._singles() if side.changes[0].is_costly and not side.has_run
        ]
        costly.sort(key=lambda one: -self._gain_said_ns(one))
        for change in [one for one in helpful if not one.is_costly]:
            taken = chain[-1].changes if chain else ()
            groups = [one.group for one in (*taken, change) if one.group is not None]
            if len(set(groups)) == len(groups):
                chain = self._with_change(chain, change, refused)
        for change in [*(one for one in helpful if one.is_costly), *costly]:
            chain = self._with_change(chain, change, refused)
        self._chain = chain
        return bool(chain)

    def _with_change(self, chain: list[_Side], change: TriedChange, refused: Set[_Changes]) -> list[_Side]:
        """The chain with one more change, in the place of one of its group, if that helps; else as it is."""
        best = chain[-1] if chain else self._base
        kept = tuple(one for one in best.changes if one.group is None or one.group != change.group)
        changes = (*kept, change)
        runs_after = len(chain) + 3 if self._rounds > 1 else 0
        helps = (
            changes not in refused
            and self._run_set(changes, runs_after)
            and self._helps(self._side_of(changes), best, provisional=True)
            and all(self._run_set(kept[:count], 0) for count in range(1, len(kept) + 1))
        )
        if not helps:
            return chain
        return [self._side_of(changes[:count]) for count in range(1, len(changes) + 1)]

    def _side_of(self, changes: _Changes) -> _Side:
        return self._sides.setdefault(changes, _Side(changes))

    def _run_set(self, changes: _Changes, runs_after: int) -> bool:
        """Run these changes once unless they have been; whether there was time, also for runs after that."""
        side = self._side_of(changes)
        if not side.has_run:
            if self._is_over(runs_after, _COSTLY_S if any(one.is_costly for one in changes) else 0.0):
                self._is_complete = False
                return False
            self._run_once(side, 0)
        return True

    def _keep_best_alone(self) -> None:
        """Have the change that alone helps most for the best, unless a better set is known."""
        helping = [side for side in self._tried() if self._helps(side, self._base)]
        best = min([*self._chain[-1:], *helping], key=lambda side: side.median_ns, default=None)
        if best is not None and best not in self._chain:
            self._chain = [best]

    def _helps(self, side: _Side, reference: _Side, *, provisional: bool = False) -> bool:
        """Whether a side is faster than another one, by what is known, and its numbers are right.

        While rounds are missing that would tell, a ratio is taken for what it is.
        """
        if side.error is not None or not side.times_ns.keys() & reference.times_ns.keys():
            return False
        (ratio, _), verdict, _ = self._against(side, reference)
        has_rounds = min(len(one.times_ns) for one in (side, reference)) >= self._rounds
        is_open = verdict is TrialVerdict.INCONCLUSIVE and not has_rounds and ratio < 1 - _SAME_WITHIN
        is_faster = verdict is TrialVerdict.FASTER or (provisional and is_open)
        return is_faster and self._is_right(side, self._correctness(side)[0])

    def _standing(self) -> list[_Side]:
        """The steps of the best set up to the first that does not help."""
        pairs = pairwise([self._base, *self._chain])
        return [side for _, side in takewhile(lambda pair: self._helps(pair[1], pair[0]), pairs)]

    def _best(self) -> BestChanges | None:
        chain = self._standing()
        if not chain:
            return None
        best = chain[-1]
        (ratio, bounds), _, _ = self._against(best)
        return BestChanges(
            names=tuple(one.name for one in best.changes),
            step_ns=best.median_ns,
            ratio=ratio,
            ratio_interval=bounds,
            steps_ns=tuple(one.median_ns for one in chain),
            correctness=self._correctness(best)[0],
            patch=self.plan.patch_of(best.changes),
        )

    def _singles(self) -> list[_Side]:
        return [side for side in self._sides.values() if len(side.changes) == 1]

    def _tried(self) -> list[_Side]:
        """Single changes that were run at all; the rest was not reached."""
        return [side for side in self._singles() if side.has_run]

    def _result(self) -> TrialResult:
        base, target, here = self._base, self.plan.request.target, Path.cwd()
        if Path(target).is_relative_to(here):  # as a user would write it
            target = str(Path(target).relative_to(here))
        interval = median_interval(base.all_ns)
        noise = None
        if self._again.all_ns:
            (ratio, bounds), _, _ = self._against(self._again)
            noise = Noise(ratio, bounds)
        variants = [self._variant(side) for side in self._tried()]
        variants.sort(key=lambda one: (one.ratio is None, one.ratio or 0.0))
        not_reached = (
            NotTried(side.label, "the trial ended before its turn")
            for side in self._singles()
            if not side.has_run
        )
        # What advice says of which no change of the catalogue, from outside, is the remedy.
        remedied = {code for change in CATALOG for code in change.findings}
        from_inside = []
        for code, said in self._said.items():
            if code not in remedied:
                gain = format_duration(said.gain_ns)
                reason = (
                    f"only editing the program's own lines helps; advice predicts −{gain}: {said.message}"
                )
                from_inside.append(NotTried(f"advice.{code}", reason))
        return TrialResult(
            program=" ".join([target, *without_secrets(self.plan.request.arguments)]),
            baseline=Baseline(
                interval.median_ns,
                interval.bounds_ns if interval.coverage >= 0.95 else None,
                len(base.times_ns),
                len(base.all_ns),
                base.peak_bytes,
                None if self._request.kind == "workload" else self._request.steps,
            ),
            noise=noise,
            variants=tuple(variants),
            not_tried=(*self._not_tried, *not_reached, *from_inside),
            best=self._best(),
            runs=self._runs,
            is_complete=self._is_complete,
            is_interrupted=self._is_interrupted,
            device=None if base.facts is None else base.facts.facts.device_name,
        )


def _lost_in_noise(ratio: float, noise: float) -> str:
    return f"{ratio:.4f}×, but runs of the unchanged program differ by {100 * noise:.2g} %"
