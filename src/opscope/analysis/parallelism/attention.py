"""Fused attention by FlashAttention, memory-efficient CUTLASS kernels, cuDNN: parallel over tiles and heads.

Sources: aten/src/ATen/native/transformers/cuda of PyTorch 2.6.0: flash_attn/flash_fwd_launch_template.h and
flash_bwd_launch_template.h, mem_eff_attention/kernel_forward.h and kernel_backward.h. cuDNN's are not
documented.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    memory,
    over,
    plural,
    synchronization,
)
from opscope.model.evidence import Grade
from opscope.provenance.kernel_names import template_arguments

__all__ = [
    "cudnn_attention",
    "cudnn_attention_rows",
    "flash_backward",
    "flash_combine",
    "flash_forward",
    "memory_efficient_backward",
    "memory_efficient_forward",
]

_WARP = 32
# Observed in recorded launches of cuDNN 9 on an H200, heads of 32 to 128: queries (forward) or keys
# (backward) of one tile, and elements of one block of the backward's helpers.
_CUDNN_TILE_ROWS = 128
_DOT_ELEMENTS = 1024
_CONVERTED_ELEMENTS = 2048
# Position of the query, and whether heads come before the sequence.
_QUERY_AT = {
    "aten::_efficient_attention_forward": (0, False),
    "aten::_flash_attention_forward": (0, False),
    "aten::_cudnn_attention_forward": (0, True),
    "aten::_scaled_dot_product_efficient_attention": (0, True),
    "aten::_scaled_dot_product_flash_attention": (0, True),
    "aten::_scaled_dot_product_cudnn_attention": (0, True),
    "aten::_efficient_attention_backward": (1, False),
    "aten::_flash_attention_backward": (1, False),
    "aten::_cudnn_attention_backward": (1, True),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, True),
    "aten::_scaled_dot_product_flash_attention_backward": (1, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, True),
}


@dataclass(frozen=True)
class _Attention:
    """Sizes of one call."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int


def flash_forward(launch: LaunchFacts) -> Iterator[Note]:
    """`flash_fwd_kernel<Flash_fwd_kernel_traits<head_dim, block_m, block_n, warps, ...>>`, split-KV too."""
    sizes = _sizes(launch)
    traits = _traits(launch)
    yield from _parallel(sizes, "query")
    if len(traits) < 4:
        return
    _, rows, keys, warps = traits[:4]
    yield computes(
        f"A block of {warps * _WARP} threads computes {rows} queries of one head, walking the keys in tiles "
        f"of {keys}{_key_steps(sizes, keys)}."
    )
    if sizes is not None:
        tiles = ceil_div(sizes.queries, rows)
        block = (warps * _WARP, 1, 1)
        formula = f"{ceiling(sizes.queries, rows)} query tiles × {sizes.batch} batch × {sizes.heads} heads"
        expected = [Expected(formula, (tiles, sizes.batch, sizes.heads), block)]
        if "splitkv" in launch.function_name and launch.grid is not None:
            expected.append(_split_keys(sizes, tiles, launch.grid[1], block))
        yield from checked(launch, expected)
    yield from _online_softmax()
    if "splitkv" in launch.function_name:
        yield synchronization(
            "The keys of a query tile are split over blocks; a second launch combines the parts."
        )
    else:
        yield synchronization(
            "Blocks are independent: each owns its queries. Threads of a block meet at every key tile."
        )


def flash_combine(launch: LaunchFacts) -> Iterator[Note]:
    """`flash_fwd_splitkv_combine_kernel<traits, rows, log2 splits, ...>`: merges the parts of split keys."""
    sizes = _sizes(launch)
    rows, log2_splits = launch.template_integer(1), launch.template_integer(2)
    if sizes is not None:
        count = sizes.batch * sizes.heads * sizes.queries
        yield over(
            f"The {count:,} rows ({sizes.batch} batch × {sizes.heads} heads × {sizes.queries:,} queries) are "
            "independent."
        )
        if rows:
            expected = Expected(f"{ceiling(count, rows)} blocks", (ceil_div(count, rows), 1, 1))
            yield from checked(launch, [expected])
    if rows:
        yield computes(f"A block combines the parts of {rows} rows.")
    if log2_splits is not None:
        yield algorithm(f"Up to {1 << log2_splits} parts are rescaled by their log-sum-exp and added.")
    yield synchronization("It follows the launch that computed the parts.")


def flash_backward(launch: LaunchFacts) -> Iterator[Note]:
    """`flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<...>>` and its helpers."""
    sizes = _sizes(launch)
    traits = _traits(launch)
    is_loop = "dq_dk_dv" in launch.function_name
    yield from _parallel(sizes, "key" if is_loop else "query")
    if len(traits) < 4:
        return
    _, query_rows, key_rows, warps = traits[:4]
    rows = key_rows if is_loop else query_rows
    kind = "keys" if is_loop else "queries"
    yield computes(f"A block of {warps * _WARP} threads takes {rows} {kind} of one head.")
    if sizes is not None:
        count = sizes.keys if is_loop else sizes.queries
        expected = Expected(
            f"{ceiling(count, rows)} tiles of {kind} × {sizes.batch} batch × {sizes.heads} heads",
            (ceil_div(count, rows), sizes.batch, sizes.heads),
            (warps * _WARP, 1, 1),
        )
        yield from checked(launch, [expected])
    if is_loop:
        yield synchronization(
            "Blocks of one head add to the same query gradients in global memory with atomics, unless it "
            "runs deterministically."
        )
        yield algorithm(
            "Attention scores are computed again from queries and keys, tile by tile, instead of being "
            "stored."
        )


def memory_efficient_forward(launch: LaunchFacts) -> Iterator[Note]:
    """`fmha_cutlassF_<type>_<aligned>_<queries>x<keys>_<where>_sm<arch>`."""
    sizes = _sizes(launch)
    yield from _parallel(sizes, "query")
    tile = [int(part) for part in (launch.kernel.tile or "").split("x") if part.isdecimal()]
    if len(tile) < 2:
        return
    rows, keys = tile[:2]
    yield computes(
        f"A block computes {rows} queries of one head, walking the keys in tiles of "
        f"{keys}{_key_steps(sizes, keys)}."
    )
    if sizes is not None:
        expected = Expected(
            f"{ceiling(sizes.queries, rows)} query tiles × {sizes.heads} heads × {sizes.batch} batch",
            (ceil_div(sizes.queries, rows), sizes.heads, sizes.batch),
        )
        yield from checked(launch, [expected])
    yield from _online_softmax()
    yield synchronization(
        "Blocks are independent: each owns its queries. Threads of a block meet at every key tile."
    )


def memory_efficient_backward(launch: LaunchFacts) -> Iterator[Note]:
    """`fmha_cutlassB_...`: blocks over heads and batch, and over parts of the keys."""
    sizes = _sizes(launch)
    yield from _parallel(sizes, "key")
    grid = launch.grid
    if sizes is not None and grid is not None:
        expected = Expected(
            f"{grid[0]} parts of the keys × {sizes.heads} heads × {sizes.batch} batch",
            (grid[0], sizes.heads, sizes.batch),
        )
        yield from checked(launch, [expected])
    yield algorithm(
        "Attention scores are computed again from queries and keys, tile by tile, instead of being stored."
    )


def cudnn_attention(launch: LaunchFacts) -> Iterator[Note]:
    """`cudnn_generated_fort_native_sdpa_sm90_flash_fprop_...`: tiles of heads, up to one block per SM."""
    sizes = _sizes(launch)
    is_backward = "bprop" in launch.function_name
    yield from _parallel(sizes, "key" if is_backward else "query", Grade.INFERRED)
    if sizes is not None:
        if "_sm90_" in launch.function_name:
            yield from _cudnn_hopper(launch, sizes, is_backward=is_backward)
        else:
            yield from _cudnn_ampere(launch, sizes)
    if is_backward:
        yield algorithm(
            "Attention scores are computed again from queries and keys, tile by tile.", Grade.INFERRED
        )
    elif "flash" in launch.function_name:
        yield from _online_softmax(Grade.INFERRED)


def cudnn_attention_rows(launch: LaunchFacts) -> Iterator[Note]:
    """`cudnn::fusion::compute_dot_do_o...` and `convert_dq_to_16bits`: rows of the backward's helpers."""
    sizes = _sizes(launch)
    is_conversion = launch.function_name.startswith("convert")
    if sizes is not None:
        rows = max((_CONVERTED_ELEMENTS if is_conversion else _DOT_ELEMENTS) // sizes.head_size, 1)
        yield over(
            f"{sizes.batch * sizes.heads * sizes.queries:,} rows ({sizes.batch} batch × {sizes.heads} heads "
            f"× {sizes.queries:,} queries) are independent.",
            Grade.INFERRED,
        )
        formula = f"{ceiling(sizes.queries, rows)} × {sizes.batch} batch × {sizes.heads} heads"
        expected = Expected(formula, (ceil_div(sizes.queries, rows), sizes.batch, sizes.heads))
        for check in checked(launch, [expected], Grade.INFERRED):
            if check.is_explained:
                yield computes(f"A block takes {rows} rows of {sizes.head_size} elements.", Grade.INFERRED)
            yield check
    if is_conversion:
        yield algorithm("Query gradients are converted from their accumulation type.", Grade.INFERRED)
    else:
        yield algorithm(
            "The row-wise dot product of output and its gradient, needed by the softmax gradient.",
            Grade.INFERRED,
        )


def _cudnn_hopper(launch: LaunchFacts, sizes: _Attention, *, is_backward: bool) -> Iterator[Note]:
    if not launch.sm_count:
        return
    count, kind = (sizes.keys, "keys") if is_backward else (sizes.queries, "queries")
    heads = sizes.batch * sizes.heads
    tiles = heads * ceil_div(count, _CUDNN_TILE_ROWS)
    formula = f"{heads:,} heads of the batch × {ceiling(count, _CUDNN_TILE_ROWS)} tiles of {kind}"
    if tiles > launch.sm_count:
        formula = f"one block per multiprocessor, fewer than {formula}"
    blocks = min(tiles, launch.sm_count)
    for check in checked(launch, [Expected(formula, (blocks, 1, 1))], Grade.INFERRED):
        if check.is_explained:
            yield computes(
                f"{blocks} blocks take {tiles:,} tiles of up to {_CUDNN_TILE_ROWS} {kind}, "
                f"{tiles / blocks:.2f} each.",
                Grade.INFERRED,
            )
        yield check


def _cudnn_ampere(launch: LaunchFacts, sizes: _Attention) -> Iterator[Note]:
    """Heads along y, batch along z; x counts tiles of the queries, or parts of the keys if it is more."""
    if launch.grid is None:
        return
    parts = launch.grid[0]
    what = "tiles of queries" if parts <= sizes.queries else "parts of the keys"
    formula = f"{parts} {what} (read from the grid) × {sizes.heads} heads × {sizes.batch} batch"
    yield from checked(launch, [Expected(formula, (parts, sizes.heads, sizes.batch))], Grade.INFERRED)


def _sizes(launch: LaunchFacts) -> _Attention | None:
    call = launch.call
    if call is None or call.name not in _QUERY_AT:
        return None
    at, heads_first = _QUERY_AT[call.name]
    query, key = call.tensor(at), call.tensor(at + 1)
    if query is None or key is None or len(query.shape) != 4 or len(key.shape) != 4:
        return None
    if not query.element_count or not key.element_count:
        return None
    sequence, heads = (2, 1) if heads_first else (1, 2)
    shape = query.shape
    return _Attention(shape[0], shape[heads], shape[sequence], key.shape[sequence], shape[3])


def _traits(launch: LaunchFacts) -> tuple[int, ...]:
    """Numbers of the kernel traits: head size, query rows, key rows, warps."""
    numbers: list[int] = []
    first, second = launch.template_argument(0) or "", launch.template_argument(1) or ""
    for text in template_arguments(first if "<" in first else second):
        if not text.isdecimal():
            break
        numbers.append(int(text))
    return tuple(numbers) if prod(numbers) else ()


def _split_keys(sizes: _Attention, tiles: int, splits: int, block: tuple[int, int, int]) -> Expected:
    return Expected(
        f"{plural(tiles, 'query tile')} × {splits} parts of the keys (read from the grid) × "
        f"{sizes.batch * sizes.heads} heads of the batch",
        (tiles, splits, sizes.batch * sizes.heads),
        block,
    )


def _parallel(sizes: _Attention | None, side: str, grade: Grade = Grade.NAME_PATTERN) -> Iterator[Statement]:
    if sizes is not None:
        yield over(
            f"{sizes.batch} batch × {sizes.heads} heads are independent, and inside a head every {side} is: "
            f"{_count(sizes.queries, 'query', 'queries')} against {plural(sizes.keys, 'key')} of size "
            f"{sizes.head_size}.",
            grade,
        )


def _key_steps(sizes: _Attention | None, tile: int) -> str:
    if sizes is None or not tile:
        return ""
    return f": {plural(ceil_div(sizes.keys, tile), 'step')} for {plural(sizes.keys, 'key')}"


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _online_softmax(grade: Grade = Grade.NAME_PATTERN) -> Iterator[Statement]:
    yield memory(
        "The matrix of attention scores is never written to global memory: a tile of it lives on the chip.",
        grade,
    )
    yield algorithm(
        "Per key tile: scores = Q·Kᵀ; running maximum and sum are updated (online softmax), what was "
        "accumulated is rescaled, and scores·V is added.",
        grade,
    )
