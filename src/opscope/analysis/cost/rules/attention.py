"""Results of fused attention: the output, and the logarithm of each row's sum of exponents in float32.

States of random numbers and debugging masks are left out: the former are a few bytes, the latter nothing that
a recorded run asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.definitions.attention import AttentionSizes, attention_sizes
from opscope.analysis.cost.effects import CallEffects, operator_stem
from opscope.analysis.cost.rules.promotion import FLOAT32
from opscope.analysis.cost.rules.results import ContradictionError, Rule, Shape, effects_of, element_of, made

__all__ = ["RULES"]

_SumShape: TypeAlias = Callable[[CallArguments, AttentionSizes], "Shape | None"]
# Source: PyTorch 2.11.0, ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kAlignLSE.
_EFFICIENT_ALIGNMENT = 32


def _forward(sums: _SumShape, *, heads_first: bool) -> Rule:
    def rule(call: CallArguments) -> CallEffects | None:
        sizes, query = _sizes(call), call.tensor(0)
        element = element_of(query)
        if sizes is None or element is None:
            return None
        sum_shape = sums(call, sizes)
        if sum_shape is None:
            return None
        shape = (sizes.batch, sizes.heads, sizes.queries, sizes.value_size)
        if not heads_first:
            shape = (shape[0], shape[2], shape[1], shape[3])
        return effects_of(call, (made(shape, element), made(sum_shape, FLOAT32)))

    return rule


def _sizes(call: CallArguments) -> AttentionSizes | None:
    stem = operator_stem(call.name)
    given = [call.tensor(position) for position in range(3)]
    if stem is None or any(tensor is None for tensor in given):
        return None
    sizes = attention_sizes(call, stem)
    if sizes is None and stem.endswith(("_forward", "_attention")) and _are_plain(given):
        raise ContradictionError("the shapes of query, key and value")
    return sizes


def _are_plain(given: list[TensorArgument | None]) -> bool:
    return all(tensor is not None and len(tensor.shape) == 4 for tensor in given)


def _row_sums(call: CallArguments, sizes: AttentionSizes) -> Shape:
    """Of flash attention."""
    del call
    return (sizes.batch, sizes.heads, sizes.queries)


def _aligned_sums(flag_position: int) -> _SumShape:
    """Of efficient attention, rows filled up; without rows if nobody asked for them."""

    def shape(call: CallArguments, sizes: AttentionSizes) -> Shape | None:
        is_wanted = _flag(call, flag_position)
        if is_wanted is None:
            return None
        rows = -(-sizes.queries // _EFFICIENT_ALIGNMENT) * _EFFICIENT_ALIGNMENT
        return (sizes.batch, sizes.heads, rows if is_wanted else 0)

    return shape


def _column_sums(flag_position: int) -> _SumShape:
    """Of cuDNN's attention."""

    def shape(call: CallArguments, sizes: AttentionSizes) -> Shape | None:
        is_wanted = _flag(call, flag_position)
        if is_wanted is None:
            return None
        return (sizes.batch, sizes.heads, sizes.queries, 1) if is_wanted else (0,)

    return shape


def _flag(call: CallArguments, position: int) -> bool | None:
    """A truth value that may be left out at the end."""
    return False if position >= len(call) else call.boolean(position)


def _backward(mask_position: int | None = None, bias_flag_position: int | None = None) -> Rule:
    """Gradients of query, key and value, and of the bias where it is wanted."""

    def rule(call: CallArguments) -> CallEffects | None:
        operands = [call.tensor(position) for position in range(1, 5)]
        sizes = _sizes(call)
        if sizes is None:
            return None
        wanted = [True, True, True, False]
        if mask_position is not None:
            wanted = call.value(mask_position)
        elif bias_flag_position is not None:
            needs_bias = call.boolean(bias_flag_position)
            if needs_bias is None:
                return None
            wanted[3] = needs_bias
        if not isinstance(wanted, list) or len(wanted) != len(operands):
            return None
        gradients = [
            tensor for tensor, is_wanted in zip(operands, wanted, strict=True) if is_wanted and tensor
        ]
        return effects_of(call, [TensorArgument(one.shape, one.type_name) for one in gradients])

    return rule


RULES: Mapping[str, Rule] = {
    "_flash_attention_forward": _forward(_row_sums, heads_first=False),
    "_efficient_attention_forward": _forward(_aligned_sums(10), heads_first=False),
    "_cudnn_attention_forward": _forward(_column_sums(8), heads_first=True),
    "_scaled_dot_product_flash_attention": _forward(_row_sums, heads_first=True),
    "_scaled_dot_product_efficient_attention": _forward(_aligned_sums(4), heads_first=True),
    "_scaled_dot_product_cudnn_attention": _forward(_column_sums(4), heads_first=True),
    "_flash_attention_backward": _backward(),
    "_cudnn_attention_backward": _backward(),
    "_efficient_attention_backward": _backward(bias_flag_position=15),
    "_scaled_dot_product_flash_attention_backward": _backward(),
    "_scaled_dot_product_cudnn_attention_backward": _backward(),
    "_scaled_dot_product_efficient_attention_backward": _backward(mask_position=10),
}
