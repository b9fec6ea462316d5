"""What trying changes to a program found: times, verdicts, whether results stayed right, the best set.

The structs are the JSON of `opscope try --json`.
"""

from __future__ import annotations

import msgspec

from opscope.model.benchmark import Interval
from opscope.model.notebook import notebook_html
from opscope.text_enum import TextEnum


class TrialVerdict(TextEnum):
    """A variant's step beside the baseline's."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


class Correctness(TextEnum):
    """The variant's numbers beside the baseline's."""

    IDENTICAL = "identical"
    WITHIN_ROUNDING = "within_rounding"
    CHANGED = "changed"
    UNKNOWN = "unknown"


class Baseline(msgspec.Struct, frozen=True):
    """The program as it is.

    Attributes:
        step_ns: Median step, timed without a profiler.
        interval_ns: Its 95 % interval; None of fewer than six steps.
        rounds: Processes that were timed.
        steps: Times of a step in all of them, warm-up left out; of short steps each is the mean of several.
        peak_bytes: Most device memory allocated at once; of a program without a GPU, resident memory.
        taken: What ends a step: `optimizer`, `forward` (the call of a model), or what was named; None of a
            workload.
    """

    step_ns: float
    interval_ns: Interval | None
    rounds: int
    steps: int
    peak_bytes: int | None
    taken: str | None = None


class Noise(msgspec.Struct, frozen=True):
    """The baseline against itself: what a ratio of two equal programs looks like here."""

    ratio: float
    interval: Interval


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The program with a change.

    Attributes:
        name: Of the change in the catalogue.
        finding: Code of the advice that suggests it; None if none does.
        step_ns: Median step; None if it failed.
        ratio: Its time over the baseline's of the same rounds.
        reason: What verdict and correctness rest on.
        correctness: Its numbers beside the baseline's.
        is_recommended: Faster, and its numbers are as they should be or what they lose was allowed.
        predicted_gain_ns: What advice on a recording of the baseline says it brings; None if it says nothing.
        predicted_interval_ns: Between what that lies, as advice says.
        peak_bytes: As of the baseline.
        warm_up_ns: What the first calls of models took, compilation included, and the first steps beyond as
            many later ones.
        pays_off_after_steps: Steps after which that is made up for; None if it never is.
        error: Last lines of what it said when it failed.
        patch: What to write: a unified diff where its lines are known, else a snippet.
    """

    name: str
    finding: str | None = None
    step_ns: float | None = None
    interval_ns: Interval | None = None
    ratio: float | None = None
    ratio_interval: Interval | None = None
    verdict: TrialVerdict
    reason: str = ""
    correctness: Correctness = Correctness.UNKNOWN
    is_recommended: bool = False
    predicted_gain_ns: float | None = None
    predicted_interval_ns: Interval | None = None
    peak_bytes: int | None = None
    warm_up_ns: float | None = None
    pays_off_after_steps: int | None = None
    error: str | None = None
    patch: str | None = None


class NotTried(msgspec.Struct, frozen=True):
    """A change that was not tried, and why."""

    name: str
    reason: str


class BestChanges(msgspec.Struct, frozen=True):
    """The changes that together made the step shortest, each added because it was measured to help.

    Attributes:
        names: In the order added.
        steps_ns: The step after each.
        patch: All their patches.
    """

    names: tuple[str, ...]
    step_ns: float
    ratio: float
    ratio_interval: Interval
    steps_ns: tuple[float, ...]
    correctness: Correctness
    patch: str


class TrialResult(msgspec.Struct, frozen=True):
    """All that was tried.

    Attributes:
        best: None if nothing helped.
        runs: How often the program was run.
        is_complete: Not interrupted, and within its budget.
        device: The GPU's name; None of a program without one.
        is_interrupted: By a person or another program; not by its budget.
    """

    program: str
    baseline: Baseline
    noise: Noise | None
    variants: tuple[Variant, ...]
    not_tried: tuple[NotTried, ...]
    best: BestChanges | None
    runs: int
    is_complete: bool = True
    device: str | None = None
    is_interrupted: bool = False

    _repr_html_ = notebook_html
