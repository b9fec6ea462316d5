"""Matrix products: their sizes, results and operations: 2 for each pair of elements that meet.

The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.call_cost import FlopSource
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Rule,
    Shape,
    effects_of,
    element_of,
    operator_stem,
    registered,
    result,
    shape_text,
)
from opscope.operators.element_types import ElementType, element_type, element_type_of_code

__all__ = ["DEFINITIONS", "RULES", "MatrixProduct", "matrix_product", "operand_position"]


@dataclass(frozen=True)
class MatrixProduct:
    """`batch` products of an m×k with a k×n matrix; a vector is a matrix with one column, or one row."""

    batch: int
    m: int
    n: int
    k: int
    operand_type: str | None = None

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition for each pair of elements that meet."""
        return 2 * self.batch * self.m * self.n * self.k


def matrix_product(call: CallArguments) -> MatrixProduct | None:
    """The product a call computes, sizes of 0 included; None if it is none, or its shapes do not fit.

    The one place that knows which arguments of an operator are the operands of its product.
    """
    stem = operator_stem(call.name)
    left = None if stem is None or not call.name.startswith("aten::") else operand_position(stem)
    if left is None:
        return None
    a, b = call.tensor(left), call.tensor(left + 1)
    if a is None or b is None:
        return None
    sizes = _SIZES.get(stem or "", _matrix_sizes)(a.shape, b.shape)
    return None if sizes is None else MatrixProduct(*sizes, a.type_name)


def operand_position(stem: str) -> int | None:
    """Position of the left operand of a product, whose type decides its peak; None of anything else.

    The right operand comes next.
    """
    return _LEFT_OPERANDS.get(stem)


def _matrix_sizes(a: Shape, b: Shape) -> _Sizes | None:
    """Two matrices, or two batches of them."""
    if len(a) < 2 or len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    return prod(a[:-2]), a[-2], b[-1], a[-1]


def _vector_sizes(a: Shape, b: Shape) -> _Sizes | None:
    """A matrix or vector, and a vector: each element of the left one meets one of the right one."""
    if len(b) != 1 or not a or a[-1] != b[0]:
        return None
    return 1, prod(a[:-1]), 1, a[-1]


def _linear_sizes(a: Shape, b: Shape) -> _Sizes | None:
    """x·Wᵀ: the last dimensions of both meet."""
    if len(b) != 2 or a[-1:] != b[1:]:
        return None
    return 1, prod(a[:-1]), b[0], a[-1]


def _outer_sizes(a: Shape, b: Shape) -> _Sizes | None:
    """u·vᵀ: each element of one meets each of the other."""
    return (1, a[0], b[0], 1) if len(a) == len(b) == 1 else None


def _product_flops(effects: CallEffects) -> int | None:
    found = matrix_product(effects.call)
    return None if found is None else found.flop_count


_Sizes: TypeAlias = tuple[int, int, int, int]
_SIZES: Mapping[str, Callable[[Shape, Shape], _Sizes | None]] = {
    "mv": _vector_sizes,
    "addmv": _vector_sizes,
    "dot": _vector_sizes,
    "vdot": _vector_sizes,
    "linear": _linear_sizes,
    "addr": _outer_sizes,
}
_LEFT_OPERANDS = {
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_addmm_activation": 1, "addbmm": 1,
    "mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "linear": 0, "addr": 1, "_int_mm": 0,
    "matmul": 0,
}  # fmt: skip
_REGISTERED = ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm")


DEFINITIONS: Mapping[str, FlopDefinition] = {
    stem: registered(_product_flops)
    if stem in _REGISTERED
    else FlopDefinition(_product_flops, FlopSource.DEFINITION, needs_floats=False)
    for stem in _LEFT_OPERANDS
    if stem != "matmul"  # composed of others, which it calls
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
