"""How many blocks of a kernel fit on one multiprocessor, what stops more from fitting, how a grid fills all.

The arithmetic of NVIDIA's occupancy calculator for compute capabilities whose limits are known; an unknown
one gives None, never a guess. What the launch leaves open (shared memory carve-out, barriers) is assumed not
to limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from opscope.hardware.architectures import WARP_SIZE, Architecture, architecture
from opscope.text_enum import MeaningEnum

BLOCK_SIZES = (128, 256, 512)
# Source: cuda_occupancy.h of CUDA 13.0, register file partitions and granularity.
_SUB_PARTITIONS = 4
_REGISTERS_PER_WARP_UNIT = 256


class Limiter(MeaningEnum):
    """What there is no more of; and by what a kernel's author knows it."""

    BLOCKS = "blocks", "blocks"
    THREADS = "threads", "block size"
    REGISTERS = "registers", "registers"
    SHARED_MEMORY = "shared_memory", "shared memory"


class ActiveBlocks(msgspec.Struct, frozen=True):
    """Blocks of one launch that one multiprocessor holds, with every resource that allows no more."""

    blocks_per_sm: int
    warps_per_sm: int
    max_warps_per_sm: int
    limiters: tuple[Limiter, ...]

    @property
    def occupancy(self) -> float:
        """Resident warps over the most there can be, 0–1."""
        return self.warps_per_sm / self.max_warps_per_sm

    @property
    def limited_by(self) -> str:
        """`registers and shared memory`."""
        return " and ".join(self.limiters).replace("_", " ")


class Waves(msgspec.Struct, frozen=True):
    """How a grid fills the device: `count` passes over all slots, the last one filled to `tail_fraction`."""

    blocks: int
    slots: int
    active: ActiveBlocks
    count: float
    tail_fraction: float

    @property
    def tail_loss(self) -> float:
        """Share of the slots of all passes that stay empty, 0–1: the loss if all blocks take equally long."""
        return 1 - self.count / math.ceil(self.count)


class BlockOccupancy(msgspec.Struct, frozen=True):
    """Blocks of one size on a multiprocessor; `active` is None where such a block cannot start."""

    threads: int
    active: ActiveBlocks | None

    @property
    def occupancy(self) -> float:
        return 0.0 if self.active is None else self.active.occupancy


class StaticOccupancy(msgspec.Struct, frozen=True):
    """Occupancy that a compiled kernel can reach on one compute capability, before anything runs."""

    # For the sizes asked for, in their order; empty if nothing is known
    blocks: tuple[BlockOccupancy, ...] = ()
    best: BlockOccupancy | None = None  # The largest block with the highest occupancy; None if none starts
    largest_threads: int | None = None  # Threads of the largest block that starts; None if none does
    reason: str | None = None  # Why nothing is known, or why no block starts; None otherwise


def active_blocks(
    limits: Architecture, *, threads: int, registers_per_thread: int | None, shared_bytes: int | None
) -> ActiveBlocks | None:
    """Active blocks of one multiprocessor.

    Source: cudaOccMaxActiveBlocksPerMultiprocessor, cuda_occupancy.h of CUDA 13.0.
    """
    if threads <= 0 or registers_per_thread is None or shared_bytes is None:
        return None
    warps, max_warps = -(-threads // WARP_SIZE), limits.max_warps_per_sm
    allowed = {Limiter.BLOCKS: limits.max_blocks_per_sm, Limiter.THREADS: max_warps // warps}
    if registers_per_thread > 0:
        per_warp = _round_up(registers_per_thread * WARP_SIZE, _REGISTERS_PER_WARP_UNIT)
        held_warps = limits.registers_per_sm // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS
        allowed[Limiter.REGISTERS] = held_warps // warps
    taken = _round_up(shared_bytes + limits.reserved_shared_bytes_per_block, limits.shared_unit_bytes)
    if taken:
        allowed[Limiter.SHARED_MEMORY] = limits.shared_bytes_per_sm // taken
    blocks = min(allowed.values())
    if blocks <= 0:
        return None  # it ran, so a limit assumed here is not the device's
    limiters = tuple(limiter for limiter, count in allowed.items() if count == blocks)
    return ActiveBlocks(blocks, blocks * warps, max_warps, limiters)


def waves_of(active: ActiveBlocks, *, blocks: int, sm_count: int) -> Waves | None:
    """Waves of a grid; None for a grid or device without any block or multiprocessor."""
    if blocks <= 0 or sm_count <= 0:
        return None
    slots = active.blocks_per_sm * sm_count
    return Waves(blocks, slots, active, blocks / slots, (blocks % slots or slots) / slots)


def static_occupancy(
    compute_capability: str,
    block_sizes: Iterable[int] = BLOCK_SIZES,
    *,
    registers: int,
    shared_bytes: int,
    max_threads: int | None = None,
) -> StaticOccupancy:
    """Occupancy for some block sizes, and the best of all multiples of a warp.

    The kernel takes so many registers of each thread and so much shared memory of each block, static and
    dynamic; its source may say how many threads a block has at most.

    Grid, dynamic shared memory and what the kernel does with its warps are the launch's. The best is the one
    that cudaOccupancyMaxPotentialBlockSize suggests.

    Source: cudaOccupancyMaxPotentialBlockSizeVariableSMem, cuda_runtime.h of CUDA 13.0.
    """
    known = architecture(compute_capability)
    if known is None:
        return StaticOccupancy(
            reason=f"the limits of compute capability {compute_capability} are not known here"
        )
    largest = min(max_threads or known.max_threads_per_block, known.max_threads_per_block)

    def of_size(threads: int) -> BlockOccupancy:
        can_start = shared_bytes <= known.max_shared_bytes_per_block and threads <= largest
        how = {"threads": threads, "registers_per_thread": registers, "shared_bytes": shared_bytes}
        return BlockOccupancy(threads, active_blocks(known, **how) if can_start else None)

    asked = tuple(of_size(size) for size in block_sizes)
    every_size = map(of_size, sorted({*range(WARP_SIZE, largest + 1, WARP_SIZE), largest}))
    # Most resident threads, then the larger block.
    ranked = [
        (one.active.blocks_per_sm * one.threads, one.threads, one)
        for one in every_size
        if one.active is not None
    ]
    if not ranked:
        return StaticOccupancy(asked, reason="no block of it can start")
    _, _, best = max(ranked, key=lambda one: one[:2])
    return StaticOccupancy(asked, best, ranked[-1][1])


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
