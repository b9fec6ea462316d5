"""Pooling and interpolation: sums over windows, and nested linear interpolations.

Of pooling an element takes part in one window, as where windows do not overlap. An interpolation between two
values is 3 operations, w·a + v·b with weights that depend on the position alone and do not count. In two
dimensions three of them make a value, in three dimensions seven; a cubic one is 35.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    UnrecordedError,
    each_of,
    known,
    result,
    results,
    rows,
    shape_text,
)
from opscope.operators.promotion import INT64
from opscope.operators.traffic import gathering, without
from opscope.operators.windows import numbers_of, steps_of

_DATA = ("self", "input")


def _pooled_shape(call: CallArguments, data: TensorArgument, dimensions: int) -> Shape:
    window = numbers_of(call, "kernel_size", (1,) * dimensions)
    if len(data.shape) not in (dimensions + 1, dimensions + 2):
        raise UnrecordedError
    steps = steps_of(call, dimensions, window)
    return (*data.shape[:-dimensions], *steps.places(data.shape[-dimensions:], window))


def _largest(dimensions: int) -> Rule:
    """Values and their positions."""

    def rule(call: CallArguments) -> CallEffects:
        data = known(call.tensor("self"))
        shape = _pooled_shape(call, data, dimensions)
        return results(call, (shape, type_of(data)), (shape, INT64))

    return rule


def _averaged(dimensions: int) -> Rule:
    def rule(call: CallArguments) -> CallEffects:
        data = known(call.tensor("self"))
        return result(call, _pooled_shape(call, data, dimensions), type_of(data))

    return rule


def _to_size(dimensions: int, *, has_positions: bool = False) -> Rule:
    """Interpolation and adaptive pooling."""

    def rule(call: CallArguments) -> CallEffects:
        data, sizes = known(call.tensor(*_DATA)), known(call.integers("output_size"))
        if len(sizes) != dimensions:
            raise UnrecordedError
        if len(data.shape) not in (dimensions + 1, dimensions + 2):
            raise ContradictionError(f"{shape_text(sizes)} windows of {shape_text(data.shape)}")
        shape = (*data.shape[:-dimensions], *sizes)
        positions = [(shape, INT64)] if has_positions else []
        return results(call, (shape, type_of(data)), *positions)

    return rule


def _gradient(call: CallArguments) -> CallEffects:
    """Of the gradient's type, of the shape of the data, or of the sizes given."""
    data, gradient = call.tensor("self"), known(call.tensor("grad_output"))
    shape = known(call.integers("input_size")) if data is None else data.shape
    return result(call, shape, type_of(gradient))


# Of the data only the sizes matter.
_SIZED = without("self")
_ADDED = Operator(_gradient, each_of("grad_output"), _SIZED)
OPERATORS: Mapping[str, Operator] = {
    **{f"max_pool{n}d_with_indices": Operator(_largest(n), 0) for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _ADDED for n in (2, 3)},
    **{f"avg_pool{n}d": Operator(_averaged(n), 1) for n in (2, 3)},
    **{f"avg_pool{n}d_backward": Operator(_gradient, 2, _SIZED) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": Operator(_to_size(n), 1) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward": Operator(_gradient, 2, _SIZED) for n in (2, 3)},
    "adaptive_max_pool2d": Operator(_to_size(2, has_positions=True), 0),
    "adaptive_max_pool2d_backward": _ADDED,
    **{
        name: Operator(_to_size(n), 0, gathering(*_DATA))
        for n in (1, 2, 3)
        for name in (f"upsample_nearest{n}d", f"_upsample_nearest_exact{n}d")
    },
    **{f"upsample_nearest{n}d_backward": Operator(_gradient, each_of("grad_output")) for n in (1, 2, 3)},
    "upsample_linear1d": Operator(_to_size(1), 3),
    "upsample_bilinear2d": Operator(_to_size(2), 9),
    "upsample_bilinear2d_backward": Operator(_gradient, 9),
    "upsample_trilinear3d": Operator(_to_size(3), 21),
    "upsample_bicubic2d": Operator(_to_size(2), 35),
    # Named by generated kernels.
    **rows(
        None,
        {
            0: "adaptive_max_pool3d fractional_max_pool2d max_unpool2d max_unpool3d",
            1: "avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
        },
    ),
}
