"""Matrix products, attention made of them, factorizations, triangular systems, Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TypeAlias

import msgspec

from opscope.operators.arguments import (
    CallArguments,
    ElementKind,
    ElementType,
    TensorArgument,
    broadcast,
    element_type,
    element_type_of_code,
    type_of,
)
from opscope.operators.effects import (
    FLOAT32,
    CallEffects,
    ContradictionError,
    Formula,
    Operator,
    Rule,
    Shape,
    agree,
    all_bytes,
    complex_of,
    dimension_of,
    effects_of,
    known,
    like,
    real_part,
    require,
    results,
    without,
)

# Matrix products: their sizes, results and operations: 2 for each pair of elements that meet.
#
# The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
# to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.


class MatrixProduct(msgspec.Struct, frozen=True):
    """`batch` products of an m×k with a k×n matrix; a vector is a matrix with one column, or one row."""

    batch: int
    m: int
    n: int
    k: int
    operand_type: str | None = None

    def __str__(self) -> str:
        return f"{self.m}×{self.k} by {self.k}×{self.n}"

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition for each pair of elements that meet."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> tuple[int, int, int]:
        return self.batch * self.m * self.n, self.batch * self.m * self.k, self.batch * self.k * self.n

    def bytes(self, item_bytes: int) -> int:
        return item_bytes * sum(self.elements)


def matrix_product(call: CallArguments) -> MatrixProduct | None:
    """The product a call computes; None if it is none, is empty, or its shapes do not fit.

    The one place that knows which arguments of an operator are the operands of its product.
    """
    found = _multiplied(call)
    return None if found is None or not found[0].flop_count else found[0]


_Fit: TypeAlias = "tuple[tuple[int, int, int, int], Shape]"  # batch, m, n, k; and the shape of the result


def _matrices(a: Shape, b: Shape) -> _Fit | None:
    if len(a) < 2 or len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    return (prod(a[:-2]), a[-2], b[-1], a[-1]), (*a[:-1], b[-1])


def _layer(a: Shape, b: Shape) -> _Fit | None:
    """x·Wᵀ, the last dimensions of both meet; of one dimension: a matrix or vector, and a vector."""
    if not a or not 1 <= len(b) <= 2 or a[-1] != b[-1]:
        return None
    return (1, prod(a[:-1]), prod(b[:-1]), a[-1]), (*a[:-1], *b[:-1])


def _own_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    left, right = type_of(a), type_of(b)
    agree(None in (left, right) or left == right)
    return left


def _scaled_type(call: CallArguments, a: TensorArgument, b: TensorArgument) -> ElementType | None:
    if call.is_omitted("out_dtype"):
        return type_of(a)
    code = call.integer("out_dtype")
    return None if code is None else element_type_of_code(code)


class _Product(msgspec.Struct, frozen=True):
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
    "mv": _Product("self", "vec", (2, 1), _layer),
    "addmv": _Product("mat", "vec", (2, 1), _layer),
    "dot": _Product("self", "tensor", (1, 1), _layer),
    "vdot": _Product("self", "other", (1, 1), _layer),
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
    if row is None or a is None or b is None or row.dimensions not in (None, (len(a.shape), len(b.shape))):
        return None
    fit = row.fit(a.shape, b.shape)
    return None if fit is None else (MatrixProduct(*fit[0], a.type_name), fit[1])


def _product_result(call: CallArguments) -> CallEffects:
    row = _PRODUCTS[call.stem or ""]
    a, b, found = known(call.tensor(row.left)), known(call.tensor(row.right)), _multiplied(call)
    if found is None:
        raise ContradictionError
    shape = found[1]
    addend = call.tensor("self") if call.has("beta") and call.stem != "_addmm_activation" else None
    agree(addend is None or broadcast([addend.shape, shape]) == shape)
    return results(call, (shape, row.result_type(call, a, b)))


PRODUCTS: Mapping[str, Operator] = {
    name: Operator(
        _product_result,
        lambda effects: known(_multiplied(effects.call))[0].flop_count,
        # β·C + A·B: of β = 0 C is not read.
        lambda effects: (without("self") if effects.call.value("beta") == 0 else all_bytes)(effects),
        (row.left,),
    )
    for name, row in _PRODUCTS.items()
    if name != _CALLING_OTHERS
}


# Matrix factorizations and triangular systems, distances of points, Fourier transforms.
#
# Operations are those of the classical algorithms for dense matrices, in leading order; blocked and iterative
# ones do more. Matrices come in batches. How many a Fourier transform takes depends on the algorithm.
#
# Source: Golub, Van Loan: Matrix Computations, 4th edition, 3.1, 3.2 and 4.2.


def _lu(effects: CallEffects) -> int:
    """m·n·k − (m + n)·k²/2 + k³/3 multiplications and additions each, k pivots."""
    data = known(effects.call.tensor("A"))
    rows, columns = (1, 1, *data.shape)[-2:]
    pivots = min(rows, columns)
    return prod(data.shape[:-2]) * (
        2 * rows * columns * pivots - (rows + columns) * pivots**2 + 2 * pivots**3 // 3
    )


def _cholesky(effects: CallEffects) -> int:
    data = known(effects.call.tensor("self"))
    return data.element_count * (1, *data.shape)[-1] // 3


def _solves(name: str, triangles: int) -> Formula:
    """Each unknown: a product and a difference for each one before it in a triangle, n² a column."""

    def formula(effects: CallEffects) -> int:
        unknowns = (1, *known(effects.call.tensor(name)).shape)[-1]
        return triangles * unknowns * effects.output_elements

    return formula


def _distance_flops(effects: CallEffects) -> int:
    """For each pair of points and each coordinate a difference, a power, a sum."""
    coordinates = (1, *known(effects.call.tensor("x1")).shape)[-1]
    return 3 * coordinates * effects.output_elements


def _distances(call: CallArguments) -> CallEffects:
    x, y = known(call.tensor("x1")), known(call.tensor("x2"))
    require(len(x.shape) >= 2 and len(y.shape) >= 2)
    batch = broadcast([x.shape[:-2], y.shape[:-2]])
    if batch is None or x.shape[-1] != y.shape[-1]:
        raise ContradictionError
    return results(call, ((*batch, x.shape[-2], y.shape[-2]), type_of(x)))


def _factors(call: CallArguments) -> CallEffects:
    """Factors, pivots of LU, error codes."""
    data, integer = known(call.tensor("A", "self")), element_type("int32")
    require(len(data.shape) >= 2)
    batch, size = data.shape[:-2], min(data.shape[-2:])
    pivots = [((*batch, size), integer)] if call.has("A") else []
    return results(call, (data.shape, type_of(data)), *pivots, (batch, integer))


def _solution(matrix_name: str) -> Rule:
    def rule(call: CallArguments) -> CallEffects:
        matrix, right = known(call.tensor(matrix_name)), known(call.tensor("B"))
        require(len(matrix.shape) >= 2 and matrix.shape[:-2] == right.shape[:-2])
        return results(call, (right.shape, type_of(right)))

    return rule


def _spectrum(call: CallArguments) -> CallEffects:
    data, dimensions = known(call.tensor("self")), known(call.integers("dim") or None)
    element, shape = known(type_of(data)), list(data.shape)
    require(element.is_float)
    if known(call.boolean("onesided")):
        last = dimension_of(data.shape, dimensions[-1])
        shape[last] = shape[last] // 2 + 1
    return results(call, (tuple(shape), complex_of(element)))


def _signal(call: CallArguments) -> CallEffects:
    data, dimensions = known(call.tensor("self")), known(call.integers("dim") or None)
    element = known(type_of(data))
    agree(element.kind is ElementKind.COMPLEX)
    shape = list(data.shape)
    shape[dimension_of(data.shape, dimensions[-1])] = known(call.integer("last_dim_size"))
    return results(call, (tuple(shape), real_part(element)))


LINEAR_ALGEBRA: Mapping[str, Operator] = {
    "_cdist_forward": Operator(_distances, _distance_flops),
    "linalg_lu_factor_ex": Operator(_factors, _lu),
    "linalg_cholesky_ex": Operator(_factors, _cholesky),
    "linalg_solve_triangular": Operator(_solution("self"), _solves("self", 1)),
    "linalg_lu_solve": Operator(_solution("LU"), _solves("LU", 2)),
    "_fft_r2c": Operator(_spectrum),
    "_fft_c2r": Operator(_signal),
    "_fft_c2c": Operator(like("self")),
}


# Fused attention: its matrix products; softmax, scaling, masks and dropout do not count.
#
# Forward two products (scores, and their product with the values), backward five (the scores again, and two
# for each of the two products). A causal mask does not halve them: torch counts full squares, and so do we.
#
# Source: torch.utils.flop_counter of PyTorch 2.13.0, which knows the operators `_scaled_dot_product_*`. Of
# the inner ones `_flash_attention_*` and `_efficient_attention_*` it takes the heads for the sequence, for
# they hold batch, sequence, heads, size; and it does not know `_cudnn_attention_*`. These are counted here
# by the same products in their own order of dimensions.

_DIMENSIONS = 4
_OPERANDS = ("query", "key", "value")
# Where a call gives the borders of packed sequences.
_BORDERS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
_BIASES = ("bias", "attn_bias")


class AttentionSizes(msgspec.Struct, frozen=True):
    """Sizes of one attention. `heads` are the query's; keys and values may have fewer, which repeat."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int

    def __str__(self) -> str:
        return f"{self.all_heads} heads of {self.queries}×{self.keys} scores and {self.head_size} elements"

    @property
    def all_heads(self) -> int:
        return self.batch * self.heads

    @property
    def rows(self) -> int:
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
    shapes = _attention_shapes(call)
    if call.stem not in ATTENTION or shapes is None or any(map(call.tensor, _BORDERS)):
        return None
    (batch, heads, queries, head_size), (key_batch, key_heads, keys, key_size), value = shapes
    fits = value[:3] == (key_batch, key_heads, keys) and (key_batch, key_size) == (batch, head_size)
    is_shared = key_heads > 0 and heads % key_heads == 0
    return AttentionSizes(batch, heads, queries, keys, head_size, value[3]) if fits and is_shared else None


def _attention_shapes(call: CallArguments) -> list[Shape] | None:
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


def _attended(library: str) -> Rule:
    """The result, and what the backward pass needs of each row of scores."""

    def rule(call: CallArguments) -> CallEffects:
        sizes, query = attention_sizes(call), call.tensor("query")
        agree(sizes is not None or _attention_shapes(call) is None or any(map(call.tensor, _BORDERS)))
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


def _attention_gradients(call: CallArguments) -> CallEffects:
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


def _attention(rule: Rule, *, is_backward: bool) -> Operator:
    def flops(effects: CallEffects) -> int:
        sizes = known(attention_sizes(effects.call))
        return sizes.backward_flops if is_backward else sizes.forward_flops

    return Operator(rule, flops, operand=("query",))


_BACKWARD = _attention(_attention_gradients, is_backward=True)
ATTENTION: Mapping[str, Operator] = {
    name: operator
    for library in ("flash", "efficient", "cudnn")
    for whole, inner, operator in (
        ("", "_forward", _attention(_attended(library), is_backward=False)),
        ("_backward", "_backward", _BACKWARD),
    )
    for name in (f"_scaled_dot_product_{library}_attention{whole}", f"_{library}_attention{inner}")
}


OPERATORS: Mapping[str, Operator] = {**PRODUCTS, **LINEAR_ALGEBRA, **ATTENTION}
