"""How many blocks of a launch fit on one multiprocessor, and what stops more from fitting.

The arithmetic of NVIDIA's occupancy calculator for compute capabilities whose limits are known; an unknown
one gives None, never a guess. What the launch leaves open (shared memory carve-out, barriers) is assumed not
to limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Limiter", "Residency", "SmLimits", "residency", "sm_limits"]

WARP_SIZE = 32
# Source: cuda_occupancy.h of CUDA 13.0, register file partitions and granularity, and shared memory
# granularity.
_SUB_PARTITIONS = 4
_REGISTERS_PER_WARP_UNIT = 256
_VOLTA_SHARED_UNIT_BYTES = 256
_SHARED_UNIT_BYTES = 128
_KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """What one multiprocessor holds; `reserved_shared_bytes` is what the system takes of each block."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    reserved_shared_bytes: int
    shared_unit_bytes: int = _SHARED_UNIT_BYTES


# Source: CUDA C++ Programming Guide (CUDA 13.0), table "Technical Specifications per Compute Capability"; 7.0
# from the guide of CUDA 12. The reserved 1 KiB per block: CUDA C++ Programming Guide, "Shared Memory" of 8.x
# and 9.0.
_LIMITS = {
    "7.0": SmLimits(32, 2048, 65536, 96 * _KIB, 0, _VOLTA_SHARED_UNIT_BYTES),
    "7.5": SmLimits(16, 1024, 65536, 64 * _KIB, 0, _VOLTA_SHARED_UNIT_BYTES),
    "8.0": SmLimits(32, 2048, 65536, 164 * _KIB, _KIB),
    "8.6": SmLimits(16, 1536, 65536, 100 * _KIB, _KIB),
    "8.7": SmLimits(16, 1536, 65536, 164 * _KIB, _KIB),
    "8.9": SmLimits(24, 1536, 65536, 100 * _KIB, _KIB),
    "9.0": SmLimits(32, 2048, 65536, 228 * _KIB, _KIB),
    "10.0": SmLimits(32, 2048, 65536, 228 * _KIB, _KIB),
    "12.0": SmLimits(24, 1536, 65536, 100 * _KIB, _KIB),
}


class Limiter(str, Enum):
    """The resource of a multiprocessor that runs out first."""

    BLOCKS = "blocks"
    THREADS = "threads"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared_memory"

    def __str__(self) -> str:
        return self.value


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


def sm_limits(compute_capability: str | None) -> SmLimits | None:
    """Limits of a compute capability written as `"9.0"`; None if they are not known here."""
    return _LIMITS.get(compute_capability or "")


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
