"""Results of factorizations, triangular systems, distances and Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.element_types import ElementKind, ElementType, element_type
from opscope.analysis.cost.rules.results import (
    ContradictionError,
    Rule,
    dimension_of,
    effects_of,
    element_of,
    result,
    shape_text,
    written_out,
)
from opscope.analysis.parallelism.facts import broadcast

__all__ = ["RULES"]


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
