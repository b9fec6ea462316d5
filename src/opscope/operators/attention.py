"""Operations of fused attention: its matrix products; softmax, scaling, masks and dropout do not count.

Forward two products (scores, and their product with the values), backward five (the scores again, and two for
each of the two products). A causal mask does not halve them: torch counts full squares, and so do we.

Source: torch.utils.flop_counter of PyTorch 2.13.0, which knows the operators `_scaled_dot_product_*`. Of the
inner ones `_flash_attention_*` and `_efficient_attention_*` it takes the heads for the sequence, for they
hold batch, sequence, heads, size; and it does not know `_cudnn_attention_*`. These are counted here by the
same products in their own order of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
    operator_stem,
    registered,
)
from opscope.operators.products import MatrixProduct
from opscope.operators.promotion import FLOAT32

__all__ = ["DEFINITIONS", "RULES", "AttentionSizes", "attention_sizes", "operand_position"]


_DIMENSIONS = 4


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of one attention. `heads` are the query's; keys and values may have fewer, which repeat."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int

    @property
    def forward_flops(self) -> int:
        """Scores = Q·Kᵀ, result = scores·V."""
        return self._product(self.head_size) + self._product(self.value_size)

    @property
    def backward_flops(self) -> int:
        """Scores again; gradient of scores and of V; gradients of Q and of K."""
        return 3 * self._product(self.head_size) + 2 * self._product(self.value_size)

    def _product(self, size: int) -> int:
        return MatrixProduct(self.batch * self.heads, self.queries, self.keys, size).flop_count


def operand_position(stem: str) -> int | None:
    """Position of the query, whose type decides the peak; None of anything but attention."""
    if stem not in DEFINITIONS:
        return None
    return 1 if stem.endswith("_backward") else 0


def attention_sizes(call: CallArguments, stem: str) -> AttentionSizes | None:
    """Sizes of a call; None if its sequences are packed (their lengths are data) or its shapes contradict."""
    first = operand_position(stem) or 0
    tensors = [call.tensor(first + index) for index in range(3)]
    shapes = [
        tensor.shape
        for tensor in tensors
        if isinstance(tensor, TensorArgument) and len(tensor.shape) == _DIMENSIONS
    ]
    if len(shapes) != len(tensors) or any(call.tensor(at) is not None for at in _packing_positions(stem)):
        return None
    if stem.startswith(("_flash", "_efficient")):
        shapes = [(batch, heads, sequence, size) for batch, sequence, heads, size in shapes]
    return _consistent(*shapes)


def _consistent(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> AttentionSizes | None:
    batch, heads, queries, head_size = query
    key_batch, key_heads, keys, key_size = key
    if value[:3] != (key_batch, key_heads, keys) or key_batch != batch or key_size != head_size:
        return None
    if not key_heads or heads % key_heads:
        return None
    return AttentionSizes(batch, heads, queries, keys, head_size, value[3])


def _packing_positions(stem: str) -> tuple[int, ...]:
    """Where a call gives the borders of packed sequences."""
    return _PACKING_POSITIONS.get(stem, ())


# Source: PyTorch 2.11.0, native_functions.yaml: cum_seq_q and cum_seq_k, cu_seqlens_q and cu_seqlens_k.
_PACKING_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "_flash_attention_forward": (3, 4),
    "_flash_attention_backward": (6, 7),
    "_efficient_attention_forward": (4, 5),
    "_efficient_attention_backward": (6, 7),
    "_cudnn_attention_forward": (4, 5),
    "_cudnn_attention_backward": (9, 10),
    "_scaled_dot_product_flash_attention_backward": (6, 7),
    "_scaled_dot_product_cudnn_attention_backward": (9, 10),
}


def _forward(stem: str) -> Formula:
    def formula(effects: CallEffects) -> int | None:
        sizes = attention_sizes(effects.call, stem)
        return None if sizes is None else sizes.forward_flops

    return formula


def _backward(stem: str) -> Formula:
    def formula(effects: CallEffects) -> int | None:
        sizes = attention_sizes(effects.call, stem)
        return None if sizes is None else sizes.backward_flops

    return formula


_LIBRARIES = ("flash", "efficient", "cudnn")
DEFINITIONS: Mapping[str, FlopDefinition] = {
    **{
        stem: registered(_forward(stem))
        for stem in (f"_scaled_dot_product_{library}_attention" for library in _LIBRARIES)
    },
    **{
        stem: registered(_backward(stem))
        for stem in (f"_scaled_dot_product_{library}_attention_backward" for library in _LIBRARIES)
    },
    **{stem: defined(_forward(stem)) for stem in (f"_{library}_attention_forward" for library in _LIBRARIES)},
    **{
        stem: defined(_backward(stem))
        for stem in (f"_{library}_attention_backward" for library in _LIBRARIES)
    },
}


_SumShape: TypeAlias = Callable[[CallArguments, AttentionSizes], "Shape | None"]
# Source: PyTorch 2.11.0, ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kAlignLSE.
_EFFICIENT_ALIGNMENT = 32


def _forward_result(sums: _SumShape, *, heads_first: bool) -> Rule:
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


def _backward_result(mask_position: int | None = None, bias_flag_position: int | None = None) -> Rule:
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
    "_flash_attention_forward": _forward_result(_row_sums, heads_first=False),
    "_efficient_attention_forward": _forward_result(_aligned_sums(10), heads_first=False),
    "_cudnn_attention_forward": _forward_result(_column_sums(8), heads_first=True),
    "_scaled_dot_product_flash_attention": _forward_result(_row_sums, heads_first=True),
    "_scaled_dot_product_efficient_attention": _forward_result(_aligned_sums(4), heads_first=True),
    "_scaled_dot_product_cudnn_attention": _forward_result(_column_sums(4), heads_first=True),
    "_flash_attention_backward": _backward_result(),
    "_cudnn_attention_backward": _backward_result(),
    "_efficient_attention_backward": _backward_result(bias_flag_position=15),
    "_scaled_dot_product_flash_attention_backward": _backward_result(),
    "_scaled_dot_product_cudnn_attention_backward": _backward_result(),
    "_scaled_dot_product_efficient_attention_backward": _backward_result(mask_position=10),
}
