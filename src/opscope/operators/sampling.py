"""Pooling and interpolation: sums over windows, and nested linear interpolations.

An interpolation between two values is 3 operations, w·a + v·b with weights that depend on the position alone
and do not count. In two dimensions three of them make a value, in three dimensions seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Operator,
    Rule,
    Shape,
    defined,
    nothing,
    per_element,
    result,
    results,
    shape_text,
)
from opscope.operators.promotion import INT64
from opscope.operators.traffic import gathering, without
from opscope.operators.windows import numbers_of, steps_of

# More than any layer has along one dimension; they are gone through one by one.
_MOST_WINDOWS = 1 << 20
_DATA = ("self", "input")


def _average(dimensions: int) -> FlopDefinition:
    """For each window of k elements k − 1 additions and a division; padding counts like data.

    Backward each gradient is divided by its window's size, and added to each of its elements.
    """

    def formula(effects: CallEffects) -> int | None:
        window = numbers_of(effects.call, "kernel_size", (1,) * dimensions)
        gradient = effects.call.tensor("grad_output")
        if window is None:
            return None
        return (
            (1 + prod(window)) * gradient.element_count
            if gradient
            else prod(window) * effects.output_elements
        )

    return defined(formula)


def _adaptive_average(effects: CallEffects) -> int | None:
    """The same, window i of n over m elements reaching from ⌊i·m/n⌋ to ⌈(i + 1)·m/n⌉."""
    data, gradient = effects.call.tensor("self"), effects.call.tensor("grad_output")
    elements = _window_elements(data, gradient or effects.output)
    return elements if gradient is None or elements is None else gradient.element_count + elements


def _window_elements(data: TensorArgument | None, windows: TensorArgument | None) -> int | None:
    """Elements of all windows together, those in several windows as often."""
    if data is None or windows is None or len(data.shape) != len(windows.shape):
        return None
    if max(windows.shape, default=0) > _MOST_WINDOWS:
        return None
    total = 1
    for size, count in zip(data.shape, windows.shape, strict=True):
        total *= sum(-(-(index + 1) * size // count) - index * size // count for index in range(count))
    return total


def _scattered(effects: CallEffects) -> int | None:
    """One addition for each gradient that is added where it belongs."""
    gradient = effects.call.tensor("grad_output")
    return None if gradient is None else gradient.element_count


def _pooled_shape(call: CallArguments, dimensions: int) -> Shape | None:
    data, window = call.tensor("self"), numbers_of(call, "kernel_size", (1,) * dimensions)
    if data is None or window is None or len(data.shape) not in (dimensions + 1, dimensions + 2):
        return None
    steps = steps_of(call, dimensions, window)
    return (
        None
        if steps is None
        else (*data.shape[:-dimensions], *steps.places(data.shape[-dimensions:], window))
    )


def _largest(dimensions: int) -> Rule:
    """Values and their positions."""

    def rule(call: CallArguments) -> CallEffects | None:
        shape, data = _pooled_shape(call, dimensions), call.tensor("self")
        return (
            None if shape is None or data is None else results(call, (shape, type_of(data)), (shape, INT64))
        )

    return rule


def _averaged(dimensions: int) -> Rule:
    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor("self")
        return None if data is None else result(call, _pooled_shape(call, dimensions), type_of(data))

    return rule


def _to_size(dimensions: int, *, has_positions: bool = False) -> Rule:
    """Interpolation and adaptive pooling."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, sizes = call.tensor(*_DATA), call.integers("output_size")
        if data is None or sizes is None or len(sizes) != dimensions:
            return None
        if len(data.shape) not in (dimensions + 1, dimensions + 2):
            raise ContradictionError(f"{shape_text(sizes)} windows of {shape_text(data.shape)}")
        shape = (*data.shape[:-dimensions], *sizes)
        positions = [(shape, INT64)] if has_positions else []
        return results(call, (shape, type_of(data)), *positions)

    return rule


def _gradient(call: CallArguments) -> CallEffects | None:
    """Of the gradient's type, of the shape of the data, or of the sizes given."""
    data, gradient, sizes = call.tensor("self"), call.tensor("grad_output"), call.integers("input_size")
    if gradient is None:
        return None
    return result(call, sizes if data is None else data.shape, type_of(gradient))


# Of the data only the sizes matter.
_SIZED = without("self")
_ADDED = Operator(_gradient, defined(_scattered), _SIZED)
OPERATORS: Mapping[str, Operator] = {
    **{f"max_pool{n}d_with_indices": Operator(_largest(n), nothing()) for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _ADDED for n in (2, 3)},
    "avg_pool1d": Operator(None, _average(1)),
    **{f"avg_pool{n}d": Operator(_averaged(n), _average(n)) for n in (2, 3)},
    **{f"avg_pool{n}d_backward": Operator(_gradient, _average(n), _SIZED) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": Operator(_to_size(n), defined(_adaptive_average)) for n in (2, 3)},
    **{f"adaptive_avg_pool{n}d": Operator(None, defined(_adaptive_average)) for n in (2, 3)},
    **{
        f"_adaptive_avg_pool{n}d_backward": Operator(_gradient, defined(_adaptive_average), _SIZED)
        for n in (2, 3)
    },
    "adaptive_max_pool2d": Operator(_to_size(2, has_positions=True), nothing()),
    "adaptive_max_pool3d": Operator(None, nothing()),
    "adaptive_max_pool2d_backward": _ADDED,
    **{
        name: Operator(_to_size(n), nothing(), gathering(*_DATA))
        for n in (1, 2, 3)
        for name in (f"upsample_nearest{n}d", f"_upsample_nearest_exact{n}d")
    },
    **{f"upsample_nearest{n}d_backward": Operator(_gradient, defined(_scattered)) for n in (1, 2, 3)},
    "upsample_linear1d": Operator(_to_size(1), per_element(3)),
    "upsample_bilinear2d": Operator(_to_size(2), per_element(9)),
    "upsample_bilinear2d_backward": Operator(_gradient),
    "upsample_trilinear3d": Operator(_to_size(3), per_element(21)),
    # Four taps: 4 products and 3 sums; of four rows, and of their results.
    "upsample_bicubic2d": Operator(_to_size(2), per_element(35)),
    **dict.fromkeys(("fractional_max_pool2d", "max_unpool2d", "max_unpool3d"), Operator(None, nothing())),
}
