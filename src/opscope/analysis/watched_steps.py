"""What two watched steps showed of the program, found again in the steps that were recorded.

Operators of the watched step are a part of those of a recorded one, in the same order: without those that
only call others, and without what is called below them. Where too few are found again nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.arrays import NONE, Spans, merge, overlap
from opscope.analysis.program.places import inherit, read_operators
from opscope.analysis.step_model import as_extents
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Int64
from opscope.model.files import UNREADABLE_JSON
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.model.sidecar import PythonWork, RecordedDataflow

# Of a watched step's operators, which may have gone through more of something; of the device time of all
# of a recorded one.
_LEAST_FOUND, _LEAST_EXPLAINED = 0.8, 0.95
# Where a step calls what the watched one did not, or the other way round: at most so many operators at one
# place, until so many in a row are alike again.
_FARTHEST, _ALIKE = 256, 4

Stretches = Sequence[tuple[int, int]]


class _Sidecar(msgspec.Struct):
    dataflow: RecordedDataflow | None = None


class FoundOperators(NamedTuple):
    """Some of the watched operators, in all recorded steps."""

    ranges: list[tuple[int, int]]  # of each its id, and the last one of those that it calls
    device_ns: int
    host_ns: int  # as recorded, from the first to the last of each stretch
    spans: dict[int, Spans]  # where that is, by thread

    @property
    def operator_ids(self) -> list[int]:
        """With all that they call, which may launch for them."""
        return [one for first, last in self.ranges for one in range(first, last + 1)]


class Dataflow(NamedTuple):
    """`rows` are those of each recorded step, by the watched operator's number; None where not found."""

    recorded: RecordedDataflow
    steps: list[list[dict[str, Any] | None]]  # those that do what the watched one did
    device_ns: int  # of all operators in these steps

    def found(self, stretches: Stretches) -> FoundOperators:
        """The operators in these stretches of the watched step."""
        parts = [[row for row in step[a:b] if row] for step in self.steps for a, b in stretches]
        rows = [row for part in parts for row in part]
        extents = [(part[0]["thread_id"], part[0]["start_ns"], part[-1]["end_ns"]) for part in parts if part]
        return FoundOperators(
            [(row["operator_id"], row["last_descendant_id"]) for row in rows],
            sum(row["total_device_ns"] for row in rows),
            sum(end_ns - start_ns for _, start_ns, end_ns in extents),
            as_extents(extents),
        )

    def line_of(self, operator_ids: Sequence[int]) -> str | None:
        """The line of the program that calls most of these operators."""
        found = {
            operator_id: one.line
            for one in self.recorded.lines
            for begin, end in one.operators
            for step in self.steps
            for row in step[begin:end]
            if row
            for operator_id in range(row["operator_id"], row["last_descendant_id"] + 1)
        }
        (line, count), *_ = Counter(map(found.get, operator_ids)).most_common(1) or [(None, 0)]
        return line if 2 * count > len(operator_ids) else None

    def python_until(self, start_ns: int, end_ns: int) -> PythonWork | None:
        """Where Python ran longest of what operators that begin within a time waited for."""
        found = [
            one
            for one in self.recorded.python
            for step in self.steps
            for row in step[one.operator : one.operator + 1]
            if row and start_ns < row["start_ns"] <= end_ns
        ]
        return max(found, key=lambda one: one.duration_ns, default=None)

    def python_before(self, stretches: Stretches) -> tuple[int, dict[int, Spans]]:
        """The time between the operator before each of these stretches and its first one, and where it is."""
        ends = [(step[first - 1], step[first]) for step in self.steps for first, _ in stretches if first]
        extents = [
            (row["thread_id"], before["end_ns"], row["start_ns"])
            for before, row in ends
            if before and row and before["thread_id"] == row["thread_id"]
        ]
        return sum(end_ns - start_ns for _, start_ns, end_ns in extents), as_extents(extents)


UNWATCHED = Dataflow(RecordedDataflow(()), [], 0)


def has_unseen(session: Session, trace_id: int) -> bool:
    """Whether kernels ran that no operator launches: they may write to memory, and nobody has seen it."""
    return bool(session.scalar(_UNSEEN_SQL, [trace_id]))


def dataflow(session: Session, trace_id: int, left_out: Sequence[Sequence[int | None]]) -> Dataflow:
    """What was watched before a trace was recorded, in the steps recorded; in none if these are others."""
    try:
        kept = msgspec.json.decode(session.metadata(f"sidecar:{trace_id}") or "{}", type=_Sidecar)
    except UNREADABLE_JSON:  # a saved session may be a stranger's
        return UNWATCHED
    if (recorded := kept.dataflow) is None:
        return UNWATCHED
    names = [
        (one.thread_id, [one.names[int(number)] for number in one.order.split()]) for one in recorded.threads
    ]
    steps, all_ns = [], 0
    by_step = grouped((row["step"], row) for row in session.records(_OPERATORS_SQL, [trace_id, left_out]))
    for rows in by_step.values():
        of_threads = grouped((row["native_thread"], row) for row in rows)
        step = [row for thread, wanted in names for row in _aligned(wanted, of_threads.get(thread, []))]
        is_found = sum(row is not None for row in step) >= _LEAST_FOUND * len(step)
        step_ns = sum(row["total_device_ns"] for row in rows if row["is_outermost"])
        found_ns = sum(row["total_device_ns"] for row in step if row)
        # A step that does more, an epoch's first one, is another.
        if is_found and found_ns >= _LEAST_EXPLAINED * step_ns:
            steps.append(step)
            all_ns += step_ns
    is_typical = 2 * len(steps) > len(by_step)
    return Dataflow(recorded, steps if is_typical else [], all_ns if is_typical else 0)


def _aligned(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """For each name the row that stands for it; in place or not, an operator is the same."""
    wanted = [_stem(name) for name in names]
    known, until_ns = set(wanted), 0
    there = []
    for row in rows:
        if row["start_ns"] >= until_ns and _stem(row["name"]) in known:
            there.append(row)
            until_ns = row["end_ns"]
    seen = [_stem(row["name"]) for row in there]
    found: list[dict[str, Any] | None] = [None] * len(names)
    at = of = 0
    while at < len(wanted) and of < len(seen):
        if wanted[at] == seen[of]:
            found[at] = there[of]
            at, of = at + 1, of + 1
            continue
        apart = (
            (skipped, both - skipped)
            for both in range(1, _FARTHEST)
            for skipped in range(both + 1)
            if (ahead := wanted[at + skipped : at + skipped + _ALIKE])
            and ahead == seen[of + both - skipped : of + both - skipped + _ALIKE]
        )
        one, other = next(apart, (len(wanted), 0))
        at, of = at + one, of + other
    return found


def _stem(name: str) -> str:
    return name.removesuffix("_impl_").replace("::_", "::").rstrip("_")


_UNSEEN_SQL = """
SELECT count(*) FROM device_activities
WHERE trace_id = $1 AND step IS NOT NULL AND kind = 'kernel' AND (operator_id IS NULL OR graph_id > 0)"""

# The operators of each step by thread, each before those that it calls.
_OPERATORS_SQL = """
SELECT operator_id, last_descendant_id, thread_id, try_cast(native_thread AS BIGINT) AS native_thread, step,
    operators.name, start_ns, start_ns + duration_ns AS end_ns, total_device_ns,
    parent_id IS NULL AS is_outermost
FROM operators JOIN threads USING (thread_id, trace_id)
WHERE trace_id = $1 AND step IS NOT NULL AND NOT list_contains($2::BIGINT[][], [trace_id, step])
ORDER BY step, thread_id, start_ns, duration_ns DESC, operator_id"""


# Lines of the program that the host's time goes to. An operator's time begins where the one before it on its
# thread ended, and belongs to the line that called it; in the backward pass, to the line of the operator that
# it differentiates. A thread that waits for those of the backward pass has no time of its own.
_LONGEST, _LEAST = 5, 0.1  # lines, and of the host's time, to be named


class HostLine(msgspec.Struct, frozen=True):
    """A line of the program with all that it calls, in a step."""

    line: str  # `file:line function`
    caller: int  # position of the line that leads to it; -1 for none
    times: int  # that loops around it come to it
    operators: int  # called there, without those of the backward pass
    fraction: float  # of the host's time as recorded, the backward pass of these operators included


def host_lines(session: Session, watched: Dataflow) -> tuple[HostLine, ...]:
    """Every line from which operators are called, each after the one that leads to it."""
    lines = watched.recorded.lines
    # A sidecar may be a stranger's.
    callers = [one.caller if one.caller < place else -1 for place, one in enumerate(lines)]
    own_ns = _own_times(session, watched)
    whole_ns = max(int(own_ns.sum()), 1)
    counts = [sum(end - begin for begin, end in one.operators) for one in lines]
    for place in range(len(lines) - 1, -1, -1):
        if (caller := callers[place]) >= 0:
            own_ns[caller] += own_ns[place]
            counts[caller] += counts[place]
    return tuple(
        HostLine(one.line, caller, one.times, count, ns / whole_ns)
        for one, caller, count, ns in zip(lines, callers, counts, own_ns.tolist(), strict=False)
    )


def busiest_lines(lines: Sequence[HostLine]) -> list[HostLine]:
    """Of the longest lines those that lead to no other of these, the longest first."""
    tree = [one for one in as_tree(lines, _LONGEST) if one[1].fraction >= _LEAST]
    depths = [*(depth for depth, _ in tree[1:]), 0]
    leaves = [one for (depth, one), below in zip(tree, depths, strict=False) if below <= depth]
    return sorted(leaves, key=lambda one: -one.fraction)


def as_tree(lines: Sequence[HostLine], most: int | None) -> list[tuple[int, HostLine]]:
    """The longest lines that do more than lead to one other, each after those that lead to it: how many."""
    below = grouped((one.caller, place) for place, one in enumerate(lines))
    # Nearly all of these lines' time is that of one below them.
    leading = {
        place
        for place, one in enumerate(lines)
        if any(lines[other].fraction >= 0.9 * one.fraction for other in below[place])
    }
    longest = sorted(set(range(len(lines))) - leading, key=lambda place: -lines[place].fraction)[:most]
    found, pending = [], [(0, -1)]
    while pending:
        depth, place = pending.pop()
        if place in longest:
            found.append((depth, lines[place]))
        inside = sorted(below[place], key=lambda one: lines[one].fraction)
        pending += [(depth + (place in longest), one) for one in inside]
    return found


def _own_times(session: Session, watched: Dataflow) -> Int64:
    """Host time of each line in all steps, without the lines below it; last, of what has no line."""
    lines = watched.recorded.lines
    line_of = {
        number: place
        for place, one in enumerate(lines)
        for begin, end in one.operators
        for number in range(begin, min(end, len(watched.steps[0])))
    }
    rows = sorted(
        (row["thread_id"], row["start_ns"], row["end_ns"], row["step"], row["operator_id"],
         line_of.get(number, NONE))
        for step in watched.steps
        for number, row in enumerate(step)
        if row
    )  # fmt: skip
    thread, start_ns, end_ns, step, first_id, line = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    threads, counts = np.unique(thread[line >= 0], return_counts=True)
    if not len(threads):
        return np.zeros(len(lines) + 1, dtype=np.int64)
    is_main = thread == threads[np.argmax(counts)]
    begin_ns = start_ns.copy()
    follows = (thread[1:] == thread[:-1]) & (step[1:] - step[:-1] <= 1)
    # Another thread waits for its next work while this one runs operators.
    main_ns = start_ns[is_main]
    is_idle = np.searchsorted(main_ns, start_ns[1:]) > np.searchsorted(main_ns, end_ns[:-1])
    follows &= is_main[1:] | ~is_idle
    begin_ns[1:][follows] = np.minimum(end_ns[:-1], start_ns[1:])[follows]
    elsewhere = merge((begin_ns[~is_main], end_ns[~is_main]))
    own_ns = end_ns - begin_ns - np.where(is_main, overlap(elsewhere, begin_ns, end_ns), 0)
    operators = read_operators(session)
    called_from, place = np.full(len(operators), NONE), first_id - operators.first_id
    called_from[place] = line
    called_from = inherit(called_from, operators.parent, operators.depth)
    forward = gather(operators.forward, gather(operators.engine, place))
    line = np.where(line >= 0, line, gather(called_from, forward))
    return np.bincount(np.where(line >= 0, line, len(lines)), own_ns, len(lines) + 1).astype(np.int64)
