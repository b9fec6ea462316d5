"""Operations of pooling and interpolation: sums over windows, and nested linear interpolations.

An interpolation between two values is 3 operations, w·a + v·b with weights that depend on the position alone
and do not count. In two dimensions three of them make a value, in three dimensions seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Formula,
    Rule,
    Shape,
    defined,
    effects_of,
    element_of,
    per_element,
    result,
    shape_text,
    written_out,
)
from opscope.operators.promotion import INT64

__all__ = ["DEFINITIONS", "RULES"]


# More than any layer has along one dimension; they are gone through one by one.
_MOST_WINDOWS = 1 << 20


def _average(dimensions: int) -> Formula:
    """For each window of k elements k − 1 additions and a division; padding counts like data."""

    def formula(effects: CallEffects) -> int | None:
        sizes = effects.call.integers(1)
        if sizes is None or len(sizes) not in (1, dimensions):
            return None
        window = sizes[0] ** dimensions if len(sizes) == 1 else prod(sizes)
        return window * effects.output_elements

    return formula


def _adaptive_average(effects: CallEffects) -> int | None:
    """The same, window i of n over m elements reaching from ⌊i·m/n⌋ to ⌈(i + 1)·m/n⌉."""
    return _window_elements(effects.call.tensor(0), effects.output)


def _adaptive_average_backward(effects: CallEffects) -> int | None:
    """Each gradient divided by its window's size, and added to each of its elements."""
    gradient = effects.call.tensor(0)
    elements = _window_elements(effects.call.tensor(1), gradient)
    return None if elements is None or gradient is None else gradient.element_count + elements


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


def _average_backward(dimensions: int) -> Formula:
    """Each gradient divided by its window's size, and added to each of its elements."""

    def formula(effects: CallEffects) -> int | None:
        gradient, sizes = effects.call.tensor(0), effects.call.integers(2)
        if gradient is None or sizes is None or len(sizes) not in (1, dimensions):
            return None
        window = sizes[0] ** dimensions if len(sizes) == 1 else prod(sizes)
        return (1 + window) * gradient.element_count

    return formula


DEFINITIONS: Mapping[str, FlopDefinition] = {
    "avg_pool1d": defined(_average(1)),
    "avg_pool2d": defined(_average(2)),
    "avg_pool3d": defined(_average(3)),
    "avg_pool2d_backward": defined(_average_backward(2)),
    "avg_pool3d_backward": defined(_average_backward(3)),
    "_adaptive_avg_pool2d": defined(_adaptive_average),
    "_adaptive_avg_pool3d": defined(_adaptive_average),
    "adaptive_avg_pool2d": defined(_adaptive_average),
    "adaptive_avg_pool3d": defined(_adaptive_average),
    "_adaptive_avg_pool2d_backward": defined(_adaptive_average_backward),
    "_adaptive_avg_pool3d_backward": defined(_adaptive_average_backward),
    "upsample_linear1d": per_element(3),
    "upsample_bilinear2d": per_element(9),
    "upsample_trilinear3d": per_element(21),
    # Four taps: 4 products and 3 sums; of four rows, and of their results.
    "upsample_bicubic2d": per_element(35),
}


def _window_count(
    size: int, kernel: int, stride: int, padding: int, dilation: int, *, rounds_up: bool
) -> int:
    if stride < 1:
        raise ContradictionError(f"a stride of {stride}")
    free = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if rounds_up else 0)
    count = free // stride + 1
    if rounds_up and (count - 1) * stride >= size + padding:
        count -= 1
    if count < 1:
        raise ContradictionError(f"a window of {kernel} over {size} elements")
    return count


def _numbers(
    call: CallArguments, position: int, dimensions: int, default: tuple[int, ...]
) -> tuple[int, ...]:
    """One number for each dimension; an empty list stands for the default.

    Raises:
        _UnrecordedError: The list was not recorded.
        ContradictionError: It has another length.
    """
    numbers = call.integers(position)
    if numbers is None:
        raise _UnrecordedError
    if len(numbers) not in (0, 1, dimensions):
        raise ContradictionError(f"{len(numbers)} numbers for {dimensions} dimensions")
    if not numbers:
        return default
    return numbers * dimensions if len(numbers) == 1 else numbers


class _UnrecordedError(Exception):
    """A list of numbers was not recorded."""


def _pooled_shape(
    call: CallArguments,
    data: TensorArgument,
    dimensions: int,
    dilation_position: int | None,
    ceil_position: int,
) -> Shape | None:
    """(self, kernel_size, stride, padding, [dilation,] ceil_mode, …)."""
    rounds_up = call.boolean(ceil_position)
    if rounds_up is None or len(data.shape) not in (dimensions + 1, dimensions + 2):
        return None
    ones = (1,) * dimensions
    try:
        kernel = _numbers(call, 1, dimensions, ones)
        stride = _numbers(call, 2, dimensions, kernel)
        padding = _numbers(call, 3, dimensions, ones)
        dilation = ones if dilation_position is None else _numbers(call, dilation_position, dimensions, ones)
    except _UnrecordedError:
        return None
    windows = (
        _window_count(*numbers, rounds_up=rounds_up)
        for numbers in zip(data.shape[-dimensions:], kernel, stride, padding, dilation, strict=True)
    )
    return (*data.shape[:-dimensions], *windows)


def _largest(dimensions: int) -> Rule:
    """max_pool2d_with_indices: values and their positions."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        element = element_of(data)
        if data is None or element is None or len(call) not in (6, 8):
            return None
        shape = _pooled_shape(call, data, dimensions, 4, 5)
        if shape is None:
            return None
        outputs = (written_out(shape, element, call.tensor(6)), written_out(shape, INT64, call.tensor(7)))
        return effects_of(call, outputs, (6, 7))

    return rule


def _average_result(dimensions: int) -> Rule:
    """avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > 8:
            return None
        shape = _pooled_shape(call, data, dimensions, None, 4)
        return None if shape is None else result(call, shape, element_of(data), 7)

    return rule


def _to_size(dimensions: int, arguments: tuple[int, ...], results: int = 1) -> Rule:
    """Interpolation and adaptive pooling: (self, output_size, …)."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, sizes = call.tensor(0), call.integers(1)
        element = element_of(data)
        outs = [position for position in range(1, len(call)) if call.tensor(position) is not None]
        if data is None or element is None or sizes is None or len(outs) not in (0, results):
            return None
        if len(call) - len(outs) not in arguments or len(sizes) != dimensions:
            return None
        if len(data.shape) not in (dimensions + 1, dimensions + 2):
            raise ContradictionError(f"{shape_text(sizes)} windows of {shape_text(data.shape)}")
        shape = (*data.shape[:-dimensions], *sizes)
        elements = (element, INT64)[:results]
        positions = outs or [len(call)] * results
        return effects_of(
            call,
            [
                written_out(shape, one, call.tensor(position))
                for one, position in zip(elements, positions, strict=True)
            ],
            outs,
        )

    return rule


def _gradient(data_position: int, arguments: int) -> Rule:
    """A gradient like the data."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(data_position)
        if data is None or len(call) > arguments + 1:
            return None
        return result(call, data.shape, element_of(call.tensor(0)), arguments)

    return rule


def _sized_gradient(dimensions: int, arguments: int) -> Rule:
    """upsample_nearest2d_backward(grad_output, output_size, input_size, …)."""

    def rule(call: CallArguments) -> CallEffects | None:
        sizes = call.integers(2)
        if sizes is None or len(sizes) != dimensions + 2 or len(call) > arguments + 1:
            return None
        return result(call, sizes, element_of(call.tensor(0)), arguments)

    return rule


RULES: Mapping[str, Rule] = {
    "max_pool2d_with_indices": _largest(2),
    "max_pool3d_with_indices": _largest(3),
    "max_pool2d_with_indices_backward": _gradient(1, 8),
    "max_pool3d_with_indices_backward": _gradient(1, 8),
    "avg_pool2d": _average_result(2),
    "avg_pool3d": _average_result(3),
    "avg_pool2d_backward": _gradient(1, 8),
    "avg_pool3d_backward": _gradient(1, 8),
    "_adaptive_avg_pool2d": _to_size(2, (2,)),
    "_adaptive_avg_pool3d": _to_size(3, (2,)),
    "_adaptive_avg_pool2d_backward": _gradient(1, 2),
    "_adaptive_avg_pool3d_backward": _gradient(1, 2),
    "adaptive_max_pool2d": _to_size(2, (2,), results=2),
    "upsample_nearest1d": _to_size(1, (3,)),
    "upsample_nearest2d": _to_size(2, (4,)),
    "upsample_nearest3d": _to_size(3, (5,)),
    "_upsample_nearest_exact1d": _to_size(1, (3,)),
    "_upsample_nearest_exact2d": _to_size(2, (4,)),
    "_upsample_nearest_exact3d": _to_size(3, (5,)),
    "upsample_linear1d": _to_size(1, (4,)),
    "upsample_bilinear2d": _to_size(2, (5,)),
    "upsample_trilinear3d": _to_size(3, (6,)),
    "upsample_bicubic2d": _to_size(2, (5,)),
    "upsample_nearest1d_backward": _sized_gradient(1, 4),
    "upsample_nearest2d_backward": _sized_gradient(2, 5),
    "upsample_nearest3d_backward": _sized_gradient(3, 6),
    "upsample_bilinear2d_backward": _sized_gradient(2, 6),
}
