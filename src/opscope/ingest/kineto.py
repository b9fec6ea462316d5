"""The staged events of one Kineto trace → rows of every table of a Session, attributed.

Ids, times and nothing else come back from the database as integer arrays, to be nested and linked
(`linking`, `nesting`), and go in again as columns of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.ingest import linking, nesting, quality
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, RecordedSteps
from opscope.model.queries import sql
from opscope.model.session import Session

__all__ = ["Columns", "Statements", "fill_tables"]


Columns = dict[str, npt.NDArray[Any]]


class Statements:
    """Runs statements of `kineto.sql`.

    Args:
        connection: Used by these statements alone while they run.
        trace_id: Trace the statements are about.
        thread_keys: Keys of the trace's host threads, as staged.
        thread_ids: Their ids in the Session.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        trace_id: int,
        thread_keys: npt.NDArray[np.uint64],
        thread_ids: Int64,
    ) -> None:
        self._connection = connection
        self._trace_id = trace_id
        order = np.argsort(thread_keys)
        self._thread_keys, self._thread_ids = thread_keys[order], thread_ids[order]
        self._threads = {"thread_key": thread_keys, "thread_id": thread_ids}

    def run(self, statement: str, **values: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement with its placeholders filled in."""
        return self._connection.execute(
            sql(__package__, f"kineto:{statement}").format(trace_id=self._trace_id, **values)
        )

    def insert(self, table: str, id_column: str) -> None:
        """Run the statement that fills a table and numbers its new rows."""
        self.run(table, first_id=self.next_id(table, id_column))

    def next_id(self, table: str, id_column: str) -> int:
        """The first id that no row of a table has."""
        if self._trace_id == 0:
            return 0
        rows = self._connection.execute(f"SELECT coalesce(max({id_column}) + 1, 0) FROM {table}").fetchall()
        return int(rows[0][0])

    def arrays(self, statement: str, **values: Any) -> Columns:
        """The columns a statement selects; `thread_key`, if among them, also as `thread`, our own id.

        Rows with a `row_id` come in its order; scans by several threads return them in any.
        """
        columns: Columns = self.run(statement, **values).fetchnumpy()
        if "row_id" in columns and np.any(np.diff(columns["row_id"]) < 0):
            order = np.argsort(columns["row_id"], kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
        if "thread_key" in columns and len(self._thread_keys):
            columns["thread"] = self._thread_ids[np.searchsorted(self._thread_keys, columns["thread_key"])]
        elif "thread_key" in columns:
            columns["thread"] = np.empty(0, dtype=np.int64)
        return columns

    @contextmanager
    def relations(self, **relations: Columns) -> Iterator[None]:
        """Arrays as tables of these names, and the threads as `thread_links`, for the block."""
        relations["thread_links"] = self._threads
        for name, columns in relations.items():
            self._connection.register(name, columns)
        try:
            yield
        finally:
            for name in relations:
                self._connection.unregister(name)


P = ParamSpec("P")
R = TypeVar("R")
_ThreadKeys = npt.NDArray[np.uint64]

# Python stacks only exist in formats that write them on the operator itself. Once per distinct call: two
# records that agree in all of this share theirs.
_WITH_STACKS = {
    "call_stack": "d.call_stack",
    "module_hierarchy": "d.module_hierarchy",
    "details": """LEFT JOIN (
    SELECT thread_key, name, start_ns, duration_ns, args."External id" AS external_id,
        nullif(any_value(args."Call stack"), '') AS call_stack,
        nullif(any_value(args."Module Hierarchy"), '') AS module_hierarchy
    FROM staging.details GROUP BY ALL) d
ON d.start_ns = s.start_ns AND d.external_id = s.external_id AND d.name = s.name
    AND d.thread_key = s.thread_key AND d.duration_ns = s.duration_ns""",
}
# The name without its overload, where the recorder writes it behind a dot.
_BASE_NAME = (
    """CASE WHEN contains({0}, '.') THEN regexp_replace({0}, '^(\\w+::\\w+)\\.\\w+$', '\\1') ELSE {0} END"""
)
_WITHOUT_STACKS = {"call_stack": "NULL", "module_hierarchy": "NULL", "details": ""}


class _Operators(msgspec.Struct, frozen=True):
    """Operators of one trace: their forest, and columns in preorder."""

    forest: Forest
    row_id: Int64
    external_id: Int64
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
    keys, ids = _write_threads(session, trace_id, census)
    with session.connection.cursor() as cursor, ThreadPoolExecutor(1) as executor:
        main, side = (
            Statements(connection, trace_id, keys, ids) for connection in (session.connection, cursor)
        )
        return _Filler(main, side, executor, census).fill()


class _Filler:
    """Fills the tables over two connections: `main` nests, links and writes operators, `side` does the rest.

    What is submitted to the side connection runs there in order; results are awaited where they are needed.
    """

    def __init__(
        self, main: Statements, side: Statements, executor: Executor, census: quality.Census
    ) -> None:
        self.main = main
        self.side = side
        self.executor = executor
        self.census = census

    def fill(self) -> quality.Census:
        self.main.run("events")
        prepared = self._beside(self._prepare)
        calls = self._beside(self.side.arrays, "call_rows")
        activities = self._beside(self.side.arrays, "activity_rows")
        operators = self._operators()
        beside: dict[str, Future[Any]] = {
            "is_outermost": self._beside(self._outermost, operators.forest),
            "module_id": self._beside(self._modules_at, operators.forest),
        }
        prepared.result()
        links = self._link(operators, calls.result(), activities.result())
        self._write_linked(operators, links, calls.result(), activities.result(), beside)
        self._write_memory_events(operators)
        with self.main.relations():
            if self.census.detailed_count:
                self.main.insert("syncs", "sync_id")
                self.main.insert("collectives", "collective_id")
                self.main.run("triton_launches")
        return replace(
            self.census,
            irregular_count=operators.forest.irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
        )

    def _beside(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self.executor.submit(work, *args, **kwargs)

    def _prepare(self) -> None:
        """Tables that others refer to (on the side connection)."""
        with self.side.relations():
            self.side.insert("annotations", "annotation_id")
            if "python_function" in self.census.categories:
                self.side.insert("modules", "module_id")
            self.side.insert("kernel_names", "name_id")
            if "overhead" in self.census.categories:
                self.side.insert("overheads", "overhead_id")

    def _write_frames(self) -> None:
        """What nothing waits for, and so comes last (on the side connection)."""
        if "python_function" in self.census.categories:
            with self.side.relations():
                self.side.insert("frames", "frame_id")

    def _outermost(self, forest: Forest) -> npt.NDArray[np.bool_]:
        """Whether no ancestor of an operator has its name (on the side connection)."""
        names = self.side.arrays("operator_names", base_name=_BASE_NAME.format("name"))
        return nesting.outermost_of_name(forest, names["name_hash"][forest.order])

    def _operators(self) -> _Operators:
        rows = self.main.arrays("operator_rows")
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
        first_id = self.main.next_id("operators", "operator_id")
        return _Operators(forest, rows["row_id"][order], rows["external_id"][order], first_id)

    def _link(self, operators: _Operators, calls: Columns, activities: Columns) -> linking.Links:
        """Attribute calls and activities."""
        return linking.link(
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
                activities["start_ns"],
                activities["correlation_id"],
                activities["external_id"],
                activities["replay"].astype(np.int64),
            ),
        )

    def _write_linked(
        self,
        operators: _Operators,
        links: linking.Links,
        calls: Columns,
        activities: Columns,
        beside: dict[str, Future[Any]],
    ) -> None:
        """Write the tables that carry links, operators beside all others.

        Args:
            operators: The operators.
            links: Where calls and activities belong.
            calls: The calls, as columns.
            activities: The activities, as columns.
            beside: Columns of the operators, in preorder, that the side connection makes.
        """
        steps = RecordedSteps(**self.main.arrays("step_rows"))
        operator_step, call_step = steps.at(operators.forest.start_ns), steps.at(calls["start_ns"])
        by_operator = gather(operator_step, links.activity_operator)
        by_call = gather(call_step, links.activity_call)
        activity_step = np.where(links.activity_call >= 0, by_call, by_operator)
        first_call_id = self.main.next_id("runtime_calls", "runtime_call_id")
        first_activity_id = self.main.next_id("device_activities", "activity_id")
        launches = self._beside(
            self._write_launches,
            _call_links(calls, links, call_step, operators.first_id, first_call_id),
            _activity_links(
                activities, links, activity_step, (operators.first_id, first_call_id, first_activity_id)
            ),
        )
        rows = _operator_links(operators, links, activities["duration_ns"], operator_step)
        frames = self._beside(self._write_frames)
        rows |= {name: column.result() for name, column in beside.items()}
        rows = _in_row_order(rows)
        with self.main.relations(operator_links=rows):
            stacks = _WITH_STACKS if self.census.detailed_count else _WITHOUT_STACKS
            self.main.run("operators", base_name=_BASE_NAME.format("s.name"), **stacks)
            if len(operators.forest):
                self.main.insert("autograd_links", "link_id")
        launches.result()
        frames.result()

    def _write_launches(self, call_links: Columns, activity_links: Columns) -> None:
        with self.side.relations(call_links=call_links, activity_links=activity_links):
            self.side.run("runtime_calls")
            self.side.run("device_activities")
            self.side.run("steps")

    def _modules_at(self, forest: Forest) -> Int64:
        """Innermost nn.Module call open at each operator's start; -1 for none (on the side connection)."""
        if "python_function" not in self.census.categories:
            return np.full(len(forest), -1, dtype=np.int64)
        rows = self.side.arrays("module_rows")
        calls = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], rows["row_id"])
        inside = nesting.enclosing(calls, forest.thread, forest.start_ns)
        return gather(rows["module_id"][calls.order], inside)

    def _write_memory_events(self, operators: _Operators) -> None:
        if "memory" not in self.census.categories:
            return
        rows = self.main.arrays("memory_rows")
        owner = nesting.enclosing(operators.forest, rows["thread"], rows["start_ns"])
        links = {
            "row_id": rows["row_id"],
            "memory_event_id": np.arange(len(owner)) + self.main.next_id("memory_events", "memory_event_id"),
            "thread_id": rows["thread"],
            "operator_id": _shift(owner, operators.first_id),
        }
        with self.main.relations(memory_links=links):
            self.main.run("memory_events")


def _write_threads(session: Session, trace_id: int, census: quality.Census) -> tuple[_ThreadKeys, Int64]:
    """Give every host thread its id, in the order of its first event.

    Returns:
        Keys of the threads as staged, and their ids.
    """
    processes: dict[str | None, str] = {}
    names: dict[int, str] = {}
    for key, process, kind, label in session.query(sql(__package__, "kineto:thread_labels")):
        if kind == "process_name":
            processes[process] = label
        else:
            names[key] = label
    first = int(session.scalar("SELECT coalesce(max(thread_id) + 1, 0) FROM threads"))
    rows = [
        [first + index, trace_id, process or "", thread or "", processes.get(process), names.get(key)]
        for index, (key, process, thread) in enumerate(census.threads)
    ]
    if rows:
        session.connection.executemany("INSERT INTO threads VALUES (?, ?, ?, ?, ?, ?)", rows)
    keys = np.array([key for key, _, _ in census.threads], dtype=np.uint64)
    return keys, np.arange(len(keys), dtype=np.int64) + first


def _operator_links(operators: _Operators, links: linking.Links, duration_ns: Int64, step: Int64) -> Columns:
    forest, first = operators.forest, operators.first_id
    owned = links.activity_operator >= 0
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    self_device = np.bincount(
        links.activity_operator[owned], weights=duration_ns[owned], minlength=len(forest)
    ).astype(np.int64)
    return {
        "row_id": operators.row_id,
        "operator_id": np.arange(len(forest)) + first,
        "thread_id": forest.thread.astype(np.int32),
        "parent_id": np.where(forest.parent >= 0, forest.parent + first, -1),
        "depth": forest.depth.astype(np.int32),
        "last_descendant_id": forest.last_descendant + first,
        "step": step.astype(np.int32),
        "self_cpu_ns": forest.end_ns - forest.start_ns - nesting.children_time(forest),
        "self_device_ns": self_device,
        "total_device_ns": nesting.subtree_sums(forest, self_device),
    }


def _call_links(
    calls: Columns, links: linking.Links, step: Int64, first_operator_id: int, first_call_id: int
) -> Columns:
    return {
        "row_id": calls["row_id"],
        "runtime_call_id": np.arange(len(calls["row_id"])) + first_call_id,
        "thread_id": calls["thread"],
        "operator_id": _shift(links.call_operator, first_operator_id),
        "step": step,
    }


def _activity_links(
    activities: Columns, links: linking.Links, step: Int64, first_ids: tuple[int, int, int]
) -> Columns:
    """Links of the activities; `first_ids` are those of operators, runtime calls and activities."""
    rank = np.empty(len(step), dtype=np.int64)
    rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
    names = np.array([str(attribution) for attribution in linking.ATTRIBUTIONS], dtype=object)
    return {
        "row_id": activities["row_id"],
        "activity_id": rank + first_ids[2],
        "activity_device": activities["device"],
        "activity_stream": activities["stream"],
        "runtime_call_id": _shift(links.activity_call, first_ids[1]),
        "operator_id": _shift(links.activity_operator, first_ids[0]),
        "attribution": names[links.attribution],
        "step": step,
    }


def _in_row_order(links: Columns) -> Columns:
    """Links in the order of the staged events, beside which they are put by position."""
    order = np.argsort(links["row_id"], kind="stable")
    # One after the other, so that no more than one column is there twice.
    return {name: links.pop(name)[order] for name in tuple(links)}


def _shift(index: Int64, first_id: int) -> Int64:
    """Ids of positions, and -1 where the position is -1."""
    return np.where(index >= 0, index + first_id, -1)
