"""The distinct calls of a Session: whatever launched device work, alike calls as one, each activity in one.

An operator's calls are alike if everything recorded of them is; what no operator's arguments describe
(copies, kernels outside operators, CUDA graphs) is grouped by launch. The work is done in SQL: no call is a
Python object, only a distinct one. Activities of one call stay together, so its cost is that of them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.serving import serving_step


class TritonLaunch(msgspec.Struct, frozen=True):
    """What torch.compile wrote on a launch; `num_gb` counts 1e9 bytes."""

    kernel: str
    source_hash: str | None
    num_gb: float | None
    flop: float | None


class Collective(msgspec.Struct, frozen=True):
    name: str
    data_type: str | None
    in_element_count: int | None
    out_element_count: int | None
    group_size: int | None


# What the tables call the arguments.
_COLUMNS = {
    "shapes": "input_shapes",
    "types": "input_types",
    "strides": "input_strides",
    "concrete": "concrete_inputs",
}


class AlikeCalls(msgspec.Struct, frozen=True, rename=_COLUMNS):
    """Calls that are alike. Arguments are JSON text as recorded."""

    call_id: int  # its row of `call_costs`, which `activity_costs` joins
    name: str  # operator; of launches of no operator, the activity's name
    overload: str | None = None
    shapes: str | None = None
    types: str | None = None
    strides: str | None = None
    concrete: str | None = None
    attribution: str | None = None  # None for calls of an operator; else that of the launches
    calls: int = 0
    self_device_ns: int = 0  # device time of all their own activities


class DistinctCall(AlikeCalls, frozen=True):
    """The same with what costs follow from besides."""

    # Where a call launched copies and sets alone: what these read from device memory
    read_bytes: int | None = None
    written_bytes: int | None = None  # likewise what they wrote
    # Name of a kernel, where lists of tensors are among the arguments; of an engine's attention
    kernel: str | None = None
    block_count: int | None = None  # blocks of all kernels of a call, likewise
    triton: TritonLaunch | None = None
    collective: Collective | None = None
    example_id: int | None = None  # one of the operators; None of launches of no operator
    engine_step: str | None = None  # annotation of the serving engine's step that calls of attention were in


# Copies between host and host touch no device memory; between peers, one device's is read, another's written.
_DIRECTIONS = {
    "host_to_device": (False, True),
    "device_to_host": (True, False),
    "device_to_device": (True, True),
    "peer_to_peer": (True, True),
    "host_to_host": (False, False),
}
_ORDER = (
    "self_device_ns DESC, name, overload, input_shapes, input_types, input_strides, concrete_inputs, "
    "read_bytes, written_bytes, kernel, block_count, triton, collective, engine_step"
)
_LAUNCH_ORDER = "self_device_ns DESC, name, attribution, read_bytes, written_bytes, collective"
_MAP_CALLS = """
INSERT INTO activity_costs
SELECT a.activity_id, m.call_id
FROM device_activities a
JOIN (SELECT unnest(member_ids) AS operator_id, call_id FROM distinct_calls) m USING (operator_id)
WHERE a.attribution <> 'graph'
    AND a.activity_id NOT IN (SELECT activity_id FROM collectives WHERE activity_id IS NOT NULL)"""
_MAP_LAUNCHES = "INSERT INTO activity_costs SELECT unnest(member_ids), call_id FROM distinct_calls"


def collect_calls(session: Session) -> tuple[DistinctCall, ...]:
    """Distinct calls of operators, most device time first; their activities go into `activity_costs`."""
    # Table `transfers`: of each name of a copy or set, whether it reads and writes device memory.
    rows = []
    for name_id, name in session.query("SELECT name_id, name FROM kernel_names WHERE kind <> 'kernel'"):
        decoded = decode(name)
        of_copy = _DIRECTIONS.get(decoded.copy_direction or "", (None, None))  # its name may not tell
        rows.append((name_id, *((False, True) if decoded.family == "memset" else of_copy)))
    _write(session, "transfers", "name_id INTEGER, reads BOOLEAN, writes BOOLEAN", rows)
    # Table `engine_steps`: the annotations of serving engines' steps; of nested ones the outer.
    annotations = session.query(
        "SELECT trace_id, thread_id, start_ns, start_ns + duration_ns, name FROM annotations "
        "WHERE side = 'host' AND thread_id IS NOT NULL "
        "ORDER BY trace_id, thread_id, start_ns, duration_ns DESC"
    )
    steps: list[tuple[Any, ...]] = []
    for row in annotations:
        is_nested = bool(steps) and steps[-1][:2] == row[:2] and row[2] < steps[-1][3]
        if not is_nested and serving_step(row[4]) is not None:
            steps.append(row)
    columns = "trace_id INTEGER, thread_id INTEGER, start_ns BIGINT, end_ns BIGINT, name VARCHAR"
    _write(session, "engine_steps", columns, steps)
    return _collect(session, "operator_calls", _ORDER, _MAP_CALLS, first_id=0)


def collect_launches(session: Session, *, first_id: int) -> tuple[DistinctCall, ...]:
    """Kinds of launches that are in no call, most device time first; they go into `activity_costs`."""
    return _collect(session, "other_launches", _LAUNCH_ORDER, _MAP_LAUNCHES, first_id=first_id)


def _collect(
    session: Session, query: str, order: str, mapping: str, *, first_id: int
) -> tuple[DistinctCall, ...]:
    # Numbered without their members: the engine sorts long lists badly where memory is short.
    session.execute(
        "CREATE OR REPLACE TEMP TABLE distinct_calls AS "
        f"WITH found AS MATERIALIZED ({sql(__package__, query)}) "
        f"SELECT {first_id} + number - 1 AS call_id, found.* FROM found "
        "JOIN (SELECT member_ids[1] AS member_id, "
        f"row_number() OVER (ORDER BY {order}) AS number FROM found) ON member_id = member_ids[1]"
    )
    session.execute(mapping)
    records = session.records("SELECT * EXCLUDE (member_ids) FROM distinct_calls ORDER BY call_id")
    return msgspec.convert(records, tuple[DistinctCall, ...])


def _write(session: Session, name: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
    table = f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT unnest(?::STRUCT({columns})[], recursive := true)"
    session.execute(table, [[dict(zip(re.findall(r"\w+(?= )", columns), row, strict=True)) for row in rows]])
