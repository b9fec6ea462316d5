"""Sums and what is made of them: means, variances, norms, softmax, running sums.

The terms of one result are those of the inputs that meet in it: elements of the input over elements of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, ScalarArgument, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    FlopDefinition,
    Formula,
    Operator,
    Rule,
    Shape,
    alike,
    counting,
    defined,
    dimension_of,
    dimensions_of,
    nothing,
    result,
    results,
)
from opscope.operators.element_types import ElementType, element_type_of_code
from opscope.operators.promotion import BOOL, FLOAT32, INT64, real_part, summed_type, to_float

_Typed: TypeAlias = Callable[["ElementType | None"], "ElementType | None"]


@dataclass(frozen=True)
class Rows:
    """A tensor as outer × length × inner: rows over so many dimensions, each worked on by itself."""

    shape: Shape
    outer: int
    length: int
    inner: int
    dimensions: int = 1

    @property
    def count(self) -> int:
        """How many rows."""
        return self.outer * self.inner


def rows_along(data: TensorArgument | None, dimension: int | None) -> Rows | None:
    """The rows along one dimension; None if that is unknown, or there is no such one."""
    if data is None or dimension is None:
        return None
    shape = data.shape or (1,)
    if not -len(shape) <= dimension < len(shape):
        return None
    at = dimension % len(shape)
    return Rows(shape, prod(shape[:at]), shape[at], prod(shape[at + 1 :]))


def reduced_dimensions(call: CallArguments) -> set[int] | None:
    """Dimensions of `self` that a reduction sums over, all if it names none; None if it was not recorded."""
    data = call.tensor("self")
    if data is None:
        return None
    if call.at("dim") is None:
        return set(range(len(data.shape))) if call.is_omitted("dim") else None
    dimensions = call.integers("dim")
    return None if dimensions is None else dimensions_of(data.shape, dimensions)


def norm_operations(order: float, terms: int, norms: int = 1) -> int:
    """(Σ |x|ᵖ)^(1/p): two operations a term, for p = 1 one and no root, for the largest element none."""
    if abs(order) == inf:
        return 0
    return terms - norms if order in (0, 1) else 2 * terms


def norm_order(call: CallArguments) -> float | None:
    """Which norm a call computes, the second one if it does not say; None if that was not recorded."""
    if call.at("p", "ord") is None:
        return 2.0 if call.values_recorded or not (call.has("p") or call.has("ord")) else None
    given = call.at("p", "ord")
    if isinstance(given, ScalarArgument) and given.text in ("inf", "-inf"):
        return inf
    order = call.value("p", "ord")
    return float(order) if isinstance(order, (int, float)) else None


def _reduced(per_term: int, per_result: int) -> Formula:
    """So many operations for each term, and so many (mostly −1, then more) for each result."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor("self")
        if data is None or not data.element_count:
            return None if data is None else 0
        return per_term * data.element_count + per_result * effects.output_elements

    return formula


def _norm(effects: CallEffects) -> int | None:
    data, order = effects.call.tensor("self"), norm_order(effects.call)
    if data is None or order is None:
        return None
    return norm_operations(order, data.element_count, effects.output_elements)


def _trace(effects: CallEffects) -> int | None:
    data = effects.call.tensor("self")
    return None if data is None else max(0, min(data.shape, default=0) - 1)


def _along_rows(per_element: int, per_row: int, name: str = "self") -> FlopDefinition:
    """So many operations for each element, and for each row along the dimension that a call names."""

    def formula(effects: CallEffects) -> int | None:
        data = effects.call.tensor(name)
        rows = rows_along(data, effects.call.integer("dim"))
        if data is None or rows is None:
            return None
        return per_element * data.element_count + per_row * (rows.count if data.element_count else 0)

    return defined(formula)


def _wanted_type(call: CallArguments, name: str, natural: ElementType | None) -> ElementType | None:
    """The type that an argument asks for, else the natural one; None if it was not recorded."""
    if isinstance(call.at(name), ScalarArgument):
        code = call.integer(name)
        return None if code is None else element_type_of_code(code)
    return natural if call.is_omitted(name) else None


def _kept(element: ElementType | None) -> ElementType | None:
    return element


def _truth(element: ElementType | None) -> ElementType | None:
    return element if element is not None and element.name == "uint8" else BOOL


def _index(element: ElementType | None) -> ElementType | None:
    return None if element is None else INT64


def _float_part(element: ElementType | None) -> ElementType | None:
    return to_float(real_part(element))


def _reduction(*types: _Typed) -> Rule:
    """One result for each type, the dimensions named reduced, all if none is."""

    def rule(call: CallArguments) -> CallEffects | None:
        data, dimensions = call.tensor("self"), reduced_dimensions(call)
        keeps = call.boolean("keepdim") if call.has("keepdim") else False
        if data is None or dimensions is None or keeps is None:
            return None
        shape = tuple(
            1 if position in dimensions else size
            for position, size in enumerate(data.shape)
            if keeps or position not in dimensions
        )
        elements = [_wanted_type(call, "dtype", typed(type_of(data))) for typed in types]
        return results(call, *((shape, element) for element in elements))

    return rule


def _largest(call: CallArguments) -> CallEffects | None:
    """max(self): one value; with a dimension values and their positions; of two tensors none of these."""
    if call.has("other"):
        return None
    return _reduction(_kept, _index)(call) if call.has("dim") else _reduction(_kept)(call)


def _running(call: CallArguments) -> CallEffects | None:
    """Of the same shape."""
    data = call.tensor("self")
    if data is None or call.integer("dim") is None:
        return None
    return result(call, data.shape, _wanted_type(call, "dtype", summed_type(type_of(data))))


def _softmax(call: CallArguments) -> CallEffects | None:
    """Like the data; `half_to_float` widens."""
    data, dimension, widens = call.tensor("self"), call.integer("dim"), call.boolean("half_to_float")
    if data is None or dimension is None or widens is None or type_of(data) is None:
        return None
    dimension_of(data.shape, dimension)
    return result(call, data.shape, FLOAT32 if widens else type_of(data))


def _softmax_gradient(call: CallArguments) -> CallEffects | None:
    data = call.tensor("output")
    if data is None or not isinstance(call.at("input_dtype"), ScalarArgument):
        return None
    return result(call, data.shape, _wanted_type(call, "input_dtype", None))


_SPREAD = {
    "": defined(_reduced(4, 0)),  # mean n; difference and square 2·n, their sum n − 1, a division
    "root": defined(_reduced(4, 1)),
}
OPERATORS: Mapping[str, Operator] = {
    "sum": Operator(_reduction(summed_type), FlopDefinition(_reduced(1, -1), complex_factor=2)),
    **counting(alike(defined(_reduced(1, -1)), "nansum prod"), _reduction(summed_type)),
    "mean": Operator(_reduction(_kept), defined(_reduced(1, 0))),  # n − 1 additions and a division
    "var": Operator(_reduction(real_part), _SPREAD[""]),
    "std": Operator(_reduction(real_part), _SPREAD["root"]),
    "var_mean": Operator(_reduction(real_part, _kept), _SPREAD[""]),
    "std_mean": Operator(_reduction(real_part, _kept), _SPREAD["root"]),
    **counting(alike(nothing(), "amax amin"), _reduction(_kept)),
    **counting(alike(nothing(), "argmax argmin"), _reduction(_index)),
    **counting(alike(nothing(), "any all"), _reduction(_truth)),
    **counting(alike(nothing(), "max min"), _largest),
    **counting(alike(defined(_norm), "norm linalg_vector_norm"), _reduction(_float_part)),
    # Subtract the largest, exp, n − 1 additions; log, add the largest.
    "logsumexp": Operator(_reduction(to_float), defined(_reduced(3, 1))),
    **counting(alike(_along_rows(1, -1), "cumsum cumprod"), _running),
    "_softmax": Operator(_softmax, _along_rows(4, -1)),  # exp(x − largest), their sum n − 1, a division each
    "_log_softmax": Operator(_softmax, _along_rows(4, 0)),  # x − largest − log Σ exp(x − largest)
    # y·(g − Σ g·y); g − exp(y)·Σ g.
    **counting(
        alike(_along_rows(4, -1, "output"), "_softmax_backward_data _log_softmax_backward_data"),
        _softmax_gradient,
    ),
    # Named by generated kernels.
    "_safe_softmax": Operator(None, _along_rows(4, -1)),
    "nanmean": Operator(None, defined(_reduced(1, 0))),
    "trace": Operator(None, defined(_trace)),
    **counting(
        alike(
            nothing(),
            """
            aminmax median nanmedian mode kthvalue count_nonzero cummax cummin _cummax_helper _cummin_helper
            """,
        )
    ),
}
