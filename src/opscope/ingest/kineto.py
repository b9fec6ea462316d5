"""The staged events of one trace → rows of every table of a Session, attributed.

What is nested, linked or told by a text is computed from their columns (`linking`, `nesting`), and goes into
the large tables as finished columns; small tables are filled by `kineto.sql`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.ingest import linking, nesting, quality
from opscope.ingest.arrow import ArrowRows, RowPart, packed
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Extent, Forest, Int64, RecordedSteps
from opscope.ingest.staging import MODULE, Columns, StagedEvents, Told, columns, module_calls, rows_of
from opscope.ingest.trace_rows import integer
from opscope.model import schema
from opscope.model.queries import sql
from opscope.model.session import Session, registered

P = ParamSpec("P")
R = TypeVar("R")
# Nested at once: what that takes of memory is some 200 bytes of each.
_MOST_OPERATORS = 1 << 20
# So many of the starts of a part are looked at to divide them.
_SAMPLED = 1 << 10
_FORMATS = {
    "VARCHAR": "u",
    "JSON": "json",
    "BOOLEAN": "b",
    "DOUBLE": "g",
    "UBIGINT": "L",
}  # others are integers
# An operator's name and its overload, where the recorder writes that behind a dot.
_OVERLOADED = re.compile(r"(\w+::\w+)\.(\w+)", re.ASCII)
_MEMORY = {
    "time_ns": "start_ns", "address": "Addr", "size_bytes": "Bytes", "device_type": "Device Type",
    "total_allocated_bytes": "Total Allocated", "total_reserved_bytes": "Total Reserved",
}  # fmt: skip
_NUMBER_OF_MODULE = re.compile(r"_[0-9]+\Z")
_TRACK = re.compile(r"[0-9]{1,18}")


class Statements:
    """Fills tables over one connection.

    Args:
        connection: Used by these statements alone while they run.
        trace_id: Trace the statements are about.
        thread_of: Id in the Session of each thread, by its key; -1 for one that is none of the host.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, trace_id: int, thread_of: Int64) -> None:
        self._connection = connection
        self._trace_id = trace_id
        self._thread_of = thread_of

    def run(self, statement: str, **values: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement of `kineto.sql` with its placeholders filled in."""
        return self._connection.execute(
            sql(__package__, f"kineto:{statement}").format(trace_id=self._trace_id, **values)
        )

    def insert(self, table: str, id_column: str) -> None:
        """Run the statement that fills a table and numbers its new rows."""
        self.run(table, first_id=self.next_id(table, id_column))

    def write(self, table: str, parts: Iterable[RowPart]) -> None:
        """Add finished rows to a table; they are read once."""
        declared = schema.table(table).columns
        formats = {one.name: _FORMATS.get(one.type, "l") for one in declared if one.name != "trace_id"}
        values = ", ".join(
            f'"{one.name}"' if one.name in formats else str(self._trace_id) for one in declared
        )
        once = iter([parts])
        with registered(self._connection, finished=ArrowRows(formats, lambda: next(once))):
            self._connection.execute(f"INSERT INTO {table} SELECT {values} FROM finished")

    def next_id(self, table: str, id_column: str) -> int:
        """The first id that no row of a table has."""
        if self._trace_id == 0:
            return 0
        rows = self._connection.execute(f"SELECT coalesce(max({id_column}) + 1, 0) FROM {table}").fetchall()
        return int(rows[0][0])

    def threads(self, keys: npt.NDArray[Any]) -> Int64:
        """Ids of threads by their keys."""
        return self._thread_of[keys.astype(np.int64)]


class _Operators(msgspec.Struct, frozen=True):
    """Operators that began in an extent of time, their forest, and columns in preorder; ids ascend."""

    extent: Extent | None
    forest: Forest
    operator_id: Int64
    external_id: Int64
    name: Int64


class _Modules(NamedTuple):
    """Modules of a trace: their ids by recorder's id and name, the forest of their calls, whose each is."""

    ids: dict[tuple[str, int | None], int]
    forest: Forest
    module_id: Int64


def fill_tables(session: Session, trace_id: int, events: StagedEvents) -> quality.Census:
    """Fill the Session's tables from the staged events of one trace.

    Args:
        session: Where the rows go.
        trace_id: Row of `traces` the events belong to.
        events: What was staged.

    Returns:
        The census, with what linking found.
    """
    thread_of = _write_threads(session, trace_id, events.census)
    with (
        session.connection.cursor() as cursor,
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
        ThreadPoolExecutor(1) as executor,
    ):
        events.show_on(cursor, "annotation", "overhead")
        main, side = (
            Statements(connection, trace_id, thread_of) for connection in (session.connection, cursor)
        )
        return _Filler(main, side, executor, events, Path(folder)).fill()


class _Filler:
    """Fills the tables over two connections: `main` nests, links and writes operators, `side` does the rest.

    What is submitted to the side connection runs there in order; results are awaited where they are needed.
    Operators of a long trace are nested extent by extent. What is known of those of one waits in a file until
    all are linked, so that memory holds calls and activities whole, but operators in parts.
    """

    def __init__(
        self, main: Statements, side: Statements, executor: Executor, events: StagedEvents, folder: Path
    ) -> None:
        self.main, self.side = main, side
        self.executor = executor
        self.rows, self.census = events.rows, events.census
        self.folder = folder
        self.irregular_count = 0

    def fill(self) -> quality.Census:
        prepared = self._beside(self._prepare)
        calls_read = self._beside(self._calls)
        activities_read = self._beside(self._activities)
        modules = self._beside(self._write_modules)
        parts, linked = [], None
        for operators in self._operators():
            beside: dict[str, Future[Any]] = {
                "is_outermost": self._beside(
                    nesting.outermost_of_name, operators.forest, operators.name.astype(np.uint64)
                ),
                "module_id": self._beside(_modules_at, operators.forest, modules),
            }
            if linked is None:
                prepared.result()
                linked = _Linked(
                    calls_read.result(),
                    activities_read.result(),
                    self._columns(self._memory_events(), "thread_key", "start_ns"),
                    self._steps(),
                )
            linked.add(operators)
            parts.append(self._kept(operators, linked.steps, beside))
        assert linked is not None
        links = self._write(linked, parts, modules)
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
            ("overheads", "overhead_id", ("overhead",)),
        ):
            if self._has(*categories):
                self.side.insert(table, id_column)

    def _has(self, *categories: str) -> bool:
        return not self.census.categories.keys().isdisjoint(categories)

    def _calls(self) -> linking.Calls:
        return linking.Calls(**self._columns(
            self.rows["call"], "thread_key", "start_ns", "external_id", "correlation_id",
            is_graph_launch=lambda part: part.told(linking.kind_of_call, "name") == linking.CallKind.GRAPH,
        ))  # fmt: skip

    def _activities(self) -> Columns:
        return self._columns(
            self.rows["activity"], "start_ns", "duration_ns", "external_id", "correlation_id",
            replay=lambda part: np.maximum(part.integers("replay"), 0),
            device=lambda part: np.where(
                part.has("device"), part.integers("device"), part.told(_device_of, "pid")
            ),
            stream=lambda part: np.where(
                part.has("stream"), part.integers("stream"), part.told(_stream_of, "tid")
            ),
        )  # fmt: skip

    def _columns(self, parts: Iterable[RowPart], *names: str, **others: Told) -> Columns:
        """Columns of events, and `thread` for `thread_key`."""
        found = columns(parts, *names, **others)
        if "thread_key" in found:
            found["thread"] = self.main.threads(found.pop("thread_key"))
        return found

    def _steps(self) -> RecordedSteps:
        if not self._has("user_annotation"):
            return RecordedSteps(*[np.empty(0, dtype=np.int64)] * 3)
        return RecordedSteps(**self.main.run("step_rows").fetchnumpy())

    def _memory_events(self) -> Iterator[RowPart]:
        """Allocations and releases, among the events with rare arguments."""
        for part in self.rows["detail"] if self._has("memory") else ():
            yield part.taken(part.has("start_ns") & part.told(lambda name: name == "[memory]", "name"))

    def _operators(self) -> Iterator[_Operators]:
        """The operators, extent by extent."""
        counts = np.zeros(0, dtype=np.int64)
        ticks_us, sampled_ns = True, [np.empty(0, dtype=np.int64)]
        for part in self.rows["operator"]:
            threads = self.main.threads(part.integers("thread_key"))
            own = np.bincount(threads, minlength=len(counts))
            own[: len(counts)] += counts
            counts = own
            start_ns, duration_ns = part.integers("start_ns"), part.integers("duration_ns")
            # Clocks that tick in microseconds let a child end up to one tick after its parent.
            ticks_us &= bool(np.all(start_ns % 1000 == 0) and np.all(duration_ns % 1000 == 0))
            sampled_ns.append(start_ns[:: max(1, len(start_ns) // _SAMPLED)])
        first_ids = self.main.next_id("operators", "operator_id") + np.cumsum(counts) - counts
        next_id = dict(enumerate(first_ids.tolist()))
        names: dict[str | None, int] = {}
        for extent, rows in self._operator_rows(int(counts.sum()), np.concatenate(sampled_ns), names):
            forest = nesting.nest(
                rows["thread"],
                rows["start_ns"],
                rows["duration_ns"],
                rows["external_id"],
                tolerance_ns=1000 if ticks_us else 0,
            )
            self.irregular_count += forest.irregular_count
            ids = _numbered(forest.thread, next_id)
            yield _Operators(
                extent, forest, ids, rows["external_id"][forest.order], rows["name"][forest.order]
            )

    def _operator_rows(
        self, count: int, sampled_ns: Int64, names: dict[str | None, int]
    ) -> Iterator[tuple[Extent | None, Columns]]:
        """Columns for nesting, in extents at whose ends no operator is open."""

        def read(extent: Extent | None) -> Columns:
            return self._columns(
                self.rows["operator"].within(extent), "thread_key", "start_ns", "duration_ns", "external_id",
                name=lambda part: part.told(number, "name"),
            )  # fmt: skip

        def number(name: str | None) -> int:
            return names.setdefault(_base_name(name), len(names))

        parts = -(-count // _MOST_OPERATORS)
        if parts <= 1:
            yield None, read(None)
            return
        guesses = np.quantile(sampled_ns, np.arange(1, parts) / parts, method="nearest").tolist()
        first_ns, latest_ns = -(1 << 63), (1 << 63) - 1
        for guess_ns in (*guesses, latest_ns):
            rows = read((first_ns, guess_ns))
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
    ) -> tuple[Extent | None, Callable[[], Columns]]:
        """The extent of operators, and a function that gives their columns, in preorder, when asked for."""
        known = _operator_columns(operators, steps)
        if operators.extent is None:
            return None, lambda: known | {name: column.result() for name, column in beside.items()}
        path = self.folder / f"{operators.extent[0]}.npz"
        everything: dict[str, Any] = known | {name: column.result() for name, column in beside.items()}
        np.savez(path, **everything)
        return operators.extent, lambda: _restored(path)

    def _write(
        self,
        linked: _Linked,
        parts: list[tuple[Extent | None, Callable[[], Columns]]],
        modules: Future[_Modules | None],
    ) -> linking.Links:
        """Write the tables that carry links, operators beside all others; the links."""
        links = linked.candidates.links()
        calls, activities = linked.calls, linked.activities
        call_step = linked.steps.at(calls.start_ns)
        first_call_id = self.main.next_id("runtime_calls", "runtime_call_id")
        launches = self._beside(
            self._write_launches,
            {
                "runtime_call_id": np.arange(len(call_step)) + first_call_id,
                "thread_id": calls.thread,
                "operator_id": links.call_operator,
                "step": call_step,
            },
            self._activity_links(activities, links, linked.steps, call_step, first_call_id),
        )
        frames = self._beside(lambda: self._write_frames(modules.result(0)))
        for extent, read in parts:
            computed = _in_row_order(_operator_links(read(), links, activities["duration_ns"]))
            staged = self.rows["operator"].within(extent)
            self.main.write("operators", _finished(staged, computed, _finish_operators))
        if self._has("cpu_op"):
            self.main.insert("autograd_links", "link_id")
        launches.result()
        frames.result()
        if self._has("memory"):
            self._write_memory_events(linked)
        return links

    def _write_launches(self, call_links: Columns, activity_links: Columns) -> None:
        self.side.write("runtime_calls", _finished(self.rows["call"], call_links, _finish_calls))
        self.side.write(
            "device_activities", _finished(self.rows["activity"], activity_links, _finish_activities)
        )
        if self._has("user_annotation"):
            self.side.run("steps")

    def _activity_links(
        self, activities: Columns, links: linking.Links, steps: RecordedSteps, call_step: Int64,
        first_call_id: int,
    ) -> Columns:  # fmt: skip
        launched = links.activity_call >= 0
        step = np.where(launched, gather(call_step, links.activity_call), -1)
        # Without a call, the operator is the one that its own id names.
        named = np.flatnonzero(~launched & (links.activity_operator >= 0))
        step[named] = steps.at(links.own_start_ns[named])
        rank = np.empty(len(step), dtype=np.int64)
        rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
        return {
            "activity_id": rank + self.main.next_id("device_activities", "activity_id"),
            "name_id": self._write_kernel_names(),
            "device": activities["device"],
            "stream": activities["stream"],
            "runtime_call_id": np.where(launched, links.activity_call + first_call_id, -1),
            "operator_id": links.activity_operator,
            "attribution": links.attribution,
            "step": step,
        }

    def _write_kernel_names(self) -> Int64:
        """Add the names of activities that are not known yet, in the order of their rows; that of each."""
        rows = self.main.run("known_names").fetchall()
        ids: dict[tuple[str, str], int] = {(kind, name): name_id for name_id, name, kind in rows}
        known = len(ids)

        def told(name: str | None, category: str) -> int:
            return ids.setdefault((_kind(category), name or ""), len(ids))

        found = columns(self.rows["activity"], name_id=lambda part: part.told(told, "name", "category"))
        added = list(ids.items())[known:]
        if added:
            kinds, names = zip(*(key for key, _ in added), strict=True)
            numbers = np.array([name_id for _, name_id in added])
            self.main.write("kernel_names", [rows_of({"name_id": numbers, "name": names, "kind": kinds})])
        return found["name_id"]

    def _write_modules(self) -> _Modules | None:
        """Write the modules (on the side connection); None if there are none."""
        if not self._has("python_function"):
            return None
        ids: dict[tuple[str, int | None], int] = {}
        first_id = self.side.next_id("modules", "module_id")

        def told(name: str, module: int | None) -> int:
            return ids.setdefault((name, module), first_id + len(ids))

        found = self._columns(
            map(module_calls, self.rows["frame"]), "row_id", "thread_key", "start_ns", "duration_ns",
            module_id=lambda part: part.told(told, "name", "python_module_id"),
        )  # fmt: skip
        if ids:
            names = [name.removeprefix(MODULE) for name, _ in ids]
            self.side.write("modules", [rows_of({
                "module_id": np.array(list(ids.values())),
                "python_module_id": np.ma.masked_equal([-1 if one is None else one for _, one in ids], -1),
                "name": names,
                "class_name": [_NUMBER_OF_MODULE.sub("", name) for name in names],
                "call_count": np.bincount(found["module_id"] - first_id),
            })])  # fmt: skip
        forest = nesting.nest(found["thread"], found["start_ns"], found["duration_ns"], found["row_id"])
        return _Modules(ids, forest, found["module_id"][forest.order])

    def _write_frames(self, modules: _Modules | None) -> None:
        """What nothing waits for, and so comes last (on the side connection)."""
        if modules is None:
            return
        first_id = self.side.next_id("frames", "frame_id")

        def finished(part: RowPart) -> RowPart:
            return part.given({
                "frame_id": part.integers("row_id") + first_id,
                "thread_id": self.side.threads(part.integers("thread_key")),
                "module_id": part.told(
                    lambda name, module: modules.ids.get((name, module), -1), "name", "python_module_id"
                ),
            })  # fmt: skip

        self.side.write("frames", map(finished, self.rows["frame"]))

    def _write_memory_events(self, linked: _Linked) -> None:
        first_id = self.main.next_id("memory_events", "memory_event_id")
        computed = {
            "memory_event_id": np.arange(len(linked.memory_operator)) + first_id,
            "thread_id": linked.memory["thread"],
            "operator_id": linked.memory_operator,
        }
        self.main.write("memory_events", _finished(self._memory_events(), computed, _finish_memory_events))


class _Linked:
    """Calls, activities and memory events of a trace, and what of its operators they may belong to."""

    def __init__(
        self, calls: linking.Calls, activities: Columns, memory: Columns, steps: RecordedSteps
    ) -> None:
        self.calls, self.activities, self.memory, self.steps = calls, activities, memory, steps
        self.memory_operator = np.full(len(memory["start_ns"]), -1)
        names = linking.Activities.__struct_fields__
        self.candidates = linking.Candidates(
            calls, linking.Activities(**{name: activities[name] for name in names})
        )

    def add(self, operators: _Operators) -> None:
        """Take in operators."""
        forest, ids = operators.forest, operators.operator_id
        self.candidates.add(forest, ids, operators.external_id, operators.extent)
        if len(self.memory_operator):
            here = linking.within(self.memory["start_ns"], operators.extent)
            inside = nesting.enclosing(forest, self.memory["thread"][here], self.memory["start_ns"][here])
            self.memory_operator[here] = gather(ids, inside)


def _finished(
    parts: Iterable[RowPart], computed: Columns, finish: Callable[[RowPart], RowPart]
) -> Iterator[RowPart]:
    """Staged rows as those of a table: with what was computed of each, and made ready part by part."""
    first = 0
    for part in parts:
        end = first + part.row_count
        yield finish(part.given({name: column[first:end] for name, column in computed.items()}))
        first = end


def _finish_operators(part: RowPart) -> RowPart:
    for name, key in (("call_stack", "Call stack"), ("module_hierarchy", "Module Hierarchy")):
        if key in part.columns:
            part = part.retold(name, lambda text: text or None, key)
    return part.retold("overload", _overload, "name").retold("name", _base_name, "name")


def _base_name(name: str | None) -> str | None:
    found = _OVERLOADED.fullmatch(name or "")
    return name if found is None else found[1]


def _overload(name: str | None) -> str | None:
    found = _OVERLOADED.fullmatch(name or "")
    return None if found is None else found[2]


def _finish_calls(part: RowPart) -> RowPart:
    return part.retold(
        "api", lambda category: "driver" if category == "cuda_driver" else "runtime", "category"
    )


def _finish_activities(part: RowPart) -> RowPart:
    grid, block = part.told(partial(_sizes, bits=64), "grid"), part.told(partial(_sizes, bits=32), "block")
    sizes = {
        f"{of}_{axis}": values[:, at]
        for of, values in (("grid", grid), ("block", block))
        for at, axis in enumerate("xyz")
    }
    # What a recorder writes for "none".
    graphs = {name: part.integers(name) for name in ("graph_id", "graph_node_id")}
    part = part.given(sizes | {name: np.where(values == 0, -1, values) for name, values in graphs.items()})
    if "occupancy_percent" in part.columns:
        percent = part.columns["occupancy_percent"][0].view(np.float64)
        estimate = percent / 100, packed(part.has("occupancy_percent") & (percent != 0))
        part = part._replace(columns={**part.columns, "occupancy_estimate": estimate})
    return part.retold("kind", _kind, "category").retold(
        "attribution", lambda code: str(linking.ATTRIBUTIONS[code]), "attribution"
    )


def _finish_memory_events(part: RowPart) -> RowPart:
    device, of_type = part.integers("Device Id"), part.integers("Device Type")
    named = {name: part.columns[key] for name, key in _MEMORY.items() if key in part.columns}
    part = part._replace(columns={**part.columns, **named})
    return part.given({"device": np.where((of_type > 0) & (device >= 0), device, -1)})


def _kind(category: str) -> str:
    """`kernel`, `memcpy` or `memset`."""
    return category.removeprefix("gpu_")


def _sizes(text: str | None, bits: int) -> list[int]:
    """Three sizes; -1 for each that is not there."""
    try:
        sizes = [integer(one, bits=bits) for one in json.loads(text or "[]")]
    except (ValueError, TypeError, RecursionError):
        sizes = []
    return [-1 if one is None else one for one in (*sizes, None, None, None)[:3]]


def _device_of(process: str | None) -> int:
    """The device by the track of an activity that does not tell it."""
    number = integer(process)
    return -1 if number is None else number


def _stream_of(thread: str | None) -> int:
    found = _TRACK.search(thread or "")
    return -1 if found is None else int(found[0])


def _modules_at(forest: Forest, modules: Future[_Modules | None]) -> Int64:
    """Innermost nn.Module call open at each operator's start; -1 for none (on the side connection)."""
    found = modules.result(0)  # read before it, on the same connection: waiting here would be for itself
    if found is None:
        return np.full(len(forest), -1, dtype=np.int64)
    return gather(found.module_id, nesting.enclosing(found.forest, forest.thread, forest.start_ns))


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


def _write_threads(session: Session, trace_id: int, census: quality.Census) -> Int64:
    """Give every host thread its id, in the order of its first event; the id of each key, -1 for others."""
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
    thread_of = np.full(max(census.thread_count, 1), -1)
    thread_of[np.array(keys, dtype=np.int64)] = np.arange(len(keys)) + first
    return thread_of


def _operator_columns(operators: _Operators, steps: RecordedSteps) -> Columns:
    """What is known of operators before activities are linked, in preorder."""
    forest, ids = operators.forest, operators.operator_id
    return {
        "row": forest.order,
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


def _in_row_order(links: Columns) -> Columns:
    """Columns in the order of the staged rows, beside which they are put by position."""
    place = np.argsort(links.pop("row"))
    # One after the other, so that no more than one column is there twice.
    return {name: links.pop(name)[place] for name in tuple(links)}
