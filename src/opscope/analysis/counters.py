"""What hardware counters say of kernels, beside what a recording knows of the calls that launched them.

A fact that neither holds is None, and a comparison that cannot be made says why. Each observation is a small
function, silent where all is well or its counter was not collected; numbers stand in `counters.toml`, with
their reasons.

Which kernels are to be counted is chosen by a recording of the program or a first quick profile. ncu profiles
one window of the launches that its filter matches, so the window is chosen that covers most of the chosen
kernels' time. Of an operator the topics are those a kernel engineer asks about: a statement is made only
where the recording proves it; everything else is left to counters, with the command that reads them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from statistics import median_low
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.launch_quality import (
    LaunchQuality,
    TensorCoreUse,
    has_tensor_cores_for,
    is_product,
    operand_type,
    tensor_core_use,
)
from opscope.analysis.roofline import Bound, Efficiency, Roofline
from opscope.analysis.totals import KernelTotal, OperatorTotal
from opscope.data import packaged_toml
from opscope.errors import CaptureError, InputError
from opscope.hardware.architectures import WARP_SIZE
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding, Severity
from opscope.model.notebook import Shown
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session
from opscope.operators.session_costs import CostedCall, fill_costs, read_costs
from opscope.provenance.kernel_names.cxx_name import demangle
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum, TextEnum
from opscope.toolchain.ncu_command import (
    KernelFilter,
    filter_of_functions,
    filter_of_mangled_names,
)
from opscope.toolchain.ncu_report import Extent, KernelCounters, NcuReport, Quantity
from opscope.units import counted, format_percent


def counter_book() -> dict[str, Any]:
    """What `counters.toml` holds: thresholds with their reasons, stalls, units, findings by code."""
    return packaged_toml(__package__, "counters.toml")


def _threshold(name: str) -> float:
    return float(counter_book()["thresholds"][name]["value"])


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
    LOADS = "loads_and_stores", "loads and stores: L1 and shared memory take no more of them"
    LATENCY = "latency", "neither: it waits"
    LAUNCH_SIZE = "launch_size", "its few threads, which do not fill the device"


class CountedCall(CostedCall, frozen=True, kw_only=True):
    """Calls alike of the recording, and what each must do at least."""

    activities_per_call: float  # kernels, copies and memory sets that one call issues

    @property
    def operator(self) -> str | None:
        return self.name if self.attribution is None else None


class CountedKernel(msgspec.Struct, frozen=True):
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
    def limit(self) -> CounterLimit | None:
        compute, memory, dram, l1 = map(
            self.counters.ratio,
            (Quantity.SM_FRACTION, Quantity.MEMORY_FRACTION, Quantity.DRAM_FRACTION, Quantity.L1_FRACTION),
        )
        waves, busiest = self.counters.occupancy.waves, max(compute or 0, memory or 0)
        grid, multiprocessors = self.counters.grid, self.counters.device.sm_count
        is_small = waves is not None and waves < _threshold("waves")
        is_small |= bool(grid and multiprocessors and prod(grid) < multiprocessors)
        if is_small and busiest < _threshold("waiting_fraction"):
            return CounterLimit.LAUNCH_SIZE
        if compute is None or memory is None:
            return None
        if busiest < _threshold("waiting_fraction"):
            return CounterLimit.LOADS if (l1 or 0) >= _threshold("full_l1") else CounterLimit.LATENCY
        if self.counters.busiest_unit in ("loads_and_stores", "scattered_accesses"):
            return CounterLimit.LOADS
        if compute >= memory or dram is None:
            return CounterLimit.COMPUTE if compute >= memory else None
        is_dram = dram >= max(_threshold("dram_share") * memory, _threshold("waiting_fraction"))
        return CounterLimit.DRAM if is_dram else CounterLimit.CACHES

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


class CounterAnalysis(Shown, msgspec.Struct, frozen=True):
    report: NcuReport
    kernels: tuple[CountedKernel, ...]
    findings: tuple[Finding, ...] = ()
    recordings: tuple[str, ...] = ()  # sources of the one they were joined to


Kind = tuple[str, Extent | None, Extent | None]


class Launch(NamedTuple):
    """One recorded launch; those of one kind do alike work."""

    kind: Kind
    duration_ns: int
    step: int | None = None
    call_id: int = -1
    is_launch_recorded: bool = True


def read_launches(session: Session, query: str, parameters: Sequence[Any] = ()) -> list[Launch]:
    """What a query selects: name, grid and block, then as a `Launch`."""
    return [
        Launch((name, grid and tuple(grid), block and tuple(block)), *rest)
        for name, grid, block, *rest in session.query(query, parameters)
    ]


def recorded_name(kernel: KernelCounters) -> str:
    """A kernel's name as Kineto writes it; where this machine cannot demangle, ncu's own text."""
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
    launches = read_launches(session, sql(__package__, "counted_launches"), [sorted(set(names))])
    alike = grouped((launch.kind, launch) for launch in launches)
    steps = int(session.scalar("SELECT count(DISTINCT (trace_id, step)) FROM steps"))
    activities = dict(session.query("SELECT call_id, count(*) FROM activity_costs GROUP BY call_id"))
    calls = {
        call.call_id: CountedCall(
            **msgspec.structs.asdict(call), activities_per_call=activities[call.call_id] / call.calls
        )
        for call in read_costs(session)
        if call.call_id in activities
    }
    kinds = [(name, kernel.grid, kernel.block) for kernel, name in zip(report.kernels, names, strict=True)]
    found = []
    for kernel, kind, by_order in zip(report.kernels, kinds, _by_order(kinds, launches), strict=True):
        # What was launched before the recording began has an operator too, only not a recorded one.
        mine = [one for one in alike[kind] if one.is_launch_recorded] or alike[kind]
        call_ids = {one.call_id for one in mine}
        match, call_id = Match.NOT_RECORDED if not call_ids else Match.AMBIGUOUS, None
        if len(call_ids) == 1:
            match, call_id = Match.SAME_CALL, mine[0].call_id
        elif call_ids and by_order is not None:
            match, call_id = Match.ORDER, by_order
        of_call = [one for one in mine if call_id in (None, one.call_id)]
        operators = {calls[one.call_id].operator for one in of_call}
        in_steps = sum(one.step is not None for one in of_call)
        found.append(
            CountedKernel(
                counters=kernel,
                name=kind[0],
                decoded=decode(kind[0]),
                match=match,
                call=None if call_id is None else calls[call_id],
                operators=tuple(sorted(one for one in operators if one is not None)),
                launches=len(of_call),
                launches_per_step=in_steps / steps if steps and in_steps else None,
                recorded_ns=median_low(one.duration_ns for one in of_call) if of_call else None,
            )
        )
    return tuple(found)


def _by_order(kinds: Sequence[Kind], launches: Sequence[Launch]) -> Iterator[int | None]:
    """The call of each profiled launch, where every place the sequence occurs at agrees on it."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(launch.kind for launch in launches))}
    recorded = np.array([numbers[launch.kind] for launch in launches], dtype=np.int64)
    wanted = [numbers[kind] for kind in kinds if kind in numbers]
    starts = np.arange(max(0, len(recorded) - len(wanted) + 1))
    for offset, number in enumerate(wanted):
        starts = starts[recorded[starts + offset] == number]
    offset = 0
    for kind in kinds:
        places = (starts + offset).tolist() if kind in numbers else []
        calls = {launches[one].call_id for one in places if launches[one].is_launch_recorded}
        yield calls.pop() if len(calls) == 1 else None
        offset += kind in numbers


def analyze_counters(report: NcuReport, session: Session | None = None) -> CounterAnalysis:
    """The kernels of a report with findings, and with the operators of a recording if one is given."""
    kernels = join_counters(report, session)
    # What is not known of one may be most of the program.
    findings = counter_findings(kernels) if not unmeasured(kernels) else ()
    sources = [] if session is None else session.query("SELECT source FROM traces ORDER BY trace_id")
    return CounterAnalysis(report, kernels, findings, tuple(source for (source,) in sources))


def unmeasured(kernels: Sequence[CountedKernel]) -> list[CountedKernel]:
    """Launches whose profiling failed, where no launch of their kernel was measured, and others were."""
    measured = {one.name for one in kernels if one.counters.values}
    return [one for one in kernels if measured and one.name not in measured]


class AlikeLaunches(NamedTuple):
    longest: CountedKernel
    launches: int
    duration_ns: int  # of all


def alike_launches(kernels: Sequence[CountedKernel]) -> list[AlikeLaunches]:
    """Launches of one kernel and geometry that the same limits are one; the most time first."""
    groups = grouped(
        ((one.name, one.counters.grid, one.counters.block, one.limit, one.operators), one)
        for one in sorted(kernels, key=lambda kernel: -(kernel.counters.duration_ns or 0))
    )
    found = [
        AlikeLaunches(one[0], len(one), sum(each.counters.duration_ns or 0 for each in one))
        for one in groups.values()
    ]
    return sorted(found, key=lambda one: -one.duration_ns)


def counter_findings(kernels: Sequence[CountedKernel]) -> tuple[Finding, ...]:
    """One for each suggestion, of all kernels that take much time; first what may bring most of all time."""
    groups = alike_launches(kernels)
    times = summed((group.longest.name, group.duration_ns) for group in groups)
    whole_ns = times.total() or 1
    told = grouped(
        ((it.code, it.suggestion), (group.duration_ns * it.evidence["estimated_speedup_fraction"], group, it))
        for group in groups
        if times[group.longest.name] >= _threshold("time_share") * whole_ns
        for rule in (_extra_traffic, _idle_tensor_cores, _limiting, _avoidable)
        for it in rule(group.longest)
    )
    found = (_of_all(sorted(said, key=lambda one: -one[0]), whole_ns) for said in told.values())
    worth = [one for one in found if one.evidence["time_fraction"] >= _threshold("time_share")]
    return tuple(sorted(worth, key=lambda one: (-one.evidence["estimated_time_fraction"], one.severity.rank)))


def _of_all(said: Sequence[tuple[float, AlikeLaunches, Finding]], whole_ns: int) -> Finding:
    launches = [group.longest.counters.index for _, group, _ in said]
    messages = (
        f"{group.longest.decoded.title} (launch {group.longest.counters.index}): {one.message}"
        for _, group, one in said
    )
    evidence = {
        "launch": launches[0],
        "kernel": said[0][1].longest.name,
        "launches": launches,
        "time_fraction": sum(group.duration_ns for _, group, _ in said) / whole_ns,
        "estimated_time_fraction": sum(ns for ns, *_ in said) / whole_ns,
        **said[0][2].evidence,
    }
    gain_ns = sum(one.estimated_gain_ns_per_step or 0.0 for *_, one in said) or None
    message = f"{'; '.join(messages)}."
    return replace(said[0][2], message=message, evidence=evidence, estimated_gain_ns_per_step=gain_ns)


def _finding(
    code: str,
    message: str,
    share: float,
    suggestion: str | None = None,
    gain: Mapping[str, Any] | None = None,
    **evidence: Any,
) -> Finding:
    """What is said of one kernel, with the share of its time that the change may bring."""
    shared = counter_book()["findings"].get(code, {"severity": "info"})
    return Finding(
        f"counters.{code}",
        Severity(shared["severity"]),
        message,
        f"{suggestion or shared['suggestion']}.",
        evidence={"estimated_speedup_fraction": share, **evidence},
        **(gain or {}),
    )


def _extra_traffic(kernel: CountedKernel) -> Iterator[Finding]:
    """More bytes of device memory than inputs and outputs have: something is read or written twice."""
    ratio, least, moved = kernel.traffic_ratio, kernel.min_bytes, kernel.counters.dram_bytes
    l2_bytes, call = kernel.counters.device.l2_bytes, kernel.call
    if ratio is None or least is None or moved is None or ratio < _threshold("traffic_ratio") or call is None:
        return
    if l2_bytes is not None and least < l2_bytes:
        return  # ncu empties the caches first, and what fits in them says nothing of larger sizes
    # How often inputs are read: counted, or what follows if outputs are written once.
    read, reads, cost = kernel.counters.count(Quantity.DRAM_READ_BYTES), "", call.cost
    if cost.read_bytes and read is not None:
        reads = f" (it reads its inputs {read / cost.read_bytes:.1f} times)"
    elif cost.read_bytes and cost.written_bytes is not None:
        times = (moved - cost.written_bytes) / cost.read_bytes
        reads = f" (if it writes its outputs once, it reads its inputs {times:.1f} times)"
    share, gain = (1 - 1 / ratio if kernel.limit is CounterLimit.DRAM else 0.0), {}
    if share and kernel.recorded_ns and kernel.launches_per_step:
        gain = {
            "estimated_gain_ns_per_step": kernel.recorded_ns * kernel.launches_per_step * share,
            "gain_basis": "the recorded time of these launches, times the share of bytes above the minimum: "
            "device memory limits the kernel",
        }
    operator = f" of {call.operator}" if call.operator else ""
    yield _finding(
        "extra_traffic",
        f"it moves {moved / 1e6:,.0f} MB of device memory where inputs and outputs{operator} have "
        f"{least / 1e6:,.0f} MB: {ratio:.2f} × the minimum{reads}",
        share,
        gain=gain,
        dram_bytes=moved,
        min_bytes=least,
        traffic_ratio=ratio,
        dram_read_bytes=read,
        min_read_bytes=cost.read_bytes,
    )


def _idle_tensor_cores(kernel: CountedKernel) -> Iterator[Finding]:
    tensor, operands = kernel.counters.ratio(Quantity.TENSOR_FRACTION), operand_type(kernel.decoded)
    capability = kernel.counters.device.compute_capability
    if tensor is None or tensor >= _threshold("tensor_pipe_fraction") or operands is None:
        return
    use = tensor_core_use(kernel.decoded, operands, capability)
    is_idle = is_product(kernel.decoded) and use not in (TensorCoreUse.USED, TensorCoreUse.NOT_APPLICABLE)
    if is_idle and has_tensor_cores_for(operands, capability):
        is_fp32 = operands is DataType.FP32
        yield _finding(
            "idle_tensor_cores",
            f"it multiplies {operands}, but tensor cores were active {format_percent(tensor)} of the time",
            _threshold("halved") * (kernel.counters.ratio(Quantity.SM_FRACTION) or 0.0),
            None if is_fp32 else "Align the sizes of the product to 16 bytes",
            {"change": 'torch.set_float32_matmul_precision("high")' if is_fp32 else None},
            tensor_pipe_fraction=tensor,
            operand_type=str(operands),
        )


def _limiting(kernel: CountedKernel) -> Iterator[Finding]:
    """A launch too small, a busy unit, the main reason of warps to wait, and too few of them."""
    counters, book, occupancy = kernel.counters, counter_book(), kernel.counters.occupancy
    busy = max(counters.ratio(one) or 0.0 for one in (Quantity.SM_FRACTION, Quantity.MEMORY_FRACTION))
    waves, is_waiting = occupancy.waves, kernel.limit is CounterLimit.LATENCY
    possible = 1.0 if occupancy.theoretical is None else occupancy.theoretical
    is_held = is_waiting and possible < _threshold("occupancy")
    is_small = kernel.limit is CounterLimit.LAUNCH_SIZE or (is_held and (waves or 1.0) < 1.0)
    if is_small and counters.grid and counters.block and waves is not None:
        blocks = f"{counted(prod(counters.grid), 'block')} of {counted(prod(counters.block), 'thread')}"
        device = f"{counters.device.sm_count or 'its'} multiprocessors"
        message = f"{blocks}: {format_percent(waves)} of what {device} hold at once"
        yield _finding("small_launch", message, 1 - max(waves, busy))
    unit = book["units"].get(counters.busiest_unit)
    threads = prod(counters.block) if counters.block else WARP_SIZE
    if threads < WARP_SIZE:
        lanes = f"{WARP_SIZE - threads} of {WARP_SIZE} lanes"
        message = f"blocks of {counted(threads, 'thread')} leave {lanes} empty"
        yield _finding("narrow_blocks", message, 1 - threads / WARP_SIZE)
    # Conflicts and needless sectors take loads and stores as well, and go first.
    is_needed = kernel.limit is CounterLimit.LOADS and not any(_avoidable(kernel))
    if unit and (is_needed or kernel.limit is CounterLimit.COMPUTE):
        message = f"{unit['meaning']} are at {format_percent(busy)} of their peak"
        yield _finding("busy_unit", message, _threshold("halved") * busy, unit["remedy"])
    reason, share = next(iter(counters.stall_fractions.items()), ("", 0.0))
    stall = book["stalls"].get(reason, {})
    is_long = share >= _threshold("stall_fraction") and "remedy" in stall
    if is_long and (is_waiting or kernel.limit is CounterLimit.LAUNCH_SIZE):
        message = f"its warps spend {format_percent(share)} of their time waiting for {stall['meaning']}"
        yield _finding("stall", message, min(share, 1 - busy), stall["remedy"])  # NVIDIA's estimate
    # Where two resources allow no more, a change of one gains nothing; nor where no block waits for a place.
    resource = book["resources"].get(" ".join(occupancy.limiters))
    if is_held and resource and not is_small:
        message = f"at most {format_percent(possible)} of the warps that a multiprocessor holds can be there"
        yield _finding("few_warps", message, 1 - max(possible, busy), resource["remedy"])


def _avoidable(kernel: CountedKernel) -> Iterator[Finding]:
    """Sectors, passes and lanes that do nothing, where the time depends on them."""
    counters, block = kernel.counters, kernel.counters.block
    if kernel.limit is CounterLimit.LAUNCH_SIZE:
        return

    def cost(fraction: float, *reasons: str) -> float:  # of the time; 0 where little depends on it
        busy = counters.ratio(Quantity.MEMORY_FRACTION) or 0.0
        waiting = sum(counters.stall_fractions.get(one, 0.0) for one in reasons)
        matters = busy >= _threshold("waiting_fraction") or waiting >= _threshold("stall_fraction")
        return fraction * max(busy, waiting) if matters and fraction >= _threshold("excess") else 0.0

    loads, stores, conflicts = counters.loads, counters.stores, counters.shared.conflict_fraction or 0.0
    moved = (loads.sectors or 0) + (stores.sectors or 0)
    excess = (loads.unneeded_sectors + stores.unneeded_sectors) / (moved or 1)
    if share := cost(excess, "long_scoreboard", "lg_throttle", "drain"):
        yield _finding("scattered", f"{format_percent(excess)} of the sectors it moves are not needed", share)
    both = Quantity.LOCAL_LOAD_SECTORS, Quantity.LOCAL_STORE_SECTORS
    local = sum(counters.count(one) or 0 for one in both)
    spilled = local / (moved + local) if local else 0.0
    if share := cost(spilled, "long_scoreboard", "lg_throttle"):
        message = f"{format_percent(spilled)} of the sectors it moves are of local memory"
        yield _finding("local_memory", f"{message}: arrays and spilled registers of single threads", share)
    threads = counters.ratio(Quantity.THREADS_PER_INSTRUCTION)
    if kernel.limit in (CounterLimit.DRAM, CounterLimit.CACHES):
        return
    # Without them it takes what its instructions need.
    share = min(
        cost(conflicts, "short_scoreboard", "mio_throttle"), 1 - (counters.ratio(Quantity.SM_FRACTION) or 0)
    )
    if share >= _threshold("excess"):
        message = f"{format_percent(conflicts)} of the passes through shared memory are bank conflicts"
        yield _finding("bank_conflicts", message, share)
    if threads is not None and threads < _threshold("active_threads") and block and prod(block) >= WARP_SIZE:
        share = (1 - threads / WARP_SIZE) * (counters.ratio(Quantity.SM_FRACTION) or 0.0)  # NVIDIA's estimate
        yield _finding(
            "divergence", f"{threads:.1f} of {WARP_SIZE} threads run an average instruction", share
        )


def kernel_filter(names: Iterable[str]) -> KernelFilter:
    """The filter of ncu for kernels as recordings name them; those that differ in types alone pass too."""
    return filter_of_functions(map(_function, names))


def _function(name: str) -> tuple[str, str | None]:
    decoded = decode(name)
    if decoded.function is None:
        return name, None
    functor = (decoded.functor or "").rpartition("::")[2]
    # Else an argument that names what a generic kernel runs, `cutlass_80_simt_sgemm_64x64_8x5_nn`.
    # Element types, numbers and flags are shorter.
    telling = (one for one in decoded.template_arguments if len(one) >= 16 and re.fullmatch(r"\w+", one))
    functor = functor or next(telling, "")
    return decoded.function.rpartition("::")[2], functor or None


class CollectionPlan(msgspec.Struct, frozen=True):
    kernels: KernelFilter
    launch_skip: int  # matching launches to pass over
    launch_count: int
    covered_fraction: float  # of all kernel time, by launches of the kinds profiled
    names: tuple[str, ...]  # most time first, as recordings name them


def plan_by_recording(session: Session, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a recording of the same program.

    A recording begins somewhere in the program, so launches are counted as if the program began with a step
    like the first recorded one; none is passed over unless the limit leaves no choice.
    """
    launches = read_launches(session, sql(__package__, "step_launches"))
    names = _longest(launches, kernels)
    matches = kernel_filter(names)
    covered = {name for name in {launch.kind[0] for launch in launches} if matches.covers(name)}
    window = best_window([launch for launch in launches if launch.kind[0] in covered], names, limit)
    if window is None:
        raise InputError("the recording holds no kernels", hint="Record the GPU's activities too")
    start, end, covered_ns = window
    start = start if end > limit else 0
    return CollectionPlan(matches, start, end - start, _share(covered_ns, launches), names)


def plan_by_profile(report: NcuReport, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a profile of the same program that holds every launch's time."""
    launches = [
        Launch((kernel.mangled_name, kernel.grid, kernel.block), kernel.duration_ns)
        for kernel in report.kernels
        if kernel.duration_ns is not None
    ]
    names = _longest(launches, kernels)
    matching = [launch for launch in launches if launch.kind[0] in names]
    window = best_window(matching[::-1], names, limit)  # the last ones, for the program has warmed up
    if window is None:
        raise CaptureError("the first profile holds no kernel times")
    start, end, covered_ns = window
    shown = {kernel.mangled_name: recorded_name(kernel) for kernel in report.kernels}
    return CollectionPlan(
        filter_of_mangled_names(names),
        len(matching) - end,
        end - start,
        _share(covered_ns, launches),
        tuple(shown[name] for name in names),
    )


def _share(covered_ns: int, launches: Sequence[Launch]) -> float:
    return covered_ns / (sum(launch.duration_ns for launch in launches) or 1)


def _longest(launches: Iterable[Launch], count: int) -> tuple[str, ...]:
    by_name = summed((launch.kind[0], launch.duration_ns) for launch in launches)
    return tuple(name for name, _ in by_name.most_common(count))


def best_window(launches: Sequence[Launch], names: Iterable[str], limit: int) -> tuple[int, int, int] | None:
    """Start, end and worth of the shortest window of most time of the named kernels; None without any."""
    worth = summed((launch.kind, launch.duration_ns) for launch in launches if launch.kind[0] in names)
    best = None
    for start, first in enumerate(launches):
        if first.kind in worth:
            firsts: dict[Kind, int] = {}
            for index, launch in enumerate(launches[start : start + limit], start):
                if launch.kind in worth:
                    firsts.setdefault(launch.kind, index)
            found = start, max(firsts.values()) + 1, sum(worth[kind] for kind in firsts)
            if best is None or (found[2], start - found[1]) > (best[2], best[0] - best[1]):
                best = found
    return best


class Topic(TextEnum):
    """What can be improved; also the order of a report."""

    LAUNCHES = "launches"
    OCCUPANCY = "occupancy"
    COALESCING = "coalescing"
    BANK_CONFLICTS = "bank conflicts"
    DIVERGENCE = "divergence"
    FUSION = "fusion"


class Improvement(msgspec.Struct, frozen=True):
    """One topic: what is known of it, or None; `needs_counters` where only they can tell the rest."""

    topic: Topic
    known: str | None
    needs_counters: bool


class OperatorImprovement(msgspec.Struct, frozen=True):
    """All topics for the kernel an operator spends most time in, and the command for the open ones."""

    kernel: str
    topics: tuple[Improvement, ...]
    command: str


def find_improvements(
    operators: Iterable[OperatorTotal], quality: Sequence[LaunchQuality], efficiency: Efficiency
) -> dict[str, OperatorImprovement]:
    """By operator name, for those that launched kernels. `quality` comes by device time."""
    longest = [
        (one, kernel)
        for one in operators
        if (kernel := next((each for each in one.kernels if each.kind == "kernel"), None)) is not None
    ]
    first = {(one.operator, one.kernel.name): one for one in reversed(quality)}
    found = {}
    for operator, kernel in longest:
        key = (operator.name, kernel.name)
        topics = tuple(_topics(operator, kernel, first.get(key), efficiency.operators.get(operator.name)))
        pattern = shlex.quote(kernel_filter([kernel.name]).pattern)
        found[operator.name] = OperatorImprovement(
            kernel.name, topics, f"opscope ncu --kernel {pattern} -- python script.py"
        )
    return found


def _topics(
    operator: OperatorTotal, kernel: KernelTotal, launch: LaunchQuality | None, roofline: Roofline | None
) -> Iterable[Improvement]:
    # Median duration of cudaLaunchKernel in recordings of PyTorch 2.11 on an H200 host (4.0 to 4.6 µs):
    # shorter kernels cannot keep the device busy alone.
    short = [one for one in operator.kernels if one.kind == "kernel" and one.total_ns < 4_000 * one.calls]
    calls, total_ns = sum(one.calls for one in short), sum(one.total_ns for one in short)
    launches = None
    # A smaller share of the operator's device time is noise in its report.
    if calls and total_ns >= 0.2 * operator.self_device_ns:
        launches = (
            f"{calls:,} run {total_ns / calls / 1e3:.2f} µs on average, no longer than a launch costs the "
            "host"
        )
    yield Improvement(Topic.LAUNCHES, launches, needs_counters=False)
    yield Improvement(Topic.OCCUPANCY, _occupancy(launch), needs_counters=True)
    # Only proof that accesses are coalesced; what is only likely is left to counters.
    width = None if kernel.facts is None else kernel.facts.fields.get("vector_width")
    is_memory_bound = roofline is not None and roofline.bound is Bound.MEMORY
    fraction = (roofline.fraction if roofline is not None else None) or 0.0
    coalesced = None
    # Above this share of the memory limit scattered accesses are excluded: a warp that used half of each
    # 32-byte sector could not reach more than half of it.
    if is_memory_bound and fraction >= 0.75:
        coalesced = (
            f"accesses are coalesced: least bytes alone flow at {100 * fraction:.0f} % of the memory limit"
        )
    elif isinstance(width, int) and width > 1:
        coalesced = f"each thread loads {width} neighboring elements at once, by the kernel's name"
    yield Improvement(Topic.COALESCING, coalesced, needs_counters=coalesced is None)
    unshared = launch is not None and launch.geometry.shared_memory_bytes == 0
    conflicts = "none: the kernel uses no shared memory" if unshared else None
    yield Improvement(Topic.BANK_CONFLICTS, conflicts, needs_counters=not unshared)
    divergence = None
    if launch is not None and launch.partial_warp_loss:
        divergence = (
            f"blocks of {launch.thread_count} threads leave {100 * launch.partial_warp_loss:.0f} % of their "
            "warps' lanes unused"
        )
    yield Improvement(Topic.DIVERGENCE, divergence, needs_counters=True)
    fusion = None
    if operator.kernel_launches > operator.calls > 0 and len(operator.kernels) > 1:
        fusion = (
            f"{operator.kernel_launches / operator.calls:.1f} kernels per call pass their results through "
            "device memory"
        )
    elif operator.category in frozenset(("elementwise", "activation")):
        fusion = "pointwise: fused into the operator before or after, its own reads and writes would go away"
    elif operator.category in frozenset(("normalization", "reduction")) and is_memory_bound:
        fusion = "a pointwise neighbor fused into it would cost it no further bytes"
    yield Improvement(Topic.FUSION, fusion, needs_counters=False)


def _occupancy(launch: LaunchQuality | None) -> str | None:
    if launch is None or launch.active is None or launch.occupancy is None:
        return None
    held = launch.active
    text = (
        f"{100 * launch.occupancy:.0f} % of the warps a multiprocessor holds ({held.warps_per_sm} of "
        f"{held.max_warps_per_sm}), limited by {held.limited_by}"
    )
    if launch.idle_sm_count:
        return f"{text}; {launch.block_count:,} blocks leave {launch.idle_sm_count} of {launch.sm_count} idle"
    if launch.waves is not None:
        text += f"; {launch.waves.count:.2f} waves, {100 * launch.waves.tail_loss:.0f} % of their slots empty"
    return text
