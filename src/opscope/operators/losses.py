"""Loss functions: operations of each pair of elements, then of the sum or mean over them.

Without reduction the result has an element for each pair; a sum adds n − 1, a mean one division more.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Operator,
    defined,
    like,
    per_element,
    result,
    results,
    shape_text,
)
from opscope.operators.pointwise import common_shape
from opscope.operators.promotion import promoted_type
from opscope.operators.traffic import bytes_of, inputs_without, item_bytes, tensor_of

# Source: PyTorch 2.11.0, aten/src/ATen/core/Reduction.h.
_NO_REDUCTION, _MEAN, _SUM = 0, 1, 2


def _reduction(call: CallArguments, terms: int) -> int | None:
    """Operations that reduce so many terms; None if the kind of reduction is not recorded."""
    kind = _MEAN if call.is_omitted("reduction") else call.integer("reduction")
    if kind is None or not terms:
        return None if kind is None else 0
    return {_NO_REDUCTION: 0, _MEAN: terms, _SUM: terms - 1}.get(kind)


def _paired(operations: int) -> FlopDefinition:
    """So many operations for each element, one more where a weight is given, then the reduction."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor("self")
        if data is None:
            return None
        reduction = _reduction(effects.call, data.element_count)
        is_weighted = effects.call.tensor("weight") is not None
        return None if reduction is None else (operations + is_weighted) * data.element_count + reduction

    return defined(formula)


def _likelihood_flops(effects: CallEffects) -> int | None:
    """−w·x of the target's class of each sample; a weighted mean sums the weights too."""
    call, target = effects.call, effects.call.tensor("target")
    if target is None:
        return None
    samples = target.element_count
    reduction = _reduction(call, samples)
    if reduction is None or call.tensor("weight") is None:
        return reduction
    return reduction + samples + (samples - 1 if call.integer("reduction") == _MEAN and samples else 0)


def _likelihood_gradient_flops(effects: CallEffects) -> int | None:
    """−g·w of each sample, of a mean divided by the sum of weights."""
    target, kind = effects.call.tensor("target"), effects.call.integer("reduction")
    if target is None or kind is None:
        return None
    return ((effects.call.tensor("weight") is not None) + (kind == _MEAN)) * target.element_count


def _paired_result(call: CallArguments) -> CallEffects | None:
    data, target, kind = call.tensor("self"), call.tensor("target"), call.integer("reduction")
    if data is None or target is None or kind is None:
        return None
    shape = common_shape([data, target]) if kind == _NO_REDUCTION else ()
    return result(call, shape, promoted_type([data, target]))


def _likelihood(call: CallArguments) -> CallEffects | None:
    """The loss and the sum of weights."""
    data, target, kind = call.tensor("self"), call.tensor("target"), call.integer("reduction")
    if data is None or target is None or kind is None:
        return None
    classes = data.shape[1:2] if len(data.shape) > 1 else data.shape
    if (*target.shape[:1], *classes, *target.shape[1:]) != data.shape:
        raise ContradictionError(f"targets {shape_text(target.shape)} of {shape_text(data.shape)}")
    shape = target.shape if kind == _NO_REDUCTION else ()
    return results(call, (shape, type_of(data)), ((), type_of(data)))


def _target_elements(effects: CallEffects) -> tuple[int, int]:
    """Of the probabilities one is read for each target."""
    data, target = tensor_of(effects, "self"), tensor_of(effects, "target")
    chosen = min(target.element_count * item_bytes(data), bytes_of((data,)))
    return chosen + bytes_of(inputs_without(effects, "self")), bytes_of(effects.outputs)


def _target_gradients(effects: CallEffects) -> tuple[int, int]:
    """One gradient is written for each target, into zeros that are there."""
    target, (output, *_) = tensor_of(effects, "target"), effects.outputs
    written = min(target.element_count * item_bytes(output), bytes_of(effects.outputs))
    return bytes_of(inputs_without(effects, "self")), written


_FORWARD = Operator(_likelihood, defined(_likelihood_flops), _target_elements)
_BACKWARD = Operator(like("self"), defined(_likelihood_gradient_flops), _target_gradients)
OPERATORS: Mapping[str, Operator] = {
    "nll_loss_forward": _FORWARD,
    "nll_loss2d_forward": _FORWARD,
    "nll_loss_backward": _BACKWARD,
    "nll_loss2d_backward": _BACKWARD,
    "mse_loss": Operator(_paired_result, _paired(2)),  # (x − y)²
    "mse_loss_backward": Operator(like("self"), per_element(3)),  # g · (2/n) · (x − y)
    # y·log(x) + (1 − y)·log(1 − x): two logarithms, two products, two differences, a sum.
    "binary_cross_entropy": Operator(_paired_result, _paired(7)),
    # g · (x − y) / (x · (1 − x)), scaled by 1/n.
    "binary_cross_entropy_backward": Operator(like("self"), per_element(6)),
    "smooth_l1_loss": Operator(_paired_result, _paired(4)),  # ½ · (x − y)² / β
    "smooth_l1_loss_backward": Operator(like("self")),
    "huber_loss": Operator(_paired_result, _paired(3)),  # ½ · (x − y)²
    "huber_loss_backward": Operator(like("self")),
}
