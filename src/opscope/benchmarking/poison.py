"""Memory filled with a byte before it is handed out, so that an output nobody wrote shows.

On the CPU, glibc is asked to fill what it hands out; elsewhere, and on the GPU, blocks are filled and given
back, so that the allocator hands these out next. Best effort: memory that does not come from torch's
allocators, or from another stream's pool, stays as it was. Imports torch lazily.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch

__all__ = ["POISON_NAN", "POISON_ZERO", "poisoned_memory"]

POISON_NAN = 0xFF  # NaN in every floating-point dtype, -1 in signed integers, true in bool
POISON_ZERO = 0x00

# Source: glibc malloc.h and malloc.c: M_PERTURB fills new memory with the complement of its argument's low
# byte, and 0 switches it off; so 0x100 | x fills with ~x, also for x = 0.
_M_PERTURB = -6
_PERTURB_ON = 0x100
_BYTE_MASK = 0xFF

# Source: CUDACachingAllocator.h, kSmallSize, kLargeBuffer, kRoundLarge: blocks up to the first come from a
# pool of their own; larger ones from segments of at least the second, in multiples of the third.
_SMALL_BLOCK_BYTES = 1 << 20
_LEAST_SEGMENT_BYTES = 20 << 20
_SEGMENT_STEP_BYTES = 2 << 20
_SMALL_BLOCKS = 16
_SPARE_FACTOR = 8  # of the named sizes: temporaries are allocated between outputs
_LARGEST_SHARE = 0.25  # of the free device memory
_COPIES = 8  # blocks of each size given back on the CPU: more than glibc's per-thread cache holds (7)


@contextmanager
def poisoned_memory(device: str, sizes_bytes: Sequence[int], byte: int = POISON_NAN) -> Iterator[None]:
    """Memory that is allocated inside the block holds `byte` until something writes to it.

    Args:
        device: Where outputs are allocated.
        sizes_bytes: Sizes of the outputs that are expected.
        byte: What the memory is filled with.
    """
    if device.startswith("cuda"):
        _poison_cuda(device, sizes_bytes, byte)
        try:
            yield
        finally:
            release_memory()
        return
    with _perturbed_malloc(byte):
        _recycle_cpu(sizes_bytes, byte)
        yield


@contextmanager
def _perturbed_malloc(byte: int) -> Iterator[None]:
    """Malloc fills what it hands out, in every thread of this process; nothing where libc is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        yield
        return
    mallopt(_M_PERTURB, _PERTURB_ON | (~byte & _BYTE_MASK))
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)


def _recycle_cpu(sizes_bytes: Sequence[int], byte: int) -> None:
    """Fill blocks of these sizes and free them: malloc does not fill small ones that come from its caches."""
    torch = require_torch()
    for size in {*sizes_bytes, *(1 << power for power in range(3, 11))}:
        blocks = [torch.empty(size, dtype=torch.uint8) for _ in range(_COPIES)]
        for block in blocks:
            block.fill_(byte)


def _poison_cuda(device: str, sizes_bytes: Sequence[int], byte: int) -> None:
    """Fill the free blocks of the caching allocator, and new ones for outputs and temporaries.

    Whole segments are filled, so that no later request finds the unfilled rest of one.

    Source: CUDACachingAllocator.cpp: a request takes the smallest free block of its stream that fits, and
    splits a large one.
    """
    torch = require_torch()
    release_memory()
    held = _filled(device, _free_blocks(device), byte)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    limit = int(free_bytes * _LARGEST_SHARE)
    segments = [_segment_bytes(size) for size in sizes_bytes if size > _SMALL_BLOCK_BYTES]
    spare = max(_LEAST_SEGMENT_BYTES, min(_SPARE_FACTOR * sum(sizes_bytes), limit - sum(segments)))
    wanted = [_SMALL_BLOCK_BYTES] * _SMALL_BLOCKS + segments + [_segment_bytes(spare)]
    held += _filled(device, wanted, byte)
    del held


def _filled(device: str, sizes_bytes: Sequence[int], byte: int) -> list[Any]:
    """Blocks full of a byte; fewer where memory runs out."""
    torch = require_torch()
    blocks: list[Any] = []
    for size in sizes_bytes:
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device=device).fill_(byte))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
    return blocks


def _segment_bytes(size: int) -> int:
    steps = -(-size // _SEGMENT_STEP_BYTES)
    return max(_LEAST_SEGMENT_BYTES, steps * _SEGMENT_STEP_BYTES)


def _free_blocks(device: str) -> list[int]:
    """Sizes of the free parts of segments that are in use on the current stream, largest first."""
    torch = require_torch()
    if torch.cuda.get_allocator_backend() != "native":  # the driver's own allocator shows no blocks
        return []
    place = _here(device)
    sizes = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if (segment["device"], segment["stream"], tuple(segment.get("segment_pool_id", (0, 0)))) == place
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return sorted(sizes, reverse=True)


def _here(device: str) -> tuple[int, int, tuple[int, int]]:
    """Device, stream and pool that an allocation now is served from."""
    cuda = require_torch().cuda
    with cuda.device(device):
        return cuda.current_device(), cuda.current_stream().cuda_stream, (0, 0)
