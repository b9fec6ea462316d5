"""What hardware counters say of kernels, beside what a recording knows of the calls that launched them.

A fact that neither holds is None, and a comparison that cannot be made says why. Each observation is a small
function, silent where all is well or its counter was not collected; numbers stand in `counters.toml`, with
their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import median_low
from typing import Any, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.tensor_cores import (
    TensorCoreUse,
    has_tensor_cores_for,
    is_product,
    operand_type,
    tensor_core_use,
)
from opscope.data import packaged_toml
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding, Severity
from opscope.model.notebook import Shown
from opscope.model.queries import grouped, sql
from opscope.model.session import Session
from opscope.operators.session_costs import CostedCall, fill_costs, read_costs
from opscope.provenance.demangle import demangle
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum
from opscope.toolchain.ncu_report import Extent, KernelCounters, NcuReport, Quantity


def counter_book() -> dict[str, Any]:
    """What `counters.toml` holds: thresholds with their reasons, stalls, findings by code, NVIDIA's rules."""
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
    LATENCY = "latency", "neither: it waits"


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
        compute, memory, dram = (
            self.counters.ratio(one)
            for one in (Quantity.SM_FRACTION, Quantity.MEMORY_FRACTION, Quantity.DRAM_FRACTION)
        )
        if compute is None or memory is None:
            return None
        if max(compute, memory) < _threshold("waiting_fraction"):
            return CounterLimit.LATENCY
        if compute >= memory:
            return CounterLimit.COMPUTE
        if dram is None:
            return None
        return CounterLimit.DRAM if dram >= _threshold("dram_share") * memory else CounterLimit.CACHES

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
    sources = [] if session is None else session.query("SELECT source FROM traces ORDER BY trace_id")
    return CounterAnalysis(report, kernels, counter_findings(kernels), tuple(source for (source,) in sources))


def counter_findings(kernels: Sequence[CountedKernel]) -> tuple[Finding, ...]:
    """All findings: most severe first, then by gain, then in the order of the report.

    Launches alike that show the same are said once, by the one that took longest.
    """
    said: dict[tuple[str, Any], Finding] = {}
    for kernel in sorted(kernels, key=lambda kernel: -(kernel.counters.duration_ns or 0)):
        for finding in chain.from_iterable(rule(kernel) for rule in _RULES):
            said.setdefault(
                (finding.code, (kernel.name, kernel.counters.grid, kernel.counters.block)), finding
            )

    def rank(one: Finding) -> tuple[int, float, float, int]:
        share = one.evidence.get("estimated_speedup_fraction") or 0.0
        return one.severity.rank, -(one.estimated_gain_ns_per_step or 0.0), -share, one.evidence["launch"]

    return tuple(sorted(said.values(), key=rank))


def _finding(
    kernel: CountedKernel,
    code: str,
    message: str,
    suggestion: str | None = None,
    gain: Mapping[str, Any] | None = None,
    **evidence: Any,
) -> Finding:
    shared = counter_book()["findings"][code]
    return Finding(
        f"counters.{code}",
        Severity(shared["severity"]),
        f"{kernel.decoded.title} (launch {kernel.counters.index}): {message}.",
        f"{suggestion or shared['suggestion']}.",
        evidence={"launch": kernel.counters.index, "kernel": kernel.name, **evidence},
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
    gain = {}
    if kernel.limit is CounterLimit.DRAM and kernel.recorded_ns and kernel.launches_per_step:
        gain = {
            "estimated_gain_ns_per_step": kernel.recorded_ns * kernel.launches_per_step * (1 - 1 / ratio),
            "gain_basis": "the recorded time of these launches, times the share of bytes above the minimum: "
            "device memory limits the kernel",
        }
    operator = f" of {call.operator}" if call.operator else ""
    yield _finding(
        kernel,
        "extra_traffic",
        f"it moves {moved / 1e6:,.0f} MB of device memory where inputs and outputs{operator} have "
        f"{least / 1e6:,.0f} MB: {ratio:.2f} × the minimum{reads}",
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
            kernel,
            "idle_tensor_cores",
            f"it multiplies {operands}, but tensor cores were active in {_percent(tensor, 1)} of the cycles",
            None if is_fp32 else "Align the sizes of the product to 16 bytes",
            {"change": 'torch.set_float32_matmul_precision("high")' if is_fp32 else None},
            tensor_pipe_fraction=tensor,
            operand_type=str(operands),
        )


def _passed_on(kernel: CountedKernel) -> Iterator[Finding]:
    used = (kernel.counters.ratio(Quantity.SM_FRACTION), kernel.counters.ratio(Quantity.MEMORY_FRACTION))
    is_busy = any(fraction is not None and fraction >= _threshold("busy_fraction") for fraction in used)
    holds = {"any": True, "idle": not is_busy, "waiting": kernel.limit is CounterLimit.LATENCY}
    for advice in kernel.counters.advice:
        rule = counter_book()["rules"].get(advice.rule)
        if rule is None or not holds[rule["of"]]:
            continue
        # `Long Scoreboard Stalls`
        suggestion = rule.get("suggestion") or counter_book()["stalls"].get(
            advice.title.removesuffix(" Stalls").lower().replace(" ", "_"), {}
        ).get("remedy")
        share = advice.speedup_fraction
        estimate = "" if share is None else f" ({_percent(share)} of its time)"
        launch = kernel.counters.index
        yield Finding(
            f"ncu.{advice.rule}",
            Severity.INFO,
            f"{kernel.decoded.title} (launch {launch}): NVIDIA's rule {advice.rule} applies{estimate}. "
            f"{advice.text}",
            suggestion and f"{suggestion}.",
            evidence={"launch": launch, "kernel": kernel.name, "estimated_speedup_fraction": share},
        )


def _percent(fraction: float, decimals: int = 0) -> str:
    return f"{100 * fraction:.{decimals}f} %"


_RULES = (_extra_traffic, _idle_tensor_cores, _passed_on)
