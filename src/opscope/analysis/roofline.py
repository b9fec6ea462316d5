"""How far every call, operator and kernel is from the device's limits, and what binds it.

Launches of alike calls, with the cost of one, are held against the peak of the type that computed (products
against that of the units their kernel used, fp16 ones against tensor cores' in any case) and against memory's
rate. What binds a call, with the thresholds, docs/roofline.md says: the host is asked first, then the roof
that accounts for most of the time, then too little work; what is left is the nearer roof, from afar.

Times are device time in integer nanoseconds, and exact: Σ device_ns, Σ costed_ns and Σ bound_ns of parts are
those of the whole, and every activity belongs to one distinct call. Rates are per second of the calls whose
cost is known, `costed_ns`; fractions are 0–1; None is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from opscope.analysis.launch_quality import (
    LaunchQuality,
    TensorCoreUse,
    common_device,
    is_product,
    operand_type,
    passes_of,
    tensor_core_use,
)
from opscope.analysis.timeline.records import HOLD_UP, names_of
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit
from opscope.launches.facts import DeviceFacts, LaunchGeometry
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session
from opscope.operators.effects import CallCost, FlopSource
from opscope.operators.session_costs import CostedCall, fill_costs, read_costs
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum


class Bound(MeaningEnum):
    """What limits a call. A closed set."""

    COMPUTE = "compute", "its operations take longer than moving its bytes"
    MEMORY = "memory", "moving its bytes takes longer than its operations"
    LATENCY = "latency", "too little work to fill the device once"
    LAUNCH = "launch", "shorter than its launch on the host"


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

        None where less than four fifths of the costed time is held against the limits.
        """
        held_ns = self.costed_ns if self.held_ns is None else self.held_ns
        if self.attainable_ns is None or not held_ns or held_ns < 0.8 * self.costed_ns:
            return None
        return self.attainable_ns / held_ns


class CallEfficiency(CostedCall, frozen=True, kw_only=True):
    """Calls of one operator with the same arguments.

    `operator` is the activity's name for launches of no operator (`attribution` then says why they have
    none). `kernels` are the distinct names it launched, most time first; `gap_ns` is what reaching the limit
    would save, device time minus attainable time; None if unknown.
    """

    kernels: tuple[str, ...]
    roofline: Roofline

    @property
    def operator(self) -> str:
        return self.name

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
    limits: DeviceLimits | None = None  # of the device; None where devices differ or are unknown
    coverage: CostCoverage = CostCoverage()
    operators: Mapping[str, Roofline] = msgspec.field(default_factory=dict)  # by operator name
    # By (operator name, kernel name), and under None as operator of all launches of the kernel together,
    # whoever launched it. A kernel has its call's cost where it alone does the call's work.
    kernels: Mapping[tuple[str | None, str], Roofline] = msgspec.field(default_factory=dict)
    calls: tuple[CallEfficiency, ...] = ()  # the distinct calls, most device time first


def measure_efficiency(session: Session, limits: DeviceLimits | None) -> Efficiency:
    """How far everything is from the limits, if there are any; fills the cost tables if they are empty."""
    fill_costs(session)
    device = common_device(session)
    known = limits if device is None else device
    compute_capability = None if known is None else known.compute_capability
    return efficiency_of(read_costs(session), read_launches(session, device), limits, compute_capability)


def efficiency_of(
    calls: Iterable[CostedCall],
    launches: Mapping[int, tuple[Launches, ...]],
    limits: DeviceLimits | None,
    compute_capability: str | None,
) -> Efficiency:
    """The Efficiency of distinct calls; one without launches is left out."""
    found: list[CallEfficiency] = []
    # Under None all launches of the kernel, whoever launched it.
    by_kernel: dict[tuple[str | None, str], list[Roofline]] = defaultdict(list)
    for call in calls:
        if call.call_id not in launches:
            continue
        work = work_of_call(launches[call.call_id], call.cost, call.calls)
        for kernel, done in work_by_kernel(work):
            own = roofline_of(done, limits, compute_capability)
            by_kernel[None, kernel].append(own)
            if call.attribution is None:
                by_kernel[call.name, kernel].append(own)
        found.append(
            CallEfficiency(
                **msgspec.structs.asdict(call),
                kernels=tuple(dict.fromkeys(one.kernel for one in work.launches)),
                roofline=roofline_of(work, limits, compute_capability),
            )
        )
    by_operator = grouped((one.operator, one.roofline) for one in found if one.attribution is None)
    return Efficiency(
        limits=limits,
        coverage=_coverage(found),
        operators={name: combine(parts) for name, parts in by_operator.items()},
        kernels={key: combine(parts) for key, parts in by_kernel.items()},
        calls=tuple(sorted(found, key=lambda one: (-one.roofline.device_ns, one.operator, one.call_id))),
    )


def _coverage(calls: Sequence[CallEfficiency]) -> CostCoverage:
    device_ns = sum(call.roofline.device_ns for call in calls)
    if not device_ns:
        return CostCoverage()
    bytes_ns = sum(call.roofline.device_ns for call in calls if call.cost.min_bytes is not None)
    flop_ns = sum(call.roofline.device_ns for call in calls if call.cost.flop_count is not None)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        unknown_ns = call.roofline.device_ns - call.roofline.costed_ns
        if unknown_ns:
            reasons[call.operator][call.cost.reason or "no rule for this operator"] += unknown_ns
    uncosted = [(name, sum(ns.values()), max(ns, key=ns.__getitem__)) for name, ns in reasons.items()]
    uncosted.sort(key=lambda one: (-one[1], one[0]))
    return CostCoverage(bytes_ns / device_ns, flop_ns / device_ns, tuple(uncosted))


# What runs beside a kernel to prepare or finish its work, and is no work of its own.
_HELPERS = frozenset(
    (
        "memset", "split_k_reduction", "gemm_helper", "attention_helper", "convolution_helper",
        "layout_transform",
    )
)  # fmt: skip


class Launches(msgspec.Struct, frozen=True):
    """Activities of one name and geometry under one distinct call."""

    kernel: str
    kind: str
    is_helper: bool  # they prepare or finish another kernel's work
    count: int
    total_ns: int
    # Device time of those whose call the host issued more slowly than the device did it; 0 for collectives,
    # whose time is that of waiting for other devices
    launch_bound_ns: int
    sole_count: int  # those that did all of their call's work, helpers aside
    sole_ns: int  # their device time
    quality: LaunchQuality | None = None  # how they fill the device; None for copies and memory sets

    @property
    def decoded(self) -> DecodedKernel:
        return decode(self.kernel)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its time goes over a link to the host or another device."""
        one = self.decoded
        return one.family in _ELSEWHERE_FAMILIES or one.copy_direction in _ELSEWHERE_COPIES


class Work(msgspec.Struct, frozen=True, dict=True):
    """Launches that together did `repeats` times the work of `cost`."""

    launches: tuple[Launches, ...]
    cost: CallCost
    repeats: int
    # The part of the launches' device time that those repeats took; 0 if their cost is unknown
    costed_ns: int

    @cached_property
    def device_ns(self) -> int:
        return sum(one.total_ns for one in self.launches)

    @cached_property
    def launch_bound_ns(self) -> int:
        return sum(one.launch_bound_ns for one in self.launches)

    @cached_property
    def main(self) -> tuple[Launches, ...]:
        """The launches that do the work; all of them where every one only helps."""
        return tuple(one for one in self.launches if not one.is_helper) or self.launches

    def time_where(self, condition: Callable[[Launches], object]) -> int:
        return sum(one.total_ns for one in self.launches if condition(one))


def work_of_call(launches: tuple[Launches, ...], cost: CallCost, calls: int) -> Work:
    is_costed = cost.flop_count is not None and cost.min_bytes is not None
    return Work(launches, cost, calls, sum(one.total_ns for one in launches) if is_costed else 0)


def work_by_kernel(call: Work) -> Iterator[tuple[str, Work]]:
    """The same work by kernel: one that does all of a call's work has done its cost each time.

    Launches of no operator tell no calls apart: where they are more than the calls, none did all the work.
    """
    is_told = call.costed_ns > 0 and sum(one.sole_count for one in call.launches) <= call.repeats
    for name, launches in grouped((one.kernel, one) for one in call.launches).items():
        repeats = sum(one.sole_count for one in launches) if is_told else 0
        costed_ns = sum(one.sole_ns for one in launches) if is_told else 0
        yield name, Work(tuple(launches), call.cost, repeats, costed_ns)


def read_launches(session: Session, device: DeviceFacts | None) -> dict[int, tuple[Launches, ...]]:
    """Launches by call id of table `call_costs`, most device time first. Needs its tables filled."""
    names = session.known("SELECT name_id, name FROM kernel_names")
    helpers = [name_id for name_id, name in names if decode(name).family in _HELPERS]
    # An activity whose stream was empty starts 2.3 us after its launch call returned (median of recordings on
    # an H200; 99 of 100 within 3.5 us, within 5 us on a V100). What starts later waited for something else.
    parameters = [helpers, 10_000, names_of(session, *HOLD_UP)]
    by_call: dict[int, list[Launches]] = defaultdict(list)
    for row in session.records(sql(__package__, "launched_calls"), parameters):
        one, quality = Launches(**{name: row[name] for name in row.keys() & Launches.__struct_fields__}), None
        if one.kind == "kernel":
            quality = LaunchQuality(one.decoded, msgspec.convert(row, LaunchGeometry), device=device)
        # A collective's time is not its own: it ends when the last device has come.
        bound_ns = 0 if one.decoded.family in _ELSEWHERE_FAMILIES else one.launch_bound_ns
        by_call[row["call_id"]].append(
            msgspec.structs.replace(one, launch_bound_ns=bound_ns, quality=quality)
        )
    return {call_id: tuple(launches) for call_id, launches in by_call.items()}


_DOUBLE = (DataType.FP64, DataType.FP64_TENSOR)


class ComputeLimit(msgspec.Struct, frozen=True):
    """The peak of a call. `flop_per_s` is None where the device's rate of the type is unknown."""

    data_type: DataType | None
    flop_per_s: float | None
    tensor_cores: TensorCoreUse | None


def compute_limit(
    cost: CallCost, launches: Iterable[Launches], limits: DeviceLimits | None, compute_capability: str | None
) -> ComputeLimit:
    by_name = summed((one.decoded, one.total_ns) for one in launches)
    products = {kernel: ns for kernel, ns in by_name.items() if is_product(kernel)}
    kernel = max(products or by_name, key=lambda one: by_name[one], default=None)
    if kernel is None:
        return ComputeLimit(None, None, None)
    use = tensor_core_use(kernel, cost.data_type, compute_capability)
    does_product = bool(products) or cost.flop_source is FlopSource.REGISTRY
    data_type = _computing_type(cost.data_type, kernel, use) if does_product else _plain(cost.data_type)
    peaks = {} if limits is None else limits.peaks
    limit = None if data_type is None else peaks.get(data_type)
    if data_type is DataType.FP16 and kernel.accumulator_type == "f16":
        # Sums in fp16 have a peak of their own, where the name says so and the device has one.
        limit = peaks.get(DataType.FP16_FP16_ACCUMULATE, limit)
    per_s = None if limit is None else limit.per_s / passes_of(kernel, cost.data_type)
    return ComputeLimit(data_type if cost.flop_count else None, per_s, use)


def memory_limit(cost: CallCost, limits: DeviceLimits | None) -> Limit | None:
    """The rate of memory that one call's bytes are held against; None if unknown."""
    if limits is None or cost.read_bytes is None or cost.written_bytes is None:
        return None
    # A call that reads, or writes, at least this share of its bytes is held against the rate of reading, or
    # writing, alone: memory that need not turn between both is a few percent faster.
    least = 0.9 * (cost.read_bytes + cost.written_bytes)
    one_way = (
        limits.read if cost.read_bytes >= least else limits.write if cost.written_bytes >= least else None
    )
    known = [limit for limit in (limits.memory, one_way) if limit is not None]
    return max(known, key=lambda limit: limit.per_s, default=None)


def _plain(data_type: DataType | None) -> DataType:
    """The type of arithmetic on CUDA cores."""
    return DataType.FP64 if data_type in _DOUBLE else DataType.FP32


def _computing_type(
    recorded: DataType | None, kernel: DecodedKernel, use: TensorCoreUse | None
) -> DataType | None:
    if use is TensorCoreUse.NOT_APPLICABLE:
        return _plain(recorded or operand_type(kernel))
    data_type = operand_type(kernel) if recorded is None or kernel.multiply_type is not None else recorded
    if data_type in (DataType.FP32, DataType.TF32):
        return DataType.TF32 if use is TensorCoreUse.USED else DataType.FP32
    if data_type in _DOUBLE:
        return DataType.FP64_TENSOR if use is TensorCoreUse.USED else DataType.FP64
    return data_type


# What these move does not pass through the device's memory alone: links to the host and to other devices
# limit it, of which no rate is known here.
_ELSEWHERE_FAMILIES = frozenset(("collective", "device_communication"))
_ELSEWHERE_COPIES = frozenset(("host_to_device", "device_to_host", "host_to_host", "peer_to_peer"))


def roofline_of(
    work: Work, limits: DeviceLimits | None = None, compute_capability: str | None = None
) -> Roofline:
    cost, costed_ns = work.cost, work.costed_ns
    compute = compute_limit(cost, work.main, limits, compute_capability)
    is_costed = costed_ns > 0 and cost.flop_count is not None and cost.min_bytes is not None
    flop_count, min_bytes = (cost.flop_count or 0) * work.repeats, (cost.min_bytes or 0) * work.repeats
    memory = memory_limit(cost, limits)
    # Time of the costed part at the limits, where no cost, rate that matters or device is unknown.
    attainable = None
    is_elsewhere = 2 * work.time_where(lambda one: one.is_elsewhere) > work.device_ns
    if is_costed and memory is not None and not is_elsewhere and (compute.flop_per_s or not flop_count):
        compute_ns = flop_count / compute.flop_per_s * 1e9 if compute.flop_per_s else 0.0
        attainable = min_bytes / memory.per_s * 1e9, compute_ns
    bound_ns = bound_ns_of(
        work, attainable, shortest_kernel_ns=None if limits is None else limits.smallest_kernel_ns
    )
    is_resident = attainable is not None and _may_be_cached(work, attainable[0], limits)
    # Measured limits are medians: a call may beat them by a few percent.
    is_excess, most_ns = False, 1.05 * costed_ns
    if attainable is not None:
        is_excess = attainable[1] > most_ns or (attainable[0] > most_ns and not is_resident)
    held = None if is_excess else attainable
    return Roofline(
        device_ns=work.device_ns,
        costed_ns=costed_ns if is_costed else 0,
        flop_count=flop_count if is_costed else None,
        min_bytes=min_bytes if is_costed else None,
        attainable_ns=None if held is None else max(held),
        bound=_most(bound_ns, work.device_ns),
        bound_ns=bound_ns,
        data_type=compute.data_type,
        tensor_cores=compute.tensor_cores,
        held_ns=0 if held is None else costed_ns,
        cache_resident_ns=costed_ns if held is not None and is_resident else 0,
        excess_ns=costed_ns if is_excess else 0,
    )


def _may_be_cached(work: Work, memory_ns: float, limits: DeviceLimits | None) -> bool:
    """Whether the level-2 cache may hold all bytes of one call, or enough of them to outrun memory."""
    # The largest of any GPU. Source: NVIDIA B200 datasheet, 126 MB.
    l2_bytes = (None if limits is None else limits.l2_bytes) or 132_120_576
    min_bytes = work.cost.min_bytes or 0
    if min_bytes < l2_bytes:
        return True
    from_memory_ns = memory_ns * (min_bytes - l2_bytes) / min_bytes
    return min_bytes < 2 * l2_bytes and from_memory_ns <= work.costed_ns < memory_ns


def bound_ns_of(
    work: Work, attainable: tuple[float, float] | None, *, shortest_kernel_ns: float | None = None
) -> dict[Bound, int]:
    """Device time of work by what limits it, without what is unknown.

    `attainable` is what the costed part needs at the limits, in ns, by memory and by computing.
    """
    bound_ns = {Bound.LAUNCH: work.launch_bound_ns} if work.launch_bound_ns else {}
    rest_ns, bound = work.device_ns - work.launch_bound_ns, None
    if not rest_ns:
        return bound_ns

    def is_most(condition: Callable[[Launches], object]) -> bool:
        return 2 * work.time_where(condition) > work.device_ns

    # Kernels that do nothing take 0.6 to 1.4 us in recordings of an H200, 2 us on a V100: below this most of
    # a kernel's time is its start and end. Used where the device's own figure was not measured.
    shortest_ns = shortest_kernel_ns or 2_000.0
    is_latency = is_most(lambda one: one.total_ns / one.count < shortest_ns)
    if attainable is None or not work.costed_ns:
        # On so few multiprocessors neither roof can be near. Of an H200 these are 8 of 132: at 64 bytes per
        # clock each they would draw a fifth of what memory gives; a recorded scan on 8 drew 0.09 of its 4.8
        # TB/s.
        if is_latency or is_most(lambda one: _sm_share(one) <= (1 / 16)):
            bound = Bound.LATENCY
    else:
        # A grid of fewer blocks than multiprocessors has the peak of those that get one.
        main_ns = sum(one.total_ns for one in work.main)
        used_ns = sum(_sm_share(one) * one.total_ns for one in work.main)
        memory_ns, compute_ns = attainable
        compute_ns /= used_ns / main_ns if main_ns else 1.0
        # A roof binds what it accounts for at least half of: then nothing else accounts for more of the time.
        is_far = max(compute_ns, memory_ns) < 0.5 * work.costed_ns
        if is_far and (is_latency or is_most(lambda one: one.quality and one.quality.is_underfilled)):
            bound = Bound.LATENCY
        elif max(attainable):
            bound = Bound.COMPUTE if compute_ns > memory_ns else Bound.MEMORY
    return bound_ns if bound is None else {**bound_ns, bound: rest_ns}


def _sm_share(one: Launches) -> float:
    """Share of the multiprocessors that get a block; 1 if unknown."""
    quality = one.quality
    if quality is None or not quality.block_count or not quality.sm_count:
        return 1.0
    return min(1.0, quality.block_count / quality.sm_count)


def combine(rooflines: Iterable[Roofline]) -> Roofline:
    parts = list(rooflines)
    costed = [part for part in parts if part.costed_ns]
    held = [part for part in costed if part.attainable_ns is not None]
    device_ns = sum(part.device_ns for part in parts)
    bound_ns = summed((bound, ns) for part in parts for bound, ns in part.bound_ns.items())
    typed = summed((part.data_type, part.costed_ns) for part in costed if part.data_type is not None)
    uses = summed((part.tensor_cores, part.device_ns) for part in parts)
    if TensorCoreUse.USED in uses or TensorCoreUse.ELIGIBLE in uses:
        uses.pop(TensorCoreUse.NOT_APPLICABLE, None)
    return Roofline(
        device_ns=device_ns,
        costed_ns=sum(part.costed_ns for part in costed),
        flop_count=sum(part.flop_count or 0 for part in costed) if costed else None,
        min_bytes=sum(part.min_bytes or 0 for part in costed) if costed else None,
        attainable_ns=sum(part.attainable_ns or 0.0 for part in held) if held else None,
        bound=_most(bound_ns, device_ns),
        bound_ns=dict(bound_ns),
        data_type=max(typed, key=lambda one: typed[one], default=None),
        tensor_cores=max(uses, key=lambda use: uses[use], default=None),
        held_ns=sum(part.costed_ns if part.held_ns is None else part.held_ns for part in held),
        cache_resident_ns=sum(part.cache_resident_ns for part in parts),
        excess_ns=sum(part.excess_ns for part in parts),
    )


def _most(bound_ns: Mapping[Bound, int], device_ns: int) -> Bound | None:
    """What limits most of the time; None where it is unknown for half of it or more."""
    if not bound_ns or sum(bound_ns.values()) * 2 <= device_ns:
        return None
    return max(bound_ns, key=lambda bound: bound_ns[bound])
