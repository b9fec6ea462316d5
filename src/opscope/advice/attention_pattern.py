"""Attention composed of single operators, found by the order and the sizes of what ran around a softmax.

Forward, the scores (a batched product) reach a softmax through pointwise operators of their size, and leave
it the same way into a second product that reads them. Backward the two products before and the two after the
softmax's gradient do. Anything else between them, and it is no attention that one kernel could replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

import msgspec

from opscope.advice.kernel_times import AttentionMask, AttentionWork
from opscope.model.queries import grouped
from opscope.operators.arguments import CallArguments, parse_arguments
from opscope.operators.products import AttentionSizes, MatrixProduct, matrix_product

_BACKWARD = "aten::_softmax_backward_data"
_COPIES = ("aten::copy_", "aten::clone")
_MASKING = ("aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::_masked_softmax")
_ADDING = ("aten::add", "aten::add_")
_OPERAND_COPIES = 3  # of query, key and value
_RESULT_COPIES = 1
_MASK_DIMENSIONS = 3  # heads, queries, keys; batches before them


class Leaf(msgspec.Struct, frozen=True, dict=True):
    """One operator with device time near a softmax; numbers are sums over all alike surroundings.

    `begins_ns` and `ends_ns` are its start and end on the host, from the start of the softmax. `operator_ids`
    are in the order of the softmaxes.
    """

    name: str
    shapes: str | None
    types: str | None
    calls: int
    device_ns: int
    begins_ns: int
    ends_ns: int
    operator_ids: Sequence[int] = ()

    @cached_property
    def product(self) -> MatrixProduct | None:
        return matrix_product(self.call)

    @cached_property
    def call(self) -> CallArguments:
        return parse_arguments(self.name, shapes=self.shapes, types=self.types)

    @cached_property
    def elements(self) -> tuple[int, ...]:
        return tuple(tensor.element_count for tensor in self.call.tensors)


class ComposedAttention(msgspec.Struct, frozen=True):
    """One kind of attention call made of single operators."""

    work: AttentionWork  # of one call
    type_name: str | None  # element type of the scores' operands, as recorded
    calls: int  # how often it ran
    parts: tuple[Leaf, ...]  # the operators that one kernel would replace
    is_math_path: bool  # whether scaled_dot_product_attention itself computed it so
    is_grouped: bool = False  # whether keys and values are repeated, for the heads of a group that share them

    @property
    def device_ns(self) -> int:
        return sum(part.device_ns for part in self.parts)

    @property
    def host_ns(self) -> int:
        return max(0, self.parts[-1].ends_ns - self.parts[0].begins_ns)


def composed_attention(rows: Iterable[Mapping[str, Any]]) -> tuple[ComposedAttention, ...]:
    """Every kind of composed attention, most device time first, of the rows of `attention_contexts.sql`."""
    contexts = grouped((row["context"], row) for row in rows)
    found = [one for context in contexts.values() if (one := _composed(context)) is not None]
    # A mask shows in the scores alone; their gradient is of the same sizes.
    masks = {_scores_of(one): one.work.mask for one in found if not one.work.is_backward}
    found = [
        msgspec.structs.replace(one, work=msgspec.structs.replace(one.work, mask=masks.get(_scores_of(one))))
        for one in found
    ]
    return tuple(
        sorted(found, key=lambda one: (-one.device_ns, one.work.sizes.all_heads, one.work.sizes.queries))
    )


def _scores_of(one: ComposedAttention) -> tuple[int, ...]:
    sizes = one.work.sizes
    return sizes.batch, *sorted((sizes.queries, sizes.keys))


def _composed(rows: Sequence[Mapping[str, Any]]) -> ComposedAttention | None:
    leaves = {row["place"]: Leaf(*map(row.__getitem__, Leaf.__struct_fields__)) for row in rows}
    anchor = leaves[0]
    is_backward = anchor.name == _BACKWARD
    scores = max(anchor.elements, default=0)
    before = _reached(leaves, -1, scores, 2 if is_backward else 1)
    after = _reached(leaves, 1, scores, 2 if is_backward else 1)
    if not scores or before is None or after is None:
        return None
    products = (leaf.product for leaf in _between(leaves, before, 0))
    first = next((one for one in products if one is not None and one.elements[0] == scores), None)
    if first is None:
        return None
    outermost = (leaves[place].product for place in (before, after))
    operands = {count for product in outermost if product is not None for count in product.elements}
    start = before - _copies(leaves, before, -1, operands, _OPERAND_COPIES)
    end = after + _copies(leaves, after, 1, operands, _RESULT_COPIES)
    masks = (_mask(leaf, scores) for leaf in _between(leaves, before, 0))
    is_added = leaves[before].name == "aten::baddbmm" and leaves[before].call.value("beta") != 0
    return ComposedAttention(
        AttentionWork(
            AttentionSizes(first.batch, 1, first.m, first.n, first.k, first.k),
            is_backward,
            next((one for one in masks if one is not None), AttentionMask.BIAS if is_added else None),
        ),
        type_name=next((tensor.type_name for tensor in leaves[before].call.tensors), None),
        calls=anchor.calls,
        parts=tuple(_between(leaves, start, end)),
        is_math_path=any(row["is_math"] for row in rows),
        is_grouped=[max(first.m, first.n), first.k] in (rows[0]["repeated_heads"] or ()),
    )


def _reached(leaves: Mapping[int, Leaf], direction: int, scores: int, products: int) -> int | None:
    """Place of the last of the products on one side, if only what belongs to the scores lies before it."""
    place, met = direction, 0
    while (leaf := leaves.get(place)) is not None:
        product = leaf.product
        if product is not None:
            # The scores are its result or an operand.
            if product.batch < 1 or scores % product.batch or scores not in product.elements:
                return None
            met += 1
            if met == products:
                return place
        elif scores not in leaf.elements and not _is_copy(leaf):
            return None
        place += direction
    return None


def _copies(leaves: Mapping[int, Leaf], place: int, direction: int, sizes: set[int], most: int) -> int:
    """How many copies of operands follow each other beside a product."""
    beside = (leaves.get(place + direction * (number + 1)) for number in range(most))
    copies = takewhile(lambda one: one and _is_copy(one) and sizes.intersection(one.elements), beside)
    count = sum(1 for _ in copies)
    beyond = leaves.get(place + direction * (count + 1))
    is_others = (
        direction < 0 and beyond is not None and beyond.product is not None and beyond.product.batch > 1
    )
    # The first copy after a batched product is of its result: of another attention.
    return max(0, count - _RESULT_COPIES) if is_others else count


def _between(leaves: Mapping[int, Leaf], start: int, end: int) -> Iterator[Leaf]:
    return (leaves[place] for place in range(start, end + 1))


def _is_copy(leaf: Leaf) -> bool:
    return leaf.name in _COPIES or (leaf.name.startswith("triton_") and "_clone" in leaf.name)


def _mask(leaf: Leaf, scores: int) -> AttentionMask | None:
    """What a leaf masks scores with; None if it does not."""
    is_adding = leaf.name in _ADDING and len(leaf.elements) > 1 and scores in leaf.elements
    if leaf.name not in _MASKING and not is_adding:
        return None
    # A tensor of one element is what is filled in.
    shapes = (tensor.shape for tensor in leaf.call.tensors)
    shape = min((one for one in shapes if prod(one) > 1), key=prod, default=())
    heads, queries, _ = (1, 1, 1, *shape)[-_MASK_DIMENSIONS:]
    if heads > 1:
        return AttentionMask.BIAS
    return AttentionMask.SQUARE if queries > 1 or not shape else AttentionMask.KEYS
