"""Results of normalizations: the output and the statistics that the backward pass needs.

On a GPU statistics are float32 for 16-bit data, the type of the data else.
Source: PyTorch 2.11.0, aten/src/ATen/native/cuda: layer_norm_kernel.cu, group_norm_kernel.cu,
Normalization.cu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.element_types import ElementType
from opscope.analysis.cost.rules.promotion import FLOAT32
from opscope.analysis.cost.rules.results import (
    ContradictionError,
    Rule,
    Shape,
    effects_of,
    element_of,
    made,
    shape_text,
)

__all__ = ["RULES"]


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


def _channels(training_position: int, *, is_cudnn: bool = False) -> Rule:
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
    "native_batch_norm": _channels(5),
    "_native_batch_norm_legit": _channels(5),
    "cudnn_batch_norm": _channels(5, is_cudnn=True),
    "miopen_batch_norm": _channels(5),
    "native_batch_norm_backward": _gradients(9, weight_position=2),
    "cudnn_batch_norm_backward": _gradients(None, data_position=0, weight_position=2),
    "batch_norm_stats": _channel_statistics,
    "batch_norm_elemt": _same(0),
    "batch_norm_backward_elemt": _same(1),
}
