"""Operations of layer, group, batch and root-mean-square normalization, forward and backward.

A group is what shares one mean: n elements. Its statistics: mean n; differences n, squares n, their sum
n − 1, a division: 4·n in all; ε and the root of the inverse 2. Normalizing takes the differences that are
there: n multiplications. Then, where given, a multiplication by the weight and an addition of the bias for
each element.

Backward, with x̂ the normalized input and h = g·w: dx = s·(h − mean(h) − x̂·mean(h·x̂)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    shape_text,
)
from opscope.operators.element_types import ElementType
from opscope.operators.promotion import FLOAT32

__all__ = ["DEFINITIONS", "RULES"]


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


def _channels(per_element: int, per_channel: int) -> FlopDefinition:
    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        if data is None or len(data.shape) < 2:
            return None
        return per_element * data.element_count + per_channel * data.shape[1]

    return defined(formula)


def _given(effects: CallEffects, *positions: int) -> int:
    return sum(effects.call.tensor(position) is not None for position in positions)


DEFINITIONS: Mapping[str, FlopDefinition] = {
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


def _statistics_type(element: ElementType) -> ElementType:
    return element if element.size_bytes >= FLOAT32.size_bytes else FLOAT32


def _row_shape(call: CallArguments, data: TensorArgument) -> Shape | None:
    """The shape of statistics: the data's, with 1 for each normalized dimension."""
    sizes = call.integers(1)
    if sizes is None:
        # The weight, where there is one, has the normalized shape.
        weight = call.tensor(2)
        sizes = None if weight is None else weight.shape
    if not sizes:
        return None
    if data.shape[-len(sizes) :] != sizes:
        raise ContradictionError(f"{shape_text(data.shape)} normalized over {shape_text(sizes)}")
    return (*data.shape[: -len(sizes)], *(1 for _ in sizes))


def _rows(statistics: int) -> Rule:
    """native_layer_norm(input, normalized_shape, weight, bias, eps): mean and deviation; RMS norm: one."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        element = element_of(data)
        shape = None if data is None else _row_shape(call, data)
        if data is None or element is None or shape is None:
            return None
        of_rows = [made(shape, _statistics_type(element))] * statistics
        return effects_of(call, (made(data.shape, element), *of_rows))

    return rule


def _groups(call: CallArguments) -> CallEffects | None:
    """native_group_norm(input, weight, bias, N, C, HxW, group, eps)."""
    data, batch, groups = call.tensor(0), call.integer(3), call.integer(6)
    element = element_of(data)
    if data is None or element is None or batch is None or groups is None:
        return None
    if not batch or data.shape[:1] != (batch,):
        raise ContradictionError(f"a batch of {batch} in {shape_text(data.shape)}")
    # Statistics of groups are kept in the type of the data.
    return effects_of(call, (made(data.shape, element), *[made((batch, groups), element)] * 2))


def _channels_result(training_position: int, *, is_cudnn: bool = False) -> Rule:
    """Batch norm: statistics of channels; of cuDNN only where it trains, and a reserve of its own."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, trains = call.tensor(0), call.boolean(training_position)
        element = element_of(data)
        if data is None or element is None or trains is None or len(data.shape) < 2:
            return None
        has_statistics = trains or not is_cudnn
        statistics = made(data.shape[1:2] if has_statistics else (0,), _statistics_type(element))
        reserve = (TensorArgument((0,), "uint8"),) if is_cudnn else ()
        return effects_of(call, (made(data.shape, element), statistics, statistics, *reserve))

    return rule


def _gradients(
    mask_position: int | None,
    *,
    data_position: int = 1,
    weight_position: int,
    results: int = 3,
) -> Rule:
    """The gradients wanted: of the data, of the weight, of the bias."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, weight = call.tensor(data_position), call.tensor(weight_position)
        mask = [True] * results if mask_position is None else call.value(mask_position)
        element = element_of(data)
        if data is None or element is None or not isinstance(mask, list) or len(mask) != results:
            return None
        if weight is None and any(mask[1:]):
            return None
        of_weight = () if weight is None else (weight.shape, element_of(weight) or element)
        return effects_of(call, _wanted((data.shape, element), of_weight, mask))

    return rule


def _wanted(
    of_data: tuple[Shape, ElementType], of_weight: tuple[Shape, ElementType] | tuple[()], mask: Sequence[bool]
) -> list[TensorArgument]:
    kinds = [of_data, *[of_weight] * (len(mask) - 1)]
    return [made(*kind) for kind, is_wanted in zip(kinds, mask, strict=True) if is_wanted and kind]


def _channel_statistics(call: CallArguments) -> CallEffects | None:
    """batch_norm_stats(input, eps): mean and inverse deviation of each channel."""
    data = call.tensor(0)
    element = element_of(data)
    if data is None or element is None or len(data.shape) < 2:
        return None
    return effects_of(call, [made(data.shape[1:2], _statistics_type(element))] * 2)


def _same(position: int) -> Rule:
    """A result like one argument."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(position)
        element = element_of(data)
        if data is None or element is None:
            return None
        return effects_of(call, (made(data.shape, element),))

    return rule


RULES: Mapping[str, Rule] = {
    "native_layer_norm": _rows(2),
    "_fused_rms_norm": _rows(1),
    "native_layer_norm_backward": _gradients(7, weight_position=5),
    "_fused_rms_norm_backward": _gradients(5, weight_position=4, results=2),
    "native_group_norm": _groups,
    "native_group_norm_backward": _gradients(9, weight_position=4),
    "native_batch_norm": _channels_result(5),
    "_native_batch_norm_legit": _channels_result(5),
    "cudnn_batch_norm": _channels_result(5, is_cudnn=True),
    "miopen_batch_norm": _channels_result(5),
    "native_batch_norm_backward": _gradients(9, weight_position=2),
    "cudnn_batch_norm_backward": _gradients(None, data_position=0, weight_position=2),
    "batch_norm_stats": _channel_statistics,
    "batch_norm_elemt": _same(0),
    "batch_norm_backward_elemt": _same(1),
}
