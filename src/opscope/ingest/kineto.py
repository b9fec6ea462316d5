"""The staged events of one Kineto trace → rows of every table of a Session, attributed.

Ids, times and nothing else come back from the database as integer arrays, to be nested and linked
(`linking`, `nesting`), and go in again as columns of the tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.ingest import linking, nesting, quality
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, RecordedSteps
from opscope.ingest.staging import StagedEvents
from opscope.model.queries import sql
from opscope.model.session import Session, registered

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

    def insert_linked(self, table: str, links: Columns, **values: Any) -> None:
        """Run the statement that fills a table from staged rows and their `links`, where there are any."""
        if len(links["row_id"]):
            with registered(self._connection, links=links):
                self.run(table, **values)


P = ParamSpec("P")
R = TypeVar("R")
_Extent = tuple[int, int]  # of time, its ends included, in nanoseconds
# Nested at once: what that takes of memory is some 200 bytes of each.
_MOST_OPERATORS = 1 << 20
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
    """Operators that began in an extent of time, their forest, and columns in preorder; ids ascend."""

    extent: _Extent | None
    forest: Forest
    operator_id: Int64
    row_id: Int64
    external_id: Int64


def fill_tables(session: Session, trace_id: int, events: StagedEvents) -> quality.Census:
    """Fill the Session's tables from the staged events of one trace.

    Args:
        session: Where the rows go.
        trace_id: Row of `traces` the events belong to.
        events: What was staged.

    Returns:
        The census, with what linking found.
    """
    keys, ids = _write_threads(session, trace_id, events.census)
    with (
        session.connection.cursor() as cursor,
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
        ThreadPoolExecutor(1) as executor,
    ):
        events.show_on(cursor)
        main, side = (
            Statements(connection, trace_id, keys, ids) for connection in (session.connection, cursor)
        )
        return _Filler(main, side, executor, events.census, Path(folder)).fill()


class _Filler:
    """Fills the tables over two connections: `main` nests, links and writes operators, `side` does the rest.

    What is submitted to the side connection runs there in order; results are awaited where they are needed.
    Operators of a long trace are nested extent by extent. What is known of those of one waits in a file until
    all are linked, so that memory holds calls and activities whole, but operators in parts.
    """

    def __init__(
        self,
        main: Statements,
        side: Statements,
        executor: Executor,
        census: quality.Census,
        folder: Path,
    ) -> None:
        self.main = main
        self.side = side
        self.executor = executor
        self.census = census
        self.folder = folder
        self.irregular_count = 0

    def fill(self) -> quality.Census:
        prepared = self._beside(self._prepare)
        calls_read = self._beside(self.side.arrays, "call_rows")
        activities_read = self._beside(self.side.arrays, "activity_rows")
        modules = self._beside(self._module_calls)
        parts, linked = [], None
        for operators in self._operators():
            beside: dict[str, Future[Any]] = {
                "is_outermost": self._beside(self._outermost, operators),
                "module_id": self._beside(self._modules_at, operators.forest, modules),
            }
            if linked is None:
                prepared.result()
                linked = _Linked(
                    calls_read.result(), activities_read.result(), self._memory_rows(), self._steps()
                )
            linked.add(operators)
            parts.append(self._kept(operators, linked.steps, beside))
        assert linked is not None
        links = self._write(linked, parts)
        if self.census.detailed_count:
            self.main.insert("syncs", "sync_id")
            self.main.insert("collectives", "collective_id")
            self.main.run("triton_launches")
        return replace(
            self.census,
            irregular_count=self.irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
        )

    def _beside(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self.executor.submit(work, *args, **kwargs)

    def _prepare(self) -> None:
        """Tables that others refer to (on the side connection)."""
        for table, id_column, categories in (
            ("annotations", "annotation_id", ("user_annotation", "gpu_user_annotation")),
            ("modules", "module_id", ("python_function",)),
            ("kernel_names", "name_id", ("kernel", "gpu_memcpy", "gpu_memset")),
            ("overheads", "overhead_id", ("overhead",)),
        ):
            if self._has(*categories):
                self.side.insert(table, id_column)

    def _has(self, *categories: str) -> bool:
        return not self.census.categories.keys().isdisjoint(categories)

    def _write_frames(self) -> None:
        """What nothing waits for, and so comes last (on the side connection)."""
        if self._has("python_function"):
            self.side.insert("frames", "frame_id")

    def _steps(self) -> RecordedSteps:
        if not self._has("user_annotation"):
            return RecordedSteps(*[np.empty(0, dtype=np.int64)] * 3)
        return RecordedSteps(**self.main.arrays("step_rows"))

    def _memory_rows(self) -> Columns:
        return self.main.arrays("memory_rows") if self._has("memory") else {}

    def _operators(self) -> Iterator[_Operators]:
        """The operators, extent by extent."""
        threads = self.main.arrays("operator_threads")
        order = np.argsort(threads["thread"])
        counts = threads["operators"][order]
        first_ids = self.main.next_id("operators", "operator_id") + np.cumsum(counts) - counts
        next_id = dict(zip(threads["thread"][order].tolist(), first_ids.tolist(), strict=True))
        # Clocks that tick in microseconds let a child end up to one tick after its parent.
        tolerance_ns = 1000 if np.all(threads["ticks_us"]) else 0
        for extent, rows in self._operator_rows(int(counts.sum())):
            forest = nesting.nest(
                rows["thread"],
                rows["start_ns"],
                rows["duration_ns"],
                rows["external_id"],
                tolerance_ns=tolerance_ns,
            )
            self.irregular_count += forest.irregular_count
            ids = _numbered(forest.thread, next_id)
            yield _Operators(
                extent, forest, ids, rows["row_id"][forest.order], rows["external_id"][forest.order]
            )

    def _operator_rows(self, count: int) -> Iterator[tuple[_Extent | None, Columns]]:
        """Columns for nesting, in extents at whose ends no operator is open."""
        parts = -(-count // _MOST_OPERATORS)
        if parts <= 1:
            yield None, self.main.arrays("operator_rows", extent="true")
            return
        fractions = [part / parts for part in range(1, parts)]
        (guesses,) = self.main.run("operator_quantiles", fractions=fractions).fetchall()[0]
        first_ns, latest_ns = -(1 << 63), (1 << 63) - 1
        for guess_ns in (*guesses, latest_ns):
            rows = self.main.arrays("operator_rows", extent=_condition((first_ns, guess_ns)))
            if guess_ns < latest_ns:
                pause_ns = nesting.last_pause(rows["start_ns"], rows["duration_ns"])
                if pause_ns is None:
                    continue
                rows = {name: column[rows["start_ns"] < pause_ns] for name, column in rows.items()}
            else:
                pause_ns = latest_ns + 1
            yield (first_ns, pause_ns - 1), rows
            first_ns = pause_ns

    def _kept(
        self, operators: _Operators, steps: RecordedSteps, beside: dict[str, Future[Any]]
    ) -> tuple[_Extent | None, Callable[[], Columns]]:
        """The extent of operators, and a function that gives their columns, in preorder, when asked for."""
        columns = _operator_columns(operators, steps)
        if operators.extent is None:
            return None, lambda: columns | {name: column.result() for name, column in beside.items()}
        path = self.folder / f"{operators.extent[0]}.npz"
        everything: dict[str, Any] = columns | {name: column.result() for name, column in beside.items()}
        np.savez(path, **everything)
        return operators.extent, lambda: _restored(path)

    def _write(
        self, linked: _Linked, parts: list[tuple[_Extent | None, Callable[[], Columns]]]
    ) -> linking.Links:
        """Write the tables that carry links, operators beside all others; the links."""
        links = linked.candidates.links()
        calls, activities = linked.calls, linked.activities
        call_step = linked.steps.at(calls["start_ns"])
        launches = self._beside(
            self._write_launches,
            _call_links(calls, links, call_step, self.main.next_id("runtime_calls", "runtime_call_id")),
            self._activity_links(activities, links, linked.steps, call_step),
        )
        frames = self._beside(self._write_frames)
        stacks = _WITH_STACKS if self.census.detailed_count else _WITHOUT_STACKS
        for extent, columns in parts:
            rows = _in_row_order(_operator_links(columns(), links, activities["duration_ns"]))
            self.main.insert_linked(
                "operators", rows, base_name=_BASE_NAME.format("s.name"), extent=_condition(extent), **stacks
            )
        if self._has("cpu_op"):
            self.main.insert("autograd_links", "link_id")
        launches.result()
        frames.result()
        self._write_memory_events(linked)
        return links

    def _write_launches(self, call_links: Columns, activity_links: Columns) -> None:
        self.side.insert_linked("runtime_calls", call_links)
        self.side.insert_linked("device_activities", activity_links)
        if self._has("user_annotation"):
            self.side.run("steps")

    def _activity_links(
        self, activities: Columns, links: linking.Links, steps: RecordedSteps, call_step: Int64
    ) -> Columns:
        launched = links.activity_call >= 0
        step = np.where(launched, gather(call_step, links.activity_call), -1)
        # Without a call, the operator is the one that its own id names.
        named = np.flatnonzero(~launched & (links.activity_operator >= 0))
        step[named] = steps.at(links.own_start_ns[named])
        rank = np.empty(len(step), dtype=np.int64)
        rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
        names = np.array([str(attribution) for attribution in linking.ATTRIBUTIONS], dtype=object)
        first_call_id = self.main.next_id("runtime_calls", "runtime_call_id")
        return {
            "row_id": activities["row_id"],
            "activity_id": rank + self.main.next_id("device_activities", "activity_id"),
            "activity_device": activities["device"],
            "activity_stream": activities["stream"],
            "runtime_call_id": np.where(launched, links.activity_call + first_call_id, -1),
            "operator_id": links.activity_operator,
            "attribution": names[links.attribution],
            "step": step,
        }

    def _outermost(self, operators: _Operators) -> npt.NDArray[np.bool_]:
        """Whether no ancestor of an operator has its name (on the side connection)."""
        if not len(operators.forest):
            return np.empty(0, dtype=np.bool_)
        names = self.side.arrays(
            "operator_names", base_name=_BASE_NAME.format("name"), extent=_condition(operators.extent)
        )
        return nesting.outermost_of_name(operators.forest, names["name_hash"][operators.forest.order])

    def _module_calls(self) -> tuple[Forest, Int64] | None:
        """Calls of nn.Modules, and the module of each; None if there are none (on the side connection)."""
        if not self._has("python_function"):
            return None
        rows = self.side.arrays("module_rows")
        forest = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], rows["row_id"])
        return forest, rows["module_id"][forest.order]

    def _modules_at(self, forest: Forest, modules: Future[tuple[Forest, Int64] | None]) -> Int64:
        """Innermost nn.Module call open at each operator's start; -1 for none (on the side connection)."""
        found = modules.result()
        if found is None:
            return np.full(len(forest), -1, dtype=np.int64)
        calls, module_id = found
        return gather(module_id, nesting.enclosing(calls, forest.thread, forest.start_ns))

    def _write_memory_events(self, linked: _Linked) -> None:
        rows = linked.memory
        if not rows:
            return
        links = {
            "row_id": rows["row_id"],
            "memory_event_id": np.arange(len(rows["row_id"]))
            + self.main.next_id("memory_events", "memory_event_id"),
            "thread_id": rows["thread"],
            "operator_id": linked.memory_operator,
        }
        self.main.insert_linked("memory_events", links)


class _Linked:
    """Calls, activities and memory events of a trace, and what of its operators they may belong to."""

    def __init__(self, calls: Columns, activities: Columns, memory: Columns, steps: RecordedSteps) -> None:
        self.calls, self.activities, self.memory, self.steps = calls, activities, memory, steps
        self.memory_operator = np.full(len(memory.get("row_id", ())), -1, dtype=np.int64)
        self.candidates = linking.Candidates(
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

    def add(self, operators: _Operators) -> None:
        """Take in operators."""
        forest, ids = operators.forest, operators.operator_id
        self.candidates.add(forest, ids, operators.external_id, operators.extent)
        if self.memory:
            here = linking.within(self.memory["start_ns"], operators.extent)
            inside = nesting.enclosing(forest, self.memory["thread"][here], self.memory["start_ns"][here])
            self.memory_operator[here] = gather(ids, inside)


def _condition(extent: _Extent | None) -> str:
    """The extent as a condition of SQL, and the order in which rows stand, which filtering may change."""
    return "true" if extent is None else f"start_ns BETWEEN {extent[0]} AND {extent[1]} ORDER BY row_id"


def _restored(path: Path) -> Columns:
    with np.load(path) as stored:
        return dict(stored)


def _numbered(thread: Int64, next_id: dict[int, int]) -> Int64:
    """Ids of operators, thread by thread from the next one of each, which is moved on."""
    ids = np.arange(len(thread))
    begins = np.flatnonzero(np.diff(thread, prepend=-1))
    for low, high in pairwise((*begins.tolist(), len(thread))):
        ids[low:high] += next_id[int(thread[low])] - low
        next_id[int(thread[low])] += high - low
    return ids


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
    keys = [key for key, _, _ in census.threads]
    session.connection.execute(sql(__package__, "kineto:thread_links").format(first_id=first), [keys])
    return np.array(keys, dtype=np.uint64), np.arange(len(keys), dtype=np.int64) + first


def _operator_columns(operators: _Operators, steps: RecordedSteps) -> Columns:
    """What is known of operators before activities are linked, in preorder."""
    forest, ids = operators.forest, operators.operator_id
    return {
        "row_id": operators.row_id,
        "operator_id": ids,
        "thread_id": forest.thread.astype(np.int32),
        "parent_id": gather(ids, forest.parent),
        "depth": forest.depth.astype(np.int32),
        "last_descendant_id": ids[forest.last_descendant],
        "step": steps.at(forest.start_ns).astype(np.int32),
        "self_cpu_ns": forest.end_ns - forest.start_ns - nesting.children_time(forest),
    }


def _operator_links(columns: Columns, links: linking.Links, duration_ns: Int64) -> Columns:
    """The same columns, and the device time of each operator."""
    ids = columns["operator_id"]
    place = linking.look_up(ids, np.arange(len(ids)), links.activity_operator)
    owned = np.flatnonzero(place >= 0)
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    self_device = np.bincount(place[owned], weights=duration_ns[owned], minlength=len(ids)).astype(np.int64)
    # Ids of one thread are consecutive.
    last = np.arange(len(ids)) + columns["last_descendant_id"] - ids
    return {
        **columns,
        "self_device_ns": self_device,
        "total_device_ns": nesting.subtree_sums(last, self_device),
    }


def _call_links(calls: Columns, links: linking.Links, step: Int64, first_call_id: int) -> Columns:
    return {
        "row_id": calls["row_id"],
        "runtime_call_id": np.arange(len(calls["row_id"])) + first_call_id,
        "thread_id": calls["thread"],
        "operator_id": links.call_operator,
        "step": step,
    }


def _in_row_order(links: Columns) -> Columns:
    """Links in the order of the staged events, beside which they are put by position."""
    order = np.argsort(links["row_id"], kind="stable")
    # One after the other, so that no more than one column is there twice.
    return {name: links.pop(name)[order] for name in tuple(links)}
