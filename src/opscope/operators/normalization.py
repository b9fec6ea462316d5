"""Layer, group, batch and root-mean-square normalization, forward and backward.

A group is what shares one mean: n elements. Its statistics: mean n; differences n, squares n, their sum
n − 1, a division: 4·n in all; ε and the root of the inverse 2. Normalizing takes the differences that are
there: n multiplications. Then, where given, a multiplication by the weight and an addition of the bias for
each element.

Backward, with x̂ the normalized input and h = g·w: dx = s·(h − mean(h) − x̂·mean(h·x̂)).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Operator,
    Rule,
    Shape,
    defined,
    effects_of,
    like,
    results,
    shape_text,
)
from opscope.operators.element_types import ElementType
from opscope.operators.promotion import FLOAT32
from opscope.operators.reductions import Rows
from opscope.operators.traffic import bytes_of, without


def normalized_rows(call: CallArguments) -> Rows | None:
    """The rows that layer and root-mean-square norm work on, or their gradients."""
    data, sizes, weight = call.tensor("input"), call.integers("normalized_shape"), call.tensor("weight")
    if sizes is None and weight is not None:
        sizes = weight.shape  # recorders before 2.0 leave lists of integers out
    if data is None or not sizes or not call.has("normalized_shape"):
        return None
    if data.shape[-len(sizes) :] != sizes:
        raise ContradictionError(f"{shape_text(data.shape)} normalized over {shape_text(sizes)}")
    return Rows(data.shape, prod(data.shape[: -len(sizes)]), prod(sizes), 1, len(sizes))


def _forward(effects: CallEffects) -> int | None:
    """Layer and group norm: the second result has one mean for each group."""
    data = effects.call.tensor("input")
    if data is None or len(effects.outputs) < 2:
        return None
    groups, elements = effects.outputs[1].element_count, data.element_count
    return 5 * elements + 2 * groups + _given(effects, "weight", "bias") * elements


def _backward(effects: CallEffects) -> int | None:
    """Layer and group norm: dw = Σ g·x̂ and db = Σ g over all but the elements of one group's weight."""
    data, wanted = effects.call.tensor("input"), effects.call.switches("output_mask", 3)
    if data is None or wanted is None:
        return None
    elements, weight = data.element_count, effects.call.tensor("weight")
    parameters = weight.element_count if weight else 0
    # x̂ 2·n; mean(h) n; h·x̂ n and its mean n; product, two differences, product 4·n.
    of_data = (7 + (weight is not None)) * elements if wanted[0] else 0
    of_weight = 2 * elements - parameters if wanted[1] else 0
    of_bias = elements - parameters if wanted[2] else 0
    return (2 * elements if wanted[0] or wanted[1] else 0) + of_data + of_weight + of_bias


def _root_mean_square(effects: CallEffects) -> int | None:
    """x·s·w, s = 1/√(mean(x²) + ε): squares n, sum n − 1, division; ε and root 2; n, and n with a weight."""
    data = effects.call.tensor("input")
    if data is None or len(effects.outputs) < 2:
        return None
    return (3 + _given(effects, "weight")) * data.element_count + 2 * effects.outputs[1].element_count


def _root_mean_square_backward(effects: CallEffects) -> int | None:
    """Gradients: dx = s·(h − x̂·mean(h·x̂)); dw = Σ g·x̂ over groups."""
    data, scales = effects.call.tensor("input"), effects.call.tensor("rstd")
    wanted = effects.call.switches("output_mask", 2)
    if data is None or scales is None or wanted is None:
        return None
    elements, groups = data.element_count, scales.element_count
    size = elements // groups if groups else 0
    # h·x̂ and its sum 2·n − 1, a division; product, difference, product 3·n.
    of_data = (5 + _given(effects, "weight")) * elements if wanted[0] else 0
    of_weight = elements + max(0, groups - 1) * size if wanted[1] else 0
    return elements + of_data + of_weight


def _batch(effects: CallEffects) -> int | None:
    """Groups are channels. Evaluating: ε and root 2 a channel; difference, product 2·n."""
    data, trains = effects.call.tensor("input"), _trains(effects.call, "training")
    if data is None or len(data.shape) < 2 or trains is None:
        return None
    per_element = (5 if trains else 2) + _given(effects, "weight", "bias")
    return per_element * data.element_count + 2 * data.shape[1]


def _batch_backward(effects: CallEffects) -> int | None:
    """Training: x̂ 2·n, Σ g and Σ g·x̂ 3·n, dx 4·n, both sums being db and dw. Evaluating: dx = g·s·w."""
    data, trains, wanted = (
        effects.call.tensor("input"),
        _trains(effects.call, "train"),
        _wanted(effects.call, 3),
    )
    if data is None or trains is None or wanted is None:
        return None
    if trains:
        return 5 * data.element_count + (4 * data.element_count if wanted[0] else 0)
    sums = (4 if wanted[1] else 0) + (1 if wanted[2] else 0)
    return (wanted[0] + sums) * data.element_count


def _channels(per_element: int, per_channel: int) -> FlopDefinition:
    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor("input", "grad_out")
        if data is None or len(data.shape) < 2:
            return None
        return per_element * data.element_count + per_channel * data.shape[1]

    return defined(formula)


def _given(effects: CallEffects, *names: str) -> int:
    return sum(effects.call.tensor(name) is not None for name in names)


def _trains(call: CallArguments, name: str) -> bool | None:
    """The switch of training; operators without one always train."""
    return call.boolean(name) if call.has(name) else True


def _wanted(call: CallArguments, count: int) -> tuple[bool, ...] | None:
    """Which gradients are wanted; operators without a mask give all."""
    return call.switches("output_mask", count) if call.has("output_mask") else (True,) * count


def _statistics_type(element: ElementType | None) -> ElementType | None:
    return element if element is None or element.size_bytes >= FLOAT32.size_bytes else FLOAT32


def _rows(statistics: int) -> Rule:
    """Layer norm: mean and deviation of each row; root-mean-square norm: one number."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, rows = call.tensor("input"), normalized_rows(call)
        if data is None or rows is None:
            return None
        shape = (*data.shape[: -rows.dimensions], *(1,) * rows.dimensions)
        of_rows = [(shape, _statistics_type(type_of(data)))] * statistics
        return results(call, (data.shape, type_of(data)), *of_rows)

    return rule


def _groups(call: CallArguments) -> CallEffects | None:
    data, batch, groups = call.tensor("input"), call.integer("N"), call.integer("group")
    if data is None or batch is None or groups is None:
        return None
    if not batch or data.shape[:1] != (batch,):
        raise ContradictionError(f"a batch of {batch} in {shape_text(data.shape)}")
    # Statistics of groups are kept in the type of the data.
    return results(call, (data.shape, type_of(data)), *[((batch, groups), type_of(data))] * 2)


def _normalized_channels(call: CallArguments) -> CallEffects | None:
    """Batch norm: statistics of channels; of libraries only where it trains, and of cuDNN a reserve."""
    data, trains, stem = call.tensor("input"), call.boolean("training"), call.stem or ""
    if data is None or trains is None or len(data.shape) < 2 or type_of(data) is None:
        return None
    has_statistics = trains or not stem.startswith(("cudnn", "miopen"))
    shape: Shape = data.shape[1:2] if has_statistics else (0,)
    found = results(call, (data.shape, type_of(data)), *[(shape, _statistics_type(type_of(data)))] * 2)
    if found is None or not stem.startswith("cudnn"):
        return found
    return effects_of(call, (*found.outputs, TensorArgument((0,), "uint8")))


def _gradients(count: int) -> Rule:
    """The gradients wanted: of the data, of the weight, of the bias."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, weight, wanted = call.tensor("input"), call.tensor("weight"), _wanted(call, count)
        if data is None or wanted is None or type_of(data) is None or (weight is None and any(wanted[1:])):
            return None
        of_weight = (data if weight is None else weight).shape, type_of(weight or data) or type_of(data)
        kinds = [(data.shape, type_of(data)), *[of_weight] * (count - 1)]
        return results(call, *(kind for kind, is_wanted in zip(kinds, wanted, strict=True) if is_wanted))

    return rule


def _channel_statistics(call: CallArguments) -> CallEffects | None:
    """Mean and inverse deviation of each channel."""
    data = call.tensor("input")
    if data is None or len(data.shape) < 2:
        return None
    return results(call, *[(data.shape[1:2], _statistics_type(type_of(data)))] * 2)


def _running_statistics(effects: CallEffects) -> tuple[int, int]:
    """Running statistics are updated in training, and only then, whatever the schema says."""
    call, written = effects.call, bytes_of(effects.outputs)
    if call.boolean("training"):
        written += bytes_of((*call.members("running_mean"), *call.members("running_var")))
    return bytes_of(effects.device_inputs), written


_BATCH_NORM = Operator(_normalized_channels, defined(_batch), _running_statistics)
OPERATORS: Mapping[str, Operator] = {
    "native_layer_norm": Operator(_rows(2), defined(_forward)),
    # The bias has no part in any gradient.
    "native_layer_norm_backward": Operator(_gradients(3), defined(_backward), without("bias")),
    "native_group_norm": Operator(_groups, defined(_forward)),
    "native_group_norm_backward": Operator(_gradients(3), defined(_backward)),
    "_fused_rms_norm": Operator(_rows(1), defined(_root_mean_square)),
    "_fused_rms_norm_backward": Operator(_gradients(2), defined(_root_mean_square_backward)),
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "miopen_batch_norm": _BATCH_NORM,
    "cudnn_batch_norm": _BATCH_NORM,
    "_batch_norm_with_update": Operator(None, defined(_batch)),
    "native_batch_norm_backward": Operator(_gradients(3), defined(_batch_backward)),
    "batch_norm_backward": Operator(None, defined(_batch_backward)),
    "cudnn_batch_norm_backward": Operator(_gradients(3), defined(_batch_backward)),
    # Of distributed batch norm: statistics; difference, product, weight, bias; two sums with x − mean; dx.
    "batch_norm_stats": Operator(_channel_statistics, _channels(4, 2)),
    "batch_norm_elemt": Operator(like("input"), _channels(4, 0)),
    "batch_norm_backward_reduce": Operator(None, _channels(4, -2)),
    "batch_norm_backward_elemt": Operator(like("input"), _channels(5, 0)),
}
