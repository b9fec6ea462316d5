"""One Kineto trace → rows of every table of a Session, attributed.

Events are staged by DuckDB's JSON reader; ids, times and nothing else come back as integer arrays to be nested
and linked (`opscope.attribution`), and go in again as columns of the tables. Formats differ only inside
`kineto.sql`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from opscope.attribution import linking, nesting
from opscope.attribution.linking import gather
from opscope.attribution.nesting import Forest, Int64
from opscope.ingest import quality
from opscope.ingest.container import EventArray
from opscope.ingest.statements import statements
from opscope.ingest.windows import PROTOCOL, WindowFileSystem, split_windows
from opscope.model.session import Session

__all__ = ["InexactTimesError", "ingest_events"]

_SMALLEST_WINDOW_BYTES = 4 << 20
_LARGEST_EVENT_BYTES = 16 << 20
_CALLS = "'cuda_runtime', 'cuda_driver'"
_INTERVAL = "ph = 'X' AND duration_ns >= 0"


class InexactTimesError(Exception):
    """Times that a double cannot hold: the text must be rewritten before it is read."""


@dataclass(frozen=True)
class _Steps:
    """Steps of one trace by start; `number[i]` covers `[start_ns[i], end_ns[i])`."""

    number: Int64
    start_ns: Int64
    duration_ns: Int64
    thread: Int64

    def at(self, time_ns: Int64) -> Int64:
        """Number of the step open at each moment; -1 outside steps."""
        found = np.full(len(time_ns), -1, dtype=np.int64)
        if len(self.number):
            slot = np.searchsorted(self.start_ns, time_ns, side="right") - 1
            inside = slot >= 0
            inside[inside] = time_ns[inside] < (self.start_ns + self.duration_ns)[slot[inside]]
            found[inside] = self.number[slot[inside]]
        return found


@dataclass(frozen=True)
class _Operators:
    """Operators of one trace: their forest, and columns in preorder."""

    forest: Forest
    row_id: Int64
    external_id: Int64
    name_hash: npt.NDArray[np.uint64]
    first_id: int


def ingest_events(
    session: Session, trace_id: int, path: str, text: mmap.mmap, events: EventArray, *, is_rewritten: bool = False
) -> quality.Census:
    """Fill the Session's tables from one trace's events; all or nothing.

    Args:
        session: Where the rows go.
        trace_id: Row of `traces` the events belong to.
        path: Local file with the text.
        text: The same file, mapped.
        events: Where the array lies.
        is_rewritten: Times in the text are quoted decimals.

    Raises:
        InexactTimesError: `ts` needs more digits than a double has.
        duckdb.Error: The text is not valid JSON.
    """
    reader = _Reader(session, trace_id)
    try:
        reader.stage(path, text, events, is_rewritten)
        return reader.fill()
    finally:
        session.connection.execute("DROP TABLE IF EXISTS staged")


class _Reader:
    """The statements of one trace, in order."""

    def __init__(self, session: Session, trace_id: int) -> None:
        self.session = session
        self.connection = session.connection
        self.trace_id = trace_id
        self.sql = statements("opscope.ingest", "kineto.sql")

    def stage(self, path: str, text: mmap.mmap, events: EventArray, is_rewritten: bool) -> None:
        threads = int(self.session.scalar("SELECT current_setting('threads')"))
        count = max(1, min(threads, (events.end - events.start) // _SMALLEST_WINDOW_BYTES))
        try:
            self._stage_windows(path, split_windows(text, events.start, events.end, count), is_rewritten)
        except duckdb.Error:
            if count == 1:
                raise
            # A cut may have hit text that only looks like an event boundary; one window has no cuts.
            self._stage_windows(path, [(events.start, events.end)], is_rewritten)

    def _stage_windows(self, path: str, windows: list[tuple[int, int]], is_rewritten: bool) -> None:
        files = WindowFileSystem(path, windows)
        self.connection.register_filesystem(files)
        try:
            self._run(
                "stage",
                urls=files.urls,
                maximum_object_bytes=_LARGEST_EVENT_BYTES,
                time_type="DECIMAL(22, 3)" if is_rewritten else "DOUBLE",
                double_limit="NULL" if is_rewritten else 1 << 43,
            )
        finally:
            self.connection.unregister_filesystem(PROTOCOL)

    def fill(self) -> quality.Census:
        census = quality.take_census(self.session, self.sql["census"])
        if census.inexact_count:
            raise InexactTimesError
        self._run("threads", first_id=self._next_id("threads", "thread_id"))
        self._run("kernel_names", first_id=self._next_id("kernel_names", "name_id"))
        for table in ("annotations", "modules", "overheads", "syncs"):
            self._run(table, first_id=self._next_id(table, f"{table[:-1]}_id"))
        operators, links = self._link()
        if "python_function" in census.categories:
            self._run("frames", first_id=self._next_id("frames", "frame_id"))
        if len(operators.forest):
            self._run("autograd_links", first_id=self._next_id("autograd_links", "link_id"))
        return replace(
            census,
            irregular_count=operators.forest.irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
        )

    def _link(self) -> tuple[_Operators, linking.Links]:
        """Attribute everything and write the tables that carry links."""
        operators, calls, activities = self._operators(), self._host_rows(_CALLS), self._arrays("activity_rows")
        links = linking.link(
            operators.forest,
            operators.external_id,
            linking.Calls(
                calls["thread"],
                calls["start_ns"],
                calls["correlation_id"],
                calls["external_id"],
                calls["is_graph_launch"].astype(bool),
            ),
            linking.Activities(
                activities["start_ns"], activities["correlation_id"], activities["external_id"]
            ),
        )
        steps = self._steps()
        call_step = steps.at(calls["start_ns"])
        operator_step = steps.at(operators.forest.start_ns)
        by_operator = gather(operator_step, links.activity_operator)
        activity_step = np.where(links.activity_call >= 0, gather(call_step, links.activity_call), by_operator)
        relations = {
            "operator_links": self._operator_links(operators, links, activities["duration_ns"], operator_step),
            "call_links": self._call_links(calls, links, call_step, operators.first_id),
            "activity_links": self._activity_links(activities, links, activity_step, operators.first_id),
        }
        with self._registered(relations):
            for table in ("operators", "runtime_calls", "device_activities", "triton_launches"):
                self._run(table)
            self._run("collectives", first_id=self._next_id("collectives", "collective_id"))
        self._write_memory_events(operators)
        self._run("steps")
        return operators, links

    def _operators(self) -> _Operators:
        rows = self._host_rows("'cpu_op'", hashed="staged.name")
        # Clocks that tick in microseconds let a child end up to one tick after its parent.
        ticks_us = not np.any(rows["start_ns"] % 1000) and not np.any(rows["duration_ns"] % 1000)
        forest = nesting.nest(
            rows["thread"],
            rows["start_ns"],
            rows["duration_ns"],
            rows["external_id"],
            tolerance_ns=1000 if ticks_us else 0,
        )
        order = forest.order
        return _Operators(
            forest,
            rows["row_id"][order],
            rows["external_id"][order],
            rows["name_hash"][order],
            self._next_id("operators", "operator_id"),
        )

    def _operator_links(
        self, operators: _Operators, links: linking.Links, duration_ns: Int64, step: Int64
    ) -> dict[str, npt.NDArray[Any]]:
        forest, first = operators.forest, operators.first_id
        owned = links.activity_operator >= 0
        # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
        self_device = np.bincount(
            links.activity_operator[owned], weights=duration_ns[owned], minlength=len(forest)
        ).astype(np.int64)
        return {
            "row_id": operators.row_id,
            "operator_id": np.arange(len(forest)) + first,
            "thread_id": forest.thread,
            "parent_id": np.where(forest.parent >= 0, forest.parent + first, -1),
            "depth": forest.depth,
            "last_descendant_id": forest.last_descendant + first,
            "is_outermost": nesting.outermost_of_name(forest, operators.name_hash),
            "module_id": self._modules_at(forest),
            "step": step,
            "self_cpu_ns": forest.end_ns - forest.start_ns - nesting.children_time(forest),
            "self_device_ns": self_device,
            "total_device_ns": nesting.subtree_sums(forest, self_device),
        }

    def _call_links(
        self, calls: dict[str, npt.NDArray[Any]], links: linking.Links, step: Int64, first_operator_id: int
    ) -> dict[str, npt.NDArray[Any]]:
        self._first_call_id = self._next_id("runtime_calls", "runtime_call_id")
        return {
            "row_id": calls["row_id"],
            "runtime_call_id": np.arange(len(calls["row_id"])) + self._first_call_id,
            "thread_id": calls["thread"],
            "operator_id": _shift(links.call_operator, first_operator_id),
            "step": step,
        }

    def _activity_links(
        self, activities: dict[str, npt.NDArray[Any]], links: linking.Links, step: Int64, first_operator_id: int
    ) -> dict[str, npt.NDArray[Any]]:
        rank = np.empty(len(step), dtype=np.int64)
        rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
        names = np.array([str(attribution) for attribution in linking.ATTRIBUTIONS], dtype=object)
        return {
            "row_id": activities["row_id"],
            "activity_id": rank + self._next_id("device_activities", "activity_id"),
            "device": activities["device"],
            "stream": activities["stream"],
            "runtime_call_id": _shift(links.activity_call, self._first_call_id),
            "operator_id": _shift(links.activity_operator, first_operator_id),
            "attribution": names[links.attribution],
            "step": step,
        }

    def _modules_at(self, forest: Forest) -> Int64:
        """Innermost nn.Module call open at each operator's start on its thread; -1 for none."""
        rows = self._arrays("module_rows")
        if not len(rows["row_id"]):
            return np.full(len(forest), -1, dtype=np.int64)
        calls = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], rows["row_id"])
        inside = nesting.enclosing(calls, forest.thread, forest.start_ns)
        return gather(rows["module_id"][calls.order], inside)

    def _write_memory_events(self, operators: _Operators) -> None:
        rows = self._host_rows("'memory'", condition="ph = 'i'")
        if not len(rows["row_id"]):
            return
        owner = nesting.enclosing(operators.forest, rows["thread"], rows["start_ns"])
        relation = {
            "row_id": rows["row_id"],
            "memory_event_id": np.arange(len(owner)) + self._next_id("memory_events", "memory_event_id"),
            "thread_id": rows["thread"],
            "operator_id": _shift(owner, operators.first_id),
        }
        with self._registered({"memory_links": relation}):
            self._run("memory_events")

    def _steps(self) -> _Steps:
        rows = self._arrays("step_rows")
        return _Steps(rows["step"], rows["start_ns"], rows["duration_ns"], rows["thread"])

    def _host_rows(self, categories: str, *, hashed: str = "NULL", condition: str = _INTERVAL) -> dict[str, Any]:
        return self._arrays("host_rows", categories=categories, hashed=hashed, condition=condition)

    def _arrays(self, statement: str, **values: Any) -> dict[str, npt.NDArray[Any]]:
        return self._run(statement, **values).fetchnumpy()

    def _run(self, name: str, **values: Any) -> duckdb.DuckDBPyConnection:
        return self.connection.execute(self.sql[name].format(trace_id=self.trace_id, **values))

    def _next_id(self, table: str, column: str) -> int:
        return int(self.session.scalar(f"SELECT coalesce(max({column}) + 1, 0) FROM {table}"))

    @contextmanager
    def _registered(self, relations: dict[str, dict[str, npt.NDArray[Any]]]) -> Iterator[None]:
        for name, columns in relations.items():
            self.connection.register(name, columns)
        try:
            yield
        finally:
            for name in relations:
                self.connection.unregister(name)


def _shift(index: Int64, first_id: int) -> Int64:
    """Ids of positions, and -1 where the position is -1."""
    return np.where(index >= 0, index + first_id, -1)
