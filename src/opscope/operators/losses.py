"""Loss functions: operations of each pair of elements, the sum over them among these."""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    each_of,
    known,
    like,
    result,
    results,
    rows,
    shape_text,
)
from opscope.operators.pointwise import common_shape
from opscope.operators.promotion import promoted_type
from opscope.operators.traffic import bytes_of, inputs_without, item_bytes

# Source: PyTorch 2.11.0, aten/src/ATen/core/Reduction.h.
_NO_REDUCTION = 0


def _paired_result(call: CallArguments) -> CallEffects:
    data, target = known(call.tensor("self")), known(call.tensor("target"))
    shape = common_shape([data, target]) if known(call.integer("reduction")) == _NO_REDUCTION else ()
    return result(call, shape, promoted_type([data, target]))


def _likelihood(call: CallArguments) -> CallEffects:
    """The loss and the sum of weights."""
    data, target = known(call.tensor("self")), known(call.tensor("target"))
    classes = data.shape[1:2] if len(data.shape) > 1 else data.shape
    if (*target.shape[:1], *classes, *target.shape[1:]) != data.shape:
        raise ContradictionError(f"targets {shape_text(target.shape)} of {shape_text(data.shape)}")
    shape = target.shape if known(call.integer("reduction")) == _NO_REDUCTION else ()
    return results(call, (shape, type_of(data)), ((), type_of(data)))


def _target_elements(effects: CallEffects) -> tuple[int, int]:
    """Of the probabilities one is read for each target."""
    data, target = known(effects.call.tensor("self")), known(effects.call.tensor("target"))
    chosen = min(target.element_count * item_bytes(data), bytes_of((data,)))
    return chosen + bytes_of(inputs_without(effects, "self")), bytes_of(effects.outputs)


def _target_gradients(effects: CallEffects) -> tuple[int, int]:
    """One gradient is written for each target, into zeros that are there."""
    target, (output, *_) = known(effects.call.tensor("target")), effects.outputs
    written = min(target.element_count * item_bytes(output), bytes_of(effects.outputs))
    return bytes_of(inputs_without(effects, "self")), written


_FORWARD = Operator(_likelihood, each_of("target"), _target_elements)
_BACKWARD = Operator(like("self"), each_of("target"), _target_gradients)
OPERATORS: Mapping[str, Operator] = {
    "nll_loss_forward": _FORWARD,
    "nll_loss2d_forward": _FORWARD,
    "nll_loss_backward": _BACKWARD,
    "nll_loss2d_backward": _BACKWARD,
    # (x − y)²; ½ · (x − y)² / β; y·log(x) + (1 − y)·log(1 − x).
    **rows(_paired_result, {3: "mse_loss", 4: "huber_loss", 5: "smooth_l1_loss", 8: "binary_cross_entropy"}),
    **rows(
        like("self"),
        {
            3: "mse_loss_backward huber_loss_backward smooth_l1_loss_backward",
            6: "binary_cross_entropy_backward",
        },
    ),
}
