"""Reading memory and keeping nothing of it: the kernel that shows how fast a device's memories can be read.

Each program reads chunks of a buffer and adds them up; only one sum per program is written. Loads bypass the
first-level cache (`.cg`: cached in L2 and below), so what they reach is the L2 cache or, for buffers much
larger than that, DRAM.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from opscope.errors import InputError
from opscope.kernels.triton.launching import on_device_of

# Elements a program reads at a time: with 4 warps 16 a thread, four 16-byte loads under way.
CHUNK = 2048
WARPS = 4


@triton.jit
def read_chunks_kernel(  # noqa: PLR0917 - Triton passes them by position
    source_ptr, sums_ptr, chunk_count, reads, first_step, next_step, CHUNK: tl.constexpr
):
    """Program p reads chunks p * first_step, p * first_step + next_step, …, around the end of the buffer."""
    program = tl.program_id(0)
    chunk = (program * first_step) % chunk_count
    total = tl.zeros((CHUNK,), dtype=tl.float32)
    for _ in range(reads):
        # 64-bit: a buffer may hold more than 2**31 elements.
        offsets = chunk.to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
        total += tl.load(source_ptr + offsets, cache_modifier=".cg")
        chunk += next_step
        chunk = tl.where(chunk < chunk_count, chunk, chunk - chunk_count)
    tl.store(sums_ptr + program, tl.sum(total))


def read_chunks(
    source: torch.Tensor, sums: torch.Tensor, *, reads: int, first_step: int, next_step: int
) -> torch.Tensor:
    """Read a buffer by as many programs as there are sums; returns them, for what was read must be used.

    Each program reads so many chunks of `CHUNK` elements of float32. Steps are counted in chunks: from the
    first of one program to that of the next, and from one to the next of the same program.
    """
    if source.dtype is not torch.float32 or not source.is_contiguous() or source.numel() % CHUNK:
        raise InputError(f"the source must be contiguous float32 of whole chunks of {CHUNK} elements")
    chunk_count = source.numel() // CHUNK
    if not 0 < next_step <= chunk_count:
        raise InputError(f"a step of {next_step} chunks in a buffer of {chunk_count}")
    with on_device_of(source):
        read_chunks_kernel[(sums.numel(),)](
            source, sums, chunk_count, reads, first_step, next_step, CHUNK=CHUNK, num_warps=WARPS
        )
    return sums
