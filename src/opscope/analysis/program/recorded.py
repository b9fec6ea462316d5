"""Columns of a Session that charging works on: operators, activities, links and launch points, as arrays.

Operators stand in the order of their ids, which is preorder, so that an operator is its position; every
reference to one is such a position, -1 for none. Threads and ids are unique over all traces of a Session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opscope.analysis.queries import sql
from opscope.attribution.nesting import Forest, Int64, nest
from opscope.model.session import Session

__all__ = [
    "NONE",
    "Activities",
    "Bools",
    "Operators",
    "call_forest",
    "columns",
    "inherit",
    "read_activities",
    "read_operators",
]

NONE = np.int64(-1)
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Operators:
    """All operators of a Session in preorder.

    Attributes:
        first_id: operator_id of position 0.
        trace: Trace of each.
        thread: Its thread.
        start_ns: Its start.
        end_ns: Its end.
        parent: Position of its parent.
        depth: 0 without a parent.
        engine: Position of the innermost operator, itself included, that autograd's engine ran.
        forward: Position of the forward operator it differentiates, if it is a backward one.
    """

    first_id: int
    trace: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    depth: Int64
    engine: Int64
    forward: Int64

    def __len__(self) -> int:
        return len(self.thread)


@dataclass(frozen=True)
class Activities:
    """All device activities of a Session in the order of their ids.

    Attributes:
        trace: Trace of each.
        operator: Position of its operator.
        call_thread: Thread of the call that launched it.
        call_start_ns: Start of that call.
        duration_ns: Its duration.
        is_kernel: Whether it is a kernel.
    """

    trace: Int64
    operator: Int64
    call_thread: Int64
    call_start_ns: Int64
    duration_ns: Int64
    is_kernel: Bools


def columns(session: Session, query: str, *, order_by: str) -> dict[str, npt.NDArray[Any]]:
    """What a query selects, as arrays in the order of one of its columns. The query selects no NULL."""
    found: dict[str, npt.NDArray[Any]] = session.connection.execute(query).fetchnumpy()
    if np.any(np.diff(found[order_by]) < 0):
        order = np.argsort(found[order_by], kind="stable")
        found = {name: column[order] for name, column in found.items()}
    return found


def read_operators(session: Session) -> Operators:
    """The operators, with where each stands in forward and backward."""
    rows = columns(session, sql("program/operators"), order_by="operator_id")
    links = columns(session, sql("program/links"), order_by="backward_id")
    first_id = int(rows["operator_id"][0]) if len(rows["operator_id"]) else 0
    parent = np.where(rows["parent_id"] >= 0, rows["parent_id"] - first_id, NONE)
    forward = np.full(len(parent), NONE)
    forward[links["backward_id"] - first_id] = links["forward_id"] - first_id
    by_engine = np.where(rows["is_backward"] | (forward >= 0), np.arange(len(parent)), NONE)
    return Operators(
        first_id,
        rows["trace_id"],
        rows["thread"],
        rows["start_ns"],
        rows["start_ns"] + rows["duration_ns"],
        parent,
        rows["depth"],
        inherit(by_engine, parent, rows["depth"]),
        forward,
    )


def read_activities(session: Session, first_operator_id: int) -> Activities:
    """The activities, with the point each was launched at."""
    rows = columns(session, sql("program/activities"), order_by="activity_id")
    operator = np.where(rows["operator_id"] >= 0, rows["operator_id"] - first_operator_id, NONE)
    return Activities(
        rows["trace_id"],
        operator,
        rows["call_thread"],
        rows["call_start_ns"],
        rows["duration_ns"],
        rows["is_kernel"],
    )


def call_forest(thread: Int64, start_ns: Int64, end_ns: Int64, sequence: Int64) -> Forest:
    """Call trees of intervals; `sequence` orders equal ones, the outer one first."""
    # Clocks that tick in microseconds let a child end up to one tick after its parent.
    ticks_us = not np.any(start_ns % 1000) and not np.any(end_ns % 1000)
    return nest(thread, start_ns, end_ns - start_ns, sequence, tolerance_ns=1000 if ticks_us else 0)


def inherit(own: Int64, parent: Int64, depth: Int64) -> Int64:
    """For each position of a forest the value of the innermost one around it, itself included, that has one.

    Args:
        own: Values; -1 for none.
        parent: Position of the parent; -1 for a root.
        depth: 0 for a root.
    """
    found: Int64 = own.copy()
    if not len(found) or not np.any(own >= 0):
        return found
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(bounds) - 1):
        here = by_depth[bounds[level] : bounds[level + 1]]
        lacking = here[found[here] < 0]
        found[lacking] = found[parent[lacking]]
    return found
