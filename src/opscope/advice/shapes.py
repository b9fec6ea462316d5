"""Advice on launches that leave much of the device empty: small products, tails, few resident warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod

from opscope.advice.case import Advice, Case
from opscope.advice.product_time import product_of
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import call_evidence, listed, of_device, operators_of, per_step
from opscope.analysis.efficiency import Bound, CallEfficiency
from opscope.analysis.launch_quality import LaunchQuality
from opscope.analysis.tensor_cores import is_product
from opscope.analysis.totals import KernelTotal, LaunchGeometry
from opscope.provenance.kernel_names import decode
from opscope.units import format_fraction

__all__ = ["RULES"]


def small_products(case: Case, rule: Rule) -> Iterator[Advice]:
    """Products of too few tiles for the device."""
    calls = [call for call in case.calls if _is_small(call, rule.threshold("roofline_fraction"))]
    total_ns = case.time_of(calls)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    attainable_ns = sum(call.roofline.attainable_ns or 0.0 for call in calls)
    yield Advice(
        f"Matrix products ({listed(operators_of(calls), 3)}; the longest {_sizes_text(calls)}) are too small "
        f"to fill the device: {of_device(case, total_ns)} at {format_fraction(attainable_ns / total_ns)} of "
        "what it could do.",
        call_evidence(case, calls),
        basis="not estimated: one size does not tell how a larger one would do",
    )


def tail_wave(case: Case, rule: Rule) -> Iterator[Advice]:
    """Tiled kernels whose last round of blocks is nearly empty."""
    found = [tail for kernel in case.summary.kernels for tail in _tails(kernel, case.sm_count, rule)]
    total_ns = sum(tail.geometry.total_ns for tail in found)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    lost_ns = sum(tail.geometry.total_ns * tail.loss for tail in found)
    worst = max(found, key=lambda tail: (tail.geometry.total_ns, tail.kernel))
    yield Advice(
        f"Kernels that take {of_device(case, total_ns)} end in a round that fills little of the device: the "
        f"longest deals {worst.blocks:,} blocks to {case.sm_count} multiprocessors in {worst.rounds:.2f} "
        "rounds.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "lost_ns": lost_ns,
            "kernels": list(dict.fromkeys(tail.kernel for tail in found))[:5],
            "rounds": round(worst.rounds, 3),
            "blocks": worst.blocks,
        },
        Saving(device_ns=case.per_step(lost_ns)),
        f"the empty places of their rounds: {per_step(case, lost_ns)} of {per_step(case, total_ns)}",
    )


def low_occupancy(case: Case, rule: Rule) -> Iterator[Advice]:
    """Kernels bound by memory, far from its rate, with few resident warps."""
    found = [quality for quality in case.summary.quality if _is_starved(case, quality, rule)]
    total_ns = sum(quality.total_ns for quality in found)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    worst = max(found, key=lambda quality: (quality.total_ns, quality.kernel))
    limiters = " and ".join(str(limiter).replace("_", " ") for limiter in worst.limiters)
    yield Advice(
        f"Kernels bound by memory take {of_device(case, total_ns)} ({per_step(case, total_ns)}) with at most "
        f"{format_fraction(max(quality.occupancy or 0.0 for quality in found))} of the warps resident; what "
        f"allows the longest no more: {limiters}.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "kernels": list(dict.fromkeys(quality.kernel for quality in found))[:5],
            "occupancy_fraction": worst.occupancy,
            "limiters": [str(limiter) for limiter in worst.limiters],
            "registers_per_thread": worst.geometry.registers_per_thread,
            "shared_memory_bytes": worst.geometry.shared_memory_bytes,
        },
        basis="not estimated: what more warps bring depends on the kernel's code",
    )


RULES: Mapping[str, RuleFunction] = {
    "advice.small_products": small_products,
    "advice.tail_wave": tail_wave,
    "advice.low_occupancy": low_occupancy,
}


@dataclass(frozen=True)
class _Tail:
    """Launches of one kernel and geometry; `rounds` are blocks over multiprocessors."""

    kernel: str
    geometry: LaunchGeometry
    blocks: int
    rounds: float

    @property
    def loss(self) -> float:
        """Share of the places of all rounds that stay empty."""
        return 1 - self.rounds / ceil(self.rounds)


def _is_small(call: CallEfficiency, most_fraction: float) -> bool:
    fraction = call.roofline.fraction
    return (
        product_of(call) is not None
        and call.roofline.bound in (Bound.LATENCY, Bound.LAUNCH)
        and fraction is not None
        and fraction < most_fraction
    )


def _sizes_text(calls: list[CallEfficiency]) -> str:
    product = product_of(max(calls, key=lambda call: (call.roofline.device_ns, -call.call_id)))
    if product is None:
        return "of unknown size"
    batch = f"{product.batch} of " if product.batch > 1 else ""
    return f"{batch}{product.m}×{product.k} by {product.k}×{product.n}"


def _has_tiles(kernel: str) -> bool:
    """Whether a block of it computes a tile, so that a block is much work."""
    return is_product(decode(kernel))


def _tails(kernel: KernelTotal, sm_count: int | None, rule: Rule) -> Iterator[_Tail]:
    """Its geometries with a nearly empty last round.

    Counted by multiprocessors, not by the blocks that they can hold: blocks beside each other on one share
    its arithmetic, so that two of them take twice as long as one.
    """
    if sm_count is None or kernel.kind != "kernel":
        return
    for geometry in kernel.geometries:
        blocks = prod(geometry.grid or ())
        tail = _Tail(kernel.name, geometry, blocks, blocks / sm_count)
        is_short = 1 < tail.rounds < rule.threshold("most_rounds")
        if is_short and tail.loss >= rule.threshold("least_loss") and _has_tiles(kernel.name):
            yield tail


def _is_starved(case: Case, quality: LaunchQuality, rule: Rule) -> bool:
    """Few resident warps, bound by memory and far from its rate."""
    roofline = case.summary.efficiency.kernels.get((quality.operator, quality.kernel))
    if roofline is None or roofline.bound is not Bound.MEMORY or roofline.fraction is None:
        return False
    if quality.occupancy is None or quality.occupancy > rule.threshold("most_occupancy"):
        return False
    return roofline.fraction < rule.threshold("roofline_fraction") and not _has_tiles(quality.kernel)
