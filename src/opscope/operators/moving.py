"""Operators that move elements and compute nothing: copies, fills, joins, gathers, scatters, sorts, ranges.

Of random numbers, what is drawn (uniform in 0–1, standard normal) is not counted, what is done to it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, type_of, with_list_type
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Operator,
    Rule,
    Shape,
    TrafficRule,
    alike,
    counting,
    defined,
    dimension_of,
    effects_of,
    element_of,
    like,
    nothing,
    per_element,
    result,
    results,
    shape_text,
)
from opscope.operators.element_types import element_type_of_code
from opscope.operators.pointwise import common_shape
from opscope.operators.promotion import INT64
from opscope.operators.traffic import (
    bytes_of,
    gathering,
    item_bytes,
    scattering,
    tensor_of,
    without,
)
from opscope.provenance.operators.schema import Kind

_ShapeOf: TypeAlias = Callable[[CallArguments, TensorArgument], "Shape | None"]


def _overwritten(call: CallArguments) -> CallEffects | None:
    """`self` is written, in place: fill_, zero_, random numbers."""
    is_in_place = call.schema is not None and call.schema.kind is Kind.INPLACE
    return like("self")(call) if is_in_place else None


def _copied(call: CallArguments) -> CallEffects | None:
    target, source = call.tensor("self"), call.tensor("src")
    if target is None or source is None or type_of(source) is None:
        return None
    if common_shape([target, source]) != target.shape:
        raise ContradictionError(f"{shape_text(source.shape)} copied into {shape_text(target.shape)}")
    return result(call, target.shape, type_of(target))


def _to_type(call: CallArguments) -> CallEffects | None:
    data = call.tensor("self")
    if data is None:
        return None
    if call.is_omitted("dtype"):
        return result(call, data.shape, type_of(data))
    code = call.integer("dtype")
    return None if code is None else result(call, data.shape, element_type_of_code(code))


def _shaped(shape_of: _ShapeOf, *names: str) -> Rule:
    """One result of the first argument's type."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(*(names or ("self",)))
        return None if data is None else result(call, shape_of(call, data), type_of(data))

    return rule


def _gathered(call: CallArguments, data: TensorArgument) -> Shape | None:
    """As many as there are indices."""
    index, dimension = call.tensor("index"), call.integer("dim")
    if index is None:
        return None
    fits = len(index.shape) == len(data.shape) or not data.shape or not index.shape
    if dimension is not None and fits:
        dimension_of(data.shape, dimension)
    if not fits:
        raise ContradictionError(f"indices {shape_text(index.shape)} into {shape_text(data.shape)}")
    return index.shape


def _selected(call: CallArguments, data: TensorArgument) -> Shape | None:
    index, dimension = call.tensor("index"), call.integer("dim")
    if index is None or dimension is None:
        return None
    along = dimension_of(data.shape, dimension)
    return (*data.shape[:along], index.element_count, *data.shape[along + 1 :]) if data.shape else ()


def _taken(call: CallArguments, data: TensorArgument) -> Shape | None:
    del data
    index = call.tensor("index")
    return None if index is None else index.shape


def _embedded(call: CallArguments, data: TensorArgument) -> Shape | None:
    index = call.tensor("indices")
    return None if index is None or len(data.shape) != 2 else (*index.shape, data.shape[1])


def _repeated(call: CallArguments, data: TensorArgument) -> Shape | None:
    repeats = call.integers("repeats")
    if repeats is None or len(repeats) < len(data.shape):
        return None
    sizes = (1,) * (len(repeats) - len(data.shape)) + data.shape
    return tuple(size * count for size, count in zip(sizes, repeats, strict=True))


def _padded(call: CallArguments, data: TensorArgument) -> Shape | None:
    """Pairs for dimensions from the last one on."""
    pad = call.integers("pad")
    if pad is None or len(pad) % 2 or len(pad) // 2 > len(data.shape):
        return None
    shape = list(data.shape)
    for position in range(len(pad) // 2):
        shape[-1 - position] += pad[2 * position] + pad[2 * position + 1]
        if shape[-1 - position] < 0:
            raise ContradictionError(f"{shape_text(data.shape)} padded by {list(pad)}")
    return tuple(shape)


def _scattered(call: CallArguments, data: TensorArgument) -> Shape | None:
    """Like self."""
    return None if call.tensor("index") is None else data.shape


def _table_gradient(call: CallArguments, gradient: TensorArgument) -> Shape | None:
    rows = call.integer("num_weights")
    if rows is None or not gradient.shape or call.tensor("indices") is None:
        return None
    return (rows, gradient.shape[-1])


def _joined(call: CallArguments) -> CallEffects | None:
    """Sizes along the dimension add up; empty vectors are skipped.

    Members have no recorded type; that of `out` is theirs where they are of one type, which it need not be:
    then only a kernel can tell.
    """
    members, dimension = call.tensor_list("tensors"), call.integer("dim")
    if not members or dimension is None:
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
    shape = (*first[:along], sum(member.shape[along] for member in filled), *first[along + 1 :])
    out, elements = call.tensor("out"), set(map(type_of, members))
    if elements == {None} and out is not None:
        call, elements = with_list_type(call, out.type_name), {type_of(out)}
    element = elements.pop() if len(elements) == 1 else None
    return effects_of(call, [TensorArgument(shape)]) if element is None else result(call, shape, element)


def _sorted(call: CallArguments) -> CallEffects | None:
    """Values and their positions."""
    data = call.tensor("self")
    return None if data is None else results(call, (data.shape, type_of(data)), (data.shape, INT64))


def _topmost(call: CallArguments) -> CallEffects | None:
    data, count, dimension = call.tensor("self"), call.integer("k"), call.integer("dim")
    if data is None or count is None or dimension is None:
        return None
    shape = list(data.shape)
    if shape:
        along = dimension_of(data.shape, dimension)
        if not 0 <= count <= shape[along]:
            raise ContradictionError(f"the first {count} of {shape[along]}")
        shape[along] = count
    return results(call, (tuple(shape), type_of(data)), (tuple(shape), INT64))


def _range(call: CallArguments) -> CallEffects | None:
    """Arange of a start: into `out`, whose type it takes."""
    start, end, step = (call.number(name) for name in ("start", "end", "step"))
    if start is None or end is None or step is None or call.tensor("out") is None:
        return None
    if not step or (end - start) / step < 0:
        raise ContradictionError(f"a range from {start} to {end} by {step}")
    return result(call, (ceil((end - start) / step),), element_of(call.tensor("out")))


def _steps(call: CallArguments) -> CallEffects | None:
    """linspace: into `out`, whose type it takes."""
    count = call.integer("steps")
    return None if count is None or count < 0 else result(call, (count,), element_of(call.tensor("out")))


def _to_host(call: CallArguments) -> CallEffects | None:
    """No result on the device."""
    return None if element_of(call.tensor("self")) is None else effects_of(call, ())


def _one_element(effects: CallEffects) -> tuple[int, int]:
    return item_bytes(tensor_of(effects, "self")), 0


def _bucketed(call: CallArguments) -> CallEffects | None:
    data, edges = call.tensor("self"), call.tensor("boundaries", "sorted_sequence")
    is_narrow = call.boolean("out_int32")
    if data is None or edges is None or is_narrow is None:
        return None
    return result(call, data.shape, element_type_of_code(3 if is_narrow else 4))


def _counted(call: CallArguments, data: TensorArgument) -> Shape | None:
    del data
    bins = call.integer("bins")
    return None if bins is None else (bins,)


def _histogram_flops(effects: CallEffects) -> int | None:
    """The bin of each element: (x − least) · bins / range."""
    data = effects.call.tensor("self")
    return None if data is None else 3 * data.element_count


def _written_rows(effects: CallEffects) -> tuple[int, int]:
    """Sums of gradients, at most a row for each index, into zeros that exist."""
    gradient = tensor_of(effects, "grad_output")
    return bytes_of(effects.device_inputs), min(bytes_of((gradient,)), bytes_of(effects.outputs))


def _added(*names: str) -> FlopDefinition:
    """One addition for each element that is added where it belongs."""

    def formula(effects: CallEffects) -> int | None:
        added = effects.call.tensor(*names)
        return None if added is None else added.element_count

    return defined(formula)


def _replaced(effects: CallEffects) -> int | None:
    """Scattering puts elements in place; whether it adds or multiplies them instead is not recorded."""
    return None if effects.call.has("reduce") else 0


def _filling(count: int | FlopDefinition) -> Operator:
    return Operator(_overwritten, count if isinstance(count, FlopDefinition) else per_element(count), _UNREAD)


def _gathering(shape_of: _ShapeOf, name: str = "self") -> Operator:
    return Operator(_shaped(shape_of, name), nothing(), gathering(name))


def _scattering(flops: FlopDefinition, traffic: TrafficRule | None = None) -> Operator:
    return Operator(_shaped(_scattered), flops, traffic)


_UNREAD = without("self")
_ADDING = _scattering(_added("src", "source"), scattering(reads_target=True))
OPERATORS: Mapping[str, Operator] = {
    "fill": _filling(nothing()),
    "zero": _filling(nothing()),
    "random": _filling(nothing()),
    "bernoulli": _filling(nothing()),
    "uniform": _filling(2),  # low + (high − low)·u
    "normal": _filling(2),  # mean + deviation·z
    "exponential": _filling(2),  # −log(u) / λ
    "geometric": _filling(2),  # ceil(log(u) / log(1 − p)), the divisor once
    "log_normal": _filling(3),  # exp(mean + deviation·z)
    "cauchy": _filling(5),  # median + scale·tan(π·(u − ½))
    "index_fill": Operator(_overwritten, nothing()),
    "copy": Operator(_copied, nothing(), _UNREAD),
    "_to_copy": Operator(_to_type, nothing()),
    **counting(alike(nothing(), "clone tril triu flip roll"), like("self")),
    "gather": _gathering(_gathered),
    "index_select": _gathering(_selected),
    "take": _gathering(_taken),
    "embedding": _gathering(_embedded, "weight"),
    "repeat": Operator(_shaped(_repeated), nothing()),
    "constant_pad_nd": Operator(_shaped(_padded), nothing()),
    "scatter": _scattering(defined(_replaced), scattering(reads_target=False)),
    "scatter_add": _ADDING,
    "index_add": _ADDING,
    "index_copy": _scattering(nothing(), scattering(reads_target=False)),
    "embedding_dense_backward": Operator(
        _shaped(_table_gradient, "grad_output"), _added("grad_output"), _written_rows
    ),
    "cat": Operator(_joined, nothing()),
    "sort": Operator(_sorted, nothing()),
    "topk": Operator(_topmost, nothing()),
    "arange": Operator(_range, per_element(2)),  # start + i·step
    "linspace": Operator(_steps, per_element(2)),
    **counting(alike(nothing(), "bucketize searchsorted"), _bucketed),
    "histc": Operator(_shaped(_counted), defined(_histogram_flops)),
    "_local_scalar_dense": Operator(_to_host, nothing(), _one_element),
    # Named by generated kernels.
    "range": Operator(None, per_element(2)),
    "logspace": Operator(None, per_element(3)),
    **counting(
        alike(
            nothing(),
            """
            stack pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
            replication_pad3d repeat_interleave rot90 tril_indices triu_indices diag diag_embed im2col unfold
            channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle _pin_memory item
            _copy_from_and_resize zeros ones full zeros_like ones_like full_like empty empty_like
            empty_strided new_zeros new_ones new_full scalar_tensor eye one_hot resize rand randn randint
            randint_like randperm
            index masked_select nonzero masked_scatter select_backward slice_backward _unsafe_index
            as_strided_scatter slice_scatter select_scatter diagonal_scatter
            argsort msort unique_consecutive _unique _unique2 unique_dim bincount
            """,
        )
    ),
}
