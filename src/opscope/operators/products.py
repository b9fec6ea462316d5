"""Matrix products: their sizes, results and operations: 2 for each pair of elements that meet.

The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, broadcast, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Shape,
    known,
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
    found = _multiplied(call)
    return None if found is None or not found[0].flop_count else found[0]


_Fit: TypeAlias = "tuple[tuple[int, int, int, int], Shape]"  # batch, m, n, k; and the shape of the result


def _matrices(a: Shape, b: Shape) -> _Fit | None:
    """Two matrices, or two batches of them."""
    if len(a) < 2 or len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    return (prod(a[:-2]), a[-2], b[-1], a[-1]), (*a[:-1], b[-1])


def _summed_matrices(a: Shape, b: Shape) -> _Fit | None:
    """Two batches, the products added up."""
    found = _matrices(a, b)
    return None if found is None else (found[0], found[1][1:])


def _layer(a: Shape, b: Shape) -> _Fit | None:
    """x·Wᵀ, the last dimensions of both meet; of one dimension: a matrix or vector, and a vector."""
    if not a or not 1 <= len(b) <= 2 or a[-1] != b[-1]:
        return None
    return (1, prod(a[:-1]), prod(b[:-1]), a[-1]), (*a[:-1], *b[:-1])


def _outer(a: Shape, b: Shape) -> _Fit | None:
    """u·vᵀ: each element of one meets each of the other."""
    return ((1, a[0], b[0], 1), (*a, *b)) if len(a) == len(b) == 1 else None


def _own_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    """The common type of two operands."""
    left, right = type_of(a), type_of(b)
    if left is not None and right is not None and left != right:
        raise ContradictionError(f"operands of {left.name} and {right.name}")
    return left


def _scaled_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    if call.is_omitted("out_dtype"):
        return type_of(a)
    code = call.integer("out_dtype")
    return None if code is None else element_type_of_code(code)


@dataclass(frozen=True)
class _Product:
    left: str  # the operand whose type decides the peak
    right: str
    dimensions: tuple[int, int] | None = (2, 2)  # of the operands; None: any that fit
    fit: Callable[[Shape, Shape], _Fit | None] = _matrices
    result_type: Callable[[CallArguments, TensorArgument, TensorArgument], ElementType | None] = _own_type


_PRODUCTS = {
    "mm": _Product("self", "mat2"),
    "addmm": _Product("mat1", "mat2"),
    "_addmm_activation": _Product("mat1", "mat2"),
    "bmm": _Product("self", "mat2", (3, 3)),
    "baddbmm": _Product("batch1", "batch2", (3, 3)),
    "addbmm": _Product("batch1", "batch2", (3, 3), _summed_matrices),
    "mv": _Product("self", "vec", (2, 1), _layer),
    "addmv": _Product("mat", "vec", (2, 1), _layer),
    "dot": _Product("self", "tensor", (1, 1), _layer),
    "vdot": _Product("self", "other", (1, 1), _layer),
    "addr": _Product("vec1", "vec2", (1, 1), _outer),
    "linear": _Product("input", "weight", None, _layer),
    "matmul": _Product("self", "other", None),
    "_scaled_mm": _Product("self", "mat2", result_type=_scaled_type),
    # 8-bit integers are summed in 32-bit ones.
    "_int_mm": _Product("self", "mat2", result_type=lambda *_: element_type("int32")),
}
_CALLING_OTHERS = "matmul"  # launches nothing itself


def _multiplied(call: CallArguments) -> tuple[MatrixProduct, Shape] | None:
    """Sizes and the shape of the result, empty ones too; None of other operators and where nothing fits."""
    row = _PRODUCTS.get(call.stem or "")
    a, b = (None, None) if row is None else (call.tensor(row.left), call.tensor(row.right))
    if row is None or a is None or b is None:
        return None
    if row.dimensions not in (None, (len(a.shape), len(b.shape))):
        return None
    fit = row.fit(a.shape, b.shape)
    return None if fit is None else (MatrixProduct(*fit[0], a.type_name), fit[1])


def _result(call: CallArguments) -> CallEffects:
    row = _PRODUCTS[call.stem or ""]
    a, b, found = known(call.tensor(row.left)), known(call.tensor(row.right)), _multiplied(call)
    if found is None:
        raise ContradictionError(f"the product of {shape_text(a.shape)} and {shape_text(b.shape)}")
    shape, addend = found[1], call.tensor("self")
    adds = addend is not None and call.has("beta") and call.stem != "_addmm_activation"
    if adds and addend is not None and broadcast([addend.shape, shape]) != shape:
        raise ContradictionError(f"{shape_text(addend.shape)} added to a product of {shape_text(shape)}")
    return result(call, shape, row.result_type(call, a, b))


def _flops(effects: CallEffects) -> int:
    return known(_multiplied(effects.call))[0].flop_count


def _addend_traffic(effects: CallEffects) -> tuple[int, int]:
    """β·C + A·B: of β = 0 C is not read."""
    skipped = ("self",) if effects.call.value("beta") == 0 else ()
    return bytes_of(inputs_without(effects, *skipped)), bytes_of(effects.outputs)


OPERATORS: Mapping[str, Operator] = {
    name: Operator(_result, _flops, _addend_traffic, (row.left,))
    for name, row in _PRODUCTS.items()
    if name != _CALLING_OTHERS
}
