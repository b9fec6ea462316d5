"""Operations of a call by formula: each formula is written once, in the module of its family.

`count_flops` serves replayed calls and calls known by shape rules alike. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.call_cost import FlopSource
from opscope.analysis.cost.definitions import (
    attention,
    convolutions,
    linear_algebra,
    losses,
    normalization,
    nothing,
    optimizers,
    pointwise,
    products,
    reductions,
    sampling,
)
from opscope.analysis.cost.definitions.counting import UNKNOWN_FLOPS, Definition, FlopCount
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.element_types import ElementKind

__all__ = ["DEFINITIONS", "FlopCount", "count_flops", "product_operand"]

DEFINITIONS: Mapping[str, Definition] = {
    **nothing.DEFINITIONS,
    **pointwise.DEFINITIONS,
    **reductions.DEFINITIONS,
    **normalization.DEFINITIONS,
    **losses.DEFINITIONS,
    **sampling.DEFINITIONS,
    **optimizers.DEFINITIONS,
    **linear_algebra.DEFINITIONS,
    **products.DEFINITIONS,
    **convolutions.DEFINITIONS,
    **attention.DEFINITIONS,
}
_OPERAND_POSITIONS = (
    products.operand_position,
    convolutions.operand_position,
    attention.operand_position,
)


def count_flops(effects: CallEffects) -> FlopCount:
    """Operations of a call; a reason where no formula is known, or what it needs is not recorded."""
    definition = DEFINITIONS.get(effects.stem or "")
    if definition is None:
        return UNKNOWN_FLOPS
    if definition.formula is None:
        return FlopCount(0, FlopSource.NONE)
    factor = _factor(effects, definition)
    if factor is None:
        return FlopCount(reason=_uncounted(effects))
    if not factor:
        return FlopCount(0, FlopSource.NONE)
    count = definition.formula(effects)
    if count is None or count < 0:
        return FlopCount(reason="what its formula needs is not recorded, or contradicts")
    return FlopCount(factor * count, definition.source)


def _uncounted(effects: CallEffects) -> str:
    if effects.output_kind is ElementKind.COMPLEX:
        return "no formula for its operations on complex numbers"
    return "the element type of its result decides its operations, and is not known"


def product_operand(stem: str | None) -> int | None:
    """Position of the argument whose type decides the peak of a product; None of anything else."""
    if stem is None:
        return None
    found = (find(stem) for find in _OPERAND_POSITIONS)
    return next((position for position in found if position is not None), None)


def _factor(effects: CallEffects, definition: Definition) -> int | None:
    """Real operations of one operation on the result's elements: 0 for integers."""
    if not definition.needs_floats:
        return 1
    kind = effects.output_kind
    if kind is ElementKind.COMPLEX:
        return definition.complex_factor
    if kind is None:
        return None
    return int(kind is ElementKind.FLOAT)
