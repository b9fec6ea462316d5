"""What a trial makes of runs: verdicts, the best set, what is not recommended; runs are given by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from opscope.errors import CaptureError
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep
from opscope.model.trial import Correctness, TrialVerdict
from opscope.trials.catalog import ProgramTraits, TriedChange
from opscope.trials.child import TrialRequest, TrialRun
from opscope.trials.observation import Observation
from opscope.trials.rounds import Trial, TrialPlan

MS = 1_000_000


def change(name: str, **options: Any) -> TriedChange:
    options.setdefault("applies", lambda _: None)
    return TriedChange(name, name, lambda _: None, snippet=f"use {name}", **options)


class GivenRuns(Trial):
    """Steps of 10 ms, times the factors of the changes; numbers as given by change."""

    factors: Mapping[str, float] = MappingProxyType({})
    outputs: Mapping[str, float] = MappingProxyType({})
    failing: Set[str] = frozenset()
    idle: Set[str] = frozenset()
    steps = 30

    def _process(self, changes: Sequence[TriedChange]) -> tuple[TrialRun | None, str]:
        names = [one.name for one in changes]
        if self.failing & set(names):
            return None, "RuntimeError: no kernel"
        random = np.random.default_rng(self._runs)
        factor = float(np.prod([self.factors.get(name, 1.0) for name in names]))
        times_ns = (10 * MS * factor * random.normal(1, 0.005, self.steps)).astype(int).tolist()
        samples = [
            UnrecordedStep(StepKind.PERIOD, StepPlace.SECOND_RUN, 0, number, 1, time_ns, None)
            for number, time_ns in enumerate(times_ns)
        ]
        apart = sum(self.outputs.get(name, 0.0) for name in names)
        observation = Observation(losses=[2.0 * (1 + apart)], outputs=[[1.0 + apart, 2.0]])
        return TrialRun(
            samples=tuple(samples),
            steps=self.steps,
            is_enough=True,
            observation=observation,
            facts=ProgramTraits(dtypes=["float32"]),
            peak_bytes=1000,
            not_applied=tuple(self.idle & set(names)),
        ), ""


def tried(*changes: TriedChange, **given: Any) -> Any:
    options = {
        name: given.pop(name) for name in ("allow_precision", "rounds", "predicted_ns") if name in given
    }
    trial = GivenRuns(TrialPlan(TrialRequest(kind="script", target="train.py"), changes, **options))
    vars(trial).update(given)
    return trial.run()


def test_changes_that_help_are_combined_the_largest_gain_first() -> None:
    result = tried(change("small"), change("large"), change("none"), factors={"small": 0.9, "large": 0.5})
    assert [one.name for one in result.variants] == ["large", "small", "none"]
    verdicts = [one.verdict for one in result.variants]
    assert verdicts == [TrialVerdict.FASTER, TrialVerdict.FASTER, TrialVerdict.SAME]
    assert result.best.names == ("large", "small")
    assert result.best.ratio == pytest.approx(0.45, rel=0.02)
    assert result.best.steps_ns == pytest.approx([5 * MS, 4.5 * MS], rel=0.02)
    assert result.best.patch == "use large\nuse small"
    assert result.noise.ratio == pytest.approx(1, abs=0.02)
    assert result.runs == 5 + 2 * 4 + 3 * 3  # what is the same in the first round is not run again


def test_of_one_group_only_the_best_is_taken() -> None:
    result = tried(
        change("one", group="capture"), change("two", group="capture"), factors={"one": 0.8, "two": 0.7}
    )
    assert result.best.names == ("two",)


def test_what_stops_helping_is_left_out() -> None:
    class Overlapping(GivenRuns):
        def _process(self, changes: Sequence[TriedChange]) -> tuple[TrialRun | None, str]:
            return super()._process(changes[:1])

    plan = TrialPlan(TrialRequest(kind="script", target="train.py"), (change("one"), change("two")))
    trial = Overlapping(plan)
    trial.factors = {"one": 0.7, "two": 0.8}
    best = trial.run().best
    assert best is not None
    assert best.names == ("one",)


@pytest.mark.parametrize(
    ("rounding", "apart", "allowed", "correctness", "is_recommended"),
    [
        (0.0, 0.0, False, Correctness.IDENTICAL, True),
        (2.0**-8, 0.004, False, Correctness.WITHIN_ROUNDING, False),
        (2.0**-8, 0.004, True, Correctness.WITHIN_ROUNDING, True),
        (2.0**-8, 0.01, True, Correctness.CHANGED, False),  # a loss scaled by 1.01
        (0.0, 1e-6, True, Correctness.CHANGED, False),
    ],
)
def test_only_right_numbers_are_recommended(
    rounding: float, apart: float, allowed: bool, correctness: Correctness, is_recommended: bool
) -> None:
    one = change("coarse", rounding=rounding, group="precision")
    result = tried(one, factors={"coarse": 0.5}, outputs={"coarse": apart}, allow_precision=allowed)
    (variant,) = result.variants
    assert (variant.correctness, variant.is_recommended) == (correctness, is_recommended)
    assert (result.best is not None) is is_recommended


def test_what_fails_or_does_not_apply_is_told_and_the_rest_goes_on() -> None:
    result = tried(
        change("broken"),
        change("nothing_there"),
        change("elsewhere", applies=lambda _: "its models are not on a GPU"),
        change("good", findings=("tf32_off",)),
        factors={"good": 0.5},
        failing=frozenset({"broken"}),
        idle=frozenset({"nothing_there"}),
        predicted_ns={"tf32_off": 4.0 * MS},
    )
    good, broken = result.variants
    assert (broken.verdict, broken.error) == (TrialVerdict.FAILED, "RuntimeError: no kernel")
    assert (good.finding, good.predicted_gain_ns) == ("advice.tf32_off", 4.0 * MS)
    assert {one.name for one in result.not_tried} == {"nothing_there", "elsewhere"}
    assert result.best.names == ("good",)


def test_what_is_much_slower_runs_once() -> None:
    result = tried(change("slow"), factors={"slow": 2.0})
    assert result.variants[0].verdict is TrialVerdict.SLOWER
    assert result.runs == 2 * 3 + 1


@pytest.mark.parametrize(
    ("given", "words"),
    [({"steps": 0}, "too few steps"), ({"steps": 1}, "too few steps")],
)
def test_a_program_that_cannot_be_timed_is_an_error(given: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        tried(change("one"), **given)


def test_interrupted_it_keeps_what_is_measured() -> None:
    class Interrupted(GivenRuns):
        def _process(self, changes: Sequence[TriedChange]) -> tuple[TrialRun | None, str]:
            if self._runs > 3:
                raise KeyboardInterrupt
            return super()._process(changes)

    trial = Interrupted(
        TrialPlan(TrialRequest(kind="script", target="train.py"), (change("one"), change("two")))
    )
    result = trial.run()
    assert not result.is_complete
    assert len(result.variants) == 1
    assert [one.reason for one in result.not_tried] == ["the trial ended before its turn"]
    assert not trial._scratch.exists()
