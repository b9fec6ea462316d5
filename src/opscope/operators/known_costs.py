"""The cost of each distinct call, by whichever way tells it: recorded sizes, arguments, a compiler's words.

What nothing tells keeps the reason why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, parse_arguments
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.collective_costs import cost_of_collective
from opscope.operators.distinct_calls import DistinctCall
from opscope.operators.engine_operators import engine_cost
from opscope.operators.generated_kernels import cost_of_generated
from opscope.operators.operator_table import cost_by_rules
from opscope.operators.tensor_lists import Gradients, read_gradients, with_list_members, with_list_types

# Namespaces whose operators are torch's own.
_TORCH_NAMESPACES = frozenset(("aten", "prims"))
# Records in which an operator of torch is named, but not what it moved.
_UNDESCRIBED = frozenset(("record_param_comms", "c10d"))
# What a column of the tables holds; counts beyond it come from absurd sizes.
_LARGEST = (1 << 63) - 1

_SOURCES_SQL = """
SELECT n.name, s.hash, s.meta::VARCHAR FROM kernel_sources s JOIN kernel_names n USING (name_id)
WHERE s.meta IS NOT NULL"""


def known_costs(session: Session, calls: Sequence[DistinctCall]) -> dict[int, CallCost]:
    """Costs by call_id."""
    # A recorder that writes overloads leaves out only the default one.
    default = "" if any(call.overload for call in calls) else None

    @cache
    def gradients() -> Gradients:
        return read_gradients(session)

    @cache
    def sources() -> dict[tuple[str, str | None], Any]:
        return {(name, source): json.loads(meta) for name, source, meta in session.query(_SOURCES_SQL)}

    def cost_of(call: DistinctCall) -> CallCost:
        if call.read_bytes is not None and call.written_bytes is not None:
            read, written = call.read_bytes, call.written_bytes
            return CallCost(0, FlopSource.NONE, read, written, None, CostEvidence.RECORDED)
        if call.collective is not None:
            return cost_of_collective(call.collective)
        if call.attribution is not None:
            return CallCost(reason="launched by no operator whose arguments were recorded")
        arguments = parse_arguments(
            call.name,
            overload=call.overload or default,
            shapes=call.shapes,
            types=call.types,
            strides=call.strides,
            concrete=call.concrete,
        )
        if call.triton is not None:
            source = sources().get((call.triton.kernel, call.triton.source_hash))
            return cost_of_generated(arguments, call.triton, source)
        arguments, completed = with_list_types(arguments, call.kernel), None
        if arguments.has_unrecorded_list:
            completed = with_list_members(arguments, call.kernel, call.block_count, gradients())
            arguments = completed or arguments
        cost = cost_by_rules(arguments) or engine_cost(session, call, arguments)
        cost = cost or CallCost(reason=_unruled(arguments))
        if completed is not None and cost.evidence is not None:  # the weaker one of completed arguments
            cost = replace(cost, evidence=CostEvidence.GRADIENTS)
        return cost

    costs = {call.call_id: cost_of(call) for call in calls}
    for call_id, cost in costs.items():
        counts = (cost.flop_count, cost.read_bytes, cost.written_bytes)
        if any(count is not None and not 0 <= count <= _LARGEST for count in counts):
            costs[call_id] = CallCost(reason="its recorded sizes are implausible")
    return costs


def _unruled(call: CallArguments) -> str:
    """Why no rule tells the cost of a call."""
    namespace, separator, _ = call.name.partition("::")
    if namespace in _UNDESCRIBED:
        return "the collective and its sizes were not recorded"
    if call.defect is not None:
        return call.defect
    if not separator or namespace not in _TORCH_NAMESPACES:
        return f"{call.name} is not an operator of torch: only its own code could tell its results"
    if call.has_unrecorded_list:
        return "the members of its lists of tensors were not recorded"
    return f"no rule gives the results of {call.name}"
