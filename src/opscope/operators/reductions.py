"""Operations of sums and what is made of them: means, variances, norms, softmax, running sums, distances.

The terms of one result are those of the inputs that meet in it: elements of the input over elements of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, ScalarArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    FlopDefinition,
    Formula,
    Rule,
    Shape,
    defined,
    dimension_of,
    dimensions_of,
    effects_of,
    written_out,
)
from opscope.operators.element_types import ElementKind, ElementType, element_type, element_type_of_code
from opscope.operators.promotion import BOOL, INT64, summed_type, to_float

__all__ = ["DEFINITIONS", "RULES", "reduced_shape"]


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
) -> FlopDefinition:
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


def _scattered(position: int) -> FlopDefinition:
    """One addition for each element that is added where it belongs."""

    def formula(effects: CallEffects) -> int | None:
        added = effects.call.tensor(position)
        return None if added is None else added.element_count

    return defined(formula)


DEFINITIONS: Mapping[str, FlopDefinition] = {
    "sum": FlopDefinition(_reduced(1, -1), complex_factor=2),
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


_Typed: TypeAlias = Callable[["ElementType | None"], "ElementType | None"]


def reduced_shape(shape: Shape, dimensions: set[int], *, keeps: bool) -> Shape:
    """What is left of a shape."""
    return tuple(
        1 if position in dimensions else size
        for position, size in enumerate(shape)
        if keeps or position not in dimensions
    )


def _named_dimensions(call: CallArguments, position: int, shape: Shape) -> set[int] | None:
    """Dimensions that an argument names, all if it is absent; None if it was not recorded."""
    if call.is_absent(position):
        return set(range(len(shape))) if call.values_recorded else None
    dimensions = call.integers(position)
    return None if dimensions is None else dimensions_of(shape, dimensions)


def _wanted_type(call: CallArguments, position: int, natural: ElementType | None) -> ElementType | None:
    """The type a `dtype` argument asks for, else the natural one; None if it was not recorded."""
    argument = call.at(position)
    if isinstance(argument, ScalarArgument):
        code = call.integer(position)
        return None if code is None else element_type_of_code(code)
    return natural if call.values_recorded or position >= len(call) else None


def _kept(element: ElementType | None) -> ElementType | None:
    return element


def _truth(element: ElementType | None) -> ElementType | None:
    return element if element is not None and element.name == "uint8" else BOOL


def _index(element: ElementType | None) -> ElementType | None:
    return None if element is None else INT64


def _real(element: ElementType | None) -> ElementType | None:
    if element is None or element.kind is not ElementKind.COMPLEX:
        return element
    return element_type(f"float{element.size_bytes * 4}")


def _all_dimensions(call: CallArguments) -> bool:
    """Whether a call is of the overload without dimensions, which has fewer arguments."""
    return len(call) <= 2 or (len(call) == 3 and call.tensor(2) is not None)


def _sum_like(natural: _Typed) -> Rule:
    """sum(self, *, dtype), sum(self, dim, keepdim, *, dtype)."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > 5:
            return None
        if _all_dimensions(call):
            element = _wanted_type(call, 1, natural(type_of(data)))
            return _reduced_result(call, set(range(len(data.shape))), False, (element,), 2)
        dimensions, keeps = _named_dimensions(call, 1, data.shape), call.boolean(2)
        element = _wanted_type(call, 3, natural(type_of(data)))
        return _reduced_result(call, dimensions, keeps, (element,), 4)

    return rule


def _spread_like(results: int) -> Rule:
    """var(self, unbiased), var(self, dim, unbiased or correction, keepdim); var_mean has two results."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > 4 + results:
            return None
        elements = (_real(type_of(data)), type_of(data))[:results]
        if _all_dimensions(call):
            return _reduced_result(call, set(range(len(data.shape))), False, elements, 2)
        return _reduced_result(call, _named_dimensions(call, 1, data.shape), call.boolean(3), elements, 4)

    return rule


def _extreme_like(*types: _Typed) -> Rule:
    """amax(self, dim, keepdim), argmax(self, dim, keepdim), any(self), any(self, dim, keepdim)."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > 3 + len(types):
            return None
        elements = tuple(typed(type_of(data)) for typed in types)
        if len(call) == 1:
            return _reduced_result(call, set(range(len(data.shape))), False, elements, 1)
        return _reduced_result(call, _named_dimensions(call, 1, data.shape), call.boolean(2), elements, 3)

    return rule


def _largest(call: CallArguments) -> CallEffects | None:
    """max(self): one value; max(self, dim, keepdim): values and their positions."""
    if len(call) == 1:
        return _extreme_like(_kept)(call)
    if not isinstance(call.at(1), ScalarArgument):
        return None
    return _extreme_like(_kept, _index)(call)


def _norm_result(call: CallArguments) -> CallEffects | None:
    """norm(self, p), norm(self, p, dim, keepdim, dtype), linalg_vector_norm of the same arguments."""
    data = call.tensor(0)
    if data is None or len(call) > 6:
        return None
    natural = to_float(_real(type_of(data)))
    if len(call) <= 2:
        return _reduced_result(call, set(range(len(data.shape))), False, (natural,), 2)
    out_position = 4 if call.tensor(4) is not None else 5
    element = natural if out_position == 4 else _real(_wanted_type(call, 4, natural))
    dimensions = _named_dimensions(call, 2, data.shape)
    return _reduced_result(call, dimensions, call.boolean(3), (element,), out_position)


def _log_sum(call: CallArguments) -> CallEffects | None:
    """Logarithms of sums over the dimensions that are named."""
    return _extreme_like(to_float)(call) if len(call) > 1 else None


def _running(natural: _Typed) -> Rule:
    """cumsum(self, dim, *, dtype): of the same shape."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(0)
        if data is None or len(call) > 4 or call.integer(1) is None:
            return None
        if call.name.endswith("_"):
            return effects_of(call, (data,))
        element = _wanted_type(call, 2, natural(type_of(data)))
        if element is None:
            return None
        return effects_of(call, (written_out(data.shape, element, call.tensor(3)),), (3,))

    return rule


def _softmax(call: CallArguments) -> CallEffects | None:
    """Like the first argument; `half_to_float` widens."""
    data, widens = call.tensor(0), call.boolean(2)
    element = None if data is None else type_of(data)
    if data is None or element is None or call.integer(1) is None or widens is None or len(call) > 4:
        return None
    dimension_of(data.shape, call.integer(1) or 0)
    return effects_of(
        call,
        (written_out(data.shape, element_type("float32") or element if widens else element, call.tensor(3)),),
        (3,),
    )


def _softmax_backward(call: CallArguments) -> CallEffects | None:
    """_softmax_backward_data(grad_output, output, dim, input_dtype)."""
    data = call.tensor(1)
    element = _wanted_type(call, 3, None)
    if data is None or element is None or len(call) > 5:
        return None
    return effects_of(call, (written_out(data.shape, element, call.tensor(4)),), (4,))


def _reduced_result(
    call: CallArguments,
    dimensions: set[int] | None,
    keeps: bool | None,
    elements: tuple[ElementType | None, ...],
    out_position: int,
) -> CallEffects | None:
    """Effects of a reduction of the first argument; None if any of this is unknown."""
    data = call.tensor(0)
    known = [element for element in elements if element is not None]
    if data is None or dimensions is None or keeps is None or len(known) < len(elements):
        return None
    shape = reduced_shape(data.shape, dimensions, keeps=keeps)
    positions = range(out_position, out_position + len(known))
    outputs = [
        written_out(shape, element, call.tensor(position))
        for position, element in zip(positions, known, strict=True)
    ]
    return effects_of(call, outputs, tuple(positions))


RULES: Mapping[str, Rule] = {
    "sum": _sum_like(summed_type),
    "nansum": _sum_like(summed_type),
    "prod": _sum_like(summed_type),
    "mean": _sum_like(_kept),
    "var": _spread_like(1),
    "std": _spread_like(1),
    "var_mean": _spread_like(2),
    "std_mean": _spread_like(2),
    "amax": _extreme_like(_kept),
    "amin": _extreme_like(_kept),
    "argmax": _extreme_like(_index),
    "argmin": _extreme_like(_index),
    "any": _extreme_like(_truth),
    "all": _extreme_like(_truth),
    "max": _largest,
    "min": _largest,
    "norm": _norm_result,
    "linalg_vector_norm": _norm_result,
    "logsumexp": _log_sum,
    "cumsum": _running(summed_type),
    "cumprod": _running(summed_type),
    "cumsum_": _running(summed_type),
    "cumprod_": _running(summed_type),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
}
