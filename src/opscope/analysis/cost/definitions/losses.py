"""Operations of loss functions: of each pair of elements, then of the sum or mean over them.

Without reduction the result has an element for each pair; a sum adds n − 1, a mean one division more.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.definitions.counting import Definition, Formula, defined, per_element
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS"]

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


DEFINITIONS: Mapping[str, Definition] = {
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
