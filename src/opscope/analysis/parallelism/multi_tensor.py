"""One launch over a list of tensors: foreach operators and fused optimizers.

Source: ATen/native/cuda/MultiTensorApply.cuh of PyTorch 2.6.0 and 2.11.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from opscope.analysis.parallelism.account import Expected, Note, Statement, check_launch
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    computes,
    every,
    independent,
    memory,
    over,
    plural,
    synchronization,
)

__all__ = ["multi_tensor_apply", "norm_cleanup"]

_CHUNK = 65_536  # Source: MultiTensorApply.cuh, kChunkSize
_THREADS = 512  # kBlockSize
_VECTOR = 4  # kILP
_MOST_BLOCKS = 320  # depth_to_max_blocks, the same for every depth
# Tensors of one launch by number of lists: depth_to_max_tensors, depth_to_max_tensors_scalarlist.
_MOST_TENSORS = (110, 64, 48, 36, 30)
_MOST_TENSORS_WITH_SCALARS = (96, 64, 48, 36, 30)
_METADATA = re.compile(
    r"(TensorListMetadata|TensorListScalarListMetadata|FusedOptimizerTensorListMetadata)<.*?(\d+)>?$"
)


def multi_tensor_apply(launch: LaunchFacts) -> Iterator[Note]:
    """`multi_tensor_apply_kernel<Metadata<depth>, Functor, ...>`."""
    metadata = _METADATA.search((launch.template_argument(0) or "").rstrip("> "))
    sizes = _sizes(launch)
    if sizes:
        yield over(
            f"{every(sum(sizes), 'element')} of {plural(len(sizes), 'tensor')} {independent(sum(sizes))}."
        )
    else:
        yield over("All elements of all tensors of the list are independent.")
    yield computes(
        f"A block of {_THREADS} threads takes one chunk of up to {_CHUNK:,} elements of one tensor: "
        f"{_CHUNK // _THREADS} per thread."
    )
    yield from _chunks(launch)
    depth = int(metadata[2]) if metadata is not None else 0
    if sizes and metadata is not None and 1 <= depth <= len(_MOST_TENSORS):
        most = _MOST_TENSORS_WITH_SCALARS if metadata[1].startswith("TensorListScalar") else _MOST_TENSORS
        grids = _launch_grids(sizes, most[depth - 1])
        tried = [
            Expected(
                f"{plural(blocks, 'chunk')} of up to {_CHUNK:,} elements (launch {number} of {len(grids)} "
                "for the list)",
                (blocks, 1, 1),
                (_THREADS, 1, 1),
            )
            for number, blocks in enumerate(grids, 1)
        ]
        check = check_launch(launch, tried)
        if check is not None:
            yield check
    if depth:
        yield memory(
            f"{plural(depth, 'list')} of tensors side by side; addresses, sizes and chunk numbers come as "
            "launch arguments."
        )
    yield memory(
        f"Where all tensors are aligned, a thread moves vectors of {_VECTOR} elements; else one by one, "
        f"{_VECTOR} in flight."
    )
    yield synchronization("None: chunks share nothing.")
    functor = launch.kernel.functor
    if functor:
        yield algorithm(f"Each thread applies {functor} to its elements.")


def norm_cleanup(launch: LaunchFacts) -> Iterator[Note]:
    """`lpnorm_cleanup`, `lpmax_cleanup`: finishes the norm of each tensor. Source: ForeachReduceOp.cu."""
    if launch.block_count:
        yield over(f"{plural(launch.block_count, 'tensor')} of the list {independent(launch.block_count)}.")
    yield computes("A block adds up the partial results of one tensor's chunks.")
    yield synchronization("It follows the launch over the chunks; inside, warp shuffles and __syncthreads().")


def _chunks(launch: LaunchFacts) -> Iterator[Statement]:
    blocks = launch.block_count
    if blocks == _MOST_BLOCKS:
        yield computes(
            f"{_MOST_BLOCKS} chunks, the most one launch takes: the list went on in another launch, or ended "
            "just here."
        )
    elif blocks:
        yield computes(f"{plural(blocks, 'chunk')}: at most {blocks * _CHUNK:,} elements in this launch.")


def _sizes(launch: LaunchFacts) -> list[int]:
    """Element counts of the first tensor list, where its members were recorded."""
    if launch.call is None:
        return []
    return [tensor.element_count for tensor in launch.call.tensor_list(0) if tensor.element_count]


def _launch_grids(sizes: Sequence[int], most_tensors: int) -> list[int]:
    """Blocks of each launch, as multi_tensor_apply fills them."""
    grids: list[int] = []
    blocks = tensors = 0
    for size in sizes:
        tensors += 1
        chunks = ceil_div(size, _CHUNK)
        for chunk in range(chunks):
            blocks += 1
            is_last = chunk == chunks - 1
            if (tensors == most_tensors and is_last) or blocks == _MOST_BLOCKS:
                grids.append(blocks)
                blocks = 0
                tensors = 0 if is_last else 1
    return [*grids, blocks] if blocks else grids
