"""How many blocks of a launch fit on one multiprocessor, what stops more from fitting, how a grid fills all.

The arithmetic of NVIDIA's occupancy calculator for compute capabilities whose limits are known; an unknown
one gives None, never a guess. What the launch leaves open (shared memory carve-out, barriers) is assumed not
to limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opscope.hardware.architectures import architecture
from opscope.text_enum import TextEnum

__all__ = [
    "WARP_SIZE",
    "Limiter",
    "Residency",
    "SmLimits",
    "Waves",
    "residency",
    "sm_limits",
    "waves_of",
]

WARP_SIZE = 32
# Source: cuda_occupancy.h of CUDA 13.0, register file partitions and granularity.
_SUB_PARTITIONS = 4
_REGISTERS_PER_WARP_UNIT = 256


@dataclass(frozen=True)
class SmLimits:
    """What one multiprocessor holds; `reserved_shared_bytes` is what the system takes of each block."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    reserved_shared_bytes: int
    shared_unit_bytes: int


class Limiter(TextEnum):
    """The resource of a multiprocessor that runs out first."""

    BLOCKS = "blocks"
    THREADS = "threads"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True)
class Residency:
    """Blocks of one launch that one multiprocessor holds, with every resource that allows no more."""

    blocks_per_sm: int
    warps_per_sm: int
    max_warps_per_sm: int
    limiters: tuple[Limiter, ...]

    @property
    def occupancy(self) -> float:
        """Resident warps over the most there can be, 0–1."""
        return self.warps_per_sm / self.max_warps_per_sm


@dataclass(frozen=True)
class Waves:
    """How a grid fills the device: `count` passes over all slots, the last one filled to `tail_fraction`."""

    blocks: int
    slots: int
    residency: Residency
    count: float
    tail_fraction: float

    @property
    def tail_loss(self) -> float:
        """Share of the slots of all passes that stay empty, 0–1: the loss if all blocks take equally long."""
        return 1 - self.count / math.ceil(self.count)


def sm_limits(compute_capability: str | None) -> SmLimits | None:
    """Limits of a compute capability written as `"9.0"`; None if they are not known here."""
    known = architecture(compute_capability)
    if known is None:
        return None
    return SmLimits(
        blocks=known.max_blocks_per_sm,
        threads=known.max_threads_per_sm,
        registers=known.registers_per_sm,
        shared_bytes=known.shared_bytes_per_sm,
        reserved_shared_bytes=known.reserved_shared_bytes_per_block,
        shared_unit_bytes=known.shared_unit_bytes,
    )


def residency(
    limits: SmLimits, *, threads: int, registers_per_thread: int | None, shared_bytes: int | None
) -> Residency | None:
    """Blocks resident on one multiprocessor.

    Args:
        limits: Of the device.
        threads: Threads of a block.
        registers_per_thread: None if unknown, which gives None: the answer would be an upper bound only.
        shared_bytes: Shared memory of a block, static and dynamic; None if unknown.

    Source: cudaOccMaxActiveBlocksPerMultiprocessor, cuda_occupancy.h of CUDA 13.0.
    """
    if threads <= 0 or registers_per_thread is None or shared_bytes is None:
        return None
    warps = -(-threads // WARP_SIZE)
    max_warps = limits.threads // WARP_SIZE
    allowed = {
        Limiter.BLOCKS: limits.blocks,
        Limiter.THREADS: max_warps // warps,
        Limiter.REGISTERS: _blocks_by_registers(limits, warps, registers_per_thread),
        Limiter.SHARED_MEMORY: _blocks_by_shared_memory(limits, shared_bytes),
    }
    known = {limiter: blocks for limiter, blocks in allowed.items() if blocks is not None}
    blocks = min(known.values())
    if blocks == 0:
        return None  # it ran, so a limit assumed here is not the device's
    limiters = tuple(limiter for limiter, count in known.items() if count == blocks)
    return Residency(blocks, blocks * warps, max_warps, limiters)


def waves_of(held: Residency, *, blocks: int, sm_count: int) -> Waves | None:
    """Waves of a grid; None for a grid or device without any block or multiprocessor."""
    if blocks <= 0 or sm_count <= 0:
        return None
    slots = held.blocks_per_sm * sm_count
    return Waves(blocks, slots, held, blocks / slots, (blocks % slots or slots) / slots)


def _blocks_by_registers(limits: SmLimits, warps: int, registers_per_thread: int) -> int | None:
    if registers_per_thread <= 0:
        return None
    per_warp = _round_up(registers_per_thread * WARP_SIZE, _REGISTERS_PER_WARP_UNIT)
    warps_that_fit = limits.registers // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS
    return warps_that_fit // warps


def _blocks_by_shared_memory(limits: SmLimits, shared_bytes: int) -> int | None:
    taken = _round_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit_bytes)
    return limits.shared_bytes // taken if taken else None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
