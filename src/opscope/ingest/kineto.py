"""The staged events of one trace → rows of every table of a Session, attributed.

What is nested, linked or told by a text is computed from their columns (`linking`, `nesting`), and goes into
the large tables as finished columns; small tables are filled by `kineto.sql`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.ingest import linking, nesting, quality
from opscope.ingest.arrow import ArrowRows, RowPart, packed
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Extent, Forest, Int64, RecordedSteps
from opscope.ingest.quality import integer
from opscope.ingest.staging import MODULE, Columns, StagedEvents, Told, columns, module_calls, rows_of
from opscope.model import schema
from opscope.model.queries import sql
from opscope.model.session import Session, duckdb, registered

# Nested at once: what that takes of memory is some 200 bytes of each.
_MOST_OPERATORS = 1 << 20
# So many of the starts of a part are looked at to divide them.
_SAMPLED = 1 << 10
# Others are integers.
_FORMATS = {"VARCHAR": "u", "JSON": "json", "BOOLEAN": "b", "DOUBLE": "g", "UBIGINT": "L"}
# An operator's name and its overload, where the recorder writes that behind a dot.
_OVERLOADED = re.compile(r"(\w+::\w+)\.(\w+)", re.ASCII)
_MEMORY = {
    "time_ns": "start_ns", "address": "Addr", "size_bytes": "Bytes", "device_type": "Device Type",
    "total_allocated_bytes": "Total Allocated", "total_reserved_bytes": "Total Reserved",
}  # fmt: skip
_APIS = {"cuda_driver": "driver"}  # by category
_NUMBER_OF_MODULE = re.compile(r"_[0-9]+\Z")
_TRACK = re.compile(r"[0-9]{1,18}")


def write_rows(session: Session, trace_id: int, table: str, parts: Iterable[RowPart]) -> None:
    """Add finished rows of a trace to a table; they are read once."""
    declared = schema.table(table).columns
    formats = {one.name: _FORMATS.get(one.type, "l") for one in declared if one.name != "trace_id"}
    values = ", ".join(f'"{one.name}"' if one.name in formats else str(trace_id) for one in declared)
    once = iter([parts])
    with registered(session.connection, finished=ArrowRows(formats, lambda: next(once))):
        session.connection.execute(f"INSERT INTO {table} SELECT {values} FROM finished")


class _Modules(NamedTuple):
    """Modules of a trace: their ids by recorder's id and name, the forest of their calls, whose each is."""

    ids: dict[tuple[str, int | None], int]
    forest: Forest
    module_id: Int64


def fill_tables(session: Session, trace_id: int, events: StagedEvents) -> quality.Census:
    """Fill the Session's tables from the staged events of one trace; the census, with what linking found."""
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        return _Filler(session, trace_id, events, Path(folder)).fill()


class _Filler:
    """Fills the tables of one trace.

    Operators of a long trace are nested extent by extent. What is known of those of one waits in a file until
    all are linked, so that memory holds calls and activities whole, but operators in parts.
    """

    def __init__(self, session: Session, trace_id: int, events: StagedEvents, folder: Path) -> None:
        self.session, self.trace_id, self.folder = session, trace_id, folder
        self.rows, self.census = events.rows, events.census
        self.thread_of = self._write_threads()  # ids of the host's threads by their keys, else -1

    def run(self, statement: str, **values: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement of `kineto.sql` with its placeholders filled in."""
        text = sql(__package__, f"kineto:{statement}").format(trace_id=self.trace_id, **values)
        return self.session.connection.execute(text)

    def insert(self, table: str) -> None:
        self.run(table, first_id=self.next_id(table))

    def write(self, table: str, parts: Iterable[RowPart]) -> None:
        write_rows(self.session, self.trace_id, table, parts)

    def next_id(self, table: str) -> int:
        if self.trace_id == 0:
            return 0
        column = schema.table(table).columns[0].name
        return int(self.session.scalar(f"SELECT coalesce(max({column}) + 1, 0) FROM {table}"))

    def threads(self, keys: npt.NDArray[Any]) -> Int64:
        return self.thread_of[keys.astype(np.int64)]

    def fill(self) -> quality.Census:
        if self._has("user_annotation", "gpu_user_annotation"):
            self.insert("annotations")
        if self._has("overhead"):
            self.insert("overheads")
        if self._has("counter"):
            self.run("counters")
        calls = linking.Calls(**self._columns(
            self.rows["call"], "thread_key", "start_ns", "external_id", "correlation_id",
            is_graph_launch=lambda part: part.told(linking.kind_of_call, "name") == linking.CallKind.GRAPH,
        ))  # fmt: skip
        activities, modules = self._activities(), self._write_modules()
        rows = self.run("step_rows").fetchall() if self._has("user_annotation") else []
        steps = RecordedSteps(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
        memory = self._columns(self._memory_events(), "thread_key", "start_ns")
        memory_operator = np.full(len(memory["start_ns"]), -1)
        of_links = {name: activities[name] for name in linking.Activities.__struct_fields__}
        candidates = linking.Candidates(calls, linking.Activities(**of_links))
        parts: list[tuple[Extent | None, Columns | Path]] = []
        irregular_count = 0
        for extent, forest, external_id, known in self._operators(steps, modules):
            ids = known["operator_id"]
            irregular_count += forest.irregular_count
            candidates.add(forest, ids, external_id, extent)
            here = linking.within(memory["start_ns"], extent)
            inside = nesting.enclosing(forest, memory["thread"][here], memory["start_ns"][here])
            memory_operator[here] = gather(ids, inside)
            parts.append((extent, known if extent is None else self._kept(f"{extent[0]}.npz", known)))
        links = candidates.links()
        for extent, kept in parts:
            computed = _operator_links(_restored(kept), links, activities["duration_ns"])
            # In the order of the staged rows; one after the other, so that one column at most is there twice.
            row = computed.pop("row")
            place = np.empty_like(row)
            place[row] = np.arange(len(row))
            computed = {name: computed.pop(name)[place] for name in tuple(computed)}
            staged = self.rows["operator"].within(extent)
            self.write("operators", _finished(staged, computed, _finish_operators))
        if self._has("cpu_op"):
            self.insert("autograd_links")
        self._write_launches(calls, activities, links, steps)
        if modules is not None:
            self._write_frames(modules)
        if self._has("memory"):
            computed = {
                "memory_event_id": np.arange(len(memory_operator)) + self.next_id("memory_events"),
                "thread_id": memory["thread"],
                "operator_id": memory_operator,
            }
            self.write("memory_events", _finished(self._memory_events(), computed, _finish_memory_events))
        if self.census.detailed_count:
            self.insert("syncs")
            self.insert("collectives")
            self.run("triton_launches")
        return replace(
            self.census,
            irregular_count=irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
        )

    def _has(self, *categories: str) -> bool:
        return not self.census.categories.keys().isdisjoint(categories)

    def _activities(self) -> Columns:
        def known(part: RowPart, name: str, tell: Callable[[str | None], int], track: str) -> Int64:
            return np.where(part.has(name), part.integers(name), part.told(tell, track))

        return self._columns(
            self.rows["activity"], "start_ns", "duration_ns", "external_id", "correlation_id",
            replay=lambda part: np.maximum(part.integers("replay"), 0),
            # By the track of one that does not tell it.
            device=lambda part: known(part, "device", lambda process: _or_missing(integer(process)), "pid"),
            stream=lambda part: known(
                part, "stream", lambda track: int((_TRACK.findall(track or "") or [-1])[0]), "tid"
            ),
        )  # fmt: skip

    def _write_threads(self) -> Int64:
        """Give host threads their ids, in the order of first events; the id of each key, -1 for others."""
        processes: dict[str | None, str] = {}
        names: dict[int, str] = {}
        for key, process, kind, label in self.session.query(sql(__package__, "kineto:thread_labels")):
            if kind == "process_name":
                processes[process] = label
            else:
                names[key] = label
        first = int(self.session.scalar("SELECT coalesce(max(thread_id) + 1, 0) FROM threads"))
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
            self.session.connection.executemany("INSERT INTO threads VALUES (?, ?, ?, ?, ?, ?)", rows)
        keys = [key for key, _, _ in self.census.threads]
        self.session.connection.execute(
            sql(__package__, "kineto:thread_links").format(first_id=first), [keys]
        )
        thread_of = np.full(max(self.census.thread_count, 1), -1)
        thread_of[np.array(keys, dtype=np.int64)] = np.arange(len(keys)) + first
        return thread_of

    def _columns(self, parts: Iterable[RowPart], *names: str, **others: Told) -> Columns:
        """Columns of events, and `thread` for `thread_key`."""
        found = columns(parts, *names, **others)
        if "thread_key" in found:
            found["thread"] = self.threads(found.pop("thread_key"))
        return found

    def _memory_events(self) -> Iterator[RowPart]:
        for part in self.rows["detail"] if self._has("memory") else ():
            yield part.taken(part.has("start_ns") & part.told(lambda name: name == "[memory]", "name"))

    def _operators(
        self, steps: RecordedSteps, modules: _Modules | None
    ) -> Iterator[tuple[Extent | None, Forest, Int64, Columns]]:
        """Operators that began in an extent of time: their forest, external ids and columns, in preorder."""
        counts = np.zeros(0, dtype=np.int64)
        ticks_us, sampled_ns = True, [np.empty(0, dtype=np.int64)]
        for part in self.rows["operator"]:
            own = np.bincount(self.threads(part.integers("thread_key")), minlength=len(counts))
            own[: len(counts)] += counts
            counts = own
            start_ns, duration_ns = part.integers("start_ns"), part.integers("duration_ns")
            # Clocks that tick in microseconds let a child end up to one tick after its parent.
            ticks_us &= bool(np.all(start_ns % 1000 == 0) and np.all(duration_ns % 1000 == 0))
            sampled_ns.append(start_ns[:: max(1, len(start_ns) // _SAMPLED)])
        # The next id of each thread's operators.
        next_id = self.next_id("operators") + np.cumsum(counts) - counts
        for extent, rows in self._operator_rows(int(counts.sum()), np.concatenate(sampled_ns)):
            placed = (rows["thread"], rows["start_ns"], rows["duration_ns"], rows["external_id"])
            forest = nesting.nest(*placed, tolerance_ns=1000 if ticks_us else 0)
            ids = np.arange(len(forest))
            begins = np.flatnonzero(np.diff(forest.thread, prepend=-1))
            for low, high in pairwise((*begins.tolist(), len(ids))):
                ids[low:high] += next_id[forest.thread[low]] - low
                next_id[forest.thread[low]] += high - low
            module_id = np.full(len(forest), -1)
            if modules is not None:  # the innermost call of a module that is open where an operator begins
                inside = nesting.enclosing(modules.forest, forest.thread, forest.start_ns)
                module_id = gather(modules.module_id, inside)
            name = rows["name"][forest.order].astype(np.uint64)
            known: Columns = {
                "row": forest.order,
                "operator_id": ids,
                "thread_id": forest.thread.astype(np.int32),
                "parent_id": gather(ids, forest.parent),
                "depth": forest.depth.astype(np.int32),
                "last_descendant_id": ids[forest.last_descendant],
                "step": steps.at(forest.start_ns).astype(np.int32),
                "self_cpu_ns": forest.end_ns - forest.start_ns - nesting.children_time(forest),
                "is_outermost": nesting.outermost_of_name(forest, name),
                "module_id": module_id,
            }
            yield extent, forest, rows["external_id"][forest.order], known

    def _operator_rows(self, count: int, sampled_ns: Int64) -> Iterator[tuple[Extent | None, Columns]]:
        """Columns for nesting, in extents at whose ends no operator is open."""
        names: dict[str | None, int] = {}

        def read(extent: Extent | None) -> Columns:
            return self._columns(
                self.rows["operator"].within(extent), "thread_key", "start_ns", "duration_ns", "external_id",
                name=lambda part: part.told(
                    lambda name: names.setdefault(_split(name)[0], len(names)), "name"
                ),
            )  # fmt: skip

        parts = -(-count // _MOST_OPERATORS)
        if parts <= 1:
            yield None, read(None)
            return
        guesses = np.quantile(sampled_ns, np.arange(1, parts) / parts, method="nearest").tolist()
        first_ns, latest_ns = -(1 << 63), (1 << 63) - 1
        for guess_ns in (*guesses, latest_ns):
            rows, end_ns = read((first_ns, guess_ns)), latest_ns + 1
            if guess_ns < latest_ns:
                pause_ns = nesting.last_pause(rows["start_ns"], rows["duration_ns"])
                if pause_ns is None:
                    continue
                end_ns = pause_ns
                rows = {name: column[rows["start_ns"] < end_ns] for name, column in rows.items()}
            yield (first_ns, end_ns - 1), rows
            first_ns = end_ns

    def _kept(self, name: str, known: Columns) -> Path:
        everything: dict[str, Any] = dict(known)
        np.savez(self.folder / name, **everything)
        return self.folder / name

    def _write_launches(
        self, calls: linking.Calls, activities: Columns, links: linking.Links, steps: RecordedSteps
    ) -> None:
        """Write calls, activities with their names, and steps, whose device time is that of activities."""
        call_step, first_call_id = steps.at(calls.start_ns), self.next_id("runtime_calls")
        of_calls = {
            "runtime_call_id": np.arange(len(call_step)) + first_call_id,
            "thread_id": calls.thread,
            "operator_id": links.call_operator,
            "step": call_step,
        }
        self.write("runtime_calls", _finished(
            self.rows["call"], of_calls,
            lambda part: part.retold("api", lambda name: _APIS.get(name, "runtime"), "category"),
        ))  # fmt: skip
        launched = links.activity_call >= 0
        step = np.where(launched, gather(call_step, links.activity_call), -1)
        # Without a call, the operator is the one that its own id names.
        named = np.flatnonzero(~launched & (links.activity_operator >= 0))
        step[named] = steps.at(links.own_start_ns[named])
        rank = np.empty(len(step), dtype=np.int64)
        rank[np.lexsort((activities["start_ns"], activities["device"]))] = np.arange(len(step))
        of_activities = {
            "activity_id": rank + self.next_id("device_activities"),
            "name_id": self._write_kernel_names(),
            "device": activities["device"],
            "stream": activities["stream"],
            "runtime_call_id": np.where(launched, links.activity_call + first_call_id, -1),
            "operator_id": links.activity_operator,
            "attribution": links.attribution,
            "step": step,
        }
        self.write("device_activities", _finished(self.rows["activity"], of_activities, _finish_activities))
        if self._has("user_annotation"):
            self.run("steps")

    def _write_kernel_names(self) -> Int64:
        """Add the names of activities that are not known yet, in the order of their rows; that of each."""
        rows = self.run("known_names").fetchall()
        ids: dict[tuple[str, str], int] = {(kind, name): name_id for name_id, name, kind in rows}
        known = len(ids)
        found = columns(self.rows["activity"], name_id=lambda part: part.told(
            lambda name, category: ids.setdefault((_kind(category), name or ""), len(ids)), "name", "category"
        ))  # fmt: skip
        added = list(ids.items())[known:]
        if added:
            kinds, names = zip(*(key for key, _ in added), strict=True)
            numbers = np.array([name_id for _, name_id in added])
            self.write("kernel_names", [rows_of({"name_id": numbers, "name": names, "kind": kinds})])
        return found["name_id"]

    def _write_modules(self) -> _Modules | None:
        if not self._has("python_function"):
            return None
        ids: dict[tuple[str, int | None], int] = {}
        first_id = self.next_id("modules")
        found = self._columns(
            map(module_calls, self.rows["frame"]), "row_id", "thread_key", "start_ns", "duration_ns",
            module_id=lambda part: part.told(
                lambda *module: ids.setdefault(module, first_id + len(ids)), "name", "python_module_id"
            ),
        )  # fmt: skip
        if ids:
            names = [name.removeprefix(MODULE) for name, _ in ids]
            rows = rows_of({
                "module_id": np.array(list(ids.values())),
                "name": names,
                "class_name": [_NUMBER_OF_MODULE.sub("", name) for name in names],
                "call_count": np.bincount(found["module_id"] - first_id),
            })  # fmt: skip
            numbers = {"python_module_id": np.array([_or_missing(one) for _, one in ids])}
            self.write("modules", [rows.given(numbers)])
        forest = nesting.nest(found["thread"], found["start_ns"], found["duration_ns"], found["row_id"])
        return _Modules(ids, forest, found["module_id"][forest.order])

    def _write_frames(self, modules: _Modules) -> None:
        first_id = self.next_id("frames")

        def finished(part: RowPart) -> RowPart:
            return part.given({
                "frame_id": part.integers("row_id") + first_id,
                "thread_id": self.threads(part.integers("thread_key")),
                "module_id": part.told(
                    lambda *module: modules.ids.get(module, -1), "name", "python_module_id"
                ),
            })  # fmt: skip

        self.write("frames", map(finished, self.rows["frame"]))


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
    overloads = part.retold("overload", lambda name: _split(name)[1], "name")
    return overloads.retold("name", lambda name: _split(name)[0], "name")


def _split(name: str | None) -> tuple[str | None, str | None]:
    """Name of an operator without its overload, and that."""
    found = _OVERLOADED.fullmatch(name or "")
    return (name, None) if found is None else (found[1], found[2])


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
    return category.removeprefix("gpu_")


def _or_missing(number: int | None) -> int:
    """A number as columns have it: -1 stands for none."""
    return -1 if number is None else number


def _sizes(text: str | None, bits: int) -> list[int]:
    """Three sizes; -1 for each that is not there."""
    try:
        sizes = [integer(one, bits=bits) for one in json.loads(text or "[]")]
    except (ValueError, TypeError, RecursionError):
        sizes = []
    return list(map(_or_missing, (*sizes, None, None, None)[:3]))


def _operator_links(columns: Columns, links: linking.Links, duration_ns: Int64) -> Columns:
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


def _restored(kept: Columns | Path) -> Columns:
    if not isinstance(kept, Path):
        return kept
    with np.load(kept) as stored:
        return dict(stored)
