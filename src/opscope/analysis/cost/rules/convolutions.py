"""Results of convolutions, forward and backward.

Source of the formulas: torch.nn Conv2d and ConvTranspose2d, section Shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.convolution_form import ConvolutionForm, argument_count, convolution_form
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.rules.results import (
    ContradictionError,
    Rule,
    Shape,
    effects_of,
    element_of,
    made,
    result,
    shape_text,
)

__all__ = ["RULES"]


def _form(stem: str) -> Rule:
    """(input, weight, …): data, weights and numbers in the order of the form."""
    arguments = argument_count(stem)

    def rule(call: CallArguments) -> CallEffects | None:
        data, weight = call.tensor(0), call.tensor(1)
        if data is None or weight is None or len(call) > arguments + 1:
            return None
        dimensions = len(data.shape) - 2
        if dimensions < 1 or len(weight.shape) != len(data.shape):
            raise ContradictionError(f"weights {shape_text(weight.shape)} for {shape_text(data.shape)}")
        form = convolution_form(call, stem, dimensions)
        if form is None:
            return None
        return result(call, _result_shape(form, data, weight), element_of(data), arguments)

    return rule


def _result_shape(form: ConvolutionForm, data: TensorArgument, weight: TensorArgument) -> Shape:
    places = [
        _places(size, kernel, steps, is_transposed=form.is_transposed)
        for size, kernel, *steps in zip(
            data.shape[2:],
            weight.shape[2:],
            form.stride,
            form.padding,
            form.dilation,
            form.output_padding,
            strict=True,
        )
    ]
    return (data.shape[0], _channels(data, weight, form), *places)


def _channels(data: TensorArgument, weight: TensorArgument, form: ConvolutionForm) -> int:
    """Channels of the result, weights being results × inputs / groups, transposed the other way round."""
    given = data.shape[1]
    if form.is_transposed:
        fits, channels = weight.shape[0] == given, weight.shape[1] * (form.groups or 1)
    else:
        fits, channels = weight.shape[1] > 0 and given % weight.shape[1] == 0, weight.shape[0]
        fits = fits and form.groups in (None, given // weight.shape[1])
    if not fits:
        raise ContradictionError(f"weights {shape_text(weight.shape)} for {shape_text(data.shape)}")
    return channels


def _places(size: int, kernel: int, steps: Sequence[int], *, is_transposed: bool) -> int:
    """Places where a kernel is applied in one dimension; transposed, the size that has so many places.

    `steps` are stride, padding, dilation and output padding.
    """
    stride, padding, dilation, extra = steps
    reach = dilation * (kernel - 1)
    if stride < 1:
        raise ContradictionError(f"a stride of {stride}")
    if is_transposed:
        places = (size - 1) * stride - 2 * padding + reach + extra + 1
    else:
        places = (size + 2 * padding - reach - 1) // stride + 1
    if places < 0:
        raise ContradictionError(f"a kernel that reaches over {reach + 1} of {size + 2 * padding} elements")
    return places


def _backward(call: CallArguments) -> CallEffects | None:
    """convolution_backward(grad_output, input, weight, bias_sizes, …, output_mask): the gradients wanted."""
    gradient, data, weight = (call.tensor(position) for position in range(3))
    mask = call.value(10)
    if gradient is None or data is None or weight is None or not isinstance(mask, list) or len(mask) != 3:
        return None
    if len(gradient.shape) < 3 or not len(gradient.shape) == len(data.shape) == len(weight.shape):
        raise ContradictionError(f"a gradient {shape_text(gradient.shape)} of {shape_text(data.shape)}")
    element = element_of(gradient)
    if element is None:
        return None
    shapes = (data.shape, weight.shape, gradient.shape[1:2])
    return effects_of(
        call, [made(shape, element) for shape, wanted in zip(shapes, mask, strict=True) if wanted]
    )


_FORMS = """
    convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_transpose
    cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution miopen_convolution_transpose
    miopen_depthwise_convolution _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
    slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d slow_conv_transpose2d slow_conv_transpose3d
"""
RULES: Mapping[str, Rule] = {
    **{stem: _form(stem) for stem in _FORMS.split()},
    "convolution_backward": _backward,
}
