"""What each operator gives and computes: one table over all families, and the cost of a call by it.

A family is a module with one row for each of its operators: the results (shapes and element types; what is
written in place the schema says), the operations, the least bytes where they are not all bytes. A rule speaks
only where the recorded arguments decide the results. A cost is put together here alone: operations, least
bytes, and the type whose peak limits them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.data import packaged_toml
from opscope.hardware.devices import DataType
from opscope.operators import moving, pointwise, products, reductions, windows
from opscope.operators.arguments import CallArguments, ElementKind, type_of
from opscope.operators.effects import (
    CallCost,
    CallEffects,
    ContradictionError,
    CostEvidence,
    FlopSource,
    Operator,
    UnrecordedError,
    all_bytes,
    computing_type,
    rows,
)

FAMILIES = (moving, pointwise, reductions, windows, products)
OPERATORS: Mapping[str, Operator] = {
    **rows(None, packaged_toml(__package__, "operators.toml")["generated"]),
    **{name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()},
}
# Real operations of one on complex numbers, about: an addition is 2, a product 6.
_COMPLEX_OPERATIONS = 4


def cost_by_rules(call: CallArguments) -> CallCost | None:
    """The cost of a call; None where no rule speaks.

    A call whose recording cannot be used, or contradicts itself, has an unknown cost with the reason.
    """
    if call.defect is not None:
        return CallCost(reason=call.defect)
    try:
        effects = effects_by_rules(call)
    except ContradictionError:
        return CallCost(reason="its recorded arguments contradict each other")
    row = OPERATORS.get(call.stem or "")
    if effects is None and not call.values_recorded and row is not None and row.results is not None:
        return CallCost(reason="its numbers (dimensions, strides, switches) were not recorded")
    return None if effects is None else assemble_cost(effects, CostEvidence.SHAPE_RULES)


def effects_by_rules(call: CallArguments) -> CallEffects | None:
    """What a call takes and gives; None where no rule speaks."""
    row = OPERATORS.get(call.stem or "")
    if row is None or row.results is None or call.schema is None:
        return None
    try:
        return row.results(call)
    except UnrecordedError:
        return None


def assemble_cost(effects: CallEffects, evidence: CostEvidence) -> CallCost:
    """What is known of a call; `evidence` says how its effects are known."""
    row = OPERATORS.get(effects.call.stem or "", Operator())
    flop_count, reason = _operations(effects, row)
    read_bytes, written_bytes, stated = None, None, None
    try:
        read_bytes, written_bytes = (row.traffic or all_bytes)(effects)
        stated = evidence
    except UnrecordedError as error:
        reason = str(error)
    source = FlopSource.REGISTRY if row.operand else FlopSource.DEFINITION
    return CallCost(
        flop_count=flop_count,
        flop_source=None if flop_count is None else source if flop_count else FlopSource.NONE,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        data_type=_limiting_type(effects, row),
        evidence=stated,
        reason=reason,
    )


def _operations(effects: CallEffects, row: Operator) -> tuple[int | None, str | None]:
    """Floating-point operations, or why they are unknown. Those on integers do not count but in products."""
    element = type_of(effects.output)
    is_number = element is not None and element.kind in (ElementKind.FLOAT, ElementKind.COMPLEX)
    if row.operations is None:
        return None, "no formula for its operations"
    if row.operations == 0 or (element is not None and not is_number and not row.operand):
        return 0, None
    if element is None and not row.operand:
        return None, "the element type of its result decides its operations, and is not known"
    if isinstance(row.operations, int):
        factor = 1 if element is not None and element.is_float else _COMPLEX_OPERATIONS
        return factor * row.operations * effects.worked_elements, None
    try:
        return row.operations(effects), None
    except UnrecordedError as error:
        return None, str(error)


def _limiting_type(effects: CallEffects, row: Operator) -> DataType | None:
    """Of a product the type of its operands; of anything else the widest type it computes in.

    None where there are no floating-point numbers.
    """
    if not row.operand:
        return computing_type((*effects.device_inputs, *effects.outputs))
    known = type_of(effects.call.tensor(*row.operand))
    return None if known is None else known.operand_type
