"""Costs without torch: the results of the main operators by packaged rules of shapes and element types.

A rule speaks only where the recorded arguments decide the results; what it says equals a replay of the call.
Families are modules, each with a table of operators and their rules. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments
from opscope.analysis.cost.assembly import assemble_cost
from opscope.analysis.cost.call_cost import CallCost, CostEvidence
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.rules import (
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
from opscope.analysis.cost.rules.results import ContradictionError, Rule

__all__ = ["RULES", "ContradictionError", "cost_by_rules", "effects_by_rules"]

RULES: Mapping[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **products.RULES,
    **convolutions.RULES,
    **attention.RULES,
    **normalization.RULES,
    **moving.RULES,
    **sampling.RULES,
    **losses.RULES,
    **lists.RULES,
    **linear_algebra.RULES,
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
    if effects is None and not call.values_recorded and call.name.partition("::")[2] in RULES:
        return CallCost(reason="its numbers (dimensions, strides, switches) were not recorded")
    return None if effects is None else assemble_cost(effects, CostEvidence.SHAPE_RULES)


def effects_by_rules(call: CallArguments) -> CallEffects | None:
    """What a call takes and gives; None where no rule speaks.

    Raises:
        ContradictionError: Its arguments are none that the operator takes together.
    """
    namespace, _, operator = call.name.partition("::")
    rule = RULES.get(operator) if namespace == "aten" else None
    return None if rule is None or call.defect is not None else rule(call)
