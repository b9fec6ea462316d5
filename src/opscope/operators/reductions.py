"""Sums and what is made of them: means, variances, norms, softmax, running sums.

Operations are those of each element of the input: what is done once for each result does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    CallEffects,
    Operator,
    Rule,
    Shape,
    UnrecordedError,
    dimension_of,
    dimensions_of,
    known,
    result,
    results,
    rows,
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


def reduced_dimensions(call: CallArguments) -> set[int]:
    """Dimensions of `self` that a reduction sums over, all if it names none."""
    data = known(call.tensor("self"))
    if call.is_omitted("dim"):
        return set(range(len(data.shape)))
    return dimensions_of(data.shape, known(call.integers("dim")))


def _wanted_type(call: CallArguments, name: str, natural: ElementType | None) -> ElementType | None:
    """The type that an argument asks for, else the natural one; None if it was not recorded."""
    if call.is_omitted(name):
        return natural
    return element_type_of_code(known(call.integer(name)))


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

    def rule(call: CallArguments) -> CallEffects:
        data, dimensions = known(call.tensor("self")), reduced_dimensions(call)
        keeps = known(call.boolean("keepdim")) if call.has("keepdim") else False
        shape = tuple(
            1 if position in dimensions else size
            for position, size in enumerate(data.shape)
            if keeps or position not in dimensions
        )
        elements = [_wanted_type(call, "dtype", typed(type_of(data))) for typed in types]
        return results(call, *((shape, element) for element in elements))

    return rule


def _largest(call: CallArguments) -> CallEffects:
    """max(self): one value; with a dimension values and their positions; of two tensors none of these."""
    if call.has("other"):
        raise UnrecordedError
    return _reduction(_kept, _index)(call) if call.has("dim") else _reduction(_kept)(call)


def _running(call: CallArguments) -> CallEffects:
    """Of the same shape."""
    data = known(call.tensor("self"))
    known(call.integer("dim"))
    return result(call, data.shape, _wanted_type(call, "dtype", summed_type(type_of(data))))


def _softmax(call: CallArguments) -> CallEffects:
    """Like the data; `half_to_float` widens."""
    data, element = known(call.tensor("self")), known(type_of(known(call.tensor("self"))))
    dimension_of(data.shape, known(call.integer("dim")))
    return result(call, data.shape, FLOAT32 if known(call.boolean("half_to_float")) else element)


def _softmax_gradient(call: CallArguments) -> CallEffects:
    code = known(call.integer("input_dtype"))
    return result(call, known(call.tensor("output")).shape, element_type_of_code(code))


OPERATORS: Mapping[str, Operator] = {
    **rows(_reduction(summed_type), {1: "sum nansum prod"}),
    # Variances: a mean, a difference and its square, their sum.
    **rows(_reduction(real_part), {4: "var std"}),
    **rows(_reduction(real_part, _kept), {4: "var_mean std_mean"}),
    **rows(_reduction(_kept), {0: "amax amin", 1: "mean"}),
    **rows(_reduction(_index), {0: "argmax argmin"}),
    **rows(_reduction(_truth), {0: "any all"}),
    **rows(_largest, {0: "max min"}),
    **rows(_reduction(_float_part), {2: "norm linalg_vector_norm"}),
    **rows(_reduction(to_float), {3: "logsumexp"}),
    **rows(_running, {1: "cumsum cumprod"}),
    # Subtract the largest, exp, their sum, a division.
    **rows(_softmax, {4: "_softmax _log_softmax"}),
    **rows(_softmax_gradient, {4: "_softmax_backward_data _log_softmax_backward_data"}),
    # Named by generated kernels.
    **rows(
        None,
        {
            0: """
                aminmax median nanmedian mode kthvalue count_nonzero cummax cummin _cummax_helper
                _cummin_helper
            """,
            1: "nanmean trace",
            4: "_safe_softmax",
        },
    ),
}
