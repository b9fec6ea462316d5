"""Operators that move elements and compute nothing: copies, fills, joins, gathers, scatters, sorts, ranges.

Of random numbers, what is drawn (uniform in 0–1, standard normal) is not counted, what is done to it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TypeAlias

from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    element_type_of_code,
    type_of,
    with_list_types,
)
from opscope.operators.effects import (
    INT64,
    CallEffects,
    Operator,
    Rule,
    Shape,
    agree,
    bytes_of,
    dimension_of,
    each_of,
    effects_of,
    gathering,
    item_bytes,
    known,
    like,
    require,
    results,
    rows,
    scattering,
    wanted_type,
    without,
)
from opscope.operators.pointwise import common_shape

_ShapeOf: TypeAlias = Callable[[CallArguments, TensorArgument], Shape]


def _overwritten(call: CallArguments) -> CallEffects:
    """`self` is written, in place: fill_, zero_, random numbers."""
    require(known(call.schema).is_inplace)
    return like("self")(call)


def _copied(call: CallArguments) -> CallEffects:
    target, source = known(call.tensor("self")), known(call.tensor("src"))
    known(type_of(source))
    agree(common_shape([target, source]) == target.shape)
    return results(call, (target.shape, type_of(target)))


def _to_type(call: CallArguments) -> CallEffects:
    data = known(call.tensor("self"))
    return results(call, (data.shape, wanted_type(call, "dtype", type_of(data))))


def _shaped(shape_of: _ShapeOf, name: str = "self") -> Rule:
    """One result of an argument's type."""

    def rule(call: CallArguments) -> CallEffects:
        data = known(call.tensor(name))
        return results(call, (shape_of(call, data), type_of(data)))

    return rule


def _gathered(call: CallArguments, data: TensorArgument) -> Shape:
    """As many as there are indices."""
    index, dimension = known(call.tensor("index")), call.integer("dim")
    fits = len(index.shape) == len(data.shape) or not data.shape or not index.shape
    if dimension is not None and fits:
        dimension_of(data.shape, dimension)
    agree(fits)
    return index.shape


def _selected(call: CallArguments, data: TensorArgument) -> Shape:
    index, along = known(call.tensor("index")), dimension_of(data.shape, known(call.integer("dim")))
    return (*data.shape[:along], index.element_count, *data.shape[along + 1 :]) if data.shape else ()


def _embedded(call: CallArguments, data: TensorArgument) -> Shape:
    require(len(data.shape) == 2)
    return (*known(call.tensor("indices")).shape, data.shape[1])


def _repeated(call: CallArguments, data: TensorArgument) -> Shape:
    repeats = known(call.integers("repeats"))
    require(len(repeats) >= len(data.shape))
    sizes = (1,) * (len(repeats) - len(data.shape)) + data.shape
    return tuple(size * count for size, count in zip(sizes, repeats, strict=True))


def _padded(call: CallArguments, data: TensorArgument) -> Shape:
    """Pairs for dimensions from the last one on."""
    pad = known(call.integers("pad"))
    require(len(pad) % 2 == 0 and len(pad) // 2 <= len(data.shape))
    shape = list(data.shape)
    for position in range(len(pad) // 2):
        shape[-1 - position] += pad[2 * position] + pad[2 * position + 1]
    return tuple(shape)


def _scattered(call: CallArguments, data: TensorArgument) -> Shape:
    known(call.tensor("index"))
    return data.shape


def _table_gradient(call: CallArguments, gradient: TensorArgument) -> Shape:
    known(call.tensor("indices"))
    return (known(call.integer("num_weights")), *gradient.shape[-1:])


def _joined(call: CallArguments) -> CallEffects:
    """Sizes along the dimension add up; empty vectors are skipped.

    Members have no recorded type; that of `out` is theirs where they are of one type, which it need not be:
    then only a kernel can tell.
    """
    members, dimension = known(call.tensor_list("tensors") or None), known(call.integer("dim"))
    filled = [member for member in members if member.shape != (0,)] or list(members[:1])
    first = filled[0].shape
    agree(first)
    along = dimension_of(first, dimension)
    agree(len({(len(one.shape), one.shape[:along], one.shape[along + 1 :]) for one in filled}) == 1)
    shape = (*first[:along], sum(member.shape[along] for member in filled), *first[along + 1 :])
    out, elements = call.tensor("out"), set(map(type_of, members))
    if elements == {None} and out is not None and out.type_name is not None:
        types = dict.fromkeys(call.list_positions, out.type_name)
        call, elements = with_list_types(call, types), {type_of(out)}
    element = elements.pop() if len(elements) == 1 else None
    return effects_of(call, [TensorArgument(shape)]) if element is None else results(call, (shape, element))


def _topmost(call: CallArguments) -> CallEffects:
    data, count, dimension = known(call.tensor("self")), known(call.integer("k")), known(call.integer("dim"))
    shape = list(data.shape)
    if shape:
        along = dimension_of(data.shape, dimension)
        agree(0 <= count <= shape[along])
        shape[along] = count
    return results(call, (tuple(shape), type_of(data)), (tuple(shape), INT64))


def _range(call: CallArguments, out: TensorArgument) -> Shape:
    """Arange of a start."""
    start, end, step = (known(call.number(name)) for name in ("start", "end", "step"))
    agree(step != 0 and (end - start) / step >= 0)
    return (ceil((end - start) / step),)


def _to_host(call: CallArguments) -> CallEffects:
    """No result on the device."""
    known(type_of(known(call.tensor("self"))))
    return effects_of(call, ())


def _bucketed(call: CallArguments) -> CallEffects:
    known(call.tensor("boundaries", "sorted_sequence"))
    code = 3 if known(call.boolean("out_int32")) else 4
    return results(call, (known(call.tensor("self")).shape, element_type_of_code(code)))


def _written_rows(effects: CallEffects) -> tuple[int, int]:
    """Sums of gradients, at most a row for each index, into zeros that exist."""
    gradient = known(effects.call.tensor("grad_output"))
    return bytes_of(effects.device_inputs), min(bytes_of((gradient,)), bytes_of(effects.outputs))


def _gathering(shape_of: _ShapeOf, name: str = "self") -> Operator:
    return Operator(_shaped(shape_of, name), 0, gathering(name))


_UNREAD = without("self")
_ADDING = Operator(_shaped(_scattered), each_of("src", "source"), scattering(reads_target=True))
_REPLACING = Operator(_shaped(_scattered), 0, scattering(reads_target=False))
OPERATORS: Mapping[str, Operator] = {
    # Transformations of random numbers: cauchy's median + scale·tan(π·(u − ½)) is 5.
    **rows(
        _overwritten,
        {
            0: "fill zero random bernoulli",
            2: "uniform normal exponential geometric",
            3: "log_normal",
            5: "cauchy",
        },
        _UNREAD,
    ),
    "index_fill": Operator(_overwritten, 0),
    "copy": Operator(_copied, 0, _UNREAD),
    "_to_copy": Operator(_to_type, 0),
    **rows(like("self"), {0: "clone tril triu flip roll"}),
    "gather": _gathering(_gathered),
    "index_select": _gathering(_selected),
    "take": _gathering(lambda call, data: known(call.tensor("index")).shape),
    "embedding": _gathering(_embedded, "weight"),
    "repeat": Operator(_shaped(_repeated), 0),
    "constant_pad_nd": Operator(_shaped(_padded), 0),
    "scatter": _REPLACING,
    "scatter_add": _ADDING,
    "index_add": _ADDING,
    "index_copy": _REPLACING,
    "embedding_dense_backward": Operator(
        _shaped(_table_gradient, "grad_output"), each_of("grad_output"), _written_rows
    ),
    "cat": Operator(_joined, 0),
    "sort": Operator(like("self", beside=lambda data: (data.shape, INT64)), 0),
    "topk": Operator(_topmost, 0),
    # start + i·step, into `out`, whose type it takes.
    "arange": Operator(_shaped(_range, "out"), 2),
    "linspace": Operator(_shaped(lambda call, out: (known(call.integer("steps")),), "out"), 2),
    **rows(_bucketed, {0: "bucketize searchsorted"}),
    # The bin of each element: (x − least) · bins / range.
    "histc": Operator(_shaped(lambda call, data: (known(call.integer("bins")),)), 3),
    "_local_scalar_dense": Operator(
        _to_host, 0, lambda effects: (item_bytes(known(effects.call.tensor("self"))), 0)
    ),
}
