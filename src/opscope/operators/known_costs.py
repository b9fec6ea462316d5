"""The cost of each distinct call, by whichever way tells it: recorded sizes, arguments, a compiler's words.

What nothing tells keeps the reason why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, parse_arguments
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.collective_costs import cost_of_collective
from opscope.operators.distinct_calls import DistinctCall
from opscope.operators.engine_operators import EngineCalls
from opscope.operators.generated_kernels import cost_of_generated
from opscope.operators.operator_table import cost_by_rules
from opscope.operators.recorded_stack import without_stack
from opscope.operators.tensor_lists import (
    read_gradients,
    with_list_members,
    with_list_types,
)

# Namespaces whose operators are torch's own.
_TORCH_NAMESPACES = frozenset(("aten", "prims"))
# Records in which an operator of torch is named, but not what it moved.
_UNDESCRIBED = frozenset(("record_param_comms", "c10d"))
# What a column of the tables holds; counts beyond it come from absurd sizes.
_LARGEST = (1 << 63) - 1

_SOURCES_SQL = """
SELECT n.name, s.hash, s.meta::VARCHAR FROM kernel_sources s JOIN kernel_names n USING (name_id)
WHERE s.meta IS NOT NULL"""


class _Described(msgspec.Struct, frozen=True):
    """A distinct call that its arguments must tell; `is_recovered` if lists among them were inferred."""

    call: DistinctCall
    arguments: CallArguments
    is_recovered: bool = False


def known_costs(session: Session, calls: Sequence[DistinctCall]) -> dict[int, CallCost]:
    """Costs by call_id."""
    costs: dict[int, CallCost] = {}
    told: list[DistinctCall] = []
    for call in calls:
        told_cost = _told_without_arguments(call)
        if told_cost is None:
            told.append(call)
        else:
            costs[call.call_id] = told_cost
    described = _describe(session, told)
    costs |= _generated(session, [one for one in described if one.call.triton is not None])
    engines = EngineCalls(session)
    for one in described:
        if one.call.triton is not None:
            continue
        ruled = cost_by_rules(one.arguments) or engines.cost(one.call, one.arguments)
        ruled = ruled or CallCost(reason=_unruled(one.arguments))
        if one.is_recovered and ruled.evidence is not None:  # the weaker one of completed arguments
            ruled = replace(ruled, evidence=CostEvidence.GRADIENTS)
        costs[one.call.call_id] = ruled
    for call_id, cost in costs.items():
        counts = (cost.flop_count, cost.read_bytes, cost.written_bytes)
        if any(count is not None and not 0 <= count <= _LARGEST for count in counts):
            costs[call_id] = CallCost(reason="its recorded sizes are implausible")
    return costs


def _told_without_arguments(call: DistinctCall) -> CallCost | None:
    """The cost where sizes are recorded, or nothing is; None where arguments must tell it."""
    if call.read_bytes is not None and call.written_bytes is not None:
        return CallCost(0, FlopSource.NONE, call.read_bytes, call.written_bytes, None, CostEvidence.RECORDED)
    if call.collective is not None:
        return cost_of_collective(call.collective)
    if call.attribution is not None:
        return CallCost(reason="launched by no operator whose arguments were recorded")
    return None


def _describe(session: Session, calls: Sequence[DistinctCall]) -> list[_Described]:
    if not calls:
        return []
    # A recorder that writes overloads leaves out only the default one.
    default = "" if any(call.overload for call in calls) else None
    parsed = [
        parse_arguments(
            call.name,
            overload=call.overload or default,
            shapes=call.shapes,
            types=call.types,
            strides=call.strides,
            concrete=call.concrete,
        )
        for call in calls
    ]
    version = session.scalar("SELECT operator_table FROM recognition")
    typed = [
        with_list_types(arguments, call.kernel)
        for call, arguments in zip(calls, without_stack(calls, parsed, version), strict=True)
    ]
    described = [_Described(call, arguments) for call, arguments in zip(calls, typed, strict=True)]
    if not any(one.arguments.has_unrecorded_list for one in described):
        return described
    gradients = read_gradients(session)
    completed = []
    for one in described:
        found = None
        if one.arguments.has_unrecorded_list:
            found = with_list_members(one.arguments, one.call.kernel, one.call.block_count, gradients)
        completed.append(one if found is None else _Described(one.call, found, is_recovered=True))
    return completed


def _generated(session: Session, described: Sequence[_Described]) -> dict[int, CallCost]:
    """Costs of kernels that torch.compile wrote."""
    if not described:
        return {}
    sources = {(name, source): json.loads(meta) for name, source, meta in session.query(_SOURCES_SQL)}
    costs = {}
    for one in described:
        launch = one.call.triton
        assert launch is not None
        source: Mapping[str, Any] | None = sources.get((launch.kernel, launch.source_hash))
        costs[one.call.call_id] = cost_of_generated(one.arguments, launch, source)
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
    return f"no rule tells the results of {call.name}"
