"""What trying changes to a program found: times, verdicts, whether results stayed right, the best set.

The structs are the JSON of `opscope try --json`.
"""

from __future__ import annotations

import msgspec

from opscope.model.benchmark import Interval
from opscope.model.notebook import Shown
from opscope.text_enum import TextEnum


class TrialVerdict(TextEnum):
    """A variant's step beside the baseline's."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    REFUSED = "refused"  # its numbers are others, so it was not timed


class Correctness(TextEnum):
    """The variant's numbers beside the baseline's."""

    IDENTICAL = "identical"
    WITHIN_ROUNDING = "within_rounding"
    CHANGED = "changed"
    UNKNOWN = "unknown"


class Baseline(msgspec.Struct, frozen=True):
    """The program as it is."""

    step_ns: float  # Median step, timed without a profiler
    interval_ns: Interval | None  # Its 95 % interval; None of fewer than six steps
    rounds: int  # Processes that were timed
    # Times of a step in all of them, warm-up left out: medians of blocks where changes are switched
    steps: int
    # Most device memory allocated at once before anything is switched; without a GPU, resident memory
    peak_bytes: int | None
    # What ends a step: `optimizer`, `forward` (the call of a model), or what was named; None of a workload
    taken: str | None = None


class Noise(msgspec.Struct, frozen=True):
    """The baseline against itself: what a ratio of two equal programs looks like here."""

    ratio: float
    interval: Interval


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # Of the change in the catalogue
    finding: str | None = None  # Code of the advice that suggests it; None if none does
    step_ns: float | None = None  # Median step; None if it failed
    interval_ns: Interval | None = None
    ratio: float | None = None  # Its time over the baseline's of the same rounds
    ratio_interval: Interval | None = None  # 95 %, with the scatter between processes
    process_ratios: tuple[float, ...] = ()  # The ratio in each process
    verdict: TrialVerdict
    reason: str = ""  # What verdict and correctness rest on
    correctness: Correctness = Correctness.UNKNOWN  # Its numbers beside the baseline's
    # Faster, and its numbers are as they should be or what they lose was allowed
    is_recommended: bool = False
    # What advice on a recording of the baseline says it brings; None if it says nothing
    predicted_gain_ns: float | None = None
    predicted_interval_ns: Interval | None = None  # Between what that lies, as advice says
    # As of the baseline, of a change that stays on; what is switched is not measured
    peak_bytes: int | None = None
    # What checking it took, compilation included; of a change that stays on nothing is known
    warm_up_ns: float | None = None
    pays_off_after_steps: int | None = None  # Steps after which that is made up for; None if it never is
    error: str | None = None  # Last lines of what it said when it failed
    patch: str | None = None  # What to write: lines of code


class NotTried(msgspec.Struct, frozen=True):
    """A change that was not tried, and why."""

    name: str
    reason: str


class BestChanges(msgspec.Struct, frozen=True):
    """The changes that together made the step shortest, each added because it was measured to help."""

    names: tuple[str, ...]  # In the order added
    step_ns: float
    ratio: float
    ratio_interval: Interval
    steps_ns: tuple[float | None, ...]  # The step after each; None if that set alone was not timed
    correctness: Correctness
    patch: str  # All their patches
    process_ratios: tuple[float, ...] = ()  # The ratio in each process


class TrialResult(Shown, msgspec.Struct, frozen=True):
    program: str
    baseline: Baseline
    noise: Noise | None
    variants: tuple[Variant, ...]
    not_tried: tuple[NotTried, ...]
    best: BestChanges | None  # With the same numerics, or what was allowed; None if nothing helped
    runs: int  # How often the program was run
    is_complete: bool = True  # Not interrupted, and within its budget
    device: str | None = None  # The GPU's name; None of a program without one
    best_reduced_precision: BestChanges | None = None  # With reduced precision, if that is better still
    is_interrupted: bool = False  # By a person or another program; not by its budget
