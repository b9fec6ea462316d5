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
    defined,
    registered,
    result,
    results,
    shape_text,
)
from opscope.operators.traffic import UncountableError, bytes_of, inputs_without, item_bytes, tensor_of
from opscope.operators.windows import Steps, steps_of

_DATA = ("input", "self")


@dataclass(frozen=True)
class ConvolutionShapes:
    """One convolution, or one of its gradients: input, weight and output of the forward pass."""

    data: Shape
    weight: Shape
    output: Shape
    groups: int


def convolution_flops(places: TensorArgument, weight: TensorArgument) -> int:
    """Operations of one pass; `places` is the output, of a transposed convolution the input."""
    return 2 * places.shape[0] * prod(places.shape[2:]) * weight.element_count


def convolution_shapes(call: CallArguments) -> ConvolutionShapes | None:
    """Shapes of a convolution or its gradients, none empty; None where they are not recorded.

    A transposed convolution is told as the one whose gradient it is.
    """
    data, weight, output = call.tensor(*_DATA), call.tensor("weight"), call.tensor("grad_output")
    is_transposed = _is_transposed(call)
    if call.stem not in OPERATORS or data is None or weight is None or is_transposed is None:
        return None
    if output is None:
        try:
            found = _result(call)
        except ContradictionError:
            return None
        output = None if found is None else found.output
    if output is None or not len(data.shape) == len(weight.shape) == len(output.shape) >= 3:
        return None
    if is_transposed:
        data, output = output, data
    groups = call.integer("groups") or (data.shape[1] // weight.shape[1] if weight.shape[1] else 0)
    shapes = (data.shape, weight.shape, output.shape)
    is_whole = groups > 0 and weight.shape[0] % groups == 0 and all(map(prod, shapes))
    return ConvolutionShapes(*shapes, groups) if is_whole else None


def _steps(call: CallArguments, data: TensorArgument, weight: TensorArgument) -> Steps | None:
    fits = len(data.shape) > 2 and len(weight.shape) == len(data.shape)
    return steps_of(call, len(data.shape) - 2) if fits else None


def _is_transposed(call: CallArguments) -> bool | None:
    return call.boolean("transposed") if call.has("transposed") else "transpose" in call.name


def _forward(effects: CallEffects) -> int | None:
    is_transposed = _is_transposed(effects.call)
    places = effects.call.tensor(*_DATA) if is_transposed else effects.output
    return None if is_transposed is None else _pass(places, effects.call.tensor("weight"))


def _backward(effects: CallEffects) -> int | None:
    call = effects.call
    is_transposed, wanted = _is_transposed(call), call.switches("output_mask", 3)
    one_pass = _pass(call.tensor("input" if is_transposed else "grad_output"), call.tensor("weight"))
    if one_pass is None or is_transposed is None or wanted is None:
        return None
    return (wanted[0] + wanted[1]) * one_pass


def _pass(places: TensorArgument | None, weight: TensorArgument | None) -> int | None:
    if places is None or weight is None or not 3 <= len(places.shape) == len(weight.shape):
        return None
    return convolution_flops(places, weight)


def _result(call: CallArguments) -> CallEffects | None:
    data, weight = call.tensor(*_DATA), call.tensor("weight")
    if data is None or weight is None:
        return None
    if len(data.shape) < 3 or len(weight.shape) != len(data.shape):
        raise ContradictionError(f"weights {shape_text(weight.shape)} for {shape_text(data.shape)}")
    steps, groups = _steps(call, data, weight), call.integer("groups")
    if steps is None or (groups is None and call.has("groups")):
        return None
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


def _gradients(call: CallArguments) -> CallEffects | None:
    """The gradients wanted: of the input, the weight, the bias."""
    gradient, data, weight = (call.tensor(name) for name in ("grad_output", "input", "weight"))
    wanted = call.switches("output_mask", 3)
    if gradient is None or data is None or weight is None or wanted is None:
        return None
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
    wanted = effects.call.switches("output_mask", 3)
    if wanted is None:
        raise UncountableError("which gradients are wanted was not recorded")
    read = bytes_of(inputs_without(effects, "input", "weight"))
    read += bytes_of(effects.call.members("weight")) if wanted[0] else 0
    read += _touched(effects) if wanted[1] else 0
    return read, bytes_of(effects.outputs)


def _touched(effects: CallEffects) -> int:
    """Bytes of the data that some weight meets; all of them where the steps are not recorded."""
    data, weight = tensor_of(effects, *_DATA), tensor_of(effects, "weight")
    steps, whole = _steps(effects.call, data, weight), bytes_of((data,))
    return whole if steps is None else min(whole, steps.touched_elements(data, weight) * item_bytes(data))


_CONVOLUTION = Operator(_result, defined(_forward), _forward_traffic, _DATA)
_REGISTERED = Operator(_result, registered(_forward), _forward_traffic, _DATA)
OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _REGISTERED),
    **dict.fromkeys(
        [
            "cudnn_convolution",
            "cudnn_convolution_relu",
            "cudnn_convolution_add_relu",
            "cudnn_convolution_transpose",
            "miopen_convolution",
            "miopen_depthwise_convolution",
            "miopen_convolution_transpose",
            "_slow_conv2d_forward",
            "slow_conv3d_forward",
            "slow_conv_dilated2d",
            "slow_conv_dilated3d",
            "slow_conv_transpose2d",
            "slow_conv_transpose3d",
            "_conv_depthwise2d",
            "conv_depthwise3d",
        ],
        _CONVOLUTION,
    ),
    "convolution_backward": Operator(_gradients, defined(_backward), _gradient_traffic, ("grad_output",)),
}
