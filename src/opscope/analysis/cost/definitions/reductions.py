"""Operations of sums and what is made of them: means, variances, norms, softmax, running sums, distances.

The terms of one result are those of the inputs that meet in it: elements of the input over elements of the
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from opscope.analysis.cost.definitions.counting import Definition, Formula, defined
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS"]


def _reduced(per_term: int, per_result: int) -> Formula:
    """So many operations for each term, and so many (mostly −1, then more) for each result."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(0)
        if data is None or not data.element_count:
            return None if data is None else 0
        return per_term * data.element_count + per_result * effects.output_elements

    return formula


def _norm(effects: CallEffects) -> int | None:
    """(Σ |x|ᵖ)^(1/p): two operations a term, for p = 1 one and no root, for the largest element none."""
    data, order = effects.call.tensor(0), _order(effects)
    if data is None or order is None:
        return None
    if abs(order) == inf:
        return 0
    return _norm_terms(order) * data.element_count - (order in (0, 1)) * effects.output_elements


def _list_norm(effects: CallEffects) -> int | None:
    """`_norm` of each tensor of a list, which has one result."""
    tensors, order = effects.call.tensor_list(0), _order(effects)
    if tensors is None or order is None:
        return None
    if abs(order) == inf:
        return 0
    filled = [tensor.element_count for tensor in tensors if tensor.element_count]
    return _norm_terms(order) * sum(filled) - (order in (0, 1)) * len(filled)


def _norm_terms(order: float) -> int:
    return 1 if order in (0, 1) else 2


def _order(effects: CallEffects) -> float | None:
    call = effects.call
    if len(call) < 2 or (call.is_absent(1) and call.values_recorded):
        return 2.0
    text = call.at(1)
    order = call.value(1)
    if isinstance(order, (int, float)):
        return float(order)
    return inf if getattr(text, "text", None) in ("inf", "-inf") else None


def _rows(effects: CallEffects, position: int, dimension_position: int) -> int | None:
    """Rows along the dimension that a call names."""
    data, dimension = effects.call.tensor(position), effects.call.integer(dimension_position)
    if data is None or dimension is None:
        return None
    if not data.shape:
        return 1
    if not -len(data.shape) <= dimension < len(data.shape):
        return None
    return data.element_count // data.shape[dimension] if data.element_count else 0


def _row_function(
    per_element: int, per_row: int, *, position: int = 0, dimension_position: int = 1
) -> Definition:
    def formula(effects: CallEffects) -> int | None:
        rows, data = _rows(effects, position, dimension_position), effects.call.tensor(position)
        return None if rows is None or data is None else per_element * data.element_count + per_row * rows

    return defined(formula)


def _distances(effects: CallEffects) -> int | None:
    """For each pair of points of D coordinates the norm of their difference: D subtractions, then `_norm`."""
    x, y, order = effects.call.tensor(0), effects.call.tensor(1), effects.call.value(2)
    if x is None or y is None or not x.shape or not isinstance(order, (int, float)):
        return None
    coordinates = x.shape[-1]
    if not coordinates:
        return 0
    per_pair = coordinates + _norm_terms(order) * coordinates - (order in (0, 1))
    return per_pair * effects.output_elements


def _replaced(effects: CallEffects) -> int | None:
    """Scattering puts elements in place; whether it adds or multiplies them instead is not recorded."""
    return 0 if len(effects.call) < 5 or effects.call.tensor(4) is not None else None


def _scattered(position: int) -> Definition:
    """One addition for each element that is added where it belongs."""

    def formula(effects: CallEffects) -> int | None:
        added = effects.call.tensor(position)
        return None if added is None else added.element_count

    return defined(formula)


DEFINITIONS: Mapping[str, Definition] = {
    "sum": Definition(_reduced(1, -1), complex_factor=2),
    "nansum": defined(_reduced(1, -1)),
    "prod": defined(_reduced(1, -1)),
    "trace": defined(lambda effects: max(0, min(_matrix_shape(effects)) - 1)),
    "mean": defined(_reduced(1, 0)),  # n − 1 additions and a division
    "nanmean": defined(_reduced(1, 0)),
    # Mean n; difference and square 2·n, their sum n − 1, a division.
    "var": defined(_reduced(4, 0)),
    "var_mean": defined(_reduced(4, 0)),
    "std": defined(_reduced(4, 1)),
    "std_mean": defined(_reduced(4, 1)),
    "norm": defined(_norm),
    "linalg_vector_norm": defined(_norm),
    "_foreach_norm": defined(_list_norm),
    "logsumexp": defined(_reduced(3, 1)),  # subtract the largest, exp, n − 1 additions; log, add the largest
    "cumsum": _row_function(1, -1),
    "cumprod": _row_function(1, -1),
    # exp(x − largest), their sum n − 1, a division each: 4·n − 1.
    "_softmax": _row_function(4, -1),
    "_safe_softmax": _row_function(4, -1),
    # x − largest − log Σ exp(x − largest).
    "_log_softmax": _row_function(4, 0),
    # y·(g − Σ g·y).
    "_softmax_backward_data": _row_function(4, -1, position=1, dimension_position=2),
    # g − exp(y)·Σ g.
    "_log_softmax_backward_data": _row_function(4, -1, position=1, dimension_position=2),
    "_cdist_forward": defined(_distances),
    "histc": defined(_reduced(3, 0)),  # the bin of each element: (x − least) · bins / range
    "embedding_dense_backward": _scattered(0),
    "scatter": defined(_replaced),
    "scatter_add": _scattered(3),
    "index_add": _scattered(3),
    "max_pool2d_with_indices_backward": _scattered(0),
    "max_pool3d_with_indices_backward": _scattered(0),
    "adaptive_max_pool2d_backward": _scattered(0),
    "upsample_nearest1d_backward": _scattered(0),
    "upsample_nearest2d_backward": _scattered(0),
    "upsample_nearest3d_backward": _scattered(0),
}


def _matrix_shape(effects: CallEffects) -> tuple[int, ...]:
    data = effects.call.tensor(0)
    return (0,) if data is None else data.shape
