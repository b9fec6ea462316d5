"""What comparing two benchmark results, or two recordings, yields: frozen values, ready to render.

The sides are the reference and the candidate; a ratio is candidate over reference, a difference candidate
minus reference. In a session comparison every nanosecond of a side is in exactly one row of `operators`, in
one of `unattributed`, or in `outside_steps_ns`. Imports nothing that computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from opscope.model.benchmark import Interval, Status, Verdict
from opscope.model.finding import Finding
from opscope.model.notebook import Shown
from opscope.text_enum import TextEnum


class Metric(TextEnum):
    """The time that is compared."""

    DEVICE = "self_device_ns"
    CPU = "self_cpu_ns"  # where a side recorded no device activity


class Basis(TextEnum):
    """What the figures of a session comparison are counted over."""

    STEP = "step"  # both sides recorded steps: mean per step (and rank), what lies outside steps apart
    TOTAL = "total"  # the whole recordings


class Presence(TextEnum):
    """On which sides a thing is."""

    BOTH = "both"
    ADDED = "added"  # only in the candidate
    REMOVED = "removed"  # only in the reference
    REPLACED = "replaced"  # another kernel of the same operator that does the same work


class ComparisonOptions(msgspec.Struct, frozen=True):
    # A ratio whose interval lies within 1 ± this is "same"; to be slower or faster, times must differ by more
    # than this
    threshold: float = 0.02
    relevant_fraction: float = 0.01  # An operator counts for the gate from this share of the reference's time
    seed: int = 0  # Of the bootstrap


class TimeChange(msgspec.Struct, frozen=True):
    """One time on both sides, and what can be said of it. A side that lacks the thing is None.

    `reason` says what the verdict rests on, or why there is none.
    """

    reference_ns: float | None
    candidate_ns: float | None
    reference_interval_ns: Interval | None = None
    candidate_interval_ns: Interval | None = None
    ratio: float | None = None
    ratio_interval: Interval | None = None
    verdict: Verdict | None = None
    reason: str | None = None

    @property
    def difference_ns(self) -> float:
        """Candidate minus reference; what is absent takes no time."""
        return (self.candidate_ns or 0) - (self.reference_ns or 0)


class Use(msgspec.Struct, frozen=True):
    """What one side spent on one thing within the compared scope (in steps, or the whole recording)."""

    calls: int = 0  # Operator calls; for a kernel its launches
    launches: int = 0  # Kernels launched
    time_ns: int = 0  # Σ of the compared time, exact
    # The same by step, over all ranks; empty without steps. Their sum is `time_ns`
    step_ns: tuple[int, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing on both sides."""

    presence: Presence
    reference: Use | None
    candidate: Use | None
    time: TimeChange


class KernelChange(Change, frozen=True, kw_only=True):
    """One kernel (or copy) of one operator, or of unattributed work; a replaced one names both."""

    operator: str | None  # Operator that launched it; None if unattributed
    kind: str
    category: str
    reference_name: str | None
    candidate_name: str | None
    reference_title: str | None
    candidate_title: str | None
    change: str | None = None  # What a replacement changed, for people


class VariantChange(Change, frozen=True, kw_only=True):
    """Calls of an operator with one overload and one set of input shapes (as JSON text)."""

    overload: str | None
    input_shapes: str | None


class OperatorChange(Change, frozen=True, kw_only=True):
    """All calls of one operator name; `kernels` are its own, ranked by difference."""

    name: str
    category: str
    variants: tuple[VariantChange, ...] = ()
    kernels: tuple[KernelChange, ...] = ()


class UnattributedChange(Change, frozen=True, kw_only=True):
    """Device time that belongs to no operator, by reason (`model.schema.Attribution`)."""

    reason: str
    kernels: tuple[KernelChange, ...] = ()


class SessionSide(msgspec.Struct, frozen=True):
    """One recording, as far as a comparison needs it."""

    sources: tuple[str, ...]  # Its traces
    ranks: int
    steps: int  # Steps that serve as samples
    ranks_per_step: int  # Ranks that one sample adds up; figures are divided by it
    has_device: bool
    whole_ns: int  # The compared time of the whole recording: device time, or CPU time in operators
    outside_steps_ns: int  # The part of it in no step; 0 on the basis of totals
    outside_steps_launches: int
    launches: int  # Kernels launched within the compared scope
    # What is known of where it was recorded, by label
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def divisor(self) -> int:
        """What totals are divided by for figures per step and rank; 1 on the basis of totals."""
        return self.steps * self.ranks_per_step or 1

    def per_step(self, count: int) -> Fraction:
        """A count of the compared scope per step and rank, exact."""
        return Fraction(count, self.divisor)


class SessionComparison(Shown, msgspec.Struct, frozen=True):
    """Two recordings. Rows are ranked by the size of their difference."""

    reference: SessionSide
    candidate: SessionSide
    metric: Metric
    basis: Basis
    options: ComparisonOptions
    total: TimeChange  # The compared time of everything in scope
    wall: TimeChange | None  # Duration of a step while it was recorded; None without steps
    # Duration of a step without the profiler, medians; None unless both sides timed it
    unrecorded: TimeChange | None
    operators: tuple[OperatorChange, ...]
    unattributed: tuple[UnattributedChange, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        return self.total.verdict

    @property
    def kernels(self) -> tuple[KernelChange, ...]:
        """Every kernel row, ranked by difference."""
        owned = [row.kernels for row in self.operators] + [row.kernels for row in self.unattributed]
        rows = [kernel for kernels in owned for kernel in kernels]
        return tuple(sorted(rows, key=lambda kernel: -abs(kernel.time.difference_ns)))

    def accounted_ns(self, side: str) -> int:
        """Σ of all rows and of what lies outside steps, of `"reference"` or `"candidate"`: its `whole_ns`."""
        own: SessionSide = getattr(self, side)
        uses: list[Use | None] = [getattr(row, side) for row in (*self.operators, *self.unattributed)]
        return sum(use.time_ns for use in uses if use is not None) + own.outside_steps_ns


class BenchmarkPoint(msgspec.Struct, frozen=True):
    """What makes two benchmark results the same problem."""

    suite: str
    shape: tuple[int, ...] | None
    dtype: str | None
    device_kind: str
    parameters: tuple[tuple[str, str], ...] = ()


class BenchmarkRowChange(msgspec.Struct, frozen=True):
    """One implementation of one point. `kernels_*` are titles of kernels only one side launches."""

    name: str
    presence: Presence
    reference_status: Status | None
    candidate_status: Status | None
    status_note: str | None
    time: TimeChange
    reference_launches: float | None = None
    candidate_launches: float | None = None
    kernels_added: tuple[str, ...] = ()
    kernels_removed: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether it was ok in the reference and is there, but not ok, in the candidate."""
        return (
            self.reference_status is Status.OK
            and self.candidate_status is not None
            and self.candidate_status is not Status.OK
        )


class PointChange(msgspec.Struct, frozen=True):
    point: BenchmarkPoint
    clocks: tuple[str, str]
    rows: tuple[BenchmarkRowChange, ...]


class BenchmarkComparison(Shown, msgspec.Struct, frozen=True):
    """Two benchmark results, or two sweeps. What has no counterpart is listed."""

    reference_source: str
    candidate_source: str
    reference_environment: Mapping[str, str]
    candidate_environment: Mapping[str, str]
    options: ComparisonOptions
    points: tuple[PointChange, ...]
    only_in_reference: tuple[BenchmarkPoint, ...]
    only_in_candidate: tuple[BenchmarkPoint, ...]
    verdict: Verdict | None
    verdict_reason: str
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def rows(self) -> tuple[tuple[BenchmarkPoint, BenchmarkRowChange], ...]:
        return tuple((change.point, row) for change in self.points for row in change.rows)
