"""Counters of a kernel launch with what a recording knows of the call that made it.

A fact that neither holds is None, and a comparison that cannot be made says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import median_low
from typing import NamedTuple

import msgspec
import numpy as np
import tomli

from opscope.model.finding import Finding
from opscope.model.notebook import notebook_html
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.call_cost import UNKNOWN_COST, CallCost
from opscope.operators.session_costs import fill_costs, read_costs
from opscope.provenance.demangle import demangle
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum
from opscope.toolchain.ncu_report import Extent, KernelCounters, NcuReport, Quantity


class Threshold(msgspec.Struct, frozen=True):
    """A number that counters are held against, and why it is what it is."""

    value: float
    reason: str


class StallReason(msgspec.Struct, frozen=True):
    """What a reason to stall means, and what helps."""

    meaning: str
    remedy: str | None = None


# States of a warp that has nothing to wait for: it issues, or another warp was taken.
NO_STALL = frozenset({"selected", "not_selected"})


class CounterBook(msgspec.Struct, frozen=True):
    """What `counters.toml` holds, by name."""

    thresholds: Mapping[str, Threshold]
    stalls: Mapping[str, StallReason]
    findings: Mapping[str, Mapping[str, str]]
    rules: Mapping[str, Mapping[str, str]]


@cache
def counter_book() -> CounterBook:
    text = resources.files(__package__).joinpath("counters.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomli.loads(text), CounterBook)


def threshold(name: str) -> float:
    return counter_book().thresholds[name].value


class Match(MeaningEnum):
    """How a profiled launch was found in the recording. A closed set."""

    SAME_CALL = "same_call", "all launches of this kernel with this grid and block come of calls alike"
    ORDER = "order", "the profiled launches occur in this order in the recording"
    AMBIGUOUS = "ambiguous", "calls that differ launch this kernel with this grid and block"
    NOT_RECORDED = "not_recorded", "the recording has no launch of this name, grid and block"


class CounterLimit(MeaningEnum):
    """What a kernel comes nearest to, by its counters. A closed set."""

    COMPUTE = "compute", "its instructions"
    DRAM = "dram", "device memory"
    CACHES = "caches", "the caches: more bytes pass them than reach memory"
    LATENCY = "latency", "neither: it waits"


def limit_of(kernel: KernelCounters) -> CounterLimit | None:
    """What limits a kernel; None where throughput was not collected."""
    compute, memory = kernel.ratio(Quantity.SM_FRACTION), kernel.ratio(Quantity.MEMORY_FRACTION)
    dram = kernel.ratio(Quantity.DRAM_FRACTION)
    if compute is None or memory is None:
        return None
    if max(compute, memory) < threshold("waiting_fraction"):
        return CounterLimit.LATENCY
    if compute >= memory:
        return CounterLimit.COMPUTE
    if dram is None:
        return None
    return CounterLimit.DRAM if dram >= threshold("dram_share") * memory else CounterLimit.CACHES


class CountedCall(msgspec.Struct, frozen=True):
    """Calls alike of the recording, and what each must do at least."""

    operator: str | None  # None for launches of no operator
    overload: str | None
    shapes: str | None  # JSON text, as recorded; so types and concrete
    types: str | None
    concrete: str | None
    calls: int
    activities_per_call: float  # kernels, copies and memory sets that one call issues
    attribution: str | None = None  # of launches of no operator, how they were launched
    cost: CallCost = UNKNOWN_COST  # of one call


class CountedKernel(msgspec.Struct, frozen=True):
    """One profiled launch, and what a recording knows of its like."""

    counters: KernelCounters
    name: str  # as recordings write it
    decoded: DecodedKernel
    match: Match | None = None  # None without a recording
    call: CountedCall | None = None  # None if it was not found, or calls that differ launch it
    operators: tuple[str, ...] = ()  # that launch it so, where the call is not certain
    launches: int = 0  # alike in name and geometry, of that call where it is certain
    launches_per_step: float | None = None  # None without steps
    recorded_ns: int | None = None  # the median of those launches

    @property
    def title(self) -> str:
        """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name where it has no parts."""
        if self.decoded.function is None:
            return self.name
        function = self.decoded.function.rpartition("::")[2]
        functor = (self.decoded.functor or "").rpartition("::")[2]
        return f"{function}<… {functor} …>" if functor else function

    @property
    def limit(self) -> CounterLimit | None:
        return limit_of(self.counters)

    @property
    def min_bytes(self) -> int | None:
        if self.call is None or self.call.activities_per_call != 1:
            return None
        return self.call.cost.min_bytes

    @property
    def traffic_ratio(self) -> float | None:
        if self.counters.dram_bytes is None or not self.min_bytes:
            return None
        return self.counters.dram_bytes / self.min_bytes

    @property
    def no_ratio_reason(self) -> str | None:
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
            return self.call.cost.reason or "the minimum bytes of the call are unknown"
        return "the report holds no bytes of device memory"


class CounterAnalysis(msgspec.Struct, frozen=True):
    """A report, its kernels in order, and what follows, most severe first."""

    report: NcuReport
    kernels: tuple[CountedKernel, ...]
    findings: tuple[Finding, ...] = ()
    recordings: tuple[str, ...] = ()  # sources of the one they were joined to

    _repr_html_ = notebook_html


Kind = tuple[str, Extent | None, Extent | None]
_UNKNOWN = -1


class _Launch(NamedTuple):
    kind: Kind
    duration_ns: int
    step: int | None
    call_id: int
    is_launch_recorded: bool


def recorded_name(kernel: KernelCounters) -> str:
    """A kernel's name as Kineto writes it, which is not how ncu demangles.

    Where this machine cannot demangle, ncu's own text.
    """
    if not kernel.mangled_name.startswith("_Z"):
        return kernel.mangled_name or kernel.name
    return demangle(kernel.mangled_name) or kernel.name


def join_counters(report: NcuReport, session: Session | None = None) -> tuple[CountedKernel, ...]:
    """The kernels of a report, in order, with the calls of a recording that launched them."""
    names = [recorded_name(kernel) for kernel in report.kernels]
    if session is None:
        pairs = zip(report.kernels, names, strict=True)
        return tuple(CountedKernel(kernel, name, decode(name)) for kernel, name in pairs)
    fill_costs(session)
    rows = session.query(sql(__package__, "counted_launches"), [sorted(set(names))])
    launches = [_Launch((name, extent(rest[0:3]), extent(rest[3:6])), *rest[6:]) for name, *rest in rows]
    alike: dict[Kind, list[_Launch]] = defaultdict(list)
    for launch in launches:
        alike[launch.kind].append(launch)
    steps = int(session.scalar("SELECT count(DISTINCT (trace_id, step)) FROM steps"))
    activities = dict(session.query("SELECT call_id, count(*) FROM activity_costs GROUP BY call_id"))
    launched = {launch.call_id for launch in launches}
    calls = {}
    for call in read_costs(session):
        if call.call_id in launched:
            operator = call.name if call.attribution is None else None
            each = activities[call.call_id] / call.calls
            calls[call.call_id] = CountedCall(
                operator, call.overload, call.shapes, call.types, call.concrete, call.calls, each,
                call.attribution, call.cost,
            )  # fmt: skip
    kinds = [(name, kernel.grid, kernel.block) for kernel, name in zip(report.kernels, names, strict=True)]
    by_order = _by_order(kinds, launches)
    return tuple(
        _counted(kernel, kind[0], alike.get(kind, ()), calls, call_id, steps=steps)
        for kernel, kind, call_id in zip(report.kernels, kinds, by_order, strict=True)
    )


def extent(sizes: Sequence[int | None]) -> Extent | None:
    """Blocks or threads along x, y and z; None where one is unknown."""
    x, y, z = sizes
    return None if x is None or y is None or z is None else (x, y, z)


def _by_order(kinds: Sequence[Kind], launches: Sequence[_Launch]) -> list[int | None]:
    """The call of each profiled launch, where every place the sequence occurs at agrees on it."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(launch.kind for launch in launches))}
    wanted = [numbers[kind] for kind in kinds if kind in numbers]
    recorded = np.array([numbers[launch.kind] for launch in launches], dtype=np.int64)
    starts = np.arange(max(0, len(recorded) - len(wanted) + 1))
    for offset, number in enumerate(wanted):
        starts = starts[recorded[starts + offset] == number]
    call_ids = np.array(
        [launch.call_id if launch.is_launch_recorded else _UNKNOWN for launch in launches], dtype=np.int64
    )
    found: list[int | None] = []
    for offset in range(len(wanted)):
        calls = np.setdiff1d(call_ids[starts + offset], [_UNKNOWN])
        found.append(int(calls[0]) if len(calls) == 1 else None)
    places = iter(found)
    return [next(places) if kind in numbers else None for kind in kinds]


def _counted(
    kernel: KernelCounters,
    name: str,
    alike: Sequence[_Launch],
    calls: Mapping[int, CountedCall],
    call_by_order: int | None,
    *,
    steps: int,
) -> CountedKernel:
    # What was launched before the recording began has an operator too, only not a recorded one.
    alike = [launch for launch in alike if launch.is_launch_recorded] or alike
    call_ids = {launch.call_id for launch in alike}
    call_id: int | None = None
    if not call_ids:
        match = Match.NOT_RECORDED
    elif len(call_ids) == 1:
        match, call_id = Match.SAME_CALL, next(iter(call_ids))
    elif call_by_order is not None:
        match, call_id = Match.ORDER, call_by_order
    else:
        match = Match.AMBIGUOUS
    of_call = [launch for launch in alike if call_id is None or launch.call_id == call_id]
    operators = {calls[launch.call_id].operator for launch in of_call}
    in_steps = sum(launch.step is not None for launch in of_call)
    return CountedKernel(
        counters=kernel,
        name=name,
        decoded=decode(name),
        match=match,
        call=None if call_id is None else calls[call_id],
        operators=tuple(sorted(one for one in operators if one is not None)),
        launches=len(of_call),
        launches_per_step=in_steps / steps if steps and in_steps else None,
        recorded_ns=median_low(launch.duration_ns for launch in of_call) if of_call else None,
    )
