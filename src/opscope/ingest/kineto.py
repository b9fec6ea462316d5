"""The staged events of one Kineto trace → rows of every table of a Session, attributed.

Ids, times and nothing else come back from the database as integer arrays, to be nested and linked
(`opscope.attribution`), and go in again as columns of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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
from opscope.ingest.statements import statements
from opscope.model.session import Session

__all__ = ["fill_tables"]

# The stacks of operators, once per distinct call: two records that agree in all of this share theirs.
_STACKS = """LEFT JOIN (
    SELECT thread_key, name, start_ns, duration_ns, args."External id" AS external_id,
        nullif(any_value(args."Call stack"), '') AS call_stack,
        nullif(any_value(args."Module Hierarchy"), '') AS module_hierarchy
    FROM staging.details GROUP BY ALL) d
ON d.start_ns = s.start_ns AND d.external_id = s.external_id AND d.name = s.name
    AND d.thread_key = s.thread_key AND d.duration_ns = s.duration_ns"""


@dataclass(frozen=True)
class _Steps:
    """Steps of one trace by start; `number[i]` covers `[start_ns[i], end_ns[i])`."""

    number: Int64
    start_ns: Int64
    duration_ns: Int64

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


def fill_tables(session: Session, trace_id: int, census: quality.Census) -> quality.Census:
    """Fill the Session's tables from the staged events of one trace.

    Args:
        session: Where the rows go; the events are in its attached database `staging`.
        trace_id: Row of `traces` the events belong to.
        census: What was staged.

    Returns:
        The census, with what linking found.
    """
    return _Filler(session, trace_id, census).fill()


class _Filler:
    """The statements of one trace, in order.

    Inserts that wait for nothing run on a second connection, in a thread of their own, while this one links.
    """

    def __init__(self, session: Session, trace_id: int, census: quality.Census) -> None:
        self.session = session
        self.connection = session.connection
        self.trace_id = trace_id
        self.census = census
        self.sql = statements("opscope.ingest", "kineto.sql")
        self.threads: dict[str, npt.NDArray[Any]] = {}

    def fill(self) -> quality.Census:
        categories = self.census.categories
        self._write_threads()
        with self.connection.cursor() as side, ThreadPoolExecutor(1) as executor:
            side.register("thread_links", self.threads)
            names = executor.submit(self._insert, "kernel_names", "name_id", side)
            with self._registered(self.connection, {"thread_links": self.threads}):
                self._insert("annotations", "annotation_id")
                if "overhead" in categories:
                    self._insert("overheads", "overhead_id")
                frames = None
                if "python_function" in categories:
                    self._insert("modules", "module_id")
                    frames = executor.submit(self._insert, "frames", "frame_id", side)
                operators, links = self._link(executor, side, names)
                if self.census.detailed_count:
                    self._insert("syncs", "sync_id")
                    self._insert("collectives", "collective_id")
                    self._run("triton_launches")
                if len(operators.forest):
                    self._insert("autograd_links", "link_id")
            if frames is not None:
                frames.result()
        return replace(
            self.census,
            irregular_count=operators.forest.irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
        )

    def _write_threads(self) -> None:
        """Give every host thread its id, in the order of its first event."""
        first = self._next_id("threads", "thread_id")
        processes, names = {}, {}
        for key, process, kind, label in self._run("thread_labels").fetchall():
            if kind == "process_name":
                processes[process] = label
            else:
                names[key] = label
        rows = [
            [
                first + index,
                self.trace_id,
                process or "",
                thread or "",
                processes.get(process),
                names.get(key),
            ]
            for index, (key, process, thread) in enumerate(self.census.threads)
        ]
        if rows:
            self.connection.executemany("INSERT INTO threads VALUES (?, ?, ?, ?, ?, ?)", rows)
        keys = np.array([key for key, _, _ in self.census.threads], dtype=np.uint64)
        self.threads = {"thread_key": keys, "thread_id": np.arange(len(keys), dtype=np.int64) + first}

    def _link(
        self, executor: Executor, side: duckdb.DuckDBPyConnection, names: Future[None]
    ) -> tuple[_Operators, linking.Links]:
        """Attribute everything and write the tables that carry links, launches beside operators."""
        operators, calls, activities = self._operators(), self._calls(), self._arrays("activity_rows")
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
        activity_step = np.where(
            links.activity_call >= 0, gather(call_step, links.activity_call), by_operator
        )
        names.result()
        launches = {
            "call_links": self._call_links(calls, links, call_step, operators.first_id),
            "activity_links": self._activity_links(activities, links, activity_step, operators.first_id),
        }
        written = executor.submit(self._write_launches, side, launches)
        operator_links = self._operator_links(operators, links, activities["duration_ns"], operator_step)
        with self._registered(self.connection, {"operator_links": operator_links}):
            self._insert_operators()
        written.result()
        self._write_memory_events(operators)
        self._run("steps")
        return operators, links

    def _write_launches(
        self, side: duckdb.DuckDBPyConnection, links: dict[str, dict[str, npt.NDArray[Any]]]
    ) -> None:
        with self._registered(side, links):
            self._run("runtime_calls", side)
            self._run("device_activities", side)

    def _operators(self) -> _Operators:
        rows = self._host_rows("'cpu_op'", "hash(name) AS name_hash")
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

    def _calls(self) -> dict[str, npt.NDArray[Any]]:
        return self._host_rows(
            "'cuda_runtime', 'cuda_driver'", "name LIKE '%GraphLaunch%' AS is_graph_launch"
        )

    def _insert_operators(self) -> None:
        """Operators; Python stacks only exist in formats that write them on the operator itself."""
        if not self.census.detailed_count:
            self._run("operators", call_stack="NULL", module_hierarchy="NULL", details="")
            return
        self._run(
            "operators", call_stack="d.call_stack", module_hierarchy="d.module_hierarchy", details=_STACKS
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
        self,
        activities: dict[str, npt.NDArray[Any]],
        links: linking.Links,
        step: Int64,
        first_operator_id: int,
    ) -> dict[str, npt.NDArray[Any]]:
        rank = np.empty(len(step), dtype=np.int64)
        rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
        names = np.array([str(attribution) for attribution in linking.ATTRIBUTIONS], dtype=object)
        return {
            "row_id": activities["row_id"],
            "activity_id": rank + self._next_id("device_activities", "activity_id"),
            "activity_device": activities["device"],
            "activity_stream": activities["stream"],
            "runtime_call_id": _shift(links.activity_call, self._first_call_id),
            "operator_id": _shift(links.activity_operator, first_operator_id),
            "attribution": names[links.attribution],
            "step": step,
        }

    def _modules_at(self, forest: Forest) -> Int64:
        """Innermost nn.Module call open at each operator's start on its thread; -1 for none."""
        if "python_function" not in self.census.categories:
            return np.full(len(forest), -1, dtype=np.int64)
        rows = self._with_thread(self._arrays("module_rows"))
        calls = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], rows["row_id"])
        inside = nesting.enclosing(calls, forest.thread, forest.start_ns)
        return gather(rows["module_id"][calls.order], inside)

    def _write_memory_events(self, operators: _Operators) -> None:
        if "memory" not in self.census.categories:
            return
        rows = self._with_thread(self._arrays("memory_rows"))
        owner = nesting.enclosing(operators.forest, rows["thread"], rows["start_ns"])
        relation = {
            "row_id": rows["row_id"],
            "memory_event_id": np.arange(len(owner)) + self._next_id("memory_events", "memory_event_id"),
            "thread_id": rows["thread"],
            "operator_id": _shift(owner, operators.first_id),
        }
        with self._registered(self.connection, {"memory_links": relation}):
            self._run("memory_events")

    def _steps(self) -> _Steps:
        rows = self._arrays("step_rows")
        return _Steps(rows["step"], rows["start_ns"], rows["duration_ns"])

    def _host_rows(self, categories: str, extra: str) -> dict[str, npt.NDArray[Any]]:
        return self._with_thread(self._arrays("host_rows", categories=categories, extra=extra))

    def _with_thread(self, rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The same columns, and `thread` from `thread_key`."""
        order = np.argsort(self.threads["thread_key"])
        slot = np.searchsorted(self.threads["thread_key"][order], rows["thread_key"])
        rows["thread"] = self.threads["thread_id"][order][slot] if len(order) else np.empty(0, dtype=np.int64)
        return rows

    def _arrays(self, statement: str, **values: Any) -> dict[str, npt.NDArray[Any]]:
        return self._run(statement, **values).fetchnumpy()

    def _insert(
        self, table: str, id_column: str, connection: duckdb.DuckDBPyConnection | None = None
    ) -> None:
        self._run(table, connection, first_id=self._next_id(table, id_column, connection))

    def _run(
        self, name: str, connection: duckdb.DuckDBPyConnection | None = None, **values: Any
    ) -> duckdb.DuckDBPyConnection:
        return (connection or self.connection).execute(
            self.sql[name].format(trace_id=self.trace_id, **values)
        )

    def _next_id(self, table: str, column: str, connection: duckdb.DuckDBPyConnection | None = None) -> int:
        query = f"SELECT coalesce(max({column}) + 1, 0) FROM {table}"
        return int((connection or self.connection).execute(query).fetchall()[0][0])

    @staticmethod
    @contextmanager
    def _registered(
        connection: duckdb.DuckDBPyConnection, relations: dict[str, dict[str, npt.NDArray[Any]]]
    ) -> Iterator[None]:
        for name, columns in relations.items():
            connection.register(name, columns)
        try:
            yield
        finally:
            for name in relations:
                connection.unregister(name)


def _shift(index: Int64, first_id: int) -> Int64:
    """Ids of positions, and -1 where the position is -1."""
    return np.where(index >= 0, index + first_id, -1)
