"""Device time by annotation: steps of a serving engine by phase, or any ranges that an expression names.

An activity belongs to the range in which it was launched, on the thread that launched it; of several to the
innermost, so that groups share the time out and never count it twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np

from opscope.errors import InputError
from opscope.model.queries import sql
from opscope.model.schema import ReplayEvidence, ReplaySource
from opscope.model.session import Session, registered
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.serving import ServingPhase, engine_of, serving_step

_BY_RANGE = "range:"
# One launch of these for each layer; others prepare or finish what they do.
_ATTENTION = frozenset(
    (
        "attention", "attention_flash", "attention_mem_efficient", "attention_cudnn", "attention_paged",
        "attention_sage", "attention_linear",
    )
)  # fmt: skip


class RangeTotal(msgspec.Struct, frozen=True):
    """All ranges of one group."""

    name: str  # phase of an engine's steps, or what the expression found in the names
    calls: int  # ranges
    device_ns: int  # of what was launched in them
    host_ns: int  # of the ranges; what nests counts twice
    device_fraction: float  # of all device time
    kernels: int
    engine: str | None = None  # of an engine's steps; else None, like what follows
    phase: ServingPhase | None = None
    requests: int | None = None  # of all steps together
    tokens: int | None = None  # read and generated; None where the annotations do not count them
    layers: int | None = None  # attention launches in each range; None where their number differs or is zero

    @property
    def device_ns_per_token(self) -> float | None:
        return self.device_ns / self.tokens if self.tokens else None

    @property
    def device_ns_per_call(self) -> float:
        return self.device_ns / self.calls

    @property
    def device_ns_per_layer(self) -> float | None:
        return None if not self.layers else self.device_ns / self.calls / self.layers


def serving_engine(session: Session) -> str | None:
    named = "SELECT DISTINCT name FROM {} WHERE name IS NOT NULL ORDER BY name"
    annotations, operators = (
        [row[0] for row in session.query(named.format(table))] for table in ("annotations", "operators")
    )
    return engine_of(annotations, operators)


def range_totals(session: Session, by: str | None, device_time_ns: int) -> tuple[RangeTotal, ...]:
    """Groups of ranges, most device time first; empty where no annotation is of an engine or fits.

    `range:REGEX` is searched for in the names of annotations: they are grouped by what it finds, by its first
    group if it has one. None stands for the steps of a serving engine, by phase.
    """
    pattern, hint = None, "Write --by range:REGEX"
    if by is not None and not by.startswith(_BY_RANGE):
        raise InputError(f"'{by}' names no grouping", hint=hint)
    if by is not None:
        text = by.removeprefix(_BY_RANGE)
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InputError(f"'{text}' is not a regular expression ({error})", hint=hint) from error
    rows = session.query(
        "SELECT annotation_id, name FROM annotations WHERE side = 'host' AND duration_ns >= 0 "
        "ORDER BY annotation_id"
    )
    groups: dict[str, int] = {}
    names: dict[int, str] = {}
    wanted = []
    for annotation_id, name in rows:
        if pattern is None:
            step = serving_step(name)
            group = None if step is None else step.phase.value
        else:
            match = pattern.search(name)
            found = () if match is None else (*match.groups(), match.group())
            group = next((one for one in found if one is not None), None)
        if group is not None:
            names[annotation_id] = name
            wanted.append((annotation_id, groups.setdefault(group, len(groups))))
    if not wanted:
        return ()
    kernels = session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'kernel'")
    attention = [name_id for name_id, name in kernels if decode(name).family in _ATTENTION]
    ids = np.array(wanted, dtype=np.int64)
    members: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with registered(session.connection, wanted_ranges={"annotation_id": ids[:, 0], "group_id": ids[:, 1]}):
        for row in session.records(sql(__package__, "ranges"), [attention]):
            members[row["group_id"]].append(row)
    totals = [
        _total(name, members[number], names, device_time_ns, is_engine=by is None)
        for name, number in groups.items()
    ]
    return tuple(sorted(totals, key=lambda one: (-one.device_ns, one.name)))


def _total(
    name: str, rows: list[dict[str, Any]], names: dict[int, str], device_time_ns: int, *, is_engine: bool
) -> RangeTotal:
    device_ns = sum(row["device_ns"] for row in rows)
    steps = [step for row in rows if (step := serving_step(names[row["annotation_id"]])) is not None]
    is_whole = len(steps) == len(rows)  # an expression may name other ranges too
    tokens = [step.tokens for step in steps]
    layers = {row["attention_launches"] for row in rows if row["kernels"]}
    return RangeTotal(
        name,
        len(rows),
        device_ns,
        sum(row["host_ns"] for row in rows),
        device_ns / device_time_ns if device_time_ns else 0.0,
        sum(row["kernels"] for row in rows),
        steps[0].engine if is_whole else None,
        steps[0].phase if is_whole and is_engine else None,
        sum(step.requests for step in steps) if is_whole else None,
        sum(one or 0 for one in tokens) if is_whole and None not in tokens else None,
        layers.pop() or None if len(layers) == 1 else None,
    )


class GraphTotal(msgspec.Struct, frozen=True):
    """All recorded replays of one CUDA graph that are known alike."""

    graph: int  # its number, from 1 in the order of first replays
    replays: int  # launches of the graph
    activities: int  # kernels, copies and sets of each
    device_ns: int  # of all replays
    source: ReplaySource | None  # what its operators are known from; None if they are not
    evidence: ReplayEvidence | None  # how replays were matched; None if they were not
    file: str | None  # trace that tells them
    reason: str | None  # why its operators are unknown, or what of them is
