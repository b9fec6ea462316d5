"""What hardware counters say of kernels, beside what a recording knows of the calls that launched them.

A fact that neither holds is None, and a comparison that cannot be made says why. Each observation is a small
function, silent where all is well or its counter was not collected; numbers stand in `counters.toml`, with
their reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from statistics import median_low
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tomli

from opscope.analysis.tensor_cores import (
    TensorCoreUse,
    has_tensor_cores_for,
    is_product,
    operand_type,
    tensor_core_evidence,
)
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding, Severity
from opscope.model.notebook import notebook_html
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.call_cost import UNKNOWN_COST, CallCost
from opscope.operators.session_costs import fill_costs, read_costs
from opscope.provenance.demangle import demangle
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum
from opscope.toolchain.ncu_report import WIDEST_REQUEST_SECTORS, Extent, KernelCounters, NcuReport, Quantity


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


Rule = Callable[[CountedKernel], "Finding | None"]


def analyze_counters(report: NcuReport, session: Session | None = None) -> CounterAnalysis:
    """The kernels of a report with findings, and with the operators of a recording if one is given."""
    kernels = join_counters(report, session)
    sources = [] if session is None else session.query("SELECT source FROM traces ORDER BY trace_id")
    return CounterAnalysis(report, kernels, counter_findings(kernels), tuple(source for (source,) in sources))


def counter_findings(kernels: Sequence[CountedKernel]) -> tuple[Finding, ...]:
    """All findings: most severe first, then by gain, then in the order of the report.

    Launches alike that show the same are said once, by the one that took longest.
    """
    longest_first = sorted(kernels, key=lambda kernel: -(kernel.counters.duration_ns or 0))
    said: dict[tuple[str, Any], Finding] = {}
    for kernel in longest_first:
        kind = kernel.name, kernel.counters.grid, kernel.counters.block
        for finding in (*(rule(kernel) for rule in RULES), *_passed_on(kernel)):
            if finding is not None:
                said.setdefault((finding.code, kind), finding)
    return tuple(
        sorted(
            said.values(),
            key=lambda finding: (
                finding.severity.rank,
                -(finding.estimated_gain_ns_per_step or 0.0),
                finding.evidence["launch"],
            ),
        )
    )


def _finding(
    kernel: CountedKernel,
    code: str,
    message: str,
    suggestion: str | None = None,
    gain: Mapping[str, Any] | None = None,
    **evidence: Any,
) -> Finding:
    shared = counter_book().findings[code]
    return Finding(
        f"counters.{code}",
        Severity(shared["severity"]),
        f"{kernel.title} (launch {kernel.counters.index}): {message}.",
        f"{suggestion or shared['suggestion']}.",
        evidence={"launch": kernel.counters.index, "kernel": kernel.name, **evidence},
        **(gain or {}),
    )


def _uncoalesced(kernel: CountedKernel, *, what: str) -> Finding | None:
    """Loads, or stores, that touch more sectors than their bytes need."""
    access = kernel.counters.loads if what == "load" else kernel.counters.stores
    sectors = access.sectors_per_request
    both = (kernel.counters.loads.sectors or 0) + (kernel.counters.stores.sectors or 0)
    if sectors is None or (access.sectors or 0) < threshold("access_share") * both:
        return None
    ideal = access.ideal_sectors_per_request
    if ideal is None:
        # Without the bytes asked for, only what no width of access explains is certain.
        is_wasteful, needed = sectors > WIDEST_REQUEST_SECTORS, f"the widest needs {WIDEST_REQUEST_SECTORS}"
    else:
        is_wasteful = sectors >= threshold("sector_excess") * ideal
        needed = f"{ideal:.1f} would hold its bytes"
    if not is_wasteful:
        return None
    return _finding(
        kernel,
        f"uncoalesced_{what}s",
        f"a {what} of a warp touches {sectors:.1f} sectors of 32 bytes where {needed}",
        sectors_per_request=sectors,
        ideal_sectors_per_request=ideal,
        sectors=access.sectors,
    )


def _uncoalesced_accesses(kernel: CountedKernel) -> Finding | None:
    """Loads and stores together, where they were not counted apart."""
    counters = kernel.counters
    if counters.loads.bytes_per_sector is not None or counters.stores.bytes_per_sector is not None:
        return None
    sectors, ideal = counters.count(Quantity.GLOBAL_SECTORS), counters.count(Quantity.GLOBAL_SECTORS_IDEAL)
    if not sectors or not ideal or sectors < threshold("sector_excess") * ideal:
        return None
    return _finding(
        kernel,
        "uncoalesced_accesses",
        f"its accesses to global memory touch {sectors / ideal:.1f} times the sectors that would hold their "
        "bytes",
        sectors=sectors,
        ideal_sectors=ideal,
    )


def _bank_conflicts(kernel: CountedKernel) -> Finding | None:
    shared = kernel.counters.shared
    fraction = shared.conflict_fraction
    # Share of a multiprocessor's active cycles that conflicts take, at one wavefront a cycle.
    active, sm_count = kernel.counters.ratio(Quantity.ACTIVE_CYCLES), kernel.counters.device.sm_count
    cycles = None
    if active and sm_count and shared.excess is not None:
        cycles = shared.excess / (active * sm_count)
    if fraction is None or fraction < threshold("conflict_fraction"):
        return None
    if cycles is not None and cycles < threshold("conflict_cycles_fraction"):
        return None
    cost = "" if cycles is None else f", {_percent(cycles)} of its cycles"
    return _finding(
        kernel,
        "bank_conflicts",
        f"{_percent(fraction)} of the passes through shared memory repeat others for bank conflicts{cost}",
        conflict_fraction=fraction,
        excess_wavefronts=shared.excess,
        cycles_fraction=cycles,
    )


def _extra_traffic(kernel: CountedKernel) -> Finding | None:
    """More bytes of device memory than inputs and outputs have: something is read or written twice."""
    ratio, least, moved = kernel.traffic_ratio, kernel.min_bytes, kernel.counters.dram_bytes
    l2_bytes = kernel.counters.device.l2_bytes
    if ratio is None or least is None or moved is None or ratio < threshold("traffic_ratio"):
        return None
    if l2_bytes is not None and least < l2_bytes:
        return None  # ncu empties the caches first, and what fits in them says nothing of larger sizes
    reads = _reads(kernel)
    operator = f" of {kernel.call.operator}" if kernel.call and kernel.call.operator else ""
    return _finding(
        kernel,
        "extra_traffic",
        f"it moves {moved / 1e6:,.0f} MB of device memory where inputs and outputs{operator} have "
        f"{least / 1e6:,.0f} MB: {ratio:.2f} × the minimum{reads}",
        gain=_traffic_gain(kernel, ratio),
        dram_bytes=moved,
        min_bytes=least,
        traffic_ratio=ratio,
        dram_read_bytes=kernel.counters.count(Quantity.DRAM_READ_BYTES),
        min_read_bytes=kernel.call.cost.read_bytes if kernel.call else None,
    )


def _reads(kernel: CountedKernel) -> str:
    """How often inputs are read: counted, or what follows if outputs are written once."""
    read, moved = kernel.counters.count(Quantity.DRAM_READ_BYTES), kernel.counters.dram_bytes
    call = kernel.call
    if call is None or not call.cost.read_bytes:
        return ""
    if read is not None:
        return f" (it reads its inputs {read / call.cost.read_bytes:.1f} times)"
    if moved is None or call.cost.written_bytes is None:
        return ""
    rest = (moved - call.cost.written_bytes) / call.cost.read_bytes
    return f" (if it writes its outputs once, it reads its inputs {rest:.1f} times)"


def _traffic_gain(kernel: CountedKernel, ratio: float) -> dict[str, Any]:
    """Time a step would save if the bytes were the least and memory as fast; only where memory limits."""
    if (
        kernel.limit is not CounterLimit.DRAM
        or kernel.recorded_ns is None
        or kernel.launches_per_step is None
    ):
        return {}
    return {
        "estimated_gain_ns_per_step": kernel.recorded_ns * kernel.launches_per_step * (1 - 1 / ratio),
        "gain_basis": "the recorded time of these launches, times the share of bytes above the minimum: "
        "device memory limits the kernel",
    }


def _cache_bound(kernel: CountedKernel) -> Finding | None:
    """Caches at their limit while device memory idles: many sectors for few bytes."""
    memory = kernel.counters.ratio(Quantity.MEMORY_FRACTION)
    dram = kernel.counters.ratio(Quantity.DRAM_FRACTION)
    if (
        memory is None
        or dram is None
        or kernel.limit is not CounterLimit.CACHES
        or is_product(kernel.decoded)
    ):
        return None  # products reuse what they load: their caches are meant to be busy
    if memory < threshold("busy_fraction") or memory < threshold("cache_share") * dram:
        return None
    return _finding(
        kernel,
        "cache_bound",
        f"the caches run at {_percent(memory)} of their peak and device memory at {_percent(dram)}: many "
        "more bytes pass the caches than are needed",
        memory_throughput_fraction=memory,
        dram_throughput_fraction=dram,
    )


def _idle_tensor_cores(kernel: CountedKernel) -> Finding | None:
    tensor = kernel.counters.ratio(Quantity.TENSOR_FRACTION)
    if tensor is None or tensor >= threshold("tensor_pipe_fraction") or not is_product(kernel.decoded):
        return None
    operands = operand_type(kernel.decoded)
    evidence = tensor_core_evidence(kernel.decoded, operands, kernel.counters.device.compute_capability)
    if operands is None or evidence.use in (TensorCoreUse.USED, TensorCoreUse.NOT_APPLICABLE):
        return None
    if not has_tensor_cores_for(operands, kernel.counters.device.compute_capability):
        return None
    is_fp32 = operands is DataType.FP32
    return _finding(
        kernel,
        "idle_tensor_cores",
        f"it multiplies {operands}, but tensor cores were active in {_percent(tensor, 1)} of the cycles",
        None if is_fp32 else "Align the sizes of the product to 16 bytes",
        {"change": 'torch.set_float32_matmul_precision("high")' if is_fp32 else None},
        tensor_pipe_fraction=tensor,
        operand_type=str(operands),
    )


def _passed_on(kernel: CountedKernel) -> Iterator[Finding]:
    """What NVIDIA's rules say, in their words, with what helps."""
    used = (kernel.counters.ratio(Quantity.SM_FRACTION), kernel.counters.ratio(Quantity.MEMORY_FRACTION))
    is_busy = any(fraction is not None and fraction >= threshold("busy_fraction") for fraction in used)
    holds = {"any": True, "idle": not is_busy, "waiting": kernel.limit is CounterLimit.LATENCY}
    for advice in kernel.counters.advice:
        rule = counter_book().rules.get(advice.rule)
        if rule is None or not holds[rule["of"]]:
            continue
        # `Long Scoreboard Stalls`
        stall = counter_book().stalls.get(advice.title.removesuffix(" Stalls").lower().replace(" ", "_"))
        suggestion = rule.get("suggestion") or (None if stall is None else stall.remedy)
        share = advice.speedup_fraction
        estimate = "" if share is None else f" ({_percent(share)} of its time)"
        yield Finding(
            f"ncu.{advice.rule}",
            Severity.INFO,
            f"{kernel.title} (launch {kernel.counters.index}): NVIDIA's rule {advice.rule} applies{estimate}."
            + f" {advice.text}",
            suggestion and f"{suggestion}.",
            evidence={
                "launch": kernel.counters.index,
                "kernel": kernel.name,
                "estimated_speedup_fraction": share,
            },
        )


def _percent(fraction: float, decimals: int = 0) -> str:
    return f"{100 * fraction:.{decimals}f} %"


RULES: tuple[Rule, ...] = (
    _extra_traffic,
    partial(_uncoalesced, what="load"),
    partial(_uncoalesced, what="store"),
    _uncoalesced_accesses,
    _cache_bound,
    _bank_conflicts,
    _idle_tensor_cores,
)
