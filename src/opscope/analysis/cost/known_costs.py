"""The cost of each distinct call, by whichever way tells it: recorded sizes, arguments, a compiler's words.

Packaged rules and a replay on torch count alike; the choice between them is one of time. What nothing tells
keeps the reason why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opscope.analysis.cost.arguments import CallArguments, parse_arguments
from opscope.analysis.cost.assembly import assemble_cost
from opscope.analysis.cost.call_cost import CallCost, CostEvidence, FlopSource
from opscope.analysis.cost.collective_costs import cost_of_collective
from opscope.analysis.cost.distinct_calls import DistinctCall
from opscope.analysis.cost.generated_kernels import cost_of_generated
from opscope.analysis.cost.recorded_stack import without_stack
from opscope.analysis.cost.replayable import has_torch, obstacle
from opscope.analysis.cost.rules import cost_by_rules
from opscope.analysis.cost.tensor_lists import (
    Gradients,
    read_gradients,
    with_list_members,
    with_list_types,
)
from opscope.model.session import Session
from opscope.text_enum import TextEnum

__all__ = ["REPLAY_SHARE", "ReplayChoice", "known_costs"]

# Importing torch takes seconds: less than this share of the device time is not worth it.
REPLAY_SHARE = 0.01
# What a column of the tables holds; counts beyond it come from absurd sizes.
_LARGEST = (1 << 63) - 1

_SOURCES_SQL = """
SELECT n.name, s.hash, s.meta::VARCHAR FROM kernel_sources s JOIN kernel_names n USING (name_id)
WHERE s.meta IS NOT NULL"""


class ReplayChoice(TextEnum):
    """Whether calls run again on tensors without data. A closed set."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _CHOICE_MEANINGS[self]


_CHOICE_MEANINGS = {
    ReplayChoice.AUTO: (
        f"where rules leave more than {REPLAY_SHARE:.0%} of the device time unknown, and torch is installed"
    ),
    ReplayChoice.ALWAYS: "first, and rules for the rest",
    ReplayChoice.NEVER: "not at all: torch is not needed",
}


@dataclass(frozen=True)
class _Described:
    """A distinct call that its arguments must tell; `is_recovered` if lists among them were inferred."""

    call: DistinctCall
    arguments: CallArguments
    is_recovered: bool = False


def known_costs(session: Session, calls: Sequence[DistinctCall], choice: ReplayChoice) -> dict[int, CallCost]:
    """Costs by call_id.

    Args:
        session: Which holds the gradients and generated sources that some arguments are completed from.
        calls: Any distinct calls of it.
        choice: Whether to replay.
    """
    costs: dict[int, CallCost] = {}
    told: list[DistinctCall] = []
    for call in calls:
        cost = _told_without_arguments(call)
        if cost is None:
            told.append(call)
        else:
            costs[call.call_id] = cost
    described = _describe(session, told)
    costs |= _generated(session, [one for one in described if one.call.triton is not None])
    device_ns = sum(call.self_device_ns for call in calls)
    costs |= _by_arguments([one for one in described if one.call.triton is None], choice, device_ns)
    return {call_id: _storable(cost) for call_id, cost in costs.items()}


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
    return [_with_members(one, gradients) for one in described]


def _with_members(one: _Described, gradients: Gradients) -> _Described:
    if not one.arguments.has_unrecorded_list:
        return one
    completed = with_list_members(one.arguments, one.call.kernel, one.call.block_count, gradients)
    return one if completed is None else _Described(one.call, completed, is_recovered=True)


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


def _by_arguments(
    described: Sequence[_Described], choice: ReplayChoice, device_ns: int
) -> dict[int, CallCost]:
    """Costs of operators' calls by rules and by replay, as chosen; the second fills what the first leaves."""
    if choice is ReplayChoice.ALWAYS and has_torch():
        costs = _by_replay(described)
        rest = [one for one in described if not _is_known(costs[one.call.call_id])]
        return costs | _filled(costs, _by_rules(rest))
    costs = _by_rules(described)
    # Where the results are known, what is missing is a formula; without values, what rules miss too.
    rest = [
        one
        for one in described
        if costs[one.call.call_id].min_bytes is None
        and obstacle(one.arguments) is None
        and one.arguments.values_recorded
    ]
    if choice is ReplayChoice.NEVER or not _is_worth_replay(rest, device_ns):
        return costs
    return costs | _filled(costs, _by_replay(rest))


def _is_worth_replay(described: Sequence[_Described], device_ns: int) -> bool:
    if not described or not has_torch():
        return False
    share = sum(one.call.self_device_ns for one in described) / device_ns if device_ns else 0.0
    return share > REPLAY_SHARE or "torch" in sys.modules


def _by_rules(described: Sequence[_Described]) -> dict[int, CallCost]:
    return {
        one.call.call_id: _graded(
            one, cost_by_rules(one.arguments) or CallCost(reason=_unruled(one.arguments))
        )
        for one in described
    }


def _by_replay(described: Sequence[_Described]) -> dict[int, CallCost]:
    try:
        from opscope.analysis.cost.replay import replay  # noqa: PLC0415 - torch takes seconds to import
    except (ImportError, OSError) as error:  # an installation that does not load
        reason = f"torch cannot be imported: {error}".splitlines()[0]
        return {one.call.call_id: CallCost(reason=reason) for one in described}
    replayed = replay([one.arguments for one in described])
    return {
        one.call.call_id: CallCost(reason=outcome.reason)
        if outcome.effects is None
        else _graded(one, assemble_cost(outcome.effects, CostEvidence.REPLAYED))
        for one, outcome in zip(described, replayed, strict=True)
    }


def _unruled(arguments: CallArguments) -> str:
    return obstacle(arguments) or f"no rule tells the results of {arguments.name}"


def _graded(one: _Described, cost: CallCost) -> CallCost:
    """The cost with the weaker evidence of completed arguments."""
    if one.is_recovered and cost.evidence is not None:
        return replace(cost, evidence=CostEvidence.GRADIENTS)
    return cost


def _filled(first: Mapping[int, CallCost], second: Mapping[int, CallCost]) -> dict[int, CallCost]:
    """What the first way knows, completed by the second."""
    return {call_id: _completed(first[call_id], cost) for call_id, cost in second.items()}


def _completed(first: CallCost, second: CallCost) -> CallCost:
    has_bytes, has_flops = first.min_bytes is not None, first.flop_count is not None
    moved, counted = (first if has_bytes else second), (first if has_flops else second)
    is_known = moved.min_bytes is not None and counted.flop_count is not None
    return CallCost(
        counted.flop_count,
        counted.flop_source,
        moved.read_bytes,
        moved.written_bytes,
        counted.data_type or moved.data_type,
        moved.evidence,
        None if is_known else second.reason or first.reason,
    )


def _is_known(cost: CallCost) -> bool:
    return cost.min_bytes is not None and cost.flop_count is not None


def _storable(cost: CallCost) -> CallCost:
    counts = (cost.flop_count, cost.read_bytes, cost.written_bytes)
    if any(count is not None and not 0 <= count <= _LARGEST for count in counts):
        return CallCost(reason="its recorded sizes are absurd")
    return cost
