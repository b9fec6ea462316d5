"""What counters say should be changed: one small function per observation, silent where all is well.

A rule whose counter was not collected says nothing. Numbers stand in `counters.toml`, with their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from opscope.analysis.counters import (
    CountedKernel,
    CounterAnalysis,
    CounterLimit,
    counter_book,
    join_counters,
    threshold,
)
from opscope.analysis.efficiency import TensorCoreUse
from opscope.analysis.tensor_cores import has_tensor_cores_for, is_product, operand_type, tensor_core_evidence
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.toolchain.ncu_report import WIDEST_REQUEST_SECTORS, NcuReport, Quantity

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
