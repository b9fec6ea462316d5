"""Results of pooling and interpolation.

Source of the formulas: torch.nn MaxPool2d, section Shape; ATen/native/Pool.h (pooling_output_shape) of
PyTorch 2.11.0, where the last window must start inside the input or its left padding.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.rules.promotion import INT64
from opscope.analysis.cost.rules.results import (
    ContradictionError,
    Rule,
    Shape,
    effects_of,
    element_of,
    result,
    shape_text,
    written_out,
)

__all__ = ["RULES"]


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


def _average(dimensions: int) -> Rule:
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
    "avg_pool2d": _average(2),
    "avg_pool3d": _average(3),
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
