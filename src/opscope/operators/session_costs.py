"""Filling the cost tables of a Session, and reading them.

A distinct call's cost is known by recorded sizes, arguments, or a compiler's words; what nothing tells keeps
the reason why.

Idempotent: a Session whose costs were filled keeps them, so a saved one means the same everywhere. On a
read-only Session the tables are filled for its connection only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.queries import grouped, sql
from opscope.model.schema import Attribution, table
from opscope.model.session import Session
from opscope.operators.arguments import (
    CallArguments,
    Gradients,
    parse_arguments,
    read_gradients,
    with_kernel_types,
    with_list_members,
)
from opscope.operators.collective_costs import cost_of_collective
from opscope.operators.distinct_calls import AlikeCalls, DistinctCall, collect_calls, collect_launches
from opscope.operators.effects import CallCost, CostEvidence, FlopSource
from opscope.operators.engine_operators import engine_cost
from opscope.operators.generated_kernels import cost_of_generated
from opscope.operators.operator_table import cost_by_rules


class CostedCall(AlikeCalls, frozen=True, kw_only=True):
    cost: CallCost  # of one call


def fill_costs(session: Session) -> None:
    """Fill the cost tables, unless they are filled already."""
    if session.scalar("SELECT EXISTS (FROM call_costs)"):  # every activity belongs to a call
        return
    session.replace_rows("activity_costs", [])
    calls = collect_calls(session)
    matched = _match_early(session, calls)
    launches = collect_launches(session, first_id=len(calls) + len(matched))
    costs = _known_costs(session, [*calls, *launches])
    for call, recorded_id in matched:
        cost = costs[recorded_id]
        costs[call.call_id] = replace(cost, evidence=cost.evidence and CostEvidence.MATCHED)
    every = (*calls, *(call for call, _ in matched), *launches)
    texts = [one.name for one in table("call_costs").columns if one.type == "JSON"]
    rows = [
        row | {name: msgspec.Raw(row[name].encode()) for name in texts if row[name]}
        for call in every
        for row in [msgspec.to_builtins(call) | msgspec.to_builtins(costs[call.call_id])]
    ]
    session.replace_rows("call_costs", rows)


def read_costs(session: Session) -> tuple[CostedCall, ...]:
    """All rows of `call_costs`, most device time first; empty unless `fill_costs` ran."""
    rows = session.records("SELECT * FROM call_costs ORDER BY self_device_ns DESC, call_id")
    return msgspec.convert([row | {"cost": row} for row in rows], tuple[CostedCall, ...])


def _match_early(session: Session, calls: Sequence[DistinctCall]) -> list[tuple[DistinctCall, int]]:
    """Rows for launches from before the window that are like recorded calls, and the ids of these."""
    if not session.scalar("SELECT count(*) FROM device_activities WHERE attribution = 'before_window'"):
        return []
    early = grouped((call_id, rest) for call_id, *rest in session.query(sql(__package__, "early_launches")))
    matched = [
        (
            replace(
                calls[recorded_id],
                call_id=len(calls) + number,
                attribution=Attribution.BEFORE_WINDOW.value,
                calls=rows[0][1],
                self_device_ns=sum(duration_ns for *_, duration_ns in rows),
            ),
            recorded_id,
        )
        for number, (recorded_id, rows) in enumerate(sorted(early.items()))
    ]
    mapped = [
        {"activity_id": activity_id, "call_id": call.call_id}
        for call, recorded_id in matched
        for activity_id, *_ in early[recorded_id]
    ]
    session.insert_rows("activity_costs", mapped)
    return matched


# Namespaces whose operators are torch's own.
_TORCH_NAMESPACES = frozenset(("aten", "prims"))
# Records in which an operator of torch is named, but not what it moved.
_UNDESCRIBED = frozenset(("record_param_comms", "c10d"))
# What a column of the tables holds; counts beyond it come from absurd sizes.
_LARGEST = (1 << 63) - 1

_SOURCES_SQL = """
SELECT n.name, s.hash, s.meta::VARCHAR FROM kernel_sources s JOIN kernel_names n USING (name_id)
WHERE s.meta IS NOT NULL"""


def _known_costs(session: Session, calls: Sequence[DistinctCall]) -> dict[int, CallCost]:
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
        arguments, completed = with_kernel_types(arguments, call.kernel), None
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
