"""What the recorded launches of one operator show, in sentences that carry their numbers.

Each rule speaks only when the trace holds its evidence, and states what is, not what to do: estimates of gain
belong to advice. Silent on a healthy operator.
"""

from __future__ import annotations

from math import prod

from opscope.analysis.totals import KernelTotal, LaunchGeometry, OperatorTotal
from opscope.report.document import Code, Text
from opscope.units import format_duration, format_fraction

__all__ = ["launch_observations"]

_THREADS_PER_WARP = 32
# Median duration of cudaLaunchKernel in recordings of PyTorch 2.11 on an H200 host (4.0 to 4.6 us): shorter
# kernels cannot keep the device busy alone.
_SHORT_KERNEL_NS = 4_000
# Below this estimated occupancy latency hiding rests on instruction-level parallelism alone.
_LOW_OCCUPANCY = 0.25
# An effect on less than this share of an operator's device time is noise in its report.
_RELEVANT_FRACTION = 0.2


def launch_observations(operator: OperatorTotal, sm_count: int | None) -> tuple[Text, ...]:
    """Observations on an operator's own kernels.

    Args:
        operator: The operator, with its kernels and their launch geometries.
        sm_count: Multiprocessors of the device; None if unknown or not the same for all devices.
    """
    launches = [
        (kernel, geometry)
        for kernel in operator.kernels
        if kernel.kind == "kernel"
        for geometry in kernel.geometries
    ]
    found = (
        _several_kernels_per_call(operator),
        _short_kernels(operator),
        _small_grids(operator, launches, sm_count),
        _partial_warps(operator, launches),
        _low_occupancy(operator, launches),
    )
    return tuple(text for text in found if text is not None)


def _several_kernels_per_call(operator: OperatorTotal) -> Text | None:
    names = [kernel for kernel in operator.kernels if kernel.kind == "kernel"]
    if operator.kernel_launches <= operator.calls or len(names) < 2:
        return None
    per_call = operator.kernel_launches / operator.calls
    return (
        f"{per_call:.1f} kernels per call, of {len(names)} names: "
        "intermediate results pass through device memory."
    )


def _short_kernels(operator: OperatorTotal) -> Text | None:
    short = [k for k in operator.kernels if k.kind == "kernel" and k.total_ns < _SHORT_KERNEL_NS * k.calls]
    calls = sum(kernel.calls for kernel in short)
    total_ns = sum(kernel.total_ns for kernel in short)
    if not calls or _share(total_ns, operator) < _RELEVANT_FRACTION:
        return None
    return (
        f"{calls:,} launches run {format_duration(total_ns / calls)} on average, no longer than a launch "
        f"costs the host ({_share_text(total_ns, operator)} of its device time)."
    )


def _small_grids(
    operator: OperatorTotal, launches: list[tuple[KernelTotal, LaunchGeometry]], sm_count: int | None
) -> Text | None:
    if sm_count is None:
        return None
    small = [g for _, g in launches if g.grid is not None and prod(g.grid) < sm_count]
    total_ns = sum(geometry.total_ns for geometry in small)
    if _share(total_ns, operator) < _RELEVANT_FRACTION:
        return None
    blocks = max(prod(geometry.grid or ()) for geometry in small)
    return (
        f"{_share_text(total_ns, operator)} of its device time runs in grids of at most {blocks} "
        f"blocks, fewer than the device's {sm_count} multiprocessors."
    )


def _partial_warps(
    operator: OperatorTotal, launches: list[tuple[KernelTotal, LaunchGeometry]]
) -> Text | None:
    partial = [g for _, g in launches if g.block is not None and prod(g.block) % _THREADS_PER_WARP]
    total_ns = sum(geometry.total_ns for geometry in partial)
    if _share(total_ns, operator) < _RELEVANT_FRACTION:
        return None
    threads = prod(max(partial, key=lambda geometry: geometry.total_ns).block or ())
    return (
        f"{_share_text(total_ns, operator)} of its device time runs in blocks of {threads} threads, "
        f"no multiple of {_THREADS_PER_WARP}: part of each block's last warp idles."
    )


def _low_occupancy(
    operator: OperatorTotal, launches: list[tuple[KernelTotal, LaunchGeometry]]
) -> Text | None:
    low = [
        (kernel, geometry)
        for kernel, geometry in launches
        if geometry.occupancy_estimate is not None and 0 < geometry.occupancy_estimate < _LOW_OCCUPANCY
    ]
    total_ns = sum(geometry.total_ns for _, geometry in low)
    if _share(total_ns, operator) < _RELEVANT_FRACTION:
        return None
    kernel, geometry = max(low, key=lambda launch: launch[1].total_ns)
    uses = [
        f"{geometry.registers_per_thread} registers per thread" if geometry.registers_per_thread else "",
        f"{geometry.shared_memory_bytes:,} B of shared memory per block"
        if geometry.shared_memory_bytes
        else "",
    ]
    uses_text = " and ".join(use for use in uses if use)
    return (
        f"{_share_text(total_ns, operator)} of its device time runs at an estimated occupancy below "
        f"{format_fraction(_LOW_OCCUPANCY)}; the longest is ",
        Code(kernel.name),
        f" at {format_fraction(geometry.occupancy_estimate)}" + (f" with {uses_text}." if uses_text else "."),
    )


def _share(total_ns: int, operator: OperatorTotal) -> float:
    return total_ns / operator.self_device_ns if operator.self_device_ns else 0.0


def _share_text(total_ns: int, operator: OperatorTotal) -> str:
    return format_fraction(_share(total_ns, operator))
