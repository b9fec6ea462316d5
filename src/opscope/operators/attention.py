"""Fused attention: its matrix products; softmax, scaling, masks and dropout do not count.

Forward two products (scores, and their product with the values), backward five (the scores again, and two for
each of the two products). A causal mask does not halve them: torch counts full squares, and so do we.

Source: torch.utils.flop_counter of PyTorch 2.13.0, which knows the operators `_scaled_dot_product_*`. Of the
inner ones `_flash_attention_*` and `_efficient_attention_*` it takes the heads for the sequence, for they
hold batch, sequence, heads, size; and it does not know `_cudnn_attention_*`. These are counted here by the
same products in their own order of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    effects_of,
    known,
    results,
)
from opscope.operators.products import MatrixProduct
from opscope.operators.promotion import FLOAT32

_DIMENSIONS = 4
_OPERANDS = ("query", "key", "value")
# Where a call gives the borders of packed sequences.
_BORDERS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
_BIASES = ("bias", "attn_bias")


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of one attention. `heads` are the query's; keys and values may have fewer, which repeat."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int

    def __str__(self) -> str:
        """`96 heads of 128×128 scores and 64 elements`."""
        return f"{self.all_heads} heads of {self.queries}×{self.keys} scores and {self.head_size} elements"

    @property
    def all_heads(self) -> int:
        """Heads of all sequences of the batch."""
        return self.batch * self.heads

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        return self.all_heads * self.queries

    @property
    def forward_flops(self) -> int:
        """Scores = Q·Kᵀ, result = scores·V."""
        return self._product(self.head_size) + self._product(self.value_size)

    @property
    def backward_flops(self) -> int:
        """Scores again; gradient of scores and of V; gradients of Q and of K."""
        return 3 * self._product(self.head_size) + 2 * self._product(self.value_size)

    def _product(self, size: int) -> int:
        return MatrixProduct(self.all_heads, self.queries, self.keys, size).flop_count


def attention_sizes(call: CallArguments) -> AttentionSizes | None:
    """Sizes of a call; None if its sequences are packed (their lengths are data) or its shapes contradict."""
    shapes = _shapes(call)
    if call.stem not in OPERATORS or shapes is None or any(map(call.tensor, _BORDERS)):
        return None
    (batch, heads, queries, head_size), (key_batch, key_heads, keys, key_size), value = shapes
    if value[:3] != (key_batch, key_heads, keys) or key_batch != batch or key_size != head_size:
        return None
    if not key_heads or heads % key_heads:
        return None
    return AttentionSizes(batch, heads, queries, keys, head_size, value[3])


def _shapes(call: CallArguments) -> list[Shape] | None:
    """Of query, key and value, as batch, heads, sequence, size."""
    tensors = (call.tensor(name) for name in _OPERANDS)
    shapes = [one.shape for one in tensors if one is not None and len(one.shape) == _DIMENSIONS]
    if len(shapes) != len(_OPERANDS):
        return None
    if _has_heads_first(call):
        return shapes
    return [(batch, heads, sequence, size) for batch, sequence, heads, size in shapes]


def _has_heads_first(call: CallArguments) -> bool:
    return not (call.stem or "").startswith(("_flash", "_efficient"))


# Source: PyTorch 2.11.0, ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kAlignLSE.
_EFFICIENT_ALIGNMENT = 32


def _forward(library: str) -> Rule:
    """The result, and what the backward pass needs of each row of scores."""

    def rule(call: CallArguments) -> CallEffects:
        sizes, query = attention_sizes(call), call.tensor("query")
        if sizes is None and _shapes(call) is not None and not any(map(call.tensor, _BORDERS)):
            raise ContradictionError("the shapes of query, key and value")
        is_wanted = library == "flash" or known(call.boolean("compute_log_sumexp"))
        sizes, query = known(sizes), known(query)
        rows: Shape = (sizes.batch, sizes.heads, sizes.queries)
        if library == "efficient":  # rows filled up; without rows if nobody asked for them
            filled = -(-sizes.queries // _EFFICIENT_ALIGNMENT) * _EFFICIENT_ALIGNMENT
            rows = (*rows[:2], filled if is_wanted else 0)
        elif library == "cudnn":
            rows = (*rows, 1) if is_wanted else (0,)
        shape = (sizes.batch, sizes.heads, sizes.queries, sizes.value_size)
        if not _has_heads_first(call):
            shape = (shape[0], shape[2], shape[1], shape[3])
        return results(call, (shape, type_of(query)), (rows, FLOAT32))

    return rule


def _backward(call: CallArguments) -> CallEffects:
    """Gradients of query, key and value, and of the bias where it is wanted."""
    known(attention_sizes(call))
    wanted: tuple[bool, ...] = (True, True, True, False)
    if call.has("grad_input_mask"):
        wanted = known(call.switches("grad_input_mask", 4))
    elif call.has("bias_requires_grad"):
        wanted = (True, True, True, known(call.boolean("bias_requires_grad")))
    operands = (*(call.tensor(name) for name in _OPERANDS), call.tensor(*_BIASES))
    return effects_of(
        call,
        [
            TensorArgument(one.shape, one.type_name)
            for one, is_wanted in zip(operands, wanted, strict=True)
            if one is not None and is_wanted
        ],
    )


_LIBRARIES = ("flash", "efficient", "cudnn")
OPERATORS: Mapping[str, Operator] = {
    **{
        name: Operator(
            _forward(library),
            lambda effects: known(attention_sizes(effects.call)).forward_flops,
            None,
            ("query",),
        )
        for library in _LIBRARIES
        for name in (f"_scaled_dot_product_{library}_attention", f"_{library}_attention_forward")
    },
    **{
        name: Operator(
            _backward, lambda effects: known(attention_sizes(effects.call)).backward_flops, None, ("query",)
        )
        for library in _LIBRARIES
        for name in (
            f"_scaled_dot_product_{library}_attention_backward",
            f"_{library}_attention_backward",
        )
    },
}
