"""Layer, group, batch and root-mean-square normalization, forward and backward.

Operations of each element: its part of the statistics 4 (mean, difference, square, sum), a product with the
inverse deviation, weight and bias; backward, with x̂ the normalized input and h = g·w,
dx = s·(h − mean(h) − x̂·mean(h·x̂)), and the sums of g·x̂ and g.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    UnrecordedError,
    effects_of,
    known,
    like,
    results,
    rows,
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


def _wanted(call: CallArguments, count: int) -> tuple[bool, ...]:
    """Which gradients are wanted; operators without a mask give all."""
    return known(call.switches("output_mask", count)) if call.has("output_mask") else (True,) * count


def _statistics_type(element: ElementType | None) -> ElementType | None:
    return element if element is None or element.size_bytes >= FLOAT32.size_bytes else FLOAT32


def _row_statistics(statistics: int) -> Rule:
    """Layer norm: mean and deviation of each row; root-mean-square norm: one number."""

    def rule(call: CallArguments) -> CallEffects:
        data, rows = known(call.tensor("input")), known(normalized_rows(call))
        shape = (*data.shape[: -rows.dimensions], *(1,) * rows.dimensions)
        of_rows = [(shape, _statistics_type(type_of(data)))] * statistics
        return results(call, (data.shape, type_of(data)), *of_rows)

    return rule


def _groups(call: CallArguments) -> CallEffects:
    data, batch, groups = known(call.tensor("input")), known(call.integer("N")), known(call.integer("group"))
    if not batch or data.shape[:1] != (batch,):
        raise ContradictionError(f"a batch of {batch} in {shape_text(data.shape)}")
    # Statistics of groups are kept in the type of the data.
    return results(call, (data.shape, type_of(data)), *[((batch, groups), type_of(data))] * 2)


def _normalized_channels(call: CallArguments) -> CallEffects:
    """Batch norm: statistics of channels; of libraries only where it trains, and of cuDNN a reserve."""
    data, trains, stem = known(call.tensor("input")), known(call.boolean("training")), call.stem or ""
    if len(data.shape) < 2:
        raise UnrecordedError
    has_statistics = trains or not stem.startswith(("cudnn", "miopen"))
    shape: Shape = data.shape[1:2] if has_statistics else (0,)
    found = results(call, (data.shape, type_of(data)), *[(shape, _statistics_type(type_of(data)))] * 2)
    if not stem.startswith("cudnn"):
        return found
    return effects_of(call, (*found.outputs, TensorArgument((0,), "uint8")))


def _gradients(count: int) -> Rule:
    """The gradients wanted: of the data, of the weight, of the bias."""

    def rule(call: CallArguments) -> CallEffects:
        data, weight, wanted = known(call.tensor("input")), call.tensor("weight"), _wanted(call, count)
        if weight is None and any(wanted[1:]):
            raise UnrecordedError
        of_weight = (data if weight is None else weight).shape, type_of(weight or data) or type_of(data)
        kinds = [(data.shape, type_of(data)), *[of_weight] * (count - 1)]
        return results(call, *(kind for kind, is_wanted in zip(kinds, wanted, strict=True) if is_wanted))

    return rule


def _channel_statistics(call: CallArguments) -> CallEffects:
    """Mean and inverse deviation of each channel."""
    data = known(call.tensor("input"))
    if len(data.shape) < 2:
        raise UnrecordedError
    return results(call, *[(data.shape[1:2], _statistics_type(type_of(data)))] * 2)


def _running_statistics(effects: CallEffects) -> tuple[int, int]:
    """Running statistics are updated in training, and only then, whatever the schema says."""
    call, written = effects.call, bytes_of(effects.outputs)
    if call.boolean("training"):
        written += bytes_of((*call.members("running_mean"), *call.members("running_var")))
    return bytes_of(effects.device_inputs), written


OPERATORS: Mapping[str, Operator] = {
    "native_layer_norm": Operator(_row_statistics(2), 7),
    # The bias has no part in any gradient.
    "native_layer_norm_backward": Operator(_gradients(3), 13, without("bias")),
    "native_group_norm": Operator(_groups, 7),
    "native_group_norm_backward": Operator(_gradients(3), 13),
    "_fused_rms_norm": Operator(_row_statistics(1), 4),
    "_fused_rms_norm_backward": Operator(_gradients(2), 8),
    **{
        name: Operator(_normalized_channels, 7, _running_statistics)
        for name in ("native_batch_norm", "_native_batch_norm_legit", "miopen_batch_norm", "cudnn_batch_norm")
    },
    **rows(_gradients(3), {9: "native_batch_norm_backward cudnn_batch_norm_backward"}),
    # Of distributed batch norm.
    "batch_norm_stats": Operator(_channel_statistics, 4),
    **rows(like("input"), {4: "batch_norm_elemt", 5: "batch_norm_backward_elemt"}),
    **rows(None, {4: "batch_norm_backward_reduce", 7: "_batch_norm_with_update", 9: "batch_norm_backward"}),
}
