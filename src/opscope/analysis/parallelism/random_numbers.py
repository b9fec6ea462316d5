"""Fused dropout and random distributions: grid-stride loops, one random subsequence per thread.

Sources: aten/src/ATen/native/cuda/Dropout.cu of PyTorch 2.6.0; ATen/native/cuda/DistributionTemplates.h of
2.6.0 and 2.11.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    every,
    independent,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)

__all__ = ["distribution", "dropout"]

_THREADS = 256  # Source: Dropout.cu, block_size; DistributionTemplates.h, block_size_bound
_UNROLL = 4  # Source: Dropout.cu, UNROLL
_NO_SHARING = (
    "No data is exchanged: every thread draws from its own subsequence of the Philox generator (seed, "
    "thread number, offset), so draws need no shared state."
)


def dropout(launch: LaunchFacts) -> Iterator[Note]:
    """`fused_dropout_kernel_vec<scalar, acc, index, dims, VEC, mask>` and `fused_dropout_kernel<...>`."""
    is_vectorized = launch.function_name.endswith("_vec")
    width = (launch.template_integer(4) or 1) if is_vectorized else 1
    tensor = launch.tensor(0)
    yield from _grid_stride(launch, width if is_vectorized else _UNROLL)
    if is_vectorized:
        yield memory(
            f"Vectors of {width} elements are loaded and stored; neighboring threads take neighboring "
            "vectors: coalesced."
        )
    else:
        yield memory(
            f"A step's {_UNROLL} elements of a thread lie a whole grid apart; neighboring threads take "
            "neighboring elements."
        )
    if tensor is not None and tensor.element_count:
        yield memory(f"A mask of {plural(tensor.element_count, 'element')} is written beside the result.")
    yield synchronization(_NO_SHARING)
    yield algorithm(
        "Draw uniform numbers, compare with the keep probability, scale by its inverse, store result and "
        "mask."
    )


def distribution(launch: LaunchFacts) -> Iterator[Note]:
    """`distribution_elementwise_grid_stride_kernel<acc, unroll_factor, ...>`."""
    unroll = launch.template_integer(1) or 1
    yield from _grid_stride(launch, unroll)
    yield memory(
        f"A step's {unroll} elements of a thread lie a whole grid apart; neighboring threads write "
        "neighboring elements."
    )
    yield synchronization(_NO_SHARING)
    yield algorithm(
        f"Each step one call of the generator gives {plural(unroll, 'number')}, which are transformed and "
        "stored."
    )


def _grid_stride(launch: LaunchFacts, per_step: int) -> Iterator[Note]:
    """As many threads as the device holds, or one per element if that is fewer; then a loop."""
    tensor = launch.tensor(0)
    if tensor is None or not tensor.element_count or tensor.type_name is None:
        return
    # A complex element is two real ones to the generator.
    is_complex = "complex" in tensor.type_name
    count = tensor.element_count * (2 if is_complex else 1)
    shape = shape_text(tensor.shape) + (", two parts each" if is_complex else "")
    yield over(f"{every(count, 'element')} ({shape}) {independent(count)}: each has its own random number.")
    most = (launch.sm_count or 0) * ((launch.max_threads_per_sm or 0) // _THREADS)
    if not most:
        return
    needed = ceil_div(count, _THREADS)
    formula = f"{ceiling(count, _THREADS)} blocks"
    if needed > most:
        formula = f"{most:,} blocks of {_THREADS} threads, as many as the device holds, fewer than {formula}"
    expected = Expected(formula, (min(needed, most), 1, 1), (_THREADS, 1, 1))
    for check in checked(launch, [expected]):
        if check.is_explained:
            covered = min(needed, most) * _THREADS * per_step
            yield computes(
                f"A block of {_THREADS} threads handles {_THREADS * per_step:,} elements a step, {per_step} "
                f"per thread: {plural(ceil_div(count, covered), 'step')} of the grid-stride loop."
            )
        yield check
