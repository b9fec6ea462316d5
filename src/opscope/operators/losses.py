"""Operations of loss functions: of each pair of elements, then of the sum or mean over them.

Without reduction the result has an element for each pair; a sum adds n − 1, a mean one division more.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Formula,
    Rule,
    defined,
    effects_of,
    element_of,
    made,
    per_element,
    result,
    shape_text,
    written_out,
)
from opscope.operators.pointwise import common_shape
from opscope.operators.promotion import promoted_type

__all__ = ["DEFINITIONS", "RULES"]


# Source: PyTorch 2.11.0, aten/src/ATen/core/Reduction.h.
_NO_REDUCTION, _MEAN, _SUM = 0, 1, 2


def _reduction(effects: CallEffects, position: int, terms: int) -> int | None:
    """Operations that reduce so many terms; None if the kind of reduction is not recorded."""
    kind = effects.call.integer(position)
    if kind is None and effects.call.is_absent(position) and effects.call.values_recorded:
        kind = _MEAN
    if kind is None or not terms:
        return None if kind is None else 0
    return {_NO_REDUCTION: 0, _MEAN: terms, _SUM: terms - 1}.get(kind)


def _paired(operations: int, reduction_position: int, weight_position: int | None = None) -> Formula:
    """So many operations for each element, one more where a weight is given, then the reduction."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        if data is None:
            return None
        reduction = _reduction(effects, reduction_position, data.element_count)
        is_weighted = weight_position is not None and effects.call.tensor(weight_position) is not None
        return None if reduction is None else (operations + is_weighted) * data.element_count + reduction

    return formula


def _negative_log_likelihood(effects: CallEffects) -> int | None:
    """−w·x of the target's class of each sample; a weighted mean sums the weights too."""
    target = effects.call.tensor(1)
    if target is None:
        return None
    samples = target.element_count
    reduction = _reduction(effects, 3, samples)
    if reduction is None or effects.call.tensor(2) is None:
        return reduction
    return reduction + samples + (samples - 1 if effects.call.integer(3) == _MEAN and samples else 0)


def _negative_log_likelihood_backward(effects: CallEffects) -> int | None:
    """−g·w of each sample, of a mean divided by the sum of weights."""
    target, kind = effects.call.tensor(2), effects.call.integer(4)
    if target is None or kind is None:
        return None
    is_weighted = effects.call.tensor(3) is not None
    return (is_weighted + (kind == _MEAN)) * target.element_count


DEFINITIONS: Mapping[str, FlopDefinition] = {
    "nll_loss_forward": defined(_negative_log_likelihood),
    "nll_loss2d_forward": defined(_negative_log_likelihood),
    "nll_loss_backward": defined(_negative_log_likelihood_backward),
    "nll_loss2d_backward": defined(_negative_log_likelihood_backward),
    "mse_loss": defined(_paired(2, 2)),  # (x − y)²
    "mse_loss_backward": per_element(3),  # g · (2/n) · (x − y)
    # y·log(x) + (1 − y)·log(1 − x): two logarithms, two products, two differences, a sum.
    "binary_cross_entropy": defined(_paired(7, 3, 2)),
    "binary_cross_entropy_backward": per_element(6),  # g · (x − y) / (x · (1 − x)), scaled by 1/n
    "smooth_l1_loss": defined(_paired(4, 2)),  # ½ · (x − y)² / β
    "huber_loss": defined(_paired(3, 2)),  # ½ · (x − y)²
}


_NO_REDUCTION_result = 0


def _paired_result(reduction_position: int, arguments: int) -> Rule:
    """mse_loss(self, target, reduction) and its like."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, target = call.tensor(0), call.tensor(1)
        kind = call.integer(reduction_position)
        if data is None or target is None or kind is None or len(call) > arguments + 1:
            return None
        shape = common_shape([data, target]) if kind == _NO_REDUCTION_result else ()
        return result(call, shape, promoted_type([data, target]), arguments)

    return rule


def _pair_gradient(arguments: int) -> Rule:
    """mse_loss_backward(grad_output, self, target, …): like self."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(1)
        if data is None or call.tensor(2) is None or len(call) > arguments + 1:
            return None
        return result(call, data.shape, element_of(data), arguments)

    return rule


def _likelihood(call: CallArguments) -> CallEffects | None:
    """nll_loss_forward(self, target, weight, reduction, ignore_index): the loss and the sum of weights."""
    data, target, kind = call.tensor(0), call.tensor(1), call.integer(3)
    element = element_of(data)
    if data is None or target is None or kind is None or element is None or len(call) not in (5, 7):
        return None
    classes = data.shape[1:2] if len(data.shape) > 1 else data.shape
    if (*target.shape[:1], *classes, *target.shape[1:]) != data.shape:
        raise ContradictionError(f"targets {shape_text(target.shape)} of {shape_text(data.shape)}")
    shape = target.shape if kind == _NO_REDUCTION_result else ()
    outputs = (written_out(shape, element, call.tensor(5)), written_out((), element, call.tensor(6)))
    return effects_of(call, outputs, (5, 6))


def _likelihood_gradient(call: CallArguments) -> CallEffects | None:
    """nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)."""
    data = call.tensor(1)
    element = element_of(data)
    if data is None or element is None or call.tensor(2) is None or len(call) not in (7, 8):
        return None
    out = call.tensor(7)
    return effects_of(call, (made(data.shape, element) if out is None else out,), (7,))


RULES: Mapping[str, Rule] = {
    "mse_loss": _paired_result(2, 3),
    "smooth_l1_loss": _paired_result(2, 4),
    "huber_loss": _paired_result(2, 4),
    "binary_cross_entropy": _paired_result(3, 4),
    "mse_loss_backward": _pair_gradient(4),
    "smooth_l1_loss_backward": _pair_gradient(5),
    "huber_loss_backward": _pair_gradient(5),
    "binary_cross_entropy_backward": _pair_gradient(5),
    "nll_loss_forward": _likelihood,
    "nll_loss2d_forward": _likelihood,
    "nll_loss_backward": _likelihood_gradient,
    "nll_loss2d_backward": _likelihood_gradient,
}
