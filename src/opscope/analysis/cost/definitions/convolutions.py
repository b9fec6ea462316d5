"""Operations of convolutions: a multiplication and an addition for each weight at each place it is applied.

N·(places)·(elements of the weight)·2, the places being those of the output, of a transposed convolution
those of its input; padding counts like data, a bias does not count. Each of the two gradients of a
convolution costs as much as the convolution.

torch.utils.flop_counter (PyTorch 2.13.0) has the same formulas, but errs in three places, which are
definitions here: it takes the `benchmark` of cudnn_convolution for `transposed`, misses an argument of
_slow_conv2d_forward, and counts the gradient of a grouped weight as often as there are groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.analysis.cost.arguments import TensorArgument
from opscope.analysis.cost.definitions.counting import Definition, Formula, defined, registered
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS", "convolution_flops", "operand_position"]

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


def _by_name(formula: Formula, *stems: str) -> dict[str, Definition]:
    return {stem: defined(formula) for stem in stems}


DEFINITIONS: Mapping[str, Definition] = {
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
