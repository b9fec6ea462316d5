"""What each operator gives and computes: one table over all families, and the cost of a call by it.

A family is a module with one row for each of its operators: the results (shapes and element types; what is
written in place the schema says), the operations, the least bytes where they are not all bytes. A rule speaks
only where the recorded arguments decide the results. A cost is put together here alone: operations, least
bytes, and the type whose peak limits them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.hardware.devices import DataType
from opscope.operators import (
    attention,
    convolutions,
    linear_algebra,
    lists,
    losses,
    moving,
    normalization,
    pointwise,
    products,
    reductions,
    sampling,
)
from opscope.operators.arguments import CallArguments, type_of
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.effects import (
    UNKNOWN_FLOPS,
    CallEffects,
    ContradictionError,
    FlopCount,
    FlopDefinition,
    Operator,
    element_of,
)
from opscope.operators.element_types import ElementKind
from opscope.operators.traffic import least_traffic

FAMILIES = (
    moving,
    pointwise,
    reductions,
    normalization,
    losses,
    sampling,
    lists,
    linear_algebra,
    products,
    convolutions,
    attention,
)
OPERATORS: Mapping[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}


def cost_by_rules(call: CallArguments) -> CallCost | None:
    """The cost of a call; None where no rule speaks.

    A call whose recording cannot be used, or contradicts itself, has an unknown cost with the reason.
    """
    if call.defect is not None:
        return CallCost(reason=call.defect)
    try:
        effects = effects_by_rules(call)
    except ContradictionError as error:
        return CallCost(reason=f"its recorded arguments contradict: {error}")
    row = _row(call)
    if effects is None and not call.values_recorded and row is not None and row.results is not None:
        return CallCost(reason="its numbers (dimensions, strides, switches) were not recorded")
    return None if effects is None else assemble_cost(effects, CostEvidence.SHAPE_RULES)


def effects_by_rules(call: CallArguments) -> CallEffects | None:
    """What a call takes and gives; None where no rule speaks."""
    row = _row(call)
    return None if row is None or row.results is None or call.schema is None else row.results(call)


def _row(call: CallArguments) -> Operator | None:
    return OPERATORS.get(call.stem or "")


def assemble_cost(effects: CallEffects, evidence: CostEvidence) -> CallCost:
    """What is known of a call; `evidence` says how its effects are known."""
    row = _row(effects.call)
    flops, traffic = count_flops(effects), least_traffic(effects, None if row is None else row.traffic)
    return CallCost(
        flop_count=flops.count,
        flop_source=flops.source,
        read_bytes=traffic.read_bytes,
        written_bytes=traffic.written_bytes,
        data_type=limiting_type(effects),
        evidence=None if traffic.reason else evidence,
        reason=traffic.reason or flops.reason,
    )


def limiting_type(effects: CallEffects) -> DataType | None:
    """Of a product the type of its operands; of anything else the widest type it computes in.

    Elements of 16 and 8 bits are computed with in fp32. None where there are no floating-point numbers.
    """
    row = _row(effects.call)
    if row is not None and row.operand:
        known = element_of(effects.call.tensor(*row.operand))
        return None if known is None else known.operand_type
    types = {
        known.compute_type
        for tensor in (*effects.device_inputs, *effects.outputs)
        if (known := type_of(tensor)) is not None
    }
    return next((one for one in (DataType.FP64, DataType.FP32) if one in types), None)


def count_flops(effects: CallEffects) -> FlopCount:
    """Operations of a call; a reason where no formula is known, or what it needs is not recorded."""
    row = _row(effects.call)
    definition = None if row is None else row.flops
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


def _factor(effects: CallEffects, definition: FlopDefinition) -> int | None:
    """Real operations of one operation on the result's elements: 0 for integers."""
    if not definition.needs_floats:
        return 1
    kind = effects.output_kind
    if kind is ElementKind.COMPLEX:
        return definition.complex_factor
    if kind is None:
        return None
    return int(kind is ElementKind.FLOAT)
