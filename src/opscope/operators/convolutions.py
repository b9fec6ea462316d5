"""Convolutions: a multiplication and an addition for each weight at each place it is applied.

N·(places)·(elements of the weight)·2, the places being those of the output, of a transposed convolution
those of its input; padding counts like data, a bias does not count. Each of the two gradients of a
convolution costs as much as the convolution.

torch.utils.flop_counter (PyTorch 2.13.0) has the same formulas, but errs in three places, which are
definitions here: it takes the `benchmark` of cudnn_convolution for `transposed`, misses an argument of
_slow_conv2d_forward, and counts the gradient of a grouped weight as often as there are groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Shape,
    UnrecordedError,
    known,
    result,
    results,
    shape_text,
)
from opscope.operators.traffic import bytes_of, inputs_without, item_bytes
from opscope.operators.windows import is_transposed_call, steps_of

_DATA = ("input", "self")


@dataclass(frozen=True)
class ConvolutionShapes:
    """One convolution, or one of its gradients: input, weight and output of the forward pass."""

    data: Shape
    weight: Shape
    output: Shape
    groups: int


def convolution_shapes(call: CallArguments) -> ConvolutionShapes | None:
    """Shapes of a convolution or its gradients, none empty; None where they are not recorded.

    A transposed convolution is told as the one whose gradient it is.
    """
    if call.stem not in OPERATORS:
        return None
    try:
        data, weight = known(call.tensor(*_DATA)), known(call.tensor("weight"))
        output = known(call.tensor("grad_output") or _result(call).output)
        is_transposed = is_transposed_call(call)
    except (ContradictionError, UnrecordedError):
        return None
    if not len(data.shape) == len(weight.shape) == len(output.shape) >= 3:
        return None
    if is_transposed:
        data, output = output, data
    groups = call.integer("groups") or (data.shape[1] // weight.shape[1] if weight.shape[1] else 0)
    shapes = (data.shape, weight.shape, output.shape)
    is_whole = groups > 0 and weight.shape[0] % groups == 0 and all(map(prod, shapes))
    return ConvolutionShapes(*shapes, groups) if is_whole else None


def _forward(effects: CallEffects) -> int:
    is_transposed = is_transposed_call(effects.call)
    return _pass(effects, effects.call.tensor(*_DATA) if is_transposed else effects.output)


def _backward(effects: CallEffects) -> int:
    wanted = known(effects.call.switches("output_mask", 3))
    places = "input" if is_transposed_call(effects.call) else "grad_output"
    return (wanted[0] + wanted[1]) * _pass(effects, effects.call.tensor(places))


def _pass(effects: CallEffects, places: TensorArgument | None) -> int:
    """Operations of one pass; `places` is the output, of a transposed convolution the input."""
    shape, weight = known(places).shape, known(effects.call.tensor("weight"))
    if not 3 <= len(shape) == len(weight.shape):
        raise UnrecordedError
    return 2 * shape[0] * prod(shape[2:]) * weight.element_count


def _result(call: CallArguments) -> CallEffects:
    data, weight = known(call.tensor(*_DATA)), known(call.tensor("weight"))
    if len(data.shape) < 3 or len(weight.shape) != len(data.shape):
        raise ContradictionError(f"weights {shape_text(weight.shape)} for {shape_text(data.shape)}")
    steps = steps_of(call, len(data.shape) - 2)
    groups = known(call.integer("groups")) if call.has("groups") else None
    channels = _channels(data, weight, groups, is_transposed=steps.is_transposed)
    places = steps.places(data.shape[2:], weight.shape[2:])
    return result(call, (data.shape[0], channels, *places), type_of(data))


def _channels(
    data: TensorArgument, weight: TensorArgument, groups: int | None, *, is_transposed: bool
) -> int:
    """Channels of the result, weights being results × inputs / groups, transposed the other way round."""
    given = data.shape[1]
    if is_transposed:
        fits, channels = weight.shape[0] == given, weight.shape[1] * (groups or 1)
    else:
        fits, channels = weight.shape[1] > 0 and given % weight.shape[1] == 0, weight.shape[0]
        fits = fits and groups in (None, given // weight.shape[1])
    if not fits:
        raise ContradictionError(f"weights {shape_text(weight.shape)} for {shape_text(data.shape)}")
    return channels


def _gradients(call: CallArguments) -> CallEffects:
    """The gradients wanted: of the input, the weight, the bias."""
    gradient, data, weight = (known(call.tensor(name)) for name in ("grad_output", "input", "weight"))
    wanted = known(call.switches("output_mask", 3))
    if len(gradient.shape) < 3 or not len(gradient.shape) == len(data.shape) == len(weight.shape):
        raise ContradictionError(f"a gradient {shape_text(gradient.shape)} of {shape_text(data.shape)}")
    shapes = (data.shape, weight.shape, gradient.shape[1:2])
    given = [shape for shape, is_wanted in zip(shapes, wanted, strict=True) if is_wanted]
    return results(call, *((shape, type_of(gradient)) for shape in given))


def _forward_traffic(effects: CallEffects) -> tuple[int, int]:
    """Windows that strides set apart leave elements between them unread."""
    return bytes_of(inputs_without(effects, *_DATA)) + _touched(effects), bytes_of(effects.outputs)


def _gradient_traffic(effects: CallEffects) -> tuple[int, int]:
    """The gradient of the weight needs the input, that of the input the weight."""
    wanted = known(effects.call.switches("output_mask", 3))
    read = bytes_of(inputs_without(effects, "input", "weight"))
    read += bytes_of(effects.call.members("weight")) if wanted[0] else 0
    read += _touched(effects) if wanted[1] else 0
    return read, bytes_of(effects.outputs)


def _touched(effects: CallEffects) -> int:
    """Bytes of the data that some weight meets; all of them where the steps are not recorded."""
    data, weight = known(effects.call.tensor(*_DATA)), known(effects.call.tensor("weight"))
    whole = bytes_of((data,))
    try:
        steps = steps_of(effects.call, len(data.shape) - 2)
    except UnrecordedError:
        return whole
    return min(whole, steps.touched_elements(data, weight) * item_bytes(data))


_FORWARD = """
    convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu
    cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution miopen_depthwise_convolution
    miopen_convolution_transpose _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
    slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d
"""
OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys(_FORWARD.split(), Operator(_result, _forward, _forward_traffic, _DATA)),
    "convolution_backward": Operator(_gradients, _backward, _gradient_traffic, ("grad_output",)),
}
