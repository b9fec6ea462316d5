"""Matrix products: their sizes, results and operations: 2 for each pair of elements that meet.

The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    defined,
    registered,
    result,
    shape_text,
)
from opscope.operators.element_types import ElementType, element_type, element_type_of_code
from opscope.operators.traffic import bytes_of, inputs_without


@dataclass(frozen=True)
class MatrixProduct:
    """`batch` products of an m×k with a k×n matrix; a vector is a matrix with one column, or one row."""

    batch: int
    m: int
    n: int
    k: int
    operand_type: str | None = None

    def __str__(self) -> str:
        """`1024×768 by 768×3072`."""
        return f"{self.m}×{self.k} by {self.k}×{self.n}"

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition for each pair of elements that meet."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of the result and of the two operands."""
        return self.batch * self.m * self.n, self.batch * self.m * self.k, self.batch * self.k * self.n

    def bytes(self, item_bytes: int) -> int:
        """Operands and result, each once."""
        return item_bytes * sum(self.elements)


def matrix_product(call: CallArguments) -> MatrixProduct | None:
    """The product a call computes; None if it is none, is empty, or its shapes do not fit.

    The one place that knows which arguments of an operator are the operands of its product.
    """
    found = _sizes(call)
    return found if found is not None and found.flop_count > 0 else None


def _sizes(call: CallArguments) -> MatrixProduct | None:
    """Sizes of 0 included."""
    names = _OPERANDS.get(call.stem or "")
    if names is None:
        return None
    a, b = (call.tensor(name) for name in names)
    if a is None or b is None:
        return None
    sizes = _SIZES.get(call.stem or "", _matrix_sizes)(a.shape, b.shape)
    return None if sizes is None else MatrixProduct(*sizes, a.type_name)


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


_Sizes: TypeAlias = tuple[int, int, int, int]
_SIZES: Mapping[str, Callable[[Shape, Shape], _Sizes | None]] = {
    "mv": _vector_sizes,
    "addmv": _vector_sizes,
    "dot": _vector_sizes,
    "vdot": _vector_sizes,
    "linear": _linear_sizes,
    "addr": _outer_sizes,
}
# The left operand, whose type decides the peak, and the right one.
_OPERANDS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "matmul": ("self", "other"),
    "mv": ("self", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
    "linear": ("input", "weight"),
    "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"),
    "addmv": ("mat", "vec"),
    "addr": ("vec1", "vec2"),
    "_scaled_mm": ("self", "mat2"),
    "_int_mm": ("self", "mat2"),
}
_REGISTERED = ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm")


def _flops(effects: CallEffects) -> int | None:
    found = _sizes(effects.call)
    return None if found is None else found.flop_count


def _addend_traffic(effects: CallEffects) -> tuple[int, int]:
    """β·C + A·B: of β = 0 C is not read."""
    skipped = ("self",) if effects.call.value("beta") == 0 else ()
    return bytes_of(inputs_without(effects, *skipped)), bytes_of(effects.outputs)


def _product_shape(dimensions: int) -> Callable[[TensorArgument, TensorArgument], Shape]:
    """The shape of a product of two matrices (2 dimensions) or of batches of them (3)."""

    def shape(a: TensorArgument, b: TensorArgument) -> Shape:
        left, right = a.shape, b.shape
        fits = len(left) == len(right) == dimensions and left[-1] == right[-2] and left[:-2] == right[:-2]
        if not fits:
            raise ContradictionError(f"the product of {shape_text(left)} and {shape_text(right)}")
        return (*left[:-1], right[-1])

    return shape


def _vector_shape(dimensions: int) -> Callable[[TensorArgument, TensorArgument], Shape]:
    def shape(a: TensorArgument, b: TensorArgument) -> Shape:
        if len(a.shape) != dimensions or len(b.shape) != 1 or a.shape[-1:] != b.shape:
            raise ContradictionError(f"the product of {shape_text(a.shape)} and {shape_text(b.shape)}")
        return a.shape[:-1]

    return shape


def _layer_shape(a: TensorArgument, b: TensorArgument) -> Shape:
    if not a.shape or len(b.shape) not in (1, 2) or a.shape[-1] != b.shape[-1]:
        raise ContradictionError(f"a layer of {shape_text(b.shape)} for {shape_text(a.shape)}")
    return (*a.shape[:-1], *b.shape[:-1])


def _outer_shape(a: TensorArgument, b: TensorArgument) -> Shape:
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise ContradictionError(f"the outer product of {shape_text(a.shape)} and {shape_text(b.shape)}")
    return (*a.shape, *b.shape)


def _summed_batches(a: TensorArgument, b: TensorArgument) -> Shape:
    return _product_shape(3)(a, b)[1:]


def _own_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    """The common type of two operands."""
    del call
    left, right = type_of(a), type_of(b)
    if left is not None and right is not None and left != right:
        raise ContradictionError(f"operands of {left.name} and {right.name}")
    return left


def _scaled_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    del b
    if call.is_omitted("out_dtype"):
        return type_of(a)
    code = call.integer("out_dtype")
    return None if code is None else element_type_of_code(code)


def _wide_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    """8-bit integers are summed in 32-bit ones."""
    del call, a, b
    return element_type("int32")


def _product(
    stem: str,
    shape_of: Callable[[TensorArgument, TensorArgument], Shape],
    type_of_result: Callable[[CallArguments, TensorArgument, TensorArgument], ElementType | None] = _own_type,
) -> Rule:
    def rule(call: CallArguments) -> CallEffects | None:
        a, b = (call.tensor(name) for name in _OPERANDS[stem])
        if a is None or b is None:
            return None
        shape = shape_of(a, b)
        if call.has("beta") and stem != "_addmm_activation":
            _check_addend(call.tensor("self"), shape)
        return result(call, shape, type_of_result(call, a, b))

    return rule


def _check_addend(addend: TensorArgument | None, shape: Shape) -> None:
    given = () if addend is None else addend.shape
    if len(given) > len(shape) or any(
        size not in (1, wanted) for size, wanted in zip(given[::-1], shape[::-1], strict=False)
    ):
        raise ContradictionError(f"{shape_text(given)} added to a product of {shape_text(shape)}")


_RULES = {
    "mm": _product("mm", _product_shape(2)),
    "bmm": _product("bmm", _product_shape(3)),
    "addmm": _product("addmm", _product_shape(2)),
    "baddbmm": _product("baddbmm", _product_shape(3)),
    "addbmm": _product("addbmm", _summed_batches),
    "_addmm_activation": _product("_addmm_activation", _product_shape(2)),
    "mv": _product("mv", _vector_shape(2)),
    "dot": _product("dot", _vector_shape(1)),
    "vdot": _product("vdot", _vector_shape(1)),
    "addmv": _product("addmv", _vector_shape(2)),
    "addr": _product("addr", _outer_shape),
    "linear": _product("linear", _layer_shape),
    "_scaled_mm": _product("_scaled_mm", _product_shape(2), _scaled_type),
    "_int_mm": _product("_int_mm", _product_shape(2), _wide_type),
}
OPERATORS: Mapping[str, Operator] = {
    stem: Operator(
        rule,
        registered(_flops) if stem in _REGISTERED else defined(_flops, needs_floats=False),
        _addend_traffic,
        _OPERANDS[stem][:1],
    )
    for stem, rule in _RULES.items()
}
