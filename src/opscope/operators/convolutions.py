"""Operations of convolutions: a multiplication and an addition for each weight at each place it is applied.

N·(places)·(elements of the weight)·2, the places being those of the output, of a transposed convolution
those of its input; padding counts like data, a bias does not count. Each of the two gradients of a
convolution costs as much as the convolution.

torch.utils.flop_counter (PyTorch 2.13.0) has the same formulas, but errs in three places, which are
definitions here: it takes the `benchmark` of cudnn_convolution for `transposed`, misses an argument of
_slow_conv2d_forward, and counts the gradient of a grouped weight as often as there are groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    made,
    registered,
    result,
    shape_text,
)

__all__ = [
    "DEFINITIONS",
    "RULES",
    "ConvolutionForm",
    "argument_count",
    "convolution_flops",
    "convolution_form",
    "operand_position",
    "touched_elements",
]


_TRANSPOSED_POSITION = 6
_GRADIENT_OUTPUT, _GRADIENT_INPUT, _GRADIENT_WEIGHT = 0, 1, 2
_BACKWARD_TRANSPOSED, _BACKWARD_GROUPS, _BACKWARD_MASK = 7, 9, 10


def convolution_flops(places: TensorArgument, weight: TensorArgument) -> int:
    """Operations of one pass; `places` is the output, of a transposed convolution the input."""
    return 2 * places.shape[0] * prod(places.shape[2:]) * weight.element_count


def operand_position(stem: str) -> int | None:
    """Position of the first operand, whose type decides the peak; None of anything but convolutions."""
    return 0 if stem in DEFINITIONS else None


def _convolution(effects: CallEffects) -> int | None:
    is_transposed = effects.call.boolean(_TRANSPOSED_POSITION)
    if is_transposed is None:
        return None
    return _transposed(effects) if is_transposed else _plain(effects)


def _plain(effects: CallEffects) -> int | None:
    return _pass(effects.output, effects.call.tensor(1))


def _transposed(effects: CallEffects) -> int | None:
    return _pass(effects.call.tensor(0), effects.call.tensor(1))


def _pass(places: TensorArgument | None, weight: TensorArgument | None) -> int | None:
    if places is None or weight is None or not 3 <= len(places.shape) == len(weight.shape):
        return None
    return convolution_flops(places, weight)


def _backward(effects: CallEffects) -> int | None:
    call = effects.call
    gradient, data = call.tensor(_GRADIENT_OUTPUT), call.tensor(_GRADIENT_INPUT)
    weight, is_transposed = call.tensor(_GRADIENT_WEIGHT), call.boolean(_BACKWARD_TRANSPOSED)
    mask = call.value(_BACKWARD_MASK)
    one_pass = _pass(data if is_transposed else gradient, weight)
    if one_pass is None or is_transposed is None or not isinstance(mask, list) or len(mask) != 3:
        return None
    return (bool(mask[0]) + bool(mask[1])) * one_pass


def _legacy_data_gradient(effects: CallEffects) -> int | None:
    """cudnn_convolution_backward_input(self_size, grad_output, weight, …), of torch before 1.11."""
    return _pass(effects.call.tensor(1), effects.call.tensor(2))


def _legacy_weight_gradient(effects: CallEffects) -> int | None:
    """cudnn_convolution_backward_weight(weight_size, grad_output, self, …): its result is the weight's."""
    return _pass(effects.call.tensor(1), effects.output)


def _by_name(formula: Formula, *stems: str) -> dict[str, FlopDefinition]:
    return {stem: defined(formula) for stem in stems}


DEFINITIONS: Mapping[str, FlopDefinition] = {
    "convolution": registered(_convolution),
    "_convolution": registered(_convolution),
    "convolution_overrideable": registered(_convolution),
    "convolution_backward": defined(_backward),
    **_by_name(
        _plain, "cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu",
        "miopen_convolution", "miopen_depthwise_convolution", "_slow_conv2d_forward", "slow_conv3d_forward",
        "slow_conv_dilated2d", "slow_conv_dilated3d", "_conv_depthwise2d", "conv_depthwise3d",
    ),
    **_by_name(
        _transposed, "cudnn_convolution_transpose", "miopen_convolution_transpose", "slow_conv_transpose2d",
        "slow_conv_transpose3d",
    ),
    "cudnn_convolution_backward_input": defined(_legacy_data_gradient),
    "cudnn_convolution_backward_weight": defined(_legacy_weight_gradient),
}  # fmt: skip


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


def _backward_result(call: CallArguments) -> CallEffects | None:
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
    "convolution_backward": _backward_result,
}
