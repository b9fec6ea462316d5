"""Operations of matrix factorizations and triangular systems, by Gaussian elimination as textbooks state it.

Exact counts of the classical algorithms for dense matrices of numbers that need no exchange of rows; blocked
and iterative ones do more. Matrices come in batches.

Source: Golub, Van Loan: Matrix Computations, 4th edition, 3.1, 3.2 and 4.2 (there in flops of one operation).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.analysis.cost.definitions.counting import Definition, defined
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS", "elimination_flops"]


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


DEFINITIONS: Mapping[str, Definition] = {
    "linalg_lu_factor_ex": defined(_lu),
    "linalg_lu_factor": defined(_lu),
    "linalg_cholesky_ex": defined(_cholesky),
    "linalg_solve_triangular": defined(_triangular_solve),
    "linalg_lu_solve": defined(_lu_solve),
}
