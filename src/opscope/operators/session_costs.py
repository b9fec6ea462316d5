"""Filling the cost tables of a Session, and reading them.

Idempotent: a Session whose costs were filled keeps them, so a saved one means the same everywhere. On a
read-only Session the tables are filled for its connection only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.hardware.devices import DataType
from opscope.model.schema import Attribution
from opscope.model.session import Session
from opscope.operators.before_window import match_before_window
from opscope.operators.call_cost import CallCost, CostEvidence, FlopSource
from opscope.operators.distinct_calls import DistinctCall, collect_calls, collect_launches
from opscope.operators.known_costs import known_costs

COST_TABLES = ("call_costs", "activity_costs")
_DONE = "costs"


class CostedCall(msgspec.Struct, frozen=True):
    """One row of `call_costs`. Arguments are JSON text as recorded."""

    call_id: int  # joins `activity_costs`
    name: str  # operator; of launches of no operator, the activity's name
    overload: str | None
    shapes: str | None
    types: str | None
    strides: str | None
    concrete: str | None
    attribution: str | None  # None for calls of an operator; else that of the launches
    calls: int  # how many calls, or launches of no operator
    self_device_ns: int  # device time of their own activities
    cost: CallCost  # of one call


def fill_costs(session: Session) -> None:
    """Fill the cost tables, unless they are filled already."""
    if _is_filled(session):
        return
    for table in COST_TABLES:
        session.replace_rows(table, [])
    calls = list(collect_calls(session))
    calls += collect_launches(session, before_window=False, first_id=len(calls))
    costs = known_costs(session, calls)
    matched = _match(session, calls, costs)
    calls += matched
    early = collect_launches(session, before_window=True, first_id=len(calls))
    calls += early
    costs |= known_costs(session, early)
    _insert(session, calls, costs)
    if not session.is_read_only:
        session.set_metadata(_DONE, "rules")


def read_costs(session: Session) -> tuple[CostedCall, ...]:
    """All rows of `call_costs`, most device time first; empty unless `fill_costs` ran."""
    rows = session.records("SELECT * FROM call_costs ORDER BY self_device_ns DESC, call_id")
    return tuple(map(_costed, rows))


def _is_filled(session: Session) -> bool:
    # Every activity belongs to a call, so a mark without calls is of a session that lost its tables.
    if session.scalar("SELECT count(*) FROM call_costs"):
        return True
    return session.metadata(_DONE) is not None and not session.scalar(
        "SELECT count(*) FROM device_activities"
    )


def _match(session: Session, calls: Sequence[DistinctCall], costs: dict[int, CallCost]) -> list[DistinctCall]:
    """Rows for launches from before the window that are calls like recorded ones; `costs` gets theirs."""
    by_id = {call.call_id: call for call in calls}
    matched = match_before_window(session)
    numbered = list(enumerate(matched, start=len(calls)))
    pairs = [(activity_id, call_id) for call_id, one in numbered for activity_id in one.activity_ids]
    if not pairs:
        return []
    session.connection.execute(
        "INSERT INTO activity_costs SELECT unnest(?::BIGINT[]), unnest(?::INTEGER[])",
        [list(column) for column in zip(*pairs, strict=True)],
    )
    times = dict(session.query(_TIMES_SQL, [len(calls)]))
    rows = []
    for call_id, one in numbered:
        cost = costs[one.call_id]
        costs[call_id] = replace(cost, evidence=cost.evidence and CostEvidence.MATCHED)
        rows.append(
            replace(
                by_id[one.call_id],
                call_id=call_id,
                attribution=Attribution.BEFORE_WINDOW.value,
                calls=one.calls,
                self_device_ns=times[call_id],
            )
        )
    return rows


_TIMES_SQL = """
SELECT c.call_id, sum(a.duration_ns)::BIGINT
FROM activity_costs c JOIN device_activities a USING (activity_id) WHERE c.call_id >= ? GROUP BY c.call_id"""


def _insert(session: Session, calls: Iterable[DistinctCall], costs: dict[int, CallCost]) -> None:
    session.replace_rows("call_costs", [_row(call, costs[call.call_id]) for call in calls])


def _row(call: DistinctCall, cost: CallCost) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "name": call.name,
        "overload": call.overload,
        "input_shapes": _raw(call.shapes),
        "input_types": _raw(call.types),
        "input_strides": _raw(call.strides),
        "concrete_inputs": _raw(call.concrete),
        "attribution": call.attribution,
        "calls": call.calls,
        "self_device_ns": call.self_device_ns,
        "flop_count": cost.flop_count,
        "flop_source": cost.flop_source and cost.flop_source.value,
        "read_bytes": cost.read_bytes,
        "written_bytes": cost.written_bytes,
        "data_type": cost.data_type and cost.data_type.value,
        "evidence": cost.evidence and cost.evidence.value,
        "reason": cost.reason,
    }


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _costed(row: dict[str, Any]) -> CostedCall:
    return CostedCall(
        call_id=row["call_id"],
        name=row["name"],
        overload=row["overload"],
        shapes=row["input_shapes"],
        types=row["input_types"],
        strides=row["input_strides"],
        concrete=row["concrete_inputs"],
        attribution=row["attribution"],
        calls=row["calls"],
        self_device_ns=row["self_device_ns"],
        cost=CallCost(
            flop_count=row["flop_count"],
            flop_source=None if row["flop_source"] is None else FlopSource(row["flop_source"]),
            read_bytes=row["read_bytes"],
            written_bytes=row["written_bytes"],
            data_type=None if row["data_type"] is None else DataType(row["data_type"]),
            evidence=None if row["evidence"] is None else CostEvidence(row["evidence"]),
            reason=row["reason"],
        ),
    )
