"""Filling the cost tables of a Session, and reading them.

Idempotent: a Session whose costs were filled keeps them, so a saved one means the same everywhere. On a
read-only Session the tables are filled for its connection only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.model.queries import sql
from opscope.model.schema import Attribution
from opscope.model.session import Session
from opscope.operators.call_cost import CallCost, CostEvidence
from opscope.operators.distinct_calls import (
    ARGUMENT_COLUMNS,
    AlikeCalls,
    DistinctCall,
    collect_calls,
    collect_launches,
)
from opscope.operators.known_costs import known_costs

COST_TABLES = ("call_costs", "activity_costs")
_DONE = "costs"


class CostedCall(AlikeCalls, frozen=True, kw_only=True):
    """One row of `call_costs`."""

    cost: CallCost  # of one call


def fill_costs(session: Session) -> None:
    """Fill the cost tables, unless they are filled already."""
    if _is_filled(session):
        return
    for table in COST_TABLES:
        session.replace_rows(table, [])
    calls = collect_calls(session)
    matched = _match_early(session, calls)
    launches = collect_launches(session, first_id=len(calls) + len(matched))
    costs = known_costs(session, [*calls, *launches])
    for call, recorded_id in matched:
        cost = costs[recorded_id]
        costs[call.call_id] = replace(cost, evidence=cost.evidence and CostEvidence.MATCHED)
    every = (*calls, *(call for call, _ in matched), *launches)
    session.replace_rows("call_costs", [_row(call, costs[call.call_id]) for call in every])
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


def _match_early(session: Session, calls: Sequence[DistinctCall]) -> list[tuple[DistinctCall, int]]:
    """Rows for launches from before the window that are like recorded calls, and the ids of these.

    Their activities go into `activity_costs`.
    """
    if not session.scalar("SELECT count(*) FROM device_activities WHERE attribution = 'before_window'"):
        return []
    session.connection.execute(f"CREATE OR REPLACE TEMP TABLE early AS {sql(__package__, 'early_launches')}")
    rows = session.query(_EARLY_SQL)
    matched = [
        (
            replace(
                calls[recorded_id],
                call_id=len(calls) + number,
                attribution=Attribution.BEFORE_WINDOW.value,
                calls=count,
                self_device_ns=device_ns,
            ),
            recorded_id,
        )
        for number, (recorded_id, count, device_ns) in enumerate(rows)
    ]
    for call, recorded_id in matched:
        session.connection.execute(
            "INSERT INTO activity_costs SELECT activity_id, ? FROM early WHERE call_id = ?",
            [call.call_id, recorded_id],
        )
    session.connection.execute("DROP TABLE early")
    return matched


_EARLY_SQL = """
SELECT call_id, any_value(calls), sum(duration_ns)::BIGINT
FROM early JOIN device_activities USING (activity_id)
GROUP BY call_id ORDER BY call_id"""


def _row(call: DistinctCall, cost: CallCost) -> dict[str, Any]:
    return {
        **{name: getattr(call, name) for name in _PLAIN},
        **{column: _raw(getattr(call, name)) for name, column in ARGUMENT_COLUMNS.items()},
        **msgspec.to_builtins(cost),
    }


_PLAIN = ("call_id", "name", "overload", "attribution", "calls", "self_device_ns")


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _costed(row: dict[str, Any]) -> CostedCall:
    arguments = {name: row[column] for name, column in ARGUMENT_COLUMNS.items()}
    cost = msgspec.convert(row, CallCost)
    return CostedCall(**{name: row[name] for name in _PLAIN}, **arguments, cost=cost)
