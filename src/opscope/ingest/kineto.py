"""The staged events of one trace → rows of every table of a Session, attributed.

What is nested, linked or told by a text is computed from their columns (`linking`, `nesting`). The Session
keeps what tables are written of: finished columns of large ones, statements of `kineto.sql` for others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from opscope.ingest import linking, nesting
from opscope.ingest.arrow import ArrowRows, RowPart, packed
from opscope.ingest.quality import Census, integer
from opscope.ingest.staging import MODULE, Columns, StagedEvents, Told, columns, module_calls, rows_of
from opscope.model import schema
from opscope.model.queries import sql
from opscope.model.session import Session, registered

# Nested at once: what that takes of memory is some 200 bytes of each.
_MOST_OPERATORS = 1 << 20
# So many of the starts of a part are looked at to divide them.
_SAMPLED = 1 << 10
# Others are integers.
_FORMATS = {"VARCHAR": "u", "JSON": "json", "BOOLEAN": "b", "DOUBLE": "g", "UBIGINT": "L"}
# The categories of events that tables are made of by a statement; of none: rarer arguments of any.
_OF_CATEGORIES: dict[str, set[str]] = {
    "annotations": {"user_annotation", "gpu_user_annotation"}, "steps": {"user_annotation"},
    "overheads": {"overhead"}, "counters": {"counter"}, "autograd_links": {"cpu_op"},
    "syncs": set(), "collectives": set(), "triton_launches": set(),
}  # fmt: skip
# An operator's name and its overload, where the recorder writes that behind a dot.
_OVERLOADED = re.compile(r"(\w+::\w+)\.(\w+)", re.ASCII)
_MEMORY = {
    "time_ns": "start_ns", "address": "Addr", "size_bytes": "Bytes", "device_type": "Device Type",
    "total_allocated_bytes": "Total Allocated", "total_reserved_bytes": "Total Reserved",
}  # fmt: skip
_APIS = {"cuda_driver": "driver"}  # by category
_NUMBER_OF_MODULE = re.compile(r"_[0-9]+\Z")
_STEP = re.compile(r"\AX user_annotation ProfilerStep#([0-9]+)")
_TRACK = re.compile(r"[0-9]{1,18}")


def write_rows(session: Session, trace_id: int, table: str, parts: Callable[[], Iterable[RowPart]]) -> None:
    """Have finished rows of a trace written to a table."""
    declared = schema.table(table).columns
    formats = {one.name: _FORMATS.get(one.type, "l") for one in declared if one.name != "trace_id"}
    values = ", ".join(f'"{one.name}"' if one.name in formats else str(trace_id) for one in declared)
    statement, read = f"INSERT INTO {table} SELECT {values} FROM finished", ArrowRows(formats, parts)
    session.defer(table, partial(_run, statement=statement, read={"finished": read}))


def _run(session: Session, statement: str, read: Mapping[str, Any]) -> None:
    with registered(session, **read):
        session.execute(statement)


class _Modules(NamedTuple):
    """Modules of a trace: their ids by recorder's id and name, the forest of their calls, whose each is."""

    ids: dict[tuple[str, int | None], int]
    forest: nesting.Forest
    module_id: nesting.Int64


_EMPTY = 0.05  # of what was recorded: a longer step may be of work that was not


class Filler:
    """Has the tables filled from the staged events of one trace.

    Operators of a long trace are nested extent by extent, which wait in files where the Session is on disk.
    """

    def __init__(self, session: Session, trace_id: int, events: StagedEvents) -> None:
        self.session, self.trace_id = session, trace_id
        self.write = partial(write_rows, session, trace_id)
        self.events, self.rows, self.census = events, events.rows, events.census
        self.thread_of = self._write_threads()  # ids of the host's threads by their keys, else -1

    def insert(self, table: str) -> None:
        text = sql(__package__, f"kineto:{table}").format(
            trace_id=self.trace_id, first_id=self.next_id(table)
        )
        read, keys = self.events.read_by(text), np.flatnonzero(self.thread_of >= 0)
        read["thread_links"] = {"thread_key": keys, "thread_id": self.thread_of[keys]}
        self.session.defer(table, partial(_run, statement=text, read=read))

    def next_id(self, table: str) -> int:
        if self.trace_id == 0:
            return 0
        column = schema.table(table).columns[0].name
        return int(self.session.scalar(f"SELECT coalesce(max({column}) + 1, 0) FROM {table}"))

    def fill(self) -> Census:
        calls = linking.Calls(**self._columns(
            self.rows["call"], "thread_key", "start_ns", "external_id", "correlation_id",
            is_graph_launch=lambda part: part.told(linking.kind_of_call, "name") == linking.CallKind.GRAPH,
        ))  # fmt: skip
        activities, modules, steps = self._activities(), self._write_modules(), self._steps()
        kinds, details = self.census.categories.keys(), self.rows["detail"]
        memory = self._columns(_memory_events(details), "thread_key", "start_ns")
        memory_operator = np.full(len(memory["start_ns"]), -1)
        of_links = {name: activities[name] for name in linking.Activities.__struct_fields__}
        candidates = linking.Candidates(calls, linking.Activities(**of_links))
        parts: list[tuple[nesting.Extent | None, Callable[[], Columns]]] = []
        irregular_count = 0
        for extent, forest, external_id, ids, tell in self._operators(steps, modules):
            irregular_count += forest.irregular_count
            candidates.add(forest, ids, external_id, extent)
            here = linking.within(memory["start_ns"], extent)
            inside = nesting.enclosing(forest, memory["thread"][here], memory["start_ns"][here])
            memory_operator[here] = linking.gather(ids, inside)
            if self.session.is_file_backed:
                file, everything = self.events.folder / f"{len(parts)}.npz", dict[str, Any](tell())
                np.savez(file, **everything)
                tell = partial(np.load, file)  # noqa: PLW2901 - where memory is limited, files keep it
            parts.append((extent, tell))
        links = candidates.links()
        for extent, tell in parts:
            told = partial(self.rows["operator"].within, extent), tell, links, activities["duration_ns"]
            self.write("operators", partial(_finished_operators, *told))
        self._write_launches(calls, activities, links, steps)
        if modules is not None:
            self._write_frames(modules)
        if "memory" in kinds:
            computed = {
                "memory_event_id": np.arange(len(memory_operator)) + self.next_id("memory_events"),
                "thread_id": memory["thread"],
                "operator_id": memory_operator,
            }
            self.write("memory_events", lambda: _finished(_memory_events(details), computed, _finish_memory))
        for table, of in _OF_CATEGORIES.items():
            if table == "steps" and not len(steps.step):
                continue
            if of & kinds or (not of and self.census.detailed_count):
                self.insert(table)
        self.rows.clear()  # each table keeps what it is written of until it is
        return replace(
            self.census,
            irregular_count=irregular_count,
            impossible_id_count=links.impossible_ids,
            are_ids_used=links.ids_used,
            reach_ns=2.0 * np.abs(activities["start_ns"]).max(initial=0)
            + activities["duration_ns"].sum(dtype=float),
        )

    def _steps(self) -> nesting.RecordedSteps:
        found = columns(
            (part.taken(part.has("start_ns")) for part in self.rows["annotation"]), "start_ns", "duration_ns",
            step=lambda part: part.told(
                lambda *told: _or_missing(integer((_STEP.findall(" ".join(map(str, told))) or [None])[0])),
                "ph", "category", "name",
            ),
        )  # fmt: skip
        order = np.argsort(found["start_ns"], kind="stable")
        order = order[(found["step"][order] >= 0) & (found["duration_ns"][order] >= 0)]
        if len(order) == 1:  # the mark of a step that the program did not go on with is none
            (start_ns,), (duration_ns,) = found["start_ns"][order], found["duration_ns"][order]
            begun_ns = columns(self.rows["operator"], "start_ns")["start_ns"]
            is_empty = not ((start_ns <= begun_ns) & (begun_ns < start_ns + duration_ns)).any()
            if len(begun_ns) and is_empty and duration_ns < _EMPTY * int(np.ptp(begun_ns)):
                order = order[:0]
        return nesting.RecordedSteps(
            *(found[name][order] for name in nesting.RecordedSteps.__struct_fields__)
        )

    def _activities(self) -> Columns:
        def known(part: RowPart, name: str, tell: Callable[[str | None], int], track: str) -> nesting.Int64:
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

    def _write_threads(self) -> nesting.Int64:
        """Give host threads their ids, in the order of first events; the id of each key, -1 for others."""
        labels: dict[tuple[str | None, str | int | None], str] = {}
        for row in chain.from_iterable(map(RowPart.records, self.rows["label"])):
            if "label" in row:
                name = row.get("name")
                labels[name, row.get("pid")] = labels[name, row["thread_key"]] = row["label"]
        thread_of = np.full(max(self.census.thread_count, 1), -1)
        if self.census.threads:
            keys = list(self.census.threads)
            of_process, threads = zip(*self.census.threads.values(), strict=True)
            thread_of[keys] = ids = np.arange(len(keys)) + self.next_id("threads")
            rows = rows_of({
                "thread_id": ids,
                "process": [one or "" for one in of_process],
                "native_thread": [one or "" for one in threads],
                "process_name": [labels.get(("process_name", one)) for one in of_process],
                "name": [labels.get(("thread_name", one)) for one in keys],
            })  # fmt: skip
            self.write("threads", lambda: [rows])
        return thread_of

    def _columns(self, parts: Iterable[RowPart], *names: str, **others: Told) -> Columns:
        """Columns of events, and `thread` for `thread_key`."""
        found = columns(parts, *names, **others)
        if "thread_key" in found:
            found["thread"] = self.thread_of[found.pop("thread_key")]
        return found

    def _operators(
        self, steps: nesting.RecordedSteps, modules: _Modules | None
    ) -> Iterator[
        tuple[nesting.Extent | None, nesting.Forest, nesting.Int64, nesting.Int64, Callable[[], Columns]]
    ]:
        """Operators that began in an extent: their forest, external and own ids, and columns, in preorder."""
        counts = np.zeros(0, dtype=np.int64)
        ticks_us, sampled_ns = True, [np.empty(0, dtype=np.int64)]
        for part in self.rows["operator"]:
            own = np.bincount(self.thread_of[part.integers("thread_key")], minlength=len(counts))
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
            known = partial(_operator_columns, forest, ids, rows["name"], steps, modules)
            yield extent, forest, rows["external_id"][forest.order], ids, known

    def _operator_rows(
        self, count: int, sampled_ns: nesting.Int64
    ) -> Iterator[tuple[nesting.Extent | None, Columns]]:
        """Columns for nesting, in extents at whose ends no operator is open."""
        names: dict[str | None, int] = {}

        def read(extent: nesting.Extent | None) -> Columns:
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

    def _write_launches(
        self, calls: linking.Calls, activities: Columns, links: linking.Links, steps: nesting.RecordedSteps
    ) -> None:
        """Write calls, activities with their names, and steps, whose device time is that of activities."""
        call_step, first_call_id = steps.at(calls.start_ns), self.next_id("runtime_calls")
        of_calls = {
            "runtime_call_id": np.arange(len(call_step)) + first_call_id,
            "thread_id": calls.thread,
            "operator_id": links.call_operator,
            "step": call_step,
        }
        self.write("runtime_calls", partial(
            _finished, self.rows["call"], of_calls,
            lambda part: part.retold("api", lambda name: _APIS.get(name, "runtime"), "category"),
        ))  # fmt: skip
        launched = links.activity_call >= 0
        step = np.where(launched, linking.gather(call_step, links.activity_call), -1)
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
        told = self.rows["activity"], of_activities, _finish_activities
        self.write("device_activities", partial(_finished, *told))

    def _write_kernel_names(self) -> nesting.Int64:
        """Add the names of activities that are not known yet, in the order of their rows; that of each."""
        rows = self.session.query("SELECT kind, name, name_id FROM kernel_names") if self.trace_id else []
        ids: dict[tuple[str, str], int] = {(kind, name): name_id for kind, name, name_id in rows}
        known = len(ids)
        found = columns(self.rows["activity"], name_id=lambda part: part.told(
            lambda name, category: ids.setdefault((_kind(category), name or ""), len(ids)), "name", "category"
        ))  # fmt: skip
        added = list(ids.items())[known:]
        if added:
            kinds, names = zip(*(key for key, _ in added), strict=True)
            numbers = np.array([name_id for _, name_id in added])
            named = rows_of({"name_id": numbers, "name": names, "kind": kinds})
            self.write("kernel_names", lambda: [named])
        return found["name_id"]

    def _write_modules(self) -> _Modules | None:
        if "python_function" not in self.census.categories:
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
            self.write("modules", lambda: [rows.given(numbers)])
        forest = nesting.nest(found["thread"], found["start_ns"], found["duration_ns"], found["row_id"])
        return _Modules(ids, forest, found["module_id"][forest.order])

    def _write_frames(self, modules: _Modules) -> None:
        first_id, thread_of = self.next_id("frames"), self.thread_of
        frames, ids = self.rows["frame"], modules.ids

        def finished(part: RowPart) -> RowPart:
            return part.given({
                "frame_id": part.integers("row_id") + first_id,
                "thread_id": thread_of[part.integers("thread_key")],
                "module_id": part.told(lambda *module: ids.get(module, -1), "name", "python_module_id"),
            })  # fmt: skip

        self.write("frames", lambda: map(finished, frames))


def _operator_columns(
    forest: nesting.Forest,
    ids: nesting.Int64,
    name: nesting.Int64,
    steps: nesting.RecordedSteps,
    modules: _Modules | None,
) -> Columns:
    module_id = np.full(len(forest), -1)
    if modules is not None:  # the innermost call of a module that is open where an operator begins
        inside = nesting.enclosing(modules.forest, forest.thread, forest.start_ns)
        module_id = linking.gather(modules.module_id, inside)
    return {
        "row": forest.order,
        "operator_id": ids,
        "thread_id": forest.thread.astype(np.int32),
        "parent_id": linking.gather(ids, forest.parent),
        "depth": forest.depth.astype(np.int32),
        "last_descendant_id": ids[forest.last_descendant],
        "step": steps.at(forest.start_ns).astype(np.int32),
        "self_cpu_ns": forest.end_ns - forest.start_ns - nesting.children_time(forest),
        "is_outermost": nesting.outermost_of_name(forest, name[forest.order].astype(np.uint64)),
        "module_id": module_id,
    }


def _finished(
    parts: Iterable[RowPart], computed: Columns, finish: Callable[[RowPart], RowPart]
) -> Iterator[RowPart]:
    """Staged rows as those of a table: with what was computed of each, and made ready part by part."""
    first = 0
    for part in (one for one in parts if one.row_count):
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


def _memory_events(details: Iterable[RowPart]) -> Iterator[RowPart]:
    for part in details:
        yield part.taken(part.has("start_ns") & part.told(lambda name: name == "[memory]", "name"))


def _finish_memory(part: RowPart) -> RowPart:
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


def _finished_operators(
    staged: Callable[[], Iterable[RowPart]], known: Callable[[], Columns], links: linking.Links,
    duration_ns: nesting.Int64,
) -> Iterator[RowPart]:  # fmt: skip
    return _finished(staged(), _operator_links(known(), links, duration_ns), _finish_operators)


def _operator_links(columns: Columns, links: linking.Links, duration_ns: nesting.Int64) -> Columns:
    ids = columns["operator_id"]
    place = linking.look_up(ids, np.arange(len(ids)), links.activity_operator)
    owned = np.flatnonzero(place >= 0)
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    self_device = np.bincount(place[owned], weights=duration_ns[owned], minlength=len(ids)).astype(np.int64)
    # Ids of one thread are consecutive.
    last = np.arange(len(ids)) + columns["last_descendant_id"] - ids
    sums = {"self_device_ns": self_device, "total_device_ns": nesting.subtree_sums(last, self_device)}
    columns = {**columns, **sums}
    # In the order of the staged rows; one after the other, so that one column at most is there twice.
    row = columns.pop("row")
    place = np.empty_like(row)
    place[row] = np.arange(len(row))
    return {name: columns.pop(name)[place] for name in tuple(columns)}
