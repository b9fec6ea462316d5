"""Counters of a kernel launch with what a recording knows of the call that made it.

A fact that neither holds is None, and a comparison that cannot be made says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from opscope.analysis.cost.call_cost import UNKNOWN_COST, CallCost
from opscope.analysis.counters.thresholds import threshold
from opscope.model.finding import Finding
from opscope.provenance.kernel_names import DecodedKernel
from opscope.text_enum import TextEnum
from opscope.toolchain.ncu.metrics import Quantity
from opscope.toolchain.ncu.report import KernelCounters, NcuReport

__all__ = ["CountedKernel", "CounterAnalysis", "Limit", "Match", "RecordedCall", "limit_of"]


class Match(TextEnum):
    """How a profiled launch was found in the recording. A closed set."""

    SAME_CALL = "same_call"
    ORDER = "order"
    AMBIGUOUS = "ambiguous"
    NOT_RECORDED = "not_recorded"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _MATCH_MEANINGS[self]


_MATCH_MEANINGS = {
    Match.SAME_CALL: "all launches of this kernel with this grid and block come of calls alike",
    Match.ORDER: "the profiled launches occur in this order in the recording",
    Match.AMBIGUOUS: "calls that differ launch this kernel with this grid and block",
    Match.NOT_RECORDED: "the recording has no launch of this name, grid and block",
}


class Limit(TextEnum):
    """What a kernel comes nearest to, by its counters. A closed set."""

    COMPUTE = "compute"
    DRAM = "dram"
    CACHES = "caches"
    LATENCY = "latency"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _LIMIT_MEANINGS[self]


_LIMIT_MEANINGS = {
    Limit.COMPUTE: "its instructions",
    Limit.DRAM: "device memory",
    Limit.CACHES: "the caches: more bytes pass them than reach memory",
    Limit.LATENCY: "neither: it waits",
}


def limit_of(kernel: KernelCounters) -> Limit | None:
    """What limits a kernel; None where throughput was not collected."""
    compute, memory = kernel.ratio(Quantity.SM_FRACTION), kernel.ratio(Quantity.MEMORY_FRACTION)
    dram = kernel.ratio(Quantity.DRAM_FRACTION)
    if compute is None or memory is None:
        return None
    if max(compute, memory) < threshold("waiting_fraction"):
        return Limit.LATENCY
    if compute >= memory:
        return Limit.COMPUTE
    if dram is None:
        return None
    return Limit.DRAM if dram >= threshold("dram_share") * memory else Limit.CACHES


@dataclass(frozen=True)
class RecordedCall:
    """Calls alike of the recording, and what each must do at least.

    Attributes:
        operator: None for launches of no operator.
        overload: As recorded.
        shapes: JSON text, as recorded; so `types` and `concrete`.
        types: Element types.
        concrete: Scalars.
        attribution: Of launches of no operator, how they were launched (a value of `Attribution`).
        calls: How many.
        activities_per_call: Kernels, copies and memory sets that one call issues.
        cost: What one call must do at least.
    """

    operator: str | None
    overload: str | None
    shapes: str | None
    types: str | None
    concrete: str | None
    calls: int
    activities_per_call: float
    attribution: str | None = None
    cost: CallCost = UNKNOWN_COST


@dataclass(frozen=True)
class CountedKernel:
    """One profiled launch.

    Attributes:
        counters: What ncu counted.
        name: Its name as recordings write it.
        decoded: What that name says.
        match: How it was found in the recording; None without one.
        call: The call that launched it; None if it was not found, or calls that differ do.
        operators: Operators that launch it so, where the call is not certain.
        launches: Launches of the recording alike in name and geometry, of that call where it is certain.
        launches_per_step: The same per step; None without steps.
        recorded_ns: Median time of those launches.
    """

    counters: KernelCounters
    name: str
    decoded: DecodedKernel
    match: Match | None = None
    call: RecordedCall | None = None
    operators: tuple[str, ...] = ()
    launches: int = 0
    launches_per_step: float | None = None
    recorded_ns: int | None = None

    @property
    def title(self) -> str:
        """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name where it has no parts."""
        if self.decoded.function is None:
            return self.name
        function = self.decoded.function.rpartition("::")[2]
        functor = (self.decoded.functor or "").rpartition("::")[2]
        return f"{function}<… {functor} …>" if functor else function

    @property
    def limit(self) -> Limit | None:
        """What limits it."""
        return limit_of(self.counters)

    @property
    def min_bytes(self) -> int | None:
        """Least bytes of the call, if this kernel is all that the call issues."""
        if self.call is None or self.call.activities_per_call != 1:
            return None
        return self.call.cost.min_bytes

    @property
    def traffic_ratio(self) -> float | None:
        """Bytes of device memory moved over the least of the call."""
        if self.counters.dram_bytes is None or not self.min_bytes:
            return None
        return self.counters.dram_bytes / self.min_bytes

    @property
    def no_ratio_reason(self) -> str | None:
        """Why there is no ratio; None if there is one."""
        if self.traffic_ratio is not None:
            return None
        if self.match is None:
            return "no recording was given"
        if self.call is None:
            return self.match.meaning
        if self.call.activities_per_call != 1:
            return (
                f"a call issues {self.call.activities_per_call:.3g} device activities, of which this is one"
            )
        if not self.call.cost.min_bytes:
            return self.call.cost.reason or "the least bytes of the call are unknown"
        return "the report holds no bytes of device memory"


@dataclass(frozen=True)
class CounterAnalysis:
    """A report, its kernels and what follows.

    Attributes:
        report: As read.
        kernels: Its kernel launches, in order.
        findings: The gravest first.
        recordings: Sources of the recording they were joined to; empty without one.
    """

    report: NcuReport
    kernels: tuple[CountedKernel, ...]
    findings: tuple[Finding, ...] = ()
    recordings: tuple[str, ...] = ()
