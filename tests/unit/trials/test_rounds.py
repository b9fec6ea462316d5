"""What a trial makes of runs: verdicts, the best set, what is not recommended; runs are given by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest

from opscope.errors import CaptureError
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep
from opscope.model.trial import Correctness, TrialVerdict
from opscope.trials.catalog import ProgramTraits, TriedChange, changes_named
from opscope.trials.child import TrialRequest, TrialRun
from opscope.trials.observation import Observation
from opscope.trials.predictions import SaidGain, gains_said
from opscope.trials.processes import ProgramRuns
from opscope.trials.rounds import Trial, TrialPlan

MS = 1_000_000
Found = tuple[TrialRun | None, str]

exhaustive = pytest.mark.exhaustive(few=False)


def change(name: str, **options: Any) -> TriedChange:
    options.setdefault("applies", lambda _: None)
    return TriedChange(name, name, lambda _: None, snippet=f"use {name}", **options)


def plan(*changes: TriedChange, seed: int = 0, **options: Any) -> TrialPlan:
    return TrialPlan(TrialRequest(kind="script", target="train.py", seed=seed), changes, **options)


def slowed(found: Found, factors: Iterable[float]) -> Found:
    """The run with its steps so many times as long."""
    run, said = found
    assert run is not None
    samples = [
        msgspec.structs.replace(one, host_ns=int(one.host_ns * factor))
        for one, factor in zip(run.samples, factors, strict=False)
    ]
    return msgspec.structs.replace(run, samples=tuple(samples)), said


class GivenRuns(Trial):
    """Steps of 10 ms, times the factors of the changes; numbers as given by change.

    `each` may change a run: it is called with the trial, the changes and a function that makes the run, with
    other factors or of other changes if it is given some.
    """

    factors: Mapping[str, float] = MappingProxyType({})
    outputs: Mapping[str, float] = MappingProxyType({})
    failing: Set[str] = frozenset()
    idle: Set[str] = frozenset()
    is_training = False
    steps = 30

    def __init__(self, plan: TrialPlan, each: Any = lambda trial, changes, run: run(), **given: Any) -> None:
        super().__init__(plan)
        vars(self).update(given)
        self.each = each

    def _process(self, changes: Sequence[TriedChange], limit_s: float) -> Found:
        return self.each(self, changes, partial(self._found, changes))  # type: ignore[no-any-return]

    def _found(self, of: Sequence[TriedChange], **factors: float) -> Found:
        names = [one.name for one in of]
        if self.failing & set(names):
            return None, "RuntimeError: no kernel"
        random = np.random.default_rng(self._runs)
        known = {**self.factors, **factors}
        factor = float(np.prod([known.get(name, 1.0) for name in names]))
        times_ns = (10 * MS * factor * random.normal(1, 0.005, self.steps)).astype(int).tolist()
        samples = [
            UnrecordedStep(StepKind.PERIOD, StepPlace.BEFORE, 0, number, 1, time_ns, None)
            for number, time_ns in enumerate(times_ns)
        ]
        apart = sum(self.outputs.get(name, 0.0) for name in names)
        observation = Observation(losses=[2.0 * (1 + apart)], outputs=[[1.0 + apart, 2.0]])
        return TrialRun(
            samples=tuple(samples),
            steps=self.steps,
            is_enough=True,
            observation=observation,
            facts=ProgramTraits(dtypes=["float32"], is_training=self.is_training),
            peak_bytes=1000,
            not_applied=tuple(self.idle & set(names)),
        ), ""


def tried(*changes: TriedChange, **given: Any) -> Any:
    names = {one.name for one in fields(TrialPlan)} | {"seed"}
    options = {name: given.pop(name) for name in names & given.keys()}
    return GivenRuns(plan(*changes, **options), **given).run()


def altered(found: Found, **facts: Any) -> Found:
    run, said = found
    assert run is not None
    return msgspec.structs.replace(run, **facts), said


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
    screened, combined, confirmed, rest = 6, 2, 2 * 4, 2 * 2  # what is the same alone has no more rounds
    assert result.runs == screened + combined + confirmed + rest


def test_all_runs_take_for_a_step_what_the_first_one_took() -> None:
    asked: list[str] = []
    said: list[str] = []

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        asked.append(trial._request.steps)
        return altered(run(), taken="forward")

    def predict(request: TrialRequest, runs: ProgramRuns, limit_s: float) -> dict[str, SaidGain]:
        said.append(request.steps)
        return {}

    result = tried(change("small"), rounds=1, predict=predict, each=each)
    first, *others = asked
    assert (first, {*others, *said}) == ("auto", {"forward"})
    assert result.baseline.taken == "forward"


def test_the_first_process_does_not_count() -> None:
    result = tried(
        change("none"),
        rounds=1,
        each=lambda trial, _, run: slowed(run(), repeat(2.0)) if trial._runs == 1 else run(),
    )
    assert result.baseline.step_ns == pytest.approx(10 * MS, rel=0.02)
    assert result.variants[0].ratio == pytest.approx(1, abs=0.02)
    assert result.noise.ratio == pytest.approx(1, abs=0.02)
    assert result.runs == 4


def test_what_helps_only_after_another_change_is_found() -> None:
    """A graph of the step brings nothing, until half the type has made the device faster than the host."""
    best = tried(
        change("graph"),
        change("half"),
        each=lambda _, changes, run: run(half=0.5, graph=0.3 if len(changes) > 1 else 0.995),
    ).best
    assert best.names == ("half", "graph")
    assert best.ratio == pytest.approx(0.15, rel=0.02)


def test_what_compiles_is_tried_on_top_of_the_others_and_may_take_the_place_of_one() -> None:
    compiled = [
        change(name, group="capture", is_costly=True, findings=(name,))
        for name in ("compiled badly", "compiled")
    ]
    changes = (*compiled, change("graph", group="capture"), change("half"))
    said = {"compiled badly": SaidGain(1.0), "compiled": SaidGain(2.0)}
    order: list[str] = []

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        order.append(" + ".join(one.name for one in changes))
        return run()

    factors = {"half": 0.5, "graph": 0.6, "compiled": 0.4, "compiled badly": 0.9}
    result = tried(*changes, rounds=1, predict=lambda *_: said, each=each, factors=factors)
    assert result.best is not None
    assert result.best.names == ("half", "compiled")
    assert result.best.steps_ns == pytest.approx([5 * MS, 2 * MS], rel=0.02)
    assert order[3:] == [
        "graph",
        "half",
        "half + graph",
        "half + compiled",
        "half + compiled badly",
        "compiled",
        "compiled badly",
    ]


def test_what_does_not_stand_in_more_rounds_is_left_out() -> None:
    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[..., Found]) -> Found:
        is_first = "lucky" in {one.name for one in changes} and trial._runs < 7
        return run(good=0.5, lucky=0.6 if is_first else 1.0)

    assert tried(change("good"), change("lucky"), rounds=5, each=each).best.names == ("good",)


def test_of_one_group_only_the_best_is_taken() -> None:
    result = tried(
        change("one", group="capture"), change("two", group="capture"), factors={"one": 0.8, "two": 0.7}
    )
    assert result.best.names == ("two",)


def test_what_stops_helping_is_left_out() -> None:
    best = tried(
        change("one"),
        change("two"),
        factors={"one": 0.7, "two": 0.8},
        each=lambda trial, changes, _: trial._found(changes[:1]),
    ).best
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


def test_another_order_of_16_bit_operations_is_no_change_of_numbers() -> None:
    result = tried(
        change("reordered", rounding=2.0**-14),
        change("nothing rounded"),
        rounds=1,
        outputs={"reordered": 9e-4, "nothing rounded": 9e-4},
        each=lambda _, changes, run: altered(run(), facts=ProgramTraits(dtypes=["float16"])),
    )
    found = {one.name: one.correctness for one in result.variants}
    assert found == {"reordered": Correctness.WITHIN_ROUNDING, "nothing rounded": Correctness.CHANGED}


def test_what_fails_or_does_not_apply_is_told_and_the_rest_goes_on() -> None:
    result = tried(
        change("broken"),
        change("nothing_there"),
        change("elsewhere", applies=lambda _: "its models are not on a GPU"),
        change("good", findings=("tf32_off",)),
        factors={"good": 0.5},
        failing=frozenset({"broken"}),
        idle=frozenset({"nothing_there"}),
        predict=lambda *_: {
            "tf32_off": SaidGain(4.0 * MS),
            "host_sync": SaidGain(1.0 * MS, None, "It waits."),
        },
    )
    good, broken = result.variants
    assert (broken.verdict, broken.error) == (TrialVerdict.FAILED, "RuntimeError: no kernel")
    assert (good.finding, good.predicted_gain_ns) == ("advice.tf32_off", 4.0 * MS)
    reasons = {one.name: one.reason for one in result.not_tried}
    assert set(reasons) == {"nothing_there", "elsewhere", "advice.host_sync"}
    assert reasons["advice.host_sync"].endswith("advice predicts −1.00 ms: It waits.")
    assert result.best.names == ("good",)


@pytest.mark.parametrize(
    ("is_training", "name", "code", "is_priced"),
    [
        (False, "step_graph", "launch_bound", True),
        (False, "cuda_graph", "launch_bound", True),
        (False, "compile_reduce_overhead", "launch_bound", True),
        (False, "compile", "launch_bound", False),  # its kernels are launched one by one
        (True, "cuda_graph", "launch_bound", False),  # of the model: the optimizer is launched as before
        (True, "fused_optimizer", "per_tensor_optimizer", True),
        (True, "foreach_optimizer", "per_tensor_optimizer", False),  # passes over its state several times
    ],
)
def test_what_a_finding_gains_is_said_of_the_change_that_it_is_of(
    is_training: bool, name: str, code: str, is_priced: bool
) -> None:
    (known,) = changes_named([name])
    applied = replace(known, applies=lambda _: None)
    result = tried(applied, is_training=is_training, predict=lambda *_: {code: SaidGain(6.0 * MS)})
    (found,) = result.variants
    assert (found.finding, found.predicted_gain_ns) == (f"advice.{code}", 6.0 * MS if is_priced else None)


def test_what_is_much_slower_runs_once() -> None:
    result = tried(change("slow"), factors={"slow": 2.0})
    assert result.variants[0].verdict is TrialVerdict.SLOWER
    assert result.runs == 1 + 2 * 3 + 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_program_that_cannot_be_timed_is_an_error(steps: int) -> None:
    with pytest.raises(CaptureError, match="too few steps"):
        tried(change("one"), steps=steps)


def test_interrupted_it_keeps_what_is_measured() -> None:
    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        if trial._runs > 4:
            raise KeyboardInterrupt
        return run()

    trial = GivenRuns(plan(change("one"), change("two")), each)
    result = trial.run()
    assert not result.is_complete
    assert len(result.variants) == 1
    assert [one.reason for one in result.not_tried] == ["the trial ended before its turn"]
    assert not trial._processes.scratch.exists()


def noisy(trial: GivenRuns, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
    """Steps of a change scatter."""
    return slowed(run(), np.random.default_rng(trial._runs).normal(1.03, 0.15 * len(changes), trial.steps))


def test_what_is_inconclusive_says_how_much_more_would_tell() -> None:
    (variant,) = tried(change("one"), each=noisy).variants
    assert variant.verdict is TrialVerdict.INCONCLUSIVE
    assert re.search(r"about [\d,]+ more steps? would settle it \(--rounds \d+\)", variant.reason)


@pytest.mark.exhaustive(few=False)
def test_the_same_is_not_said_where_the_unchanged_program_itself_scatters() -> None:
    processes = np.random.default_rng(0)

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        if changes or trial._runs == 1:  # the first process does not count
            return run()
        return slowed(run(), repeat(float(np.exp(processes.normal(0, 0.3)))))

    for seed in range(20):
        result = tried(*(change(f"change_{number}") for number in range(5)), seed=seed, each=each)
        for one in result.variants:
            assert one.verdict is TrialVerdict.INCONCLUSIVE or not one.ratio_interval[0] < 0.8


def test_more_rounds_than_anybody_would_wait_for_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opscope.trials.rounds._MOST_WORTHWHILE", 3)
    (variant,) = tried(change("one"), each=noisy).variants
    assert variant.reason.endswith(
        "more rounds alone would hardly settle it; losses, gradients and outputs are the same"
    )


def timed(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
    """Each run takes a second of a clock that the test holds."""
    CLOCK[0] += 1
    return run()


CLOCK = [0.0]


def test_what_advice_says_most_of_is_tried_first() -> None:
    changes = [change(name, findings=(name,)) for name in ("unsaid", "small", "large")]
    order: list[str] = []

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        order.extend(one.name for one in changes)
        return run()

    said = {"small": SaidGain(1.0 * MS), "large": SaidGain(5.0 * MS)}
    tried(*changes, predict=lambda *_: said, each=each)
    assert order[:3] == ["large", "small", "unsaid"]


def test_with_a_budget_a_set_is_measured_before_every_change_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CLOCK[0] = 0.0
    monkeypatch.setattr("opscope.trials.rounds.time.monotonic", lambda: CLOCK[0])
    changes = tuple(change(f"change_{number}") for number in range(60))
    result = tried(*changes, budget_s=40, each=timed, factors={"change_1": 0.5, "change_3": 0.8})
    assert CLOCK[0] <= 41
    assert not result.is_complete
    assert result.best is not None
    assert result.best.names == ("change_1", "change_3")
    assert result.best.ratio == pytest.approx(0.4, rel=0.02)
    tried_names = {one.name for one in result.variants}
    assert 19 <= len(tried_names) < 60
    assert tried_names | {one.name for one in result.not_tried} == {one.name for one in changes}


@pytest.mark.parametrize(("budget_s", "verdict"), [(None, "inconclusive"), (60, "faster")])
def test_a_budget_that_is_left_goes_to_what_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch, budget_s: float | None, verdict: str
) -> None:
    CLOCK[0] = 0.0
    monkeypatch.setattr("opscope.trials.rounds.time.monotonic", lambda: CLOCK[0])
    changes = change("some"), change("none")
    result = tried(*changes, rounds=1, budget_s=budget_s, each=timed, factors={"some": 0.9})
    assert result.is_complete
    assert CLOCK[0] <= 61
    assert next(one.verdict for one in result.variants if one.name == "some") == verdict
    assert (result.best is not None) == (verdict == "faster")
    assert result.baseline.rounds < 12


def test_the_largest_gain_said_of_a_finding_counts() -> None:
    findings = [
        {
            "code": "advice.tf32_off",
            "estimated_gain_ns_per_step": 5.0,
            "gain_interval_ns_per_step": (4.0, 6.0),
        },
        {"code": "advice.eager_attention", "estimated_gain_ns_per_step": 2.0},
        {"code": "advice.tf32_off", "estimated_gain_ns_per_step": 3.0},
        {"code": "advice.dataloader", "estimated_gain_ns_per_step": None},
    ]
    said = {"tf32_off": SaidGain(5.0, (4.0, 6.0)), "eager_attention": SaidGain(2.0)}
    assert gains_said({"findings": findings}) == said


def test_the_noise_of_the_first_round_is_that_of_one_degree_of_freedom() -> None:
    assert GivenRuns(plan())._noise(1) == pytest.approx(12.7062 * 0.08 * 2**0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("scatter", "rounds"),
    [
        *((0.001, 3), (0.08, 1)),
        *(pytest.param(*one, marks=exhaustive) for one in ((0.001, 1), (0.03, 1), (0.03, 3), (0.08, 3))),
    ],
)
def test_equal_programs_are_told_apart_in_one_of_twenty_at_most(scatter: float, rounds: int) -> None:
    """Processes of one program differ by more than their steps tell."""
    processes = np.random.default_rng(0)

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[[], Found]) -> Found:
        return slowed(run(), repeat(float(np.exp(processes.normal(0, scatter)))))

    verdicts = []
    for seed in range(40):
        changes = (change(f"change_{number}") for number in range(5))
        result = tried(*changes, seed=seed, rounds=rounds, each=each)
        verdicts += [one.verdict for one in result.variants]
    told_apart = sum(one in {TrialVerdict.FASTER, TrialVerdict.SLOWER} for one in verdicts)
    assert told_apart <= len(verdicts) / 20
    if scatter < 0.01:  # one pair of runs does not show how far others are apart
        expected = TrialVerdict.SAME if rounds > 1 else TrialVerdict.INCONCLUSIVE
        assert verdicts.count(expected) >= 0.95 * len(verdicts)


def test_equal_runs_that_scattered_on_a_gpu_are_not_told_apart() -> None:
    """One training step on an H200, unchanged; its first two runs agreed (h200_try_unchanged.json)."""
    steps_ms = [8.833, 8.874, 8.579, 8.290, 8.338, 7.630, 7.444, 9.379, 6.988, 7.616, 7.990, 7.424, 8.963]

    def each(trial: Trial, changes: Sequence[TriedChange], run: Callable[..., Found]) -> Found:
        place = int(changes[0].name) + 1 if changes else max(0, trial._runs - 2)
        if changes:
            return run(**{changes[0].name: steps_ms[place] / 10})
        return slowed(run(), repeat(steps_ms[place] / 10))

    result = tried(*(change(str(number)) for number in range(1, 12)), rounds=1, each=each)
    assert result.noise.ratio == pytest.approx(8.874 / 8.833, rel=0.01)
    verdicts = {one.name: one.verdict for one in result.variants}
    assert len(verdicts) == 11
    assert set(verdicts.values()) <= {TrialVerdict.SAME, TrialVerdict.INCONCLUSIVE}
    assert result.best is None
