"""Operations of layer, group, batch and root-mean-square normalization, forward and backward.

A group is what shares one mean: n elements. Its statistics: mean n; differences n, squares n, their sum
n − 1, a division: 4·n in all; ε and the root of the inverse 2. Normalizing takes the differences that are
there: n multiplications. Then, where given, a multiplication by the weight and an addition of the bias for
each element.

Backward, with x̂ the normalized input and h = g·w: dx = s·(h − mean(h) − x̂·mean(h·x̂)).
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.definitions.counting import Definition, Formula, defined
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS"]


def _forward(weight: int, bias: int) -> Formula:
    """Layer and group norm: the second result has one mean for each group."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        if data is None or len(effects.outputs) < 2:
            return None
        groups, elements = effects.outputs[1].element_count, data.element_count
        return 5 * elements + 2 * groups + _given(effects, weight, bias) * elements

    return formula


def _root_mean_square(effects: CallEffects) -> int | None:
    """x·s·w, s = 1/√(mean(x²) + ε): squares n, sum n − 1, division; ε and root 2; n, and n with a weight."""
    data = effects.call.tensor(0)
    if data is None or len(effects.outputs) < 2:
        return None
    elements = data.element_count
    return (3 + _given(effects, 2)) * elements + 2 * effects.outputs[1].element_count


def _root_mean_square_backward(effects: CallEffects) -> int | None:
    """Gradients: dx = s·(h − x̂·mean(h·x̂)); dw = Σ g·x̂ over groups."""
    data, scales = effects.call.tensor(1), effects.call.tensor(3)
    mask = effects.call.value(5)
    if data is None or scales is None or not isinstance(mask, list) or len(mask) != 2:
        return None
    elements, groups = data.element_count, scales.element_count
    size = elements // groups if groups else 0
    normalized = elements
    # h·x̂ and its sum 2·n − 1, a division; product, difference, product 3·n.
    of_data = (5 + _given(effects, 4)) * elements if mask[0] else 0
    of_weight = elements + max(0, groups - 1) * size if mask[1] else 0
    return normalized + of_data + of_weight


def _backward(weight: int, mask_position: int) -> Formula:
    """Layer and group norm: dw = Σ g·x̂ and db = Σ g over all but the elements of one group's weight."""

    def formula(effects: CallEffects) -> int | None:
        data, mask = effects.call.tensor(1), effects.call.value(mask_position)
        if data is None or not isinstance(mask, list) or len(mask) != 3:
            return None
        elements = data.element_count
        given_weight = effects.call.tensor(weight)
        parameters = given_weight.element_count if given_weight else 0
        # x̂ 2·n; mean(h) n; h·x̂ n and its mean n; product, two differences, product 4·n.
        of_data = (7 + (given_weight is not None)) * elements if mask[0] else 0
        of_weight = 2 * elements - parameters if mask[1] else 0
        of_bias = elements - parameters if mask[2] else 0
        return (2 * elements if mask[0] or mask[1] else 0) + of_data + of_weight + of_bias

    return formula


def _batch(training: int | None, *, weight: int = 1, bias: int = 2) -> Formula:
    """Groups are channels. Evaluating: ε and root 2 a channel; difference, product 2·n.

    `training` is the position of the switch; None of operators that always train.
    """

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        trains = True if training is None else effects.call.boolean(training)
        if data is None or len(data.shape) < 2 or trains is None:
            return None
        per_element = (5 if trains else 2) + _given(effects, weight, bias)
        return per_element * data.element_count + 2 * data.shape[1]

    return formula


def _batch_backward(data_position: int, training: int | None, mask_position: int | None) -> Formula:
    """Training: x̂ 2·n, Σ g and Σ g·x̂ 3·n, dx 4·n, both sums being db and dw. Evaluating: dx = g·s·w."""

    def formula(effects: CallEffects) -> int | None:
        call, data = effects.call, effects.call.tensor(data_position)
        trains = True if training is None else call.boolean(training)
        mask = [True, True, True] if mask_position is None else call.value(mask_position)
        if data is None or trains is None or not isinstance(mask, list) or len(mask) != 3:
            return None
        if trains:
            return 5 * data.element_count + (4 * data.element_count if mask[0] else 0)
        sums = (4 if mask[1] else 0) + (1 if mask[2] else 0)
        return ((1 if mask[0] else 0) + sums) * data.element_count

    return formula


def _channels(per_element: int, per_channel: int) -> Definition:
    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        if data is None or len(data.shape) < 2:
            return None
        return per_element * data.element_count + per_channel * data.shape[1]

    return defined(formula)


def _given(effects: CallEffects, *positions: int) -> int:
    return sum(effects.call.tensor(position) is not None for position in positions)


DEFINITIONS: Mapping[str, Definition] = {
    "native_layer_norm": defined(_forward(2, 3)),
    "native_layer_norm_backward": defined(_backward(5, 7)),
    "native_group_norm": defined(_forward(1, 2)),
    "native_group_norm_backward": defined(_backward(4, 9)),
    "_fused_rms_norm": defined(_root_mean_square),
    "_fused_rms_norm_backward": defined(_root_mean_square_backward),
    "native_batch_norm": defined(_batch(5)),
    "_native_batch_norm_legit": defined(_batch(5)),
    "_batch_norm_with_update": defined(_batch(None)),
    "cudnn_batch_norm": defined(_batch(5)),
    "miopen_batch_norm": defined(_batch(5)),
    "native_batch_norm_backward": defined(_batch_backward(1, 7, 9)),
    "batch_norm_backward": defined(_batch_backward(1, 7, 9)),
    "cudnn_batch_norm_backward": defined(_batch_backward(0, None, None)),
    # Of distributed batch norm: statistics; difference, product, weight, bias; two sums with x − mean; dx.
    "batch_norm_stats": _channels(4, 2),
    "batch_norm_elemt": _channels(4, 0),
    "batch_norm_backward_reduce": _channels(4, -2),
    "batch_norm_backward_elemt": _channels(5, 0),
}
