"""Operations of matrix products: a multiplication and an addition for each pair of elements that meet.

The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.call_cost import FlopSource
from opscope.analysis.cost.effects import (
    CallEffects,
    ContradictionError,
    Definition,
    Formula,
    Rule,
    Shape,
    effects_of,
    element_of,
    operator_stem,
    registered,
    result,
    shape_text,
)
from opscope.analysis.cost.element_types import ElementType, element_type, element_type_of_code

__all__ = ["DEFINITIONS", "RULES", "batched_product_flops", "operand_position"]


def batched_product_flops(batch: int, rows: int, inner: int, columns: int) -> int:
    """Operations of `batch` products of rows×inner and inner×columns."""
    return 2 * batch * rows * inner * columns


def operand_position(stem: str) -> int | None:
    """Position of the left operand of a product, whose type decides its peak; None of anything else."""
    return _LEFT_OPERANDS.get(stem)


def _matrix(left: int) -> Formula:
    """Two matrices, or two batches of them, next to each other in the arguments."""

    def formula(effects: CallEffects) -> int | None:
        a, b = effects.call.tensor(left), effects.call.tensor(left + 1)
        if a is None or b is None or len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape):
            return None
        *batch, rows, inner = a.shape
        *other_batch, other_inner, columns = b.shape
        if inner != other_inner or batch != other_batch:
            return None
        return batched_product_flops(prod(batch), rows, inner, columns)

    return formula


def _vector(left: int) -> Formula:
    """A matrix or vector, and a vector: each element of the left one meets one of the right one."""

    def formula(effects: CallEffects) -> int | None:
        a, b = effects.call.tensor(left), effects.call.tensor(left + 1)
        if a is None or b is None or len(b.shape) != 1 or not a.shape or a.shape[-1] != b.shape[0]:
            return None
        return 2 * a.element_count

    return formula


def _linear(effects: CallEffects) -> int | None:
    """x·Wᵀ: the last dimensions of both meet."""
    x, weight = effects.call.tensor(0), effects.call.tensor(1)
    if x is None or weight is None or len(weight.shape) != 2 or x.shape[-1:] != weight.shape[1:]:
        return None
    return 2 * x.element_count * weight.shape[0]


def _outer(effects: CallEffects) -> int | None:
    """addr: M + u·vᵀ: a multiplication and an addition for each element."""
    return 2 * effects.output_elements


_LEFT_OPERANDS = {
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_addmm_activation": 1, "addbmm": 1,
    "mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "linear": 0, "addr": 1, "_int_mm": 0,
}  # fmt: skip
_REGISTERED = ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm")


def _own(formula: Formula) -> Definition:
    return Definition(formula, FlopSource.DEFINITION, needs_floats=False)


DEFINITIONS: Mapping[str, Definition] = {
    **{stem: registered(_matrix(_LEFT_OPERANDS[stem])) for stem in _REGISTERED},
    **{stem: _own(_matrix(_LEFT_OPERANDS[stem])) for stem in ("_addmm_activation", "addbmm", "_int_mm")},
    **{stem: _own(_vector(_LEFT_OPERANDS[stem])) for stem in ("mv", "dot", "vdot", "addmv")},
    "linear": _own(_linear),
    "addr": _own(_outer),
}


def _product_shape(a: TensorArgument, b: TensorArgument, dimensions: int) -> Shape:
    """The shape of a product of two matrices (2 dimensions) or of batches of them (3)."""
    left, right = a.shape, b.shape
    fits = len(left) == len(right) == dimensions and left[-1] == right[-2] and left[:-2] == right[:-2]
    if not fits:
        raise ContradictionError(f"the product of {shape_text(left)} and {shape_text(right)}")
    return (*left[:-1], right[-1])


def _check_type(a: TensorArgument, b: TensorArgument) -> ElementType | None:
    """The common type of two operands."""
    left, right = element_of(a), element_of(b)
    if left is not None and right is not None and left != right:
        raise ContradictionError(f"operands of {left.name} and {right.name}")
    return left


def _product(dimensions: int) -> Rule:
    """mm(self, mat2), bmm(self, mat2)."""

    def rule(call: CallArguments) -> CallEffects | None:
        a, b = call.tensor(0), call.tensor(1)
        if a is None or b is None or len(call) > 3 or (len(call) == 3 and call.tensor(2) is None):
            return None
        return result(call, _product_shape(a, b, dimensions), _check_type(a, b), 2)

    return rule


def _product_and_sum(dimensions: int, *, sums_batches: bool = False) -> Rule:
    """addmm(self, mat1, mat2, beta, alpha), baddbmm(self, batch1, batch2, …), addbmm: into self, or new."""

    def rule(call: CallArguments) -> CallEffects | None:
        addend, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
        if addend is None or a is None or b is None or not 3 <= len(call) <= 6:
            return None
        shape = _product_shape(a, b, dimensions)
        return _added(call, addend, shape[1:] if sums_batches else shape, _check_type(a, b), 5)

    return rule


def _added(
    call: CallArguments, addend: TensorArgument, shape: Shape, element: ElementType | None, out_position: int
) -> CallEffects | None:
    stem = operator_stem(call.name)
    if len(addend.shape) > len(shape) or any(
        size not in (1, wanted) for size, wanted in zip(addend.shape[::-1], shape[::-1], strict=False)
    ):
        raise ContradictionError(f"{shape_text(addend.shape)} added to a product of {shape_text(shape)}")
    if stem is not None and not call.name.endswith(stem):
        return None if element is None else effects_of(call, (addend,))
    return result(call, shape, element, out_position)


def _activated(call: CallArguments) -> CallEffects | None:
    """_addmm_activation(self, mat1, mat2, *, beta, alpha, use_gelu)."""
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or len(call) > 7:
        return None
    return result(call, _product_shape(a, b, 2), _check_type(a, b), 6)


def _vector_shape(matrix: TensorArgument, vector: TensorArgument, dimensions: int) -> Shape:
    is_possible = len(matrix.shape) == dimensions and len(vector.shape) == 1
    if not is_possible or matrix.shape[-1:] != vector.shape:
        raise ContradictionError(f"the product of {shape_text(matrix.shape)} and {shape_text(vector.shape)}")
    return matrix.shape[:-1]


def _vector_product(dimensions: int) -> Rule:
    """mv(self, vec), dot(self, tensor)."""

    def rule(call: CallArguments) -> CallEffects | None:
        a, b = call.tensor(0), call.tensor(1)
        if a is None or b is None or len(call) > 3:
            return None
        return result(call, _vector_shape(a, b, dimensions), _check_type(a, b), 2)

    return rule


def _vector_product_and_sum(call: CallArguments) -> CallEffects | None:
    """addmv(self, mat, vec, *, beta, alpha)."""
    addend, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    if addend is None or a is None or b is None or not 3 <= len(call) <= 6:
        return None
    return _added(call, addend, _vector_shape(a, b, 2), _check_type(a, b), 5)


def _outer_result(call: CallArguments) -> CallEffects | None:
    """addr(self, vec1, vec2, *, beta, alpha)."""
    addend, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    if addend is None or a is None or b is None or len(a.shape) != 1 or len(b.shape) != 1 or len(call) > 6:
        return None
    return _added(call, addend, (*a.shape, *b.shape), _check_type(a, b), 5)


def _linear_result(call: CallArguments) -> CallEffects | None:
    """linear(input, weight, bias)."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or not x.shape or len(weight.shape) not in (1, 2) or len(call) > 4:
        return None
    if x.shape[-1] != weight.shape[-1]:
        raise ContradictionError(f"a layer of {shape_text(weight.shape)} for {shape_text(x.shape)}")
    return result(call, (*x.shape[:-1], *weight.shape[:-1]), _check_type(x, weight), 3)


def _scaled(call: CallArguments) -> CallEffects | None:
    """_scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or not 7 <= len(call) <= 9:
        return None
    element = element_of(a)
    if not call.is_absent(6):
        code = call.integer(6)
        element = None if code is None else element_type_of_code(code)
    elif not call.values_recorded:
        return None
    return result(call, _product_shape(a, b, 2), element, 8)


def _integer(call: CallArguments) -> CallEffects | None:
    """_int_mm(self, mat2): 8-bit integers into 32-bit ones."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(call) > 3:
        return None
    return result(call, _product_shape(a, b, 2), element_type("int32"), 2)


_NEW: Mapping[str, Rule] = {
    "mm": _product(2),
    "bmm": _product(3),
    "addmm": _product_and_sum(2),
    "baddbmm": _product_and_sum(3),
    "addbmm": _product_and_sum(3, sums_batches=True),
    "_addmm_activation": _activated,
    "mv": _vector_product(2),
    "dot": _vector_product(1),
    "vdot": _vector_product(1),
    "addmv": _vector_product_and_sum,
    "addr": _outer_result,
    "linear": _linear_result,
    "_scaled_mm": _scaled,
    "_int_mm": _integer,
}
RULES: Mapping[str, Rule] = {
    **_NEW,
    **{f"{stem}_": _NEW[stem] for stem in ("addmm", "baddbmm", "addbmm", "addmv", "addr")},
}
