"""Occupancy that a compiled kernel can reach, by block size, before anything runs.

Registers and static shared memory come from the compiler, the limits from the compute capability. Grid,
dynamic shared memory and what the kernel does with its warps are the launch's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opscope.analysis.occupancy import WARP_SIZE, Residency, residency, sm_limits
from opscope.hardware.architectures import Architecture, architecture

__all__ = ["BLOCK_SIZES", "BlockOccupancy", "KernelNeed", "StaticOccupancy", "static_occupancy"]

BLOCK_SIZES = (128, 256, 512)


@dataclass(frozen=True)
class KernelNeed:
    """What a launch of a kernel takes.

    Attributes:
        registers: Of each thread.
        shared_bytes: Of each block, static and dynamic.
        max_threads: Threads a block may have by the source; None if it does not say.
    """

    registers: int
    shared_bytes: int
    max_threads: int | None = None


@dataclass(frozen=True)
class BlockOccupancy:
    """Blocks of one size on a multiprocessor; `residency` is None where such a block cannot start."""

    threads: int
    residency: Residency | None

    @property
    def occupancy(self) -> float:
        """Resident warps over the most there can be, 0–1."""
        return 0.0 if self.residency is None else self.residency.occupancy


@dataclass(frozen=True)
class StaticOccupancy:
    """Occupancy of one kernel on one compute capability.

    Attributes:
        blocks: For the sizes asked for, in their order; empty if nothing is known.
        best: The largest block with the highest occupancy; None if none starts.
        largest_threads: Threads of the largest block that starts; None if none does.
        reason: Why nothing is known, or why no block starts; None otherwise.
    """

    blocks: tuple[BlockOccupancy, ...] = ()
    best: BlockOccupancy | None = None
    largest_threads: int | None = None
    reason: str | None = None


def static_occupancy(
    need: KernelNeed, compute_capability: str, block_sizes: Iterable[int] = BLOCK_SIZES
) -> StaticOccupancy:
    """Occupancy for some block sizes, and the best of all multiples of a warp.

    The best is the one that cudaOccupancyMaxPotentialBlockSize suggests.

    Source: cudaOccupancyMaxPotentialBlockSizeVariableSMem, cuda_runtime.h of CUDA 13.0.
    """
    known = architecture(compute_capability)
    if known is None:
        return StaticOccupancy(
            reason=f"the limits of compute capability {compute_capability} are not known here"
        )
    largest = min(need.max_threads or known.max_threads_per_block, known.max_threads_per_block)
    sizes = [size for size in _candidates(largest) if _residency(need, known, size) is not None]
    if not sizes:
        return StaticOccupancy(
            blocks=tuple(BlockOccupancy(size, None) for size in block_sizes),
            reason="no block of it can start",
        )
    return StaticOccupancy(
        blocks=tuple(BlockOccupancy(size, _residency(need, known, size)) for size in block_sizes),
        best=max((BlockOccupancy(size, _residency(need, known, size)) for size in sizes), key=_preference),
        largest_threads=max(sizes),
    )


def _candidates(largest: int) -> list[int]:
    """Multiples of a warp, and the largest block itself."""
    return sorted({*range(WARP_SIZE, largest + 1, WARP_SIZE), largest})


def _preference(block: BlockOccupancy) -> tuple[int, int]:
    """Most resident threads, then the larger block."""
    resident = 0 if block.residency is None else block.residency.blocks_per_sm
    return resident * block.threads, block.threads


def _residency(need: KernelNeed, known: Architecture, threads: int) -> Residency | None:
    """None where such a block cannot start."""
    limits = sm_limits(known.compute_capability)
    allowed = min(need.max_threads or known.max_threads_per_block, known.max_threads_per_block)
    is_possible = 0 < threads <= allowed and need.shared_bytes <= known.max_shared_bytes_per_block
    if limits is None or not is_possible:
        return None
    return residency(
        limits, threads=threads, registers_per_thread=need.registers, shared_bytes=need.shared_bytes
    )
