"""How a grid fills the device: resident blocks, waves and their tail, and the resources a block takes.

Facts of the recorded geometry and the device alone, true of any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from opscope.analysis.occupancy import Limiter, Residency, Waves, residency, waves_of
from opscope.analysis.parallelism.account import Heading, Statement
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import plural
from opscope.model.evidence import Grade
from opscope.units import format_fraction

__all__ = ["resident_blocks", "resource_statements", "wave_statements", "waves"]

_LIMITER_TEXT = {
    Limiter.BLOCKS: "blocks per multiprocessor",
    Limiter.THREADS: "threads",
    Limiter.REGISTERS: "registers",
    Limiter.SHARED_MEMORY: "shared memory",
}


def resident_blocks(launch: LaunchFacts) -> Residency | None:
    """Blocks of the launch one multiprocessor holds; None if a figure or the device's limits are unknown."""
    limits = None if launch.device is None else launch.device.limits
    if limits is None or launch.thread_count is None:
        return None
    return residency(
        limits,
        threads=launch.thread_count,
        registers_per_thread=launch.geometry.registers_per_thread,
        shared_bytes=launch.geometry.shared_memory_bytes,
    )


def waves(launch: LaunchFacts) -> Waves | None:
    """Waves of the launch on its device; None if the multiprocessors or their limits are unknown."""
    held = resident_blocks(launch)
    if held is None:
        return None
    return waves_of(held, blocks=launch.block_count or 0, sm_count=launch.sm_count or 0)


def wave_statements(launch: LaunchFacts, filled: Waves | None) -> Iterator[Statement]:
    """How the blocks meet the multiprocessors."""
    sm_count, blocks = launch.sm_count, launch.block_count
    if not sm_count or not blocks:
        return
    if blocks < sm_count:
        text = f"{plural(blocks, 'block')} for {plural(sm_count, 'multiprocessor')}: "
        yield Statement(Heading.WAVES, f"{text}{sm_count - blocks} of them get no work.", Grade.EXACT)
    if filled is None:
        return
    held = filled.residency
    limit = " and ".join(_LIMITER_TEXT[limiter] for limiter in held.limiters)
    slots = f"{sm_count} multiprocessors × {plural(held.blocks_per_sm, 'resident block')} (limit: {limit})"
    if filled.count <= 1:
        taken = format_fraction(filled.count)
        text = f"One wave: {blocks:,} of {filled.slots:,} slots, {slots}, are taken ({taken})."
    else:
        full = blocks // filled.slots
        text = f"{blocks:,} blocks over {filled.slots:,} slots, {slots}: {filled.count:.2f} waves"
        is_even = blocks % filled.slots == 0
        text += (
            ", all full."
            if is_even
            else f", {full} full and a last one of {format_fraction(filled.tail_fraction)}."
        )
    yield Statement(Heading.WAVES, text, Grade.EXACT)
    yield Statement(
        Heading.WAVES,
        f"A full multiprocessor holds {held.warps_per_sm} of {held.max_warps_per_sm} warps "
        f"({format_fraction(held.occupancy)} occupancy at most).",
        Grade.EXACT,
    )


def resource_statements(launch: LaunchFacts) -> Iterator[Statement]:
    """Registers and shared memory as recorded."""
    registers, shared = launch.geometry.registers_per_thread, launch.geometry.shared_memory_bytes
    if registers:
        threads = launch.thread_count
        per_block = f" ({registers * threads:,} per block of {threads:,})" if threads else ""
        yield Statement(Heading.MEMORY, f"{registers} registers per thread{per_block}.", Grade.EXACT)
    if shared is not None:
        text = f"{shared:,} B of shared memory per block." if shared else "No shared memory."
        yield Statement(Heading.MEMORY, text, Grade.EXACT)
