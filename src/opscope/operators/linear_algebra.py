"""Operations of matrix factorizations and triangular systems, by Gaussian elimination as textbooks state it.

Exact counts of the classical algorithms for dense matrices of numbers that need no exchange of rows; blocked
and iterative ones do more. Matrices come in batches.

Source: Golub, Van Loan: Matrix Computations, 4th edition, 3.1, 3.2 and 4.2 (there in flops of one operation).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.operators.arguments import CallArguments, broadcast
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Rule,
    defined,
    dimension_of,
    effects_of,
    element_of,
    result,
    shape_text,
    written_out,
)
from opscope.operators.element_types import ElementKind, ElementType, element_type

__all__ = ["DEFINITIONS", "RULES", "elimination_flops"]


def elimination_flops(rows: int, columns: int) -> int:
    """LU of a rows×columns matrix: for each pivot a division for each row below, 2 for each element there.

    Σ (r − i)·(1 + 2·(c − i)) over pivots i = 1 … m.
    """
    count = min(rows, columns)
    first_powers = count * (count + 1) // 2
    second_powers = count * (count + 1) * (2 * count + 1) // 6
    return count * rows * (1 + 2 * columns) - first_powers * (2 * rows + 2 * columns + 1) + 2 * second_powers


def _lu(effects: CallEffects) -> int | None:
    data = effects.call.tensor(0)
    if data is None or len(data.shape) < 2:
        return None
    return prod(data.shape[:-2]) * elimination_flops(*data.shape[-2:])


def _cholesky(effects: CallEffects) -> int | None:
    """With i columns left: a root, i divisions, 2 operations for i·(i + 1)/2 elements: (i + 1)² in all."""
    data = effects.call.tensor(0)
    if data is None or len(data.shape) < 2:
        return None
    size = data.shape[-1]
    return prod(data.shape[:-2]) * (size * (size + 1) * (2 * size + 1) // 6)


def _triangular_solve(effects: CallEffects) -> int | None:
    """Each unknown: a product and a difference for each one before it, then a division: n² a column."""
    matrix, result = effects.call.tensor(0), effects.output
    if matrix is None or result is None or not matrix.shape or not result.shape:
        return None
    has_unit_diagonal = effects.call.boolean(4)
    if has_unit_diagonal is None:
        return None
    return (matrix.shape[-1] - has_unit_diagonal) * result.element_count


def _lu_solve(effects: CallEffects) -> int | None:
    """A unit lower triangle, n² − n a column, then an upper one, n²."""
    matrix, result = effects.call.tensor(0), effects.output
    if matrix is None or result is None or not matrix.shape or not result.shape:
        return None
    return (2 * matrix.shape[-1] - 1) * result.element_count


DEFINITIONS: Mapping[str, FlopDefinition] = {
    "linalg_lu_factor_ex": defined(_lu),
    "linalg_lu_factor": defined(_lu),
    "linalg_cholesky_ex": defined(_cholesky),
    "linalg_solve_triangular": defined(_triangular_solve),
    "linalg_lu_solve": defined(_lu_solve),
}


def _distances(call: CallArguments) -> CallEffects | None:
    """_cdist_forward(x1, x2, p, compute_mode): all pairs of rows."""
    x, y = call.tensor(0), call.tensor(1)
    if x is None or y is None or len(x.shape) < 2 or len(y.shape) < 2 or len(call) > 4:
        return None
    batch = broadcast([x.shape[:-2], y.shape[:-2]])
    if batch is None or x.shape[-1] != y.shape[-1]:
        raise ContradictionError(f"distances of {shape_text(x.shape)} to {shape_text(y.shape)}")
    return result(call, (*batch, x.shape[-2], y.shape[-2]), element_of(x))


def _lu_factors(call: CallArguments) -> CallEffects | None:
    """linalg_lu_factor_ex(A, *, pivot, check_errors): factors, pivots, error codes."""
    data = call.tensor(0)
    element, integer = element_of(data), element_type("int32")
    if data is None or element is None or integer is None or len(data.shape) < 2 or len(call) not in (3, 6):
        return None
    batch, size = data.shape[:-2], min(data.shape[-2:])
    shapes = (data.shape, (*batch, size), batch)
    return effects_of(
        call,
        [
            written_out(shape, element if position == 3 else integer, call.tensor(position))
            for position, shape in zip((3, 4, 5), shapes, strict=True)
        ],
        (3, 4, 5),
    )


def _solution(right_position: int, arguments: int) -> Rule:
    """linalg_solve_triangular(A, B, …), linalg_lu_solve(LU, pivots, B, …): like B."""

    def rule(call: CallArguments) -> CallEffects | None:
        matrix, right = call.tensor(0), call.tensor(right_position)
        if matrix is None or right is None or len(call) > arguments + 1:
            return None
        if len(matrix.shape) < 2 or matrix.shape[:-2] != right.shape[:-2]:
            return None
        return result(call, right.shape, element_of(right), arguments)

    return rule


def _complex_of(element: ElementType) -> ElementType | None:
    return element_type({2: "complex32", 4: "complex64", 8: "complex128"}.get(element.size_bytes))


def _spectrum(call: CallArguments) -> CallEffects | None:
    """_fft_r2c(self, dim, normalization, onesided)."""
    data, dimensions, is_half = call.tensor(0), call.integers(1), call.boolean(3)
    element = element_of(data)
    if data is None or element is None or not dimensions or is_half is None or not element.is_float:
        return None
    shape = list(data.shape)
    if is_half:
        last = dimension_of(data.shape, dimensions[-1])
        shape[last] = shape[last] // 2 + 1
    return result(call, tuple(shape), _complex_of(element), 4)


def _signal(call: CallArguments) -> CallEffects | None:
    """_fft_c2r(self, dim, normalization, last_dim_size)."""
    data, dimensions, size = call.tensor(0), call.integers(1), call.integer(3)
    element = element_of(data)
    if data is None or element is None or not dimensions or size is None:
        return None
    if element.kind is not ElementKind.COMPLEX:
        raise ContradictionError(f"a spectrum of {element.name}")
    shape = list(data.shape)
    shape[dimension_of(data.shape, dimensions[-1])] = size
    return result(call, tuple(shape), element_type(f"float{element.size_bytes * 4}"), 4)


def _transformed(call: CallArguments) -> CallEffects | None:
    """_fft_c2c(self, dim, normalization, forward)."""
    data = call.tensor(0)
    return None if data is None else result(call, data.shape, element_of(data), 4)


RULES: Mapping[str, Rule] = {
    "_cdist_forward": _distances,
    "linalg_lu_factor_ex": _lu_factors,
    "linalg_solve_triangular": _solution(1, 5),
    "linalg_lu_solve": _solution(2, 5),
    "_fft_r2c": _spectrum,
    "_fft_c2r": _signal,
    "_fft_c2c": _transformed,
}
