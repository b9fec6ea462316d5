"""Results of loss functions: one number, or with no reduction one for each element or sample."""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.rules.pointwise import common_shape
from opscope.analysis.cost.rules.promotion import promoted_type
from opscope.analysis.cost.rules.results import (
    ContradictionError,
    Rule,
    effects_of,
    element_of,
    made,
    result,
    shape_text,
    written_out,
)

__all__ = ["RULES"]

_NO_REDUCTION = 0


def _paired(reduction_position: int, arguments: int) -> Rule:
    """mse_loss(self, target, reduction) and its like."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, target = call.tensor(0), call.tensor(1)
        kind = call.integer(reduction_position)
        if data is None or target is None or kind is None or len(call) > arguments + 1:
            return None
        shape = common_shape([data, target]) if kind == _NO_REDUCTION else ()
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
    shape = target.shape if kind == _NO_REDUCTION else ()
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
    "mse_loss": _paired(2, 3),
    "smooth_l1_loss": _paired(2, 4),
    "huber_loss": _paired(2, 4),
    "binary_cross_entropy": _paired(3, 4),
    "mse_loss_backward": _pair_gradient(4),
    "smooth_l1_loss_backward": _pair_gradient(5),
    "huber_loss_backward": _pair_gradient(5),
    "binary_cross_entropy_backward": _pair_gradient(5),
    "nll_loss_forward": _likelihood,
    "nll_loss2d_forward": _likelihood,
    "nll_loss_backward": _likelihood_gradient,
    "nll_loss2d_backward": _likelihood_gradient,
}
