"""Reductions, softmax, normalization, attention: what is independent, and how a block shares one row.

Their grids follow from heuristics that differ between releases and libraries, so none is predicted: numbers
come from the recorded call, the kernel's template arguments, and the recorded grid and block.
Sources: ATen/native/cuda/Reduce.cuh, PersistentSoftmax.cuh, SoftMax.cu, layer_norm_kernel.cu, and
ATen/native/transformers/cuda/flash_attn/kernel_traits.h of PyTorch 2.6.0 to 2.14.1.
"""

from __future__ import annotations

from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import LaunchFacts, Prediction, ceil_div, extents, shape_text
from opscope.operators.arguments import item_size_bytes
from opscope.operators.effects import ContradictionError, UnrecordedError
from opscope.operators.products import attention_sizes
from opscope.operators.reductions import REDUCTIONS, Rows, normalized_rows, reduced_dimensions, rows_along
from opscope.provenance.kernel_names.cxx_name import template_arguments
from opscope.units import counted, format_fraction

_SOFTMAX = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
_WARP_SOFTMAX_THREADS = 128  # Source: PersistentSoftmax.cuh, threads_per_block
_LAYER_NORM_VECTOR = 4  # Source: layer_norm_kernel.cu, vec_size


def reduction(launch: LaunchFacts) -> Prediction:
    """`reduce_kernel<max_threads, output_vec_size, ReduceOp<scalar_t, ops_t, index_t, out_t, vt0, …>>`."""
    operation, call = launch.template_argument(2) or "", launch.call
    numbers = [int(text) for text in template_arguments(operation)[4:5] if text.isdecimal()]
    grid, width = launch.grid, launch.template_integer(1) or 1
    values: dict[str, Any] = {
        "accumulators": numbers[0] if numbers else None,
        "is_welford": "WelfordOps" in operation,
        "is_pair": "ArgMaxOps" in operation or "ArgMinOps" in operation,
        "is_mean": "MeanOps" in operation,
        # The grid's y counts the blocks that share an output.
        "sharing_blocks": grid[1] if grid is not None and grid[1] > 1 else None,
    }
    tensor = None if call is None else call.tensor("self")
    if call is None or tensor is None or not tensor.element_count or call.stem not in REDUCTIONS:
        return Prediction(values)
    try:
        reduced = reduced_dimensions(call)
    except (ContradictionError, UnrecordedError):
        return Prediction(values)
    if call.has("dim") and not call.has("keepdim"):  # running sums keep all dimensions
        return Prediction(values)
    kept = tuple(size for at, size in enumerate(tensor.shape) if at not in reduced)
    outputs = prod(kept)
    values.update(
        outputs=outputs,
        is_one=outputs == 1,
        inputs=tensor.element_count // outputs,
        shape=shape_text(tensor.shape),
        kept=shape_text(kept),
    )
    if grid is not None and launch.thread_count is not None:
        values["inputs_each"] = tensor.element_count / (prod(grid) * launch.thread_count)
        values["outputs_each"] = outputs / grid[0]
    if tensor.strides is not None:
        strides = [
            (stride, at in reduced)
            for at, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
            if size > 1
        ]
        fastest, is_reduced = min(strides, default=(1, True))
        values["lanes_reduce"], values["lanes_keep"] = is_reduced, not is_reduced
        values["is_contiguous"] = fastest == 1
        values["vector_outputs"] = width if width > 1 and not is_reduced else None
    return Prediction(values)


def warp_softmax(launch: LaunchFacts) -> Prediction:
    """`softmax_warp_forward/backward<in, out, acc, log2_elements, is_log_softmax, is_masked>`."""
    rows, log2_elements = _softmax(launch), launch.template_integer(3)
    values: dict[str, Any] = {
        **_of_rows(rows),
        "is_masked": launch.template_integer(5) == 1,
        "is_log": launch.template_integer(4) == 1,
    }
    if log2_elements is None or not 0 <= log2_elements < WARP_SIZE:
        return Prediction(values)
    padded = 1 << log2_elements
    lanes, rows_per_group = min(padded, WARP_SIZE), 2 if padded <= 128 else 1
    groups = _WARP_SOFTMAX_THREADS // lanes
    values.update(
        threads=_WARP_SOFTMAX_THREADS,
        per_block=groups * rows_per_group,
        groups=groups,
        lanes=lanes,
        rows_per_group=rows_per_group,
        per_thread=padded // lanes * rows_per_group,
        padded=padded,
        idle=format_fraction(1 - rows.length / padded) if rows is not None and rows.length < padded else None,
        item_bytes=item_size_bytes(launch.template_argument(0)),
        exchanges=lanes.bit_length() - 1,
    )
    return Prediction(values)


def block_softmax(launch: LaunchFacts) -> Prediction:
    """`cunn_SoftMaxForward/Backward[Smem]<vector, in, …>`, `…Reg<…, held>`: one block per row."""
    rows, threads, vector = _softmax(launch), launch.thread_count, launch.template_integer(0)
    size = item_size_bytes(launch.template_argument(1))
    values = {
        **_of_rows(rows),
        "each": ceil_div(rows.length, threads) if rows is not None and threads else None,
        "held": launch.template_integer(-1) or None,
        "vector": vector,
        "vector_bytes": vector * size if vector and size else None,
    }
    return Prediction(values)


def spatial_softmax(launch: LaunchFacts) -> Prediction:
    """`cunn_SpatialSoftMaxForward/Backward`: threads along x share a column."""
    width = None if launch.block is None else launch.block[0]
    shared = {"shares_columns": width is not None and width > 1, "runs_down": width == 1}
    return Prediction({**_of_rows(_softmax(launch)), **shared})


def layer_norm(launch: LaunchFacts) -> Prediction:
    """Kernels of layer and root-mean-square normalization: a block per row, or sums over its columns."""
    try:
        rows = None if launch.call is None else normalized_rows(launch.call)
    except ContradictionError:
        rows = None
    vector = _LAYER_NORM_VECTOR if "vectorized" in launch.function_name else 1
    is_rms = launch.function_name.startswith("vectorized") and launch.template_integer(2) == 1
    size, threads = item_size_bytes(launch.template_argument(0)), launch.thread_count
    values: dict[str, Any] = {
        "is_rms": is_rms,
        "is_vectorized": vector > 1,
        "vector_bytes": vector * size if size else None,
        "statistic": "mean square" if is_rms else "mean and variance",
    }
    if rows is None or not rows.count or not rows.length:
        return Prediction(values)
    values.update(_of_rows(rows), count=rows.count * rows.length)
    if threads:
        unit, vectors = "vector" if vector > 1 else "element", rows.length // vector
        each = counted(ceil_div(vectors, threads), unit)
        values.update(
            each=f"{each} of {vector} elements" if vector > 1 else each,
            units=counted(vectors, unit) if vectors < threads else None,
            without=threads - vectors,
        )
    return Prediction(values)


def column_sums(launch: LaunchFacts) -> Prediction:
    """`GammaBetaBackwardCUDAKernelTemplate<T, T_ACC, bx, by, rows_per_block, partial, …>`, older ones."""
    height = 0 if launch.block is None else launch.block[1]
    is_template = launch.function_name.endswith("Template")
    tall, is_partial = launch.template_integer(4), launch.template_integer(5) == 1
    sums = {
        "tall": tall if is_template else None,
        "rows_per_thread": tall // height if is_template and tall and height else None,
        "is_partial": is_template and is_partial,
        "is_transposed": is_template and not is_partial,
        "shares_columns": not is_template and height > 1,
        "runs_down": not is_template and height == 1,
    }
    return Prediction({**layer_norm(launch).values, **sums})


def batch_norm(launch: LaunchFacts) -> Prediction:
    """Kernels of batch normalization, cuDNN's too."""
    tensor, grid, name = launch.tensor("input", "grad_out"), launch.grid, launch.function_name
    is_elementwise = "transform" in name or "elemt" in name
    sharing = grid[1] if grid is not None and grid[1] > 1 and not is_elementwise else None
    values: dict[str, Any] = {
        "is_elementwise": is_elementwise,
        "sharing": sharing,
        "is_alone": not is_elementwise and sharing is None,
    }
    is_known = launch.call is not None and "batch_norm" in launch.call.name
    if not is_known or tensor is None or len(tensor.shape) < 2 or not tensor.element_count:
        return Prediction(values)
    images, channels, *rest = tensor.shape
    values.update(
        images=images,
        channels=channels,
        per_image=prod(rest),
        values=images * prod(rest),
        count=tensor.element_count,
        shape=shape_text(tensor.shape),
        is_block_per_channel=grid == (channels, 1, 1),
    )
    return Prediction(values)


def group_norm(launch: LaunchFacts) -> Prediction:
    """`RowwiseMomentsCUDAKernel` and `ComputeFusedParamsCUDAKernel` under group normalization."""
    call = launch.call
    if call is None or call.name != "aten::native_group_norm":
        return Prediction()
    batch, channels, rest, groups = (call.integer(name) for name in ("N", "C", "HxW", "group"))
    if not batch or not channels or not rest or not groups:
        return Prediction()
    length, threads = channels // groups * rest, launch.thread_count
    values = {"batch": batch, "groups": groups, "count": batch * groups, "length": length}
    each = ceil_div(length, threads) if threads else None
    return Prediction({**values, "pairs": batch * channels, "each": each})


def attention(launch: LaunchFacts) -> Prediction:
    """FlashAttention's, memory-efficient CUTLASS' and cuDNN's kernels, forward and backward."""
    sizes = None if launch.call is None else attention_sizes(launch.call)
    values: dict[str, Any] = {}
    if sizes is not None and sizes.forward_flops:
        values = {name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"count": sizes.rows}
    # FlashAttention's traits are the first template argument, or the second: head size, query rows, key rows,
    # warps.
    first, second = launch.template_argument(0) or "", launch.template_argument(1) or ""
    traits = template_arguments(first if "<" in first else second)[:4]
    if len(traits) == 4 and all(text.isdecimal() and int(text) for text in traits):
        tiles = int(traits[1]), int(traits[2])
        values["threads"] = int(traits[3]) * WARP_SIZE
    elif len(named := extents(launch.kernel.tile)) >= 2:
        tiles = named[0], named[1]
    else:
        return Prediction(values)
    values["query_tile"], values["key_tile"] = tiles
    values["steps"] = ceil_div(values["keys"], tiles[1]) if "keys" in values else None
    return Prediction(values)


def attention_parts(launch: LaunchFacts) -> Prediction:
    """`flash_fwd_splitkv_combine_kernel<traits, rows, log2 of the parts, …>`."""
    log2_parts = launch.template_integer(2)
    parts = None if log2_parts is None or not 0 <= log2_parts < WARP_SIZE else 1 << log2_parts
    return Prediction(
        {**attention(launch).values, "tile": launch.template_integer(1) or None, "parts": parts}
    )


def _softmax(launch: LaunchFacts) -> Rows | None:
    call = launch.call
    if call is None or call.stem not in _SOFTMAX:
        return None
    data = call.tensor("self", "output")
    return rows_along(data, call.integer("dim")) if data is not None and data.element_count else None


def _of_rows(rows: Rows | None) -> dict[str, Any]:
    return (
        {} if rows is None else {"rows": rows.count, "length": rows.length, "shape": shape_text(rows.shape)}
    )
