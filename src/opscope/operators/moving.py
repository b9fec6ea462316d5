"""Results of operators that move elements: copies, fills, joins, gathers, scatters, sorts, ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, type_of, with_list_type
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Rule,
    Shape,
    dimension_of,
    effects_of,
    element_of,
    nothing,
    result,
    shape_text,
    written_out,
)
from opscope.operators.element_types import ElementType, element_type_of_code
from opscope.operators.pointwise import common_shape
from opscope.operators.promotion import INT64

__all__ = ["DEFINITIONS", "RULES"]


_ShapeOf: TypeAlias = Callable[[CallArguments, TensorArgument], "Shape | None"]


def _into_first(call: CallArguments) -> CallEffects | None:
    """The first argument is written: fill_, zero_, random numbers, scatter_ and their like."""
    target = call.tensor(0)
    return None if target is None or type_of(target) is None else effects_of(call, (target,))


def _copy_into(call: CallArguments) -> CallEffects | None:
    """copy_(self, src, non_blocking)."""
    target, source = call.tensor(0), call.tensor(1)
    if target is None or source is None or type_of(target) is None or type_of(source) is None:
        return None
    if common_shape([target, source]) != target.shape:
        raise ContradictionError(f"{shape_text(source.shape)} copied into {shape_text(target.shape)}")
    return effects_of(call, (target,))


def _to_type(call: CallArguments) -> CallEffects | None:
    """_to_copy(self, *, dtype, …)."""
    data = call.tensor(0)
    if data is None or (call.is_absent(1) and not call.values_recorded):
        return None
    element = element_of(data)
    if not call.is_absent(1):
        code = call.integer(1)
        element = None if code is None else element_type_of_code(code)
    return result(call, data.shape, element)


def _of_first(shape_of: _ShapeOf, arguments: int) -> Rule:
    """One result of the first argument's type, new or at the position behind the arguments."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > arguments + 1:
            return None
        shape = shape_of(call, data)
        return None if shape is None else result(call, shape, element_of(data), arguments)

    return rule


def _same(call: CallArguments, data: TensorArgument) -> Shape | None:
    del call
    return data.shape


def _gathered(call: CallArguments, data: TensorArgument) -> Shape | None:
    """gather(self, dim, index, sparse_grad): as many as there are indices."""
    index, dimension = call.tensor(2), call.integer(1)
    if index is None:
        return None
    fits = len(index.shape) == len(data.shape) or not data.shape or not index.shape
    if dimension is not None and fits:
        dimension_of(data.shape, dimension)
    if not fits:
        raise ContradictionError(f"indices {shape_text(index.shape)} into {shape_text(data.shape)}")
    return index.shape


def _selected(call: CallArguments, data: TensorArgument) -> Shape | None:
    """index_select(self, dim, index)."""
    index, dimension = call.tensor(2), call.integer(1)
    if index is None or dimension is None:
        return None
    dimension = dimension_of(data.shape, dimension)
    if not data.shape:
        return ()
    return (*data.shape[:dimension], index.element_count, *data.shape[dimension + 1 :])


def _taken(call: CallArguments, data: TensorArgument) -> Shape | None:
    """take(self, index)."""
    del data
    index = call.tensor(1)
    return None if index is None else index.shape


def _embedded(call: CallArguments, data: TensorArgument) -> Shape | None:
    """embedding(weight, indices, padding_idx, …)."""
    index = call.tensor(1)
    return None if index is None or len(data.shape) != 2 else (*index.shape, data.shape[1])


def _repeated(call: CallArguments, data: TensorArgument) -> Shape | None:
    """repeat(self, repeats)."""
    repeats = call.integers(1)
    if repeats is None or len(repeats) < len(data.shape):
        return None
    sizes = (1,) * (len(repeats) - len(data.shape)) + data.shape
    return tuple(size * count for size, count in zip(sizes, repeats, strict=True))


def _padded(call: CallArguments, data: TensorArgument) -> Shape | None:
    """constant_pad_nd(self, pad, value): pairs for dimensions from the last one on."""
    pad = call.integers(1)
    if pad is None or len(pad) % 2 or len(pad) // 2 > len(data.shape):
        return None
    shape = list(data.shape)
    for position in range(len(pad) // 2):
        shape[-1 - position] += pad[2 * position] + pad[2 * position + 1]
        if shape[-1 - position] < 0:
            raise ContradictionError(f"{shape_text(data.shape)} padded by {list(pad)}")
    return tuple(shape)


def _scattered(index_position: int, arguments: int) -> Rule:
    """scatter(self, dim, index, src), index_add(self, dim, index, source, …): like self."""

    def rule(call: CallArguments) -> CallEffects | None:
        target = call.tensor(0)
        if target is None or call.tensor(index_position) is None or len(call) > arguments + 1:
            return None
        if call.name.endswith("_"):
            return _into_first(call)
        return result(call, target.shape, element_of(target), arguments)

    return rule


def _embedding_gradient(call: CallArguments) -> CallEffects | None:
    """embedding_dense_backward(grad_output, indices, num_weights, …)."""
    gradient, rows = call.tensor(0), call.integer(2)
    if gradient is None or rows is None or not gradient.shape or call.tensor(1) is None:
        return None
    return result(call, (rows, gradient.shape[-1]), element_of(gradient))


def _joined(call: CallArguments) -> CallEffects | None:
    """cat(tensors, dim): sizes along the dimension add up; empty vectors are skipped.

    Members have no recorded type; that of `out` is theirs where they are of one type, which it need not be:
    then only a kernel can tell.
    """
    members, dimension = call.tensor_list(0), call.integer(1)
    if not members or dimension is None or len(call) > 3:
        return None
    filled = [member for member in members if member.shape != (0,)] or list(members[:1])
    first = filled[0].shape
    if not first:
        raise ContradictionError("numbers joined")
    along = dimension_of(first, dimension)
    for member in filled:
        if len(member.shape) != len(first) or any(
            position != along and size != first[position] for position, size in enumerate(member.shape)
        ):
            raise ContradictionError(f"{shape_text(first)} joined with {shape_text(member.shape)}")
    length = sum(member.shape[along] for member in filled)
    return _joined_result(call, (*first[:along], length, *first[along + 1 :]))


def _joined_result(call: CallArguments, shape: Shape) -> CallEffects | None:
    out = call.tensor(2)
    typed = call
    if out is not None and all(type_of(member) is None for member in call.tensor_list(0) or ()):
        typed = with_list_type(call, out.type_name)
    elements = {type_of(member) for member in typed.tensor_list(0) or ()}
    element = elements.pop() if len(elements) == 1 else None
    if element is None:
        return effects_of(typed, (TensorArgument(shape, None),), (2,))
    return effects_of(typed, (written_out(shape, element, out),), (2,))


def _sorted(arguments: int) -> Rule:
    """sort(self, dim, descending), sort(self, stable, dim, descending): values and their positions."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        element = element_of(data)
        outs = [position for position in range(1, len(call)) if call.tensor(position) is not None]
        if data is None or element is None or len(call) - len(outs) > arguments or len(outs) not in (0, 2):
            return None
        return _with_positions(call, data.shape, element, outs)

    return rule


def _with_positions(
    call: CallArguments, shape: Shape, element: ElementType, outs: list[int]
) -> CallEffects | None:
    values, positions = (outs[0], outs[1]) if outs else (len(call), len(call))
    return effects_of(
        call,
        (
            written_out(shape, element, call.tensor(values)),
            written_out(shape, INT64, call.tensor(positions)),
        ),
        outs,
    )


def _topmost(call: CallArguments) -> CallEffects | None:
    """topk(self, k, dim, largest, sorted)."""
    data, count, dimension = call.tensor(0), call.integer(1), call.integer(2)
    element = element_of(data)
    if data is None or element is None or count is None or dimension is None or len(call) not in (5, 7):
        return None
    shape = list(data.shape)
    if shape:
        along = dimension_of(data.shape, dimension)
        if not 0 <= count <= shape[along]:
            raise ContradictionError(f"the first {count} of {shape[along]}")
        shape[along] = count
    return _with_positions(call, tuple(shape), element, [5, 6] if len(call) == 7 else [])


def _range(call: CallArguments) -> CallEffects | None:
    """arange(start, end, step, *, out)."""
    out = call.tensor(3)
    numbers = [call.value(position) for position in range(3)]
    if out is None or type_of(out) is None or len(call) != 4 or not all(map(_is_number, numbers)):
        return None
    start, end, step = numbers
    if not step or (end - start) / step < 0:
        raise ContradictionError(f"a range from {start} to {end} by {step}")
    element = type_of(out)
    count = ceil((end - start) / step)
    return None if element is None else effects_of(call, (written_out((count,), element, out),), (3,))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _steps(call: CallArguments) -> CallEffects | None:
    """linspace(start, end, steps, *, out)."""
    out, count = call.tensor(3), call.integer(2)
    element = element_of(out)
    if element is None or count is None or count < 0 or len(call) != 4:
        return None
    return effects_of(call, (written_out((count,), element, out),), (3,))


def _to_host(call: CallArguments) -> CallEffects | None:
    """_local_scalar_dense(self): no result on the device."""
    data = call.tensor(0)
    return None if data is None or type_of(data) is None else effects_of(call, ())


def _bucketed(values: int, borders: int, arguments: int) -> Rule:
    """bucketize(self, boundaries, *, out_int32, right), searchsorted(sorted_sequence, self, …)."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, edges = call.tensor(values), call.tensor(borders)
        is_narrow = call.boolean(2)
        if data is None or edges is None or is_narrow is None or len(call) > arguments:
            return None
        return result(call, data.shape, element_type_of_code(3 if is_narrow else 4))

    return rule


def _counted(call: CallArguments) -> CallEffects | None:
    """histc(self, bins, min, max)."""
    data, bins = call.tensor(0), call.integer(1)
    if data is None or bins is None or len(call) > 5:
        return None
    return result(call, (bins,), element_of(data), 4)


_FILLS = """
    fill zero uniform normal random bernoulli exponential geometric cauchy log_normal index_fill
"""
RULES: Mapping[str, Rule] = {
    **{f"{stem}_": _into_first for stem in _FILLS.split()},
    "copy_": _copy_into,
    "_to_copy": _to_type,
    "clone": _of_first(_same, 2),
    "tril": _of_first(_same, 2),
    "triu": _of_first(_same, 2),
    "flip": _of_first(_same, 2),
    "roll": _of_first(_same, 3),
    "gather": _of_first(_gathered, 4),
    "index_select": _of_first(_selected, 3),
    "take": _of_first(_taken, 2),
    "embedding": _of_first(_embedded, 5),
    "repeat": _of_first(_repeated, 2),
    "constant_pad_nd": _of_first(_padded, 3),
    "scatter": _scattered(2, 4),
    "scatter_": _scattered(2, 4),
    "scatter_add": _scattered(2, 4),
    "scatter_add_": _scattered(2, 4),
    "index_add": _scattered(2, 5),
    "index_add_": _scattered(2, 5),
    "index_copy": _scattered(2, 4),
    "index_copy_": _scattered(2, 4),
    "embedding_dense_backward": _embedding_gradient,
    "cat": _joined,
    "sort": _sorted(4),
    "topk": _topmost,
    "arange": _range,
    "linspace": _steps,
    "bucketize": _bucketed(0, 1, 4),
    "searchsorted": _bucketed(1, 0, 6),
    "histc": _counted,
    "_local_scalar_dense": _to_host,
}


_COPIES = """
    copy _to_copy clone cat stack constant_pad_nd pad reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat
    repeat_interleave flip roll rot90 tril triu tril_indices triu_indices diag diag_embed im2col unfold
    channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle _pin_memory
    _local_scalar_dense item _copy_from_and_resize
    _foreach_copy _foreach_clone
"""
_FILLS_flops = """
    fill zero zeros ones full zeros_like ones_like full_like empty empty_like empty_strided new_zeros new_ones
    new_full scalar_tensor eye one_hot _foreach_zero resize
"""
_GATHERS = """
    gather index index_select embedding take masked_select nonzero masked_fill index_fill index_copy
    masked_scatter where select_backward slice_backward _unsafe_index
    as_strided_scatter slice_scatter select_scatter diagonal_scatter
"""
_COMPARISONS = """
    eq ne lt le gt ge equal maximum minimum fmax fmin max min amax amin aminmax argmax argmin median nanmedian
    mode kthvalue sort argsort topk msort unique_consecutive _unique _unique2 unique_dim searchsorted
    bucketize isin bincount count_nonzero any all isnan isinf isfinite isneginf isposinf is_nonzero
    cummax cummin _cummax_helper _cummin_helper
    _foreach_max _foreach_maximum _foreach_minimum _foreach_clamp_max _foreach_clamp_min
"""
_CHOICES_AND_SIGNS = """
    relu relu6 threshold threshold_backward clamp clamp_min clamp_max clip hardtanh hardtanh_backward
    hardshrink hardshrink_backward abs absolute neg negative positive sign sgn signbit copysign nan_to_num
    heaviside _foreach_abs _foreach_neg _foreach_sign
    max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d max_unpool2d max_unpool3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
"""
_ROUNDING_AND_BITS = """
    floor ceil round trunc fix frexp _foreach_floor _foreach_ceil _foreach_round _foreach_trunc
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__
    __xor__ __lshift__ __rshift__ logical_and logical_or logical_xor logical_not gcd lcm
"""
_RANDOM = "random randint randint_like randperm bernoulli"


DEFINITIONS: Mapping[str, FlopDefinition] = {
    stem: nothing()
    for group in (
        _COPIES,
        _FILLS_flops,
        _GATHERS,
        _COMPARISONS,
        _CHOICES_AND_SIGNS,
        _ROUNDING_AND_BITS,
        _RANDOM,
    )
    for stem in group.split()
}
