"""Matrix factorizations and triangular systems, distances of points, Fourier transforms.

Operations are those of the classical algorithms for dense matrices, in leading order; blocked and iterative
ones do more. Matrices come in batches. How many a Fourier transform takes depends on the algorithm.

Source: Golub, Van Loan: Matrix Computations, 4th edition, 3.1, 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, broadcast, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Formula,
    Operator,
    Rule,
    UnrecordedError,
    dimension_of,
    known,
    like,
    result,
    results,
    shape_text,
)
from opscope.operators.element_types import ElementKind, element_type
from opscope.operators.promotion import complex_of, real_part


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
    """All pairs of rows."""
    x, y = known(call.tensor("x1")), known(call.tensor("x2"))
    if len(x.shape) < 2 or len(y.shape) < 2:
        raise UnrecordedError
    batch = broadcast([x.shape[:-2], y.shape[:-2]])
    if batch is None or x.shape[-1] != y.shape[-1]:
        raise ContradictionError(f"distances of {shape_text(x.shape)} to {shape_text(y.shape)}")
    return result(call, (*batch, x.shape[-2], y.shape[-2]), type_of(x))


def _factors(call: CallArguments) -> CallEffects:
    """Factors, pivots of LU, error codes."""
    data, integer = known(call.tensor("A", "self")), element_type("int32")
    if len(data.shape) < 2:
        raise UnrecordedError
    batch, size = data.shape[:-2], min(data.shape[-2:])
    pivots = [((*batch, size), integer)] if call.has("A") else []
    return results(call, (data.shape, type_of(data)), *pivots, (batch, integer))


def _solution(matrix_name: str) -> Rule:
    """Like B."""

    def rule(call: CallArguments) -> CallEffects:
        matrix, right = known(call.tensor(matrix_name)), known(call.tensor("B"))
        if len(matrix.shape) < 2 or matrix.shape[:-2] != right.shape[:-2]:
            raise UnrecordedError
        return result(call, right.shape, type_of(right))

    return rule


def _spectrum(call: CallArguments) -> CallEffects:
    data, dimensions = known(call.tensor("self")), known(call.integers("dim") or None)
    element, shape = known(type_of(data)), list(data.shape)
    if not element.is_float:
        raise UnrecordedError
    if known(call.boolean("onesided")):
        last = dimension_of(data.shape, dimensions[-1])
        shape[last] = shape[last] // 2 + 1
    return result(call, tuple(shape), complex_of(element))


def _signal(call: CallArguments) -> CallEffects:
    data, dimensions = known(call.tensor("self")), known(call.integers("dim") or None)
    element = known(type_of(data))
    if element.kind is not ElementKind.COMPLEX:
        raise ContradictionError(f"a spectrum of {element.name}")
    shape = list(data.shape)
    shape[dimension_of(data.shape, dimensions[-1])] = known(call.integer("last_dim_size"))
    return result(call, tuple(shape), real_part(element))


OPERATORS: Mapping[str, Operator] = {
    "_cdist_forward": Operator(_distances, _distance_flops),
    "linalg_lu_factor_ex": Operator(_factors, _lu),
    "linalg_cholesky_ex": Operator(_factors, _cholesky),
    "linalg_solve_triangular": Operator(_solution("self"), _solves("self", 1)),
    "linalg_lu_solve": Operator(_solution("LU"), _solves("LU", 2)),
    "_fft_r2c": Operator(_spectrum),
    "_fft_c2r": Operator(_signal),
    "_fft_c2c": Operator(like("self")),
}
