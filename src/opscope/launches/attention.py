"""Fused attention by FlashAttention, memory-efficient CUTLASS kernels, cuDNN: parallel over tiles and heads.

Sources: aten/src/ATen/native/transformers/cuda of PyTorch 2.6.0: flash_attn/flash_fwd_launch_template.h and
flash_bwd_launch_template.h, mem_eff_attention/kernel_forward.h and kernel_backward.h. cuDNN's are not
documented.
"""

from __future__ import annotations

from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import LaunchFacts
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    extents,
)
from opscope.operators.attention import AttentionSizes, attention_sizes
from opscope.provenance.kernel_names import template_arguments
from opscope.units import counted

__all__ = [
    "cudnn_attention",
    "cudnn_rows",
    "flash_backward",
    "flash_combine",
    "flash_forward",
    "memory_efficient_backward",
    "memory_efficient_forward",
]

# Observed in recorded launches of cuDNN 9 on an H200, heads of 32 to 128: queries (forward) or keys
# (backward) of one tile, and elements of one block of the backward's helpers.
_CUDNN_TILE_ROWS = 128
_DOT_ELEMENTS = 1024
_CONVERTED_ELEMENTS = 2048


def flash_forward(launch: LaunchFacts) -> Prediction:
    """`flash_fwd_kernel<Flash_fwd_kernel_traits<head_dim, block_m, block_n, warps, ...>>`, split-KV too."""
    sizes, traits = _sizes(launch), _traits(launch)
    values = _values(sizes, "query")
    if len(traits) < 4:
        return Prediction(values)
    _, rows, key_tile, warps = traits[:4]
    threads, is_split = warps * WARP_SIZE, "splitkv" in launch.function_name
    values.update(threads=threads, tile=rows, key_tile=key_tile, is_split=is_split, is_whole=not is_split)
    if sizes is None:
        return Prediction(values)
    values["steps"] = ceil_div(sizes.keys, key_tile)
    tiles, heads = ceil_div(sizes.queries, rows), sizes.all_heads
    formula = f"{ceiling(sizes.queries, rows)} query tiles × {sizes.batch} batch × {sizes.heads} heads"
    expected = [Expected(formula, (tiles, sizes.batch, sizes.heads), (threads, 1, 1))]
    if is_split and launch.grid is not None:
        splits = launch.grid[1]
        formula = f"{counted(tiles, 'query tile')} × {splits} parts of the keys (read from the grid) × "
        formula += f"{heads} heads of the batch"
        expected.append(Expected(formula, (tiles, splits, heads), (threads, 1, 1)))
    return Prediction(values, expected)


def flash_combine(launch: LaunchFacts) -> Prediction:
    """`flash_fwd_splitkv_combine_kernel<traits, rows, log2 splits, ...>`: merges the parts of split keys."""
    sizes, rows, log2_splits = _sizes(launch), launch.template_integer(1), launch.template_integer(2)
    values = _values(sizes, "query")
    values.update(rows=rows or None, parts=None if log2_splits is None else 1 << log2_splits)
    return Prediction(values, [blocks_over(sizes.rows, rows)] if sizes is not None and rows else [])


def flash_backward(launch: LaunchFacts) -> Prediction:
    """`flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<...>>` and its helpers."""
    sizes, traits = _sizes(launch), _traits(launch)
    is_loop = "dq_dk_dv" in launch.function_name
    values = _values(sizes, "key" if is_loop else "query")
    if len(traits) < 4:
        return Prediction(values)
    _, query_rows, key_rows, warps = traits[:4]
    rows, kind = (key_rows, "keys") if is_loop else (query_rows, "queries")
    values.update(threads=warps * WARP_SIZE, tile=rows, kind=kind, is_loop=is_loop)
    if sizes is None:
        return Prediction(values)
    count = sizes.keys if is_loop else sizes.queries
    formula = f"{ceiling(count, rows)} tiles of {kind} × {sizes.batch} batch × {sizes.heads} heads"
    grid = (ceil_div(count, rows), sizes.batch, sizes.heads)
    return Prediction(values, [Expected(formula, grid, (warps * WARP_SIZE, 1, 1))])


def memory_efficient_forward(launch: LaunchFacts) -> Prediction:
    """`fmha_cutlassF_<type>_<aligned>_<queries>x<keys>_<where>_sm<arch>`."""
    sizes, tile = _sizes(launch), extents(launch.kernel.tile)
    values = _values(sizes, "query")
    if len(tile) < 2:
        return Prediction(values)
    rows, key_tile = tile[:2]
    values.update(tile=rows, key_tile=key_tile)
    if sizes is None:
        return Prediction(values)
    values["steps"] = ceil_div(sizes.keys, key_tile)
    formula = f"{ceiling(sizes.queries, rows)} query tiles × {sizes.heads} heads × {sizes.batch} batch"
    return Prediction(values, [Expected(formula, (ceil_div(sizes.queries, rows), sizes.heads, sizes.batch))])


def memory_efficient_backward(launch: LaunchFacts) -> Prediction:
    """`fmha_cutlassB_...`: blocks over heads and batch, and over parts of the keys."""
    sizes = _sizes(launch)
    if sizes is None or launch.grid is None:
        return Prediction(_values(sizes, "key"))
    parts = launch.grid[0]
    formula = f"{parts} parts of the keys × {sizes.heads} heads × {sizes.batch} batch"
    return Prediction(_values(sizes, "key"), [Expected(formula, (parts, sizes.heads, sizes.batch))])


def cudnn_attention(launch: LaunchFacts) -> Prediction:
    """`cudnn_generated_fort_native_sdpa_sm90_flash_fprop_...`: tiles of heads, up to one block per SM."""
    sizes, is_backward = _sizes(launch), "bprop" in launch.function_name
    values = _values(sizes, "key" if is_backward else "query")
    values.update(is_backward=is_backward, is_flash=not is_backward and "flash" in launch.function_name)
    if sizes is None or launch.grid is None:
        return Prediction(values)
    if "_sm90_" not in launch.function_name:
        # Heads along y, batch along z; x counts tiles of the queries, or parts of the keys if it is more.
        parts = launch.grid[0]
        what = "tiles of queries" if parts <= sizes.queries else "parts of the keys"
        formula = f"{parts} {what} (read from the grid) × {sizes.heads} heads × {sizes.batch} batch"
        return Prediction(values, [Expected(formula, (parts, sizes.heads, sizes.batch))])
    if not launch.sm_count:
        return Prediction(values)
    count, kind = (sizes.keys, "keys") if is_backward else (sizes.queries, "queries")
    heads = sizes.all_heads
    tiles = heads * ceil_div(count, _CUDNN_TILE_ROWS)
    blocks = min(tiles, launch.sm_count)
    formula = f"{heads:,} heads of the batch × {ceiling(count, _CUDNN_TILE_ROWS)} tiles of {kind}"
    if tiles > blocks:
        formula = f"one block per multiprocessor, fewer than {formula}"
    values.update(tiles=tiles, tile=_CUDNN_TILE_ROWS, kind=kind, tiles_each=tiles / blocks)
    return Prediction(values, [Expected(formula, (blocks, 1, 1))])


def cudnn_rows(launch: LaunchFacts) -> Prediction:
    """`cudnn::fusion::compute_dot_do_o...` and `convert_dq_to_16bits`: rows of the backward's helpers."""
    sizes, is_conversion = _sizes(launch), launch.function_name.startswith("convert")
    values = {**_values(sizes, "query"), "is_conversion": is_conversion}
    if sizes is None:
        return Prediction(values)
    rows = max((_CONVERTED_ELEMENTS if is_conversion else _DOT_ELEMENTS) // sizes.head_size, 1)
    formula = f"{ceiling(sizes.queries, rows)} × {sizes.batch} batch × {sizes.heads} heads"
    grid = (ceil_div(sizes.queries, rows), sizes.batch, sizes.heads)
    return Prediction({**values, "rows": rows}, [Expected(formula, grid)])


def _sizes(launch: LaunchFacts) -> AttentionSizes | None:
    sizes = None if launch.call is None else attention_sizes(launch.call)
    return sizes if sizes is not None and sizes.forward_flops else None


def _values(sizes: AttentionSizes | None, side: str) -> dict[str, Any]:
    return {"side": side} if sizes is None else {**vars(sizes), "count": sizes.rows, "side": side}


def _traits(launch: LaunchFacts) -> tuple[int, ...]:
    """Numbers of the kernel traits: head size, query rows, key rows, warps."""
    numbers: list[int] = []
    first, second = launch.template_argument(0) or "", launch.template_argument(1) or ""
    for text in template_arguments(first if "<" in first else second):
        if not text.isdecimal():
            break
        numbers.append(int(text))
    return tuple(numbers) if prod(numbers) else ()
