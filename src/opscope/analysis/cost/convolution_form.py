"""The numbers of a convolution call, wherever its form of the operator holds them.

Forms (convolution, cuDNN's, MIOpen's, the slow ones) differ in the order of their arguments; `_LAYOUTS` says
where each has them. Source: PyTorch 2.11.0, native_functions.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opscope.analysis.cost.arguments import CallArguments, TensorArgument

__all__ = ["ConvolutionForm", "argument_count", "convolution_form", "touched_elements"]


@dataclass(frozen=True)
class ConvolutionForm:
    """How a convolution steps, one number for each dimension.

    Attributes:
        groups: None where the form does not say: then the inputs of a weight tell.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int | None
    is_transposed: bool


@dataclass(frozen=True)
class _Layout:
    """Positions of the numbers; None where a form has none."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None
    arguments: int
    output_padding: int | None = None
    is_transposed: bool = False
    transposed: int | None = None


_MOST_PLACES = 1 << 20
_GENERAL = _Layout(3, 4, 5, 8, 9, output_padding=7, transposed=6)
_LAYOUTS: Mapping[str, _Layout] = {
    "convolution": _GENERAL,
    "convolution_overrideable": _GENERAL,
    "_convolution": _Layout(3, 4, 5, 8, 13, output_padding=7, transposed=6),
    "convolution_backward": _Layout(4, 5, 6, 9, 11, output_padding=8, transposed=7),
    "cudnn_convolution": _Layout(3, 2, 4, 5, 9),
    "cudnn_convolution_transpose": _Layout(4, 2, 5, 6, 10, output_padding=3, is_transposed=True),
    "cudnn_convolution_relu": _Layout(3, 4, 5, 6, 7),
    "cudnn_convolution_add_relu": _Layout(5, 6, 7, 8, 9),
    "miopen_convolution": _Layout(4, 3, 5, 6, 9),
    "miopen_convolution_transpose": _Layout(5, 3, 6, 7, 10, output_padding=4, is_transposed=True),
    "miopen_depthwise_convolution": _Layout(4, 3, 5, 6, 9),
    "_slow_conv2d_forward": _Layout(4, 5, None, None, 6),
    "slow_conv3d_forward": _Layout(4, 5, None, None, 6),
    "slow_conv_dilated2d": _Layout(4, 5, 6, None, 7),
    "slow_conv_dilated3d": _Layout(4, 5, 6, None, 7),
    "_conv_depthwise2d": _Layout(4, 5, 6, None, 7),
    "conv_depthwise3d": _Layout(4, 5, 6, None, 7),
    "slow_conv_transpose2d": _Layout(4, 5, 7, None, 8, output_padding=6, is_transposed=True),
    "slow_conv_transpose3d": _Layout(4, 5, 7, None, 8, output_padding=6, is_transposed=True),
}


def argument_count(stem: str) -> int:
    """Arguments of a form besides `out`."""
    return _LAYOUTS[stem].arguments


def convolution_form(call: CallArguments, stem: str, dimensions: int) -> ConvolutionForm | None:
    """The numbers of a call over so many dimensions; None if one is not recorded, or it is no convolution."""
    layout = _LAYOUTS.get(stem)
    if layout is None:
        return None
    is_transposed = layout.is_transposed if layout.transposed is None else call.boolean(layout.transposed)
    output_padding = layout.output_padding if is_transposed else None
    steps = [
        _per_dimension(call, position, dimensions, default)
        for position, default in (
            (layout.stride, 1),
            (layout.padding, 0),
            (layout.dilation, 1),
            (output_padding, 0),
        )
    ]
    groups = None if layout.groups is None else call.integer(layout.groups)
    known = [step for step in steps if step is not None]
    if is_transposed is None or len(known) < len(steps) or (groups is None and layout.groups is not None):
        return None
    return ConvolutionForm(known[0], known[1], known[2], known[3], groups, is_transposed)


def touched_elements(form: ConvolutionForm, data: TensorArgument, weight: TensorArgument) -> int:
    """Elements of the data that some weight meets: less than all where strides leave gaps between kernels."""
    touched = data.shape[0] * data.shape[1]
    for position, (size, kernel) in enumerate(zip(data.shape[2:], weight.shape[2:], strict=True)):
        if form.is_transposed:
            touched *= size
            continue
        stride, padding, dilation = (steps[position] for steps in (form.stride, form.padding, form.dilation))
        last = size + 2 * padding - dilation * (kernel - 1)
        if stride < 1 or stride <= dilation == 1 or last * kernel > _MOST_PLACES * stride:
            touched *= size  # no gaps, or too many to look at
            continue
        met = {
            start + dilation * offset - padding
            for start in range(0, last, stride)
            for offset in range(kernel)
        }
        touched *= sum(0 <= element < size for element in met)
    return touched


def _per_dimension(
    call: CallArguments, position: int | None, dimensions: int, default: int
) -> tuple[int, ...] | None:
    """One number for each dimension; a single one stands for all."""
    if position is None:
        return (default,) * dimensions
    numbers = call.integers(position)
    if numbers is None or len(numbers) not in (1, dimensions):
        return None
    return numbers * dimensions if len(numbers) == 1 else numbers
