"""How far calls are from what the device can do: the values that reports and advice read.

`roofline.measure_efficiency` makes them. Rates are per second of device time of the calls whose cost is
known, `costed_ns`; fractions are 0–1; None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits
from opscope.operators.call_cost import CallCost
from opscope.text_enum import MeaningEnum


class Bound(MeaningEnum):
    """What limits a call. A closed set."""

    COMPUTE = "compute", "its operations take longer than moving its bytes"
    MEMORY = "memory", "moving its bytes takes longer than its operations"
    LATENCY = "latency", "too little work to fill the device once"
    LAUNCH = "launch", "shorter than its launch on the host"


class TensorCoreUse(MeaningEnum):
    """Whether matrix units did the work. A closed set."""

    USED = "used", "computed on tensor cores"
    ELIGIBLE = "eligible", "could run on tensor cores, and does not"
    NOT_APPLICABLE = "not_applicable", "no work for tensor cores"


class Roofline(msgspec.Struct, frozen=True):
    """A set of calls held against the device's limits."""

    device_ns: int  # their device time
    costed_ns: int  # the part of it whose bytes and operations are known; everything below is about that part
    flop_count: int | None = None  # sum over its calls; None without any
    min_bytes: int | None = None  # likewise
    # Time the same work needs at the device's limits: per call the longer of bytes over bandwidth and
    # operations over the peak of their type. None if no limit is known.
    attainable_ns: float | None = None
    # What limits most of its device time; None where that is unknown for half of it
    bound: Bound | None = None
    # Device time by what limits it. May reach beyond the costed part: that a call is shorter than its launch
    # shows without knowing its cost.
    bound_ns: Mapping[Bound, int] = msgspec.field(default_factory=dict)
    # Type whose peak was taken for most of the time; None where nothing was computed
    data_type: DataType | None = None
    tensor_cores: TensorCoreUse | None = None  # for most of the time of products; None if unknown
    # The part of `costed_ns` that `attainable_ns` is about, so that the fraction compares like with like;
    # None: all of it. Collectives and copies to or from the host are held against nothing.
    held_ns: int | None = None
    # The part of `held_ns` whose calls move fewer bytes than the level-2 cache holds (or, if faster than
    # memory, less than twice as many). Such data may come from there: a fraction above 1 then is no error.
    cache_resident_ns: int = 0
    # The part of `costed_ns` that took less time than what was counted needs at the limits, though no cache
    # explains it: it did less (one tensor passed twice, a causal mask, Winograd's algorithm). It is held
    # against nothing.
    excess_ns: int = 0

    @property
    def arithmetic_intensity(self) -> float | None:
        return None if self.flop_count is None or not self.min_bytes else self.flop_count / self.min_bytes

    @property
    def achieved_flop_per_s(self) -> float | None:
        return (
            None if self.flop_count is None or not self.costed_ns else self.flop_count / self.costed_ns * 1e9
        )

    @property
    def achieved_bytes_per_s(self) -> float | None:
        return None if self.min_bytes is None or not self.costed_ns else self.min_bytes / self.costed_ns * 1e9

    @property
    def fraction(self) -> float | None:
        """Attainable over actual time: 1 is at the limit, more only where a cache served.

        None where less than half of the costed time is held against the limits.
        """
        held_ns = self.costed_ns if self.held_ns is None else self.held_ns
        if self.attainable_ns is None or not held_ns or held_ns * 2 < self.costed_ns:
            return None
        return self.attainable_ns / held_ns


class CallEfficiency(msgspec.Struct, frozen=True):
    """Calls of one operator with the same arguments. `shapes` and `concrete` are JSON text as recorded.

    `operator` is the activity's name for launches of no operator (`attribution` then says why they have
    none). `kernels` are the distinct names it launched, most time first; `gap_ns` is what reaching the limit
    would save, device time minus attainable time; None if unknown.
    """

    call_id: int
    operator: str
    overload: str | None
    shapes: str | None
    types: str | None
    concrete: str | None
    calls: int
    kernels: tuple[str, ...]
    cost: CallCost
    roofline: Roofline
    attribution: str | None = None

    @property
    def gap_ns(self) -> float | None:
        attainable_ns = self.roofline.attainable_ns
        return None if attainable_ns is None else max(0.0, self.roofline.device_ns - attainable_ns)


class CostCoverage(msgspec.Struct, frozen=True):
    """The share of all device time whose cost is known.

    `uncosted` names the operators, or activities of none, whose bytes or operations are unknown: name, time
    in ns, the reason of most of it; most time first. Complete: with Σ `costed_ns` of the calls it is all
    device time.
    """

    bytes_fraction: float | None = None
    flop_fraction: float | None = None
    uncosted: tuple[tuple[str, int, str], ...] = ()


class Efficiency(msgspec.Struct, frozen=True):
    """Everything known of a Session's distance from the limits."""

    limits: DeviceLimits | None = None  # of the device; None where devices differ or are unknown
    coverage: CostCoverage = CostCoverage()
    operators: Mapping[str, Roofline] = msgspec.field(default_factory=dict)  # by operator name
    # By (operator name, kernel name), and under None as operator of all launches of the kernel together,
    # whoever launched it. A kernel has its call's cost where it alone does the call's work.
    kernels: Mapping[tuple[str | None, str], Roofline] = msgspec.field(default_factory=dict)
    calls: tuple[CallEfficiency, ...] = ()  # the distinct calls, most device time first
