"""Matrix factorizations and triangular systems, distances of points, Fourier transforms.

Operations are those of Gaussian elimination as textbooks state it: exact counts of the classical algorithms
for dense matrices of numbers that need no exchange of rows; blocked and iterative ones do more. Matrices come
in batches.

Source: Golub, Van Loan: Matrix Computations, 4th edition, 3.1, 3.2 and 4.2 (there in flops of one operation).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, broadcast, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    defined,
    dimension_of,
    like,
    result,
    results,
    shape_text,
)
from opscope.operators.element_types import ElementKind, element_type
from opscope.operators.promotion import complex_of, real_part
from opscope.operators.reductions import norm_operations


def elimination_flops(rows: int, columns: int) -> int:
    """LU of a rows×columns matrix: for each pivot a division for each row below, 2 for each element there.

    Σ (r − i)·(1 + 2·(c − i)) over pivots i = 1 … m.
    """
    count = min(rows, columns)
    first_powers = count * (count + 1) // 2
    second_powers = count * (count + 1) * (2 * count + 1) // 6
    return count * rows * (1 + 2 * columns) - first_powers * (2 * rows + 2 * columns + 1) + 2 * second_powers


def _lu(effects: CallEffects) -> int | None:
    data = effects.call.tensor("A")
    if data is None or len(data.shape) < 2:
        return None
    return prod(data.shape[:-2]) * elimination_flops(*data.shape[-2:])


def _cholesky(effects: CallEffects) -> int | None:
    """With i columns left: a root, i divisions, 2 operations for i·(i + 1)/2 elements: (i + 1)² in all."""
    data = effects.call.tensor("self")
    if data is None or len(data.shape) < 2:
        return None
    size = data.shape[-1]
    return prod(data.shape[:-2]) * (size * (size + 1) * (2 * size + 1) // 6)


def _triangular_solve(effects: CallEffects) -> int | None:
    """Each unknown: a product and a difference for each one before it, then a division: n² a column."""
    matrix, has_unit_diagonal = effects.call.tensor("self"), effects.call.boolean("unitriangular")
    if matrix is None or not matrix.shape or has_unit_diagonal is None:
        return None
    return (matrix.shape[-1] - has_unit_diagonal) * effects.output_elements


def _lu_solve(effects: CallEffects) -> int | None:
    """A unit lower triangle, n² − n a column, then an upper one, n²."""
    matrix = effects.call.tensor("LU")
    return (
        None if matrix is None or not matrix.shape else (2 * matrix.shape[-1] - 1) * effects.output_elements
    )


def _distance_flops(effects: CallEffects) -> int | None:
    """For each pair of points the norm of their difference: a subtraction for each coordinate first."""
    x, order = effects.call.tensor("x1"), effects.call.number("p")
    if x is None or not x.shape or order is None:
        return None
    coordinates = x.shape[-1]
    per_pair = coordinates + norm_operations(order, coordinates) if coordinates else 0
    return per_pair * effects.output_elements


def _distances(call: CallArguments) -> CallEffects | None:
    """All pairs of rows."""
    x, y = call.tensor("x1"), call.tensor("x2")
    if x is None or y is None or len(x.shape) < 2 or len(y.shape) < 2:
        return None
    batch = broadcast([x.shape[:-2], y.shape[:-2]])
    if batch is None or x.shape[-1] != y.shape[-1]:
        raise ContradictionError(f"distances of {shape_text(x.shape)} to {shape_text(y.shape)}")
    return result(call, (*batch, x.shape[-2], y.shape[-2]), type_of(x))


def _factors(call: CallArguments) -> CallEffects | None:
    """Factors, pivots of LU, error codes."""
    data, integer = call.tensor("A", "self"), element_type("int32")
    if data is None or len(data.shape) < 2:
        return None
    batch, size = data.shape[:-2], min(data.shape[-2:])
    pivots = [((*batch, size), integer)] if call.has("A") else []
    return results(call, (data.shape, type_of(data)), *pivots, (batch, integer))


def _solution(matrix_name: str) -> Rule:
    """Like B."""

    def rule(call: CallArguments) -> CallEffects | None:
        matrix, right = call.tensor(matrix_name), call.tensor("B")
        if matrix is None or right is None or len(matrix.shape) < 2 or matrix.shape[:-2] != right.shape[:-2]:
            return None
        return result(call, right.shape, type_of(right))

    return rule


def _spectrum(call: CallArguments) -> CallEffects | None:
    data, dimensions, is_half = call.tensor("self"), call.integers("dim"), call.boolean("onesided")
    element = None if data is None else type_of(data)
    if data is None or element is None or not dimensions or is_half is None or not element.is_float:
        return None
    shape = list(data.shape)
    if is_half:
        last = dimension_of(data.shape, dimensions[-1])
        shape[last] = shape[last] // 2 + 1
    return result(call, tuple(shape), complex_of(element))


def _signal(call: CallArguments) -> CallEffects | None:
    data, dimensions, size = call.tensor("self"), call.integers("dim"), call.integer("last_dim_size")
    element = None if data is None else type_of(data)
    if data is None or element is None or not dimensions or size is None:
        return None
    if element.kind is not ElementKind.COMPLEX:
        raise ContradictionError(f"a spectrum of {element.name}")
    shape = list(data.shape)
    shape[dimension_of(data.shape, dimensions[-1])] = size
    return result(call, tuple(shape), real_part(element))


# How many operations a Fourier transform takes depends on the algorithm.
OPERATORS: Mapping[str, Operator] = {
    "_cdist_forward": Operator(_distances, defined(_distance_flops)),
    "linalg_lu_factor_ex": Operator(_factors, defined(_lu)),
    "linalg_cholesky_ex": Operator(_factors, defined(_cholesky)),
    "linalg_solve_triangular": Operator(_solution("self"), defined(_triangular_solve)),
    "linalg_lu_solve": Operator(_solution("LU"), defined(_lu_solve)),
    "_fft_r2c": Operator(_spectrum),
    "_fft_c2r": Operator(_signal),
    "_fft_c2c": Operator(like("self")),
}
