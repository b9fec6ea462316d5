"""The events of one trace by class: operators, calls, activities and so on.

Rows of events (of a Kineto file `scan`, of another kind its own reader) are split into columns by class. In a
session on disk they lie in files, and are read when it is their turn. The engine reads them in place, as
`operator_events`, `call_events`, …; what is computed without it goes through them part by part.
"""

from __future__ import annotations

import mmap
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.arrow import ArrowRows, RowPart, Texts, packed, unpacked
from opscope.ingest.nesting import Extent, Int64
from opscope.ingest.scan import FORMATS, MEMBERS, Chunk, ColumnKind, Scanned, scan
from opscope.ingest.source import EventArray, OpenArray, error_offset, open_array, trailer
from opscope.model.queries import sql
from opscope.model.session import Session

CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "cuda_sync", "overhead", "fwdbwd", "Trace",
)  # fmt: skip
# Of recorders until 2021.
_LEGACY = {
    "Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}  # fmt: skip
_KINDS = {member.name: member.kind for member in MEMBERS}
_PLACED = ("row_id", "thread_key", "start_ns", "duration_ns", "name", "category")
# Columns of each class, and whether only spans with usable times count.
_CLASSES: dict[str, tuple[tuple[str, ...], bool]] = {
    "operator": ((
        *_PLACED, "external_id", "sequence_number", "forward_thread_id", "input_shapes", "input_types",
        "input_strides", "concrete_inputs", "Call stack", "Module Hierarchy", "python_module_id",
    ), True),
    "call": ((*_PLACED, "external_id", "correlation_id", "launched_kernel", "grid", "block"), True),
    "activity": ((
        *_PLACED, "pid", "tid", "external_id", "correlation_id", "device", "stream", "context", "grid",
        "block", "registers_per_thread", "shared_memory_bytes", "blocks_per_sm", "warps_per_sm",
        "occupancy_percent", "size_bytes", "graph_id", "graph_node_id", "replay",
    ), True),
    "frame": ((*_PLACED, "python_id", "parent_python_id", "python_module_id"), True),
    "annotation": ((*_PLACED, "pid", "tid", "ph", "external_id"), False),
    "overhead": (_PLACED, True),
    "flow": ((*_PLACED, "ph", "id"), False),
    "label": ((*_PLACED, "pid", "label"), False),
    # Arguments that few events have, once more with what finds those events again.
    "detail": ((
        *_PLACED, "external_id", "correlation_id", "device", "stream", "grid",
        *(member.name for member in MEMBERS if member.is_rare),
    ), False),
}  # fmt: skip
# What the replay of a graph repeats of an event that was captured.
REPEATED = {
    "operator": ("name", "input_shapes", "input_types", "input_strides", "concrete_inputs"),
    "frame": ("name", "python_module_id"),
    "detail": (*(member.name for member in MEMBERS if member.is_rare), "device", "stream", "grid"),
}
MODULE = "nn.Module: "  # begins the names of modules' frames
_CLASS_OF = {
    "cpu_op": "operator", "cuda_runtime": "call", "cuda_driver": "call", "kernel": "activity",
    "gpu_memcpy": "activity", "gpu_memset": "activity", "python_function": "frame",
    "user_annotation": "annotation", "gpu_user_annotation": "annotation", "overhead": "overhead",
    "fwdbwd": "flow",
}  # fmt: skip
_OWN_FORMATS = {"row_id": "l", "thread_key": "L", "replay": "l", "category": "u"}


def _formats(names: Iterable[str]) -> dict[str, str]:
    return {name: _OWN_FORMATS.get(name) or FORMATS.get(_KINDS[name], "l") for name in names}


class EventRows:
    """The rows of one class in the order of the file, in parts.

    Args:
        names: Their columns.
        place: Where parts lie, but for the number of each; in memory if None.
    """

    def __init__(self, names: tuple[str, ...], place: Path | None) -> None:
        self.formats = _formats(names)
        self._place = place
        self._parts: list[RowPart | None] = []
        self._extents: list[Extent] = []

    def __iter__(self) -> Iterator[RowPart]:
        return self.within()

    def within(self, extent: Extent | None = None) -> Iterator[RowPart]:
        """The rows that begin in an extent of time; all if None."""
        for number, (first_ns, last_ns) in enumerate(self._extents):
            if extent is None or (extent[0] <= first_ns and last_ns <= extent[1]):
                yield self._read(number)
            elif first_ns <= extent[1] and extent[0] <= last_ns:
                part = self._read(number)
                start_ns = part.integers("start_ns")
                part = part.taken((start_ns >= extent[0]) & (start_ns <= extent[1]))
                if part.row_count:
                    yield part

    def add(self, part: RowPart) -> None:
        """Add rows behind the others."""
        self._parts.append(None)
        self._extents.append((0, 0))
        self._write(len(self._parts) - 1, part)

    def change(self, row_id: Int64, changes: _Columns, texts: Sequence[str | None]) -> None:
        """Give some rows other numbers, and texts where they have none; texts by their places among these."""
        for number, part in enumerate(self):
            own = part.integers("row_id")
            here = np.flatnonzero((row_id >= own.min(initial=_LAST)) & (row_id <= own.max(initial=-1)))
            if not len(here):
                continue
            row, changed = np.searchsorted(own, row_id[here]), dict(part.columns)
            for name, (new, present) in changes.items():
                is_text, flags = self.formats[name] == "u", part.has(name)
                wanted = present[here] & ~(flags[row] & is_text)
                if wanted.any():
                    values = changed[name][0].copy() if name in changed else np.zeros(len(own), new.dtype)
                    values[row[wanted]] = new[here][wanted] + is_text * len(part.texts.texts)
                    flags[row[wanted]] = True
                    changed[name] = values, packed(flags)
            self._write(number, RowPart(part.row_count, changed, Texts([*part.texts.texts, *texts])))

    def drop(self, row_id: Int64) -> None:
        """Leave some rows out."""
        for number, part in enumerate(self):
            is_kept = ~np.isin(part.integers("row_id"), row_id)
            if not is_kept.all():
                self._write(number, part.taken(is_kept))

    def _read(self, number: int) -> RowPart:
        part = self._parts[number]
        if part is None:
            with Path(f"{self._place}.{number}").open("rb") as file:
                part = pickle.load(file)
        return part

    def _write(self, number: int, part: RowPart) -> None:
        if self._place is None:
            self._parts[number] = part
        else:
            with Path(f"{self._place}.{number}").open("wb") as file:
                pickle.dump(part, file, protocol=5)
        start_ns = part.integers("start_ns")
        self._extents[number] = int(start_ns.min(initial=_LAST)), int(start_ns.max(initial=-_LAST))


_LAST = (1 << 63) - 1
Columns = dict[str, npt.NDArray[Any]]
Told = Callable[[RowPart], npt.NDArray[Any]]


def module_calls(part: RowPart) -> RowPart:
    """Of frames, the calls of modules."""
    return part.taken(part.told(lambda name: (name or "").startswith(MODULE), "name"))


def columns(parts: Iterable[RowPart], *names: str, **others: Told) -> Columns:
    """Columns of integers of some rows, whole, -1 for none; and what functions say of each part."""
    tells = {name: partial(RowPart.integers, name=name) for name in names} | others
    found: dict[str, list[npt.NDArray[Any]]] = {name: [np.empty(0, dtype=np.int64)] for name in tells}
    for part in parts:
        if part.row_count:
            for name, tell in tells.items():
                found[name].append(tell(part))
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def rows_of(found: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> RowPart:
    """Rows of columns as the engine returns them, or of lists of texts."""
    flagged, texts = columns_of(found)
    count = len(next(iter(flagged.values()))[0])
    return _part(flagged, flagged, np.arange(count), texts)


class StagedEvents:
    """The events of one trace: `rows` by class.

    Args:
        session: Whose database reads them.
        folder: Where those of a session on disk lie.

    Attributes:
        row_count: How many rows have a number.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self._folder = session, folder
        self.rows = {
            name: EventRows(columns, folder / name if session.is_file_backed else None)
            for name, (columns, _) in _CLASSES.items()
        }
        self.row_count = 0
        self.census = quality.Census(0, {}, {}, 0, 0, [])
        self.array = EventArray(0, 0)
        self.flaws: dict[str, int] = {}

    def renewed(self) -> StagedEvents:
        """The same without events, to be shown anew."""
        events = StagedEvents(self.session, self._folder)
        events.show_on(self.session.connection)
        return events

    def show_on(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a connection read the events."""
        for name, rows in self.rows.items():
            connection.register(f"{name}_events", ArrowRows(rows.formats, rows.within))

    def change(self, name: str, found: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> None:
        """Give rows of a class, by their `row_id`, other values; None of a list changes nothing."""
        flagged, texts = columns_of(found)
        row_id, _ = flagged.pop("row_id")
        if len(row_id):
            self.rows[name].change(row_id, flagged, texts)

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of a class behind all others."""
        if not rows:
            return
        part = rows_of({key: [row.get(key) for row in rows] for key in self.rows[name].formats})
        self.rows[name].add(part.given({"row_id": np.arange(part.row_count) + self.row_count}))
        self.row_count += part.row_count


@contextmanager
def staging_area(session: Session) -> Iterator[StagedEvents]:
    """No events yet, and a database `staging` for other tables, for the duration of the block."""
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        # Not TEMP tables: those belong to one connection, and two of them fill the tables side by side.
        place = str(Path(folder) / "staging.duckdb") if session.is_file_backed else ":memory:"
        session.connection.execute("ATTACH '{}' AS staging".format(place.replace("'", "''")))
        try:
            # Joins run as written, the larger side first: the engine does not know the sizes of arrays.
            session.connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
            session.connection.execute(sql(__package__, "kineto:macros"))
            yield StagedEvents(session, Path(folder))
        finally:
            with suppress(duckdb.ConnectionException):  # a signal came meanwhile, and it has been closed
                for name in _CLASSES:
                    session.connection.unregister(f"{name}_events")
                session.connection.execute("RESET disabled_optimizers")
                session.connection.execute("DETACH staging")


@contextmanager
def staged_events(
    session: Session, text: mmap.mmap, source: str, *, damage: str | None = None
) -> Iterator[StagedEvents]:
    """The events of a Kineto file for the duration of the block.

    Args:
        session: Whose database does the work.
        text: The whole file.
        source: Its name, for errors.
        damage: What is known to be wrong with it.

    Raises:
        InputError: It holds no events that can be read; names the byte.
    """
    opened = open_array(text, source)
    with staging_area(session) as events:
        session.plan_for(len(text) - opened.start)
        threads = int(session.scalar("SELECT current_setting('threads')"))
        stager = Stager(events)
        for chunk in scan(text, opened.start, threads):
            stager.add_chunk(chunk)
        events.array = _array_end(text, opened, chunk.scanned, source, damage)
        events.census, events.flaws = stager.census(), stager.flaws
        events.show_on(session.connection)
        yield events


def locate_events(text: mmap.mmap, source: str) -> EventArray:
    """Where the event array of a Kineto file lies.

    Raises:
        InputError: It holds no events that can be read; names the byte.
    """
    opened = open_array(text, source)
    *_, last = scan(text, opened.start, threads=1)
    return _array_end(text, opened, last.scanned, source, None)


def _array_end(
    text: mmap.mmap, opened: OpenArray, scanned: Scanned, source: str, damage: str | None
) -> EventArray:
    """Where the array ends, and the keys behind it; an array without a sound event is an error."""
    header, start = opened.header or {}, opened.start
    if text.find(b"{", start, scanned.sound_end) < 0:
        hint = f"Decompression failed before: {damage}. Copy the file again" if damage else None
        raise _no_event(text, start, source, hint)
    keys = trailer(text, scanned.end, opened) if scanned.is_closed else None
    if keys is None:
        return EventArray(start, scanned.sound_end, header, len(text) - scanned.sound_end)
    return EventArray(start, scanned.end, {**header, **keys})


def _no_event(text: mmap.mmap, start: int, source: str, hint: str | None) -> InputError:
    body = b"[" + text[start : start + _LOOKED_AT_BYTES]
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        behind = start + error_offset(error, len(text))
        if behind < len(text):
            return InputError(
                "not valid JSON inside the traceEvents array",
                source=source,
                byte_offset=behind - 1,
                hint=hint,
            )
    except RecursionError:
        return InputError("an event is nested too deeply", source=source, byte_offset=start, hint=hint)
    return InputError(
        "the file ends before its first complete event", source=source, byte_offset=len(text), hint=hint
    )


_LOOKED_AT_BYTES = 1 << 20


_Flagged = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]  # values, and whether one is there
_Columns = dict[str, _Flagged]


def unmasked(texts: Any) -> Any:
    """Texts as the engine returns them, None where there is none (`filled(None)` would put "?" there)."""
    if not isinstance(texts, np.ma.MaskedArray):
        return texts
    return np.where(np.ma.getmaskarray(texts), np.array(None), np.ma.getdata(texts))


def columns_of(
    found: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
) -> tuple[_Columns, list[str | None]]:
    """Columns as the engine returns them, or lists: values and flags, and the texts they are places of."""
    places: dict[str | None, int] = {None: 0}
    flagged: _Columns = {}
    for name, column in found.items():
        if isinstance(column, np.ndarray) and column.dtype != object:
            flagged[name] = np.ma.getdata(column).astype(np.int64), ~np.ma.getmaskarray(column)
            continue
        given = unmasked(column)
        if any(isinstance(one, int) for one in given):
            present = np.array([one is not None for one in given])
            flagged[name] = np.array([one or 0 for one in given], dtype=np.int64), present
        else:
            values = np.array([places.setdefault(one, len(places)) for one in given], dtype=np.int32)
            flagged[name] = values, values > 0
    return flagged, list(places)


class Stager:
    """Splits rows of events into classes, and counts them.

    Args:
        events: Where they go.
    """

    def __init__(self, events: StagedEvents) -> None:
        self._events = events
        self._counts: list[dict[str, Any]] = []
        self._threads: dict[tuple[str | None, str | None], int] = {}
        self._irregular_count = self._legacy_count = 0
        self.broken_count = 0
        self.flaws: dict[str, int] = {}

    def census(self) -> quality.Census:
        """All events so far, counted."""
        return replace(
            quality.take_census(self._counts, is_lenient=self._irregular_count > 0),
            thread_count=len(self._threads),
            broken_count=self.broken_count,
            is_legacy=self._legacy_count > 0,
        )

    def add_chunk(self, chunk: Chunk) -> None:
        """Take in the next chunk of a Kineto file."""
        scanned = chunk.scanned
        self.broken_count += scanned.broken_count
        self._irregular_count += scanned.irregular_count
        for kind, first_byte in chunk.flaws.items():
            self.flaws.setdefault(kind, first_byte)
        rows = scanned.row_count
        columns = {name: (values, unpacked(bits, rows)) for name, (values, bits) in scanned.columns.items()}
        of_row, of_member, value = scanned.rare
        for at in np.unique(of_member).tolist():
            member, own = MEMBERS[at], of_member == at
            values = np.zeros(rows, dtype=np.int32 if member.kind is ColumnKind.TEXT else np.int64)
            present = np.zeros(rows, dtype=bool)
            values[of_row[own]], present[of_row[own]] = value[own], True
            columns[member.key] = values, present
        self.add(columns, chunk.texts)

    def add(self, columns: _Columns, texts: Sequence[str | None]) -> None:
        """Take in rows: members of events by their columns' names, rare ones by their keys."""
        rows = len(next(iter(columns.values()), ((),))[0])
        if not rows:
            return
        nothing = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
        columns = defaultdict(lambda: nothing, columns)
        place = {name: len(texts) + at for at, name in enumerate((*CATEGORIES, ""))}
        texts = [*texts, *place]
        classes = self._categories(columns, texts, place)
        every = np.ones(rows, dtype=bool)
        columns["row_id"] = np.arange(rows) + self._events.row_count, every
        columns["thread_key"] = self._thread_keys(columns, texts), every
        self._events.row_count += rows
        detailed = classes["detail"]
        start, duration = columns["start_ns"], columns["duration_ns"]
        is_timed = start[1] & duration[1] & (duration[0] >= 0)
        is_span = _is(columns["ph"], texts, "X")
        self._count(columns, texts, np.where(is_span, is_timed, start[1]), detailed)
        for name, (wanted, is_of_spans) in _CLASSES.items():
            chosen = np.flatnonzero(classes[name] & is_span & is_timed if is_of_spans else classes[name])
            if len(chosen):
                self._events.rows[name].add(_part(columns, wanted, chosen, texts))

    def _categories(
        self, columns: _Columns, texts: list[str | None], place: dict[str, int]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Add column `category`: ours, else as recorded, else empty; which rows are of each class."""
        cat, has_cat = columns["cat"]
        known = [place.get(_LEGACY.get(one, one), -1) if one else -1 for one in texts]
        category = np.where(has_cat, np.array(known, dtype=np.int32)[cat], -1).astype(np.int32)
        self._legacy_count += int((has_cat & np.array([one in _LEGACY for one in texts])[cat]).sum())
        name, has_name = columns["name"]
        is_step = has_name & np.array([(one or "").startswith("ProfilerStep#") for one in texts])[name]
        category[is_step & (category == place["cpu_op"])] = place["user_annotation"]
        other = np.where(has_cat, cat, place[""])
        columns["category"] = np.where(category >= 0, category, other).astype(np.int32), np.ones_like(has_cat)
        classes = {
            of: np.isin(category, [place[one] for one, other in _CLASS_OF.items() if other == of])
            for of in _CLASSES
        }
        classes["label"] = _is(columns["ph"], texts, "M")
        is_free = np.isin(columns["category"][0], [place[""], place["cpu_instant_event"]])
        is_memory = _is(columns["name"], texts, "[memory]") & _is(columns["ph"], texts, "i") & is_free
        has = columns["Collective name"][1] | columns["kernel_backend"][1]
        classes["detail"] = has | is_memory | (category == place["cuda_sync"])
        return classes

    def _thread_keys(self, columns: _Columns, texts: list[str | None]) -> Int64:
        """A number for each pair of process and thread, the same in all chunks."""
        none = len(texts)
        (pid, pids), (tid, tids) = (
            _ranked(np.where(has, values, none), none + 1)
            for values, has in (columns[name] for name in ("pid", "tid"))
        )
        pair, pairs = _ranked(pid * len(tids) + tid, len(pids) * len(tids))
        named = [*texts, None]
        keys = [
            self._threads.setdefault(
                (named[pids[one // len(tids)]], named[tids[one % len(tids)]]), len(self._threads)
            )
            for one in pairs.tolist()
        ]
        return np.array(keys, dtype=np.int64)[pair]

    def _count(
        self, columns: _Columns, texts: list[str | None], is_usable: npt.NDArray[np.bool_],
        detailed: npt.NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Count the rows of each category, phase and thread."""
        of_phase, has_phase = columns["ph"]
        keys = columns["category"][0], np.where(has_phase, of_phase, len(texts))
        (kind, kinds), (phase, phases) = (_ranked(key, len(texts) + 1) for key in keys)
        thread, named = columns["thread_key"][0], [*texts, None]
        group, groups = _ranked(
            (kind * len(phases) + phase) * len(self._threads) + thread,
            len(kinds) * len(phases) * len(self._threads),
        )
        first = np.empty(len(groups), dtype=np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        counts, unusable, details = (
            np.bincount(group[rows], minlength=len(groups)) for rows in (slice(None), ~is_usable, detailed)
        )
        threads = list(self._threads)
        start_ns, duration_ns = columns["start_ns"][0], columns["duration_ns"][0]
        for at in np.argsort(first).tolist():
            row = int(first[at])
            text = named[int(keys[0][row])]
            span = np.flatnonzero((group == at) & is_usable) if text == "Trace" else np.empty(0, dtype=int)
            process, thread_name = threads[int(thread[row])]
            self._counts.append({
                "category": text, "ph": named[int(keys[1][row])],
                "thread_key": int(thread[row]), "process": process, "thread": thread_name,
                "events": int(counts[at]), "without_time": int(unusable[at]), "detailed": int(details[at]),
                "first_start_ns": int(start_ns[span].min()) if len(span) else None,
                "last_end_ns": int((start_ns + duration_ns)[span].max()) if len(span) else None,
            })  # fmt: skip


def _part(columns: _Columns, names: Iterable[str], chosen: Int64, texts: Sequence[str | None]) -> RowPart:
    """Some rows, with the columns in which they have values, and the texts of these alone."""
    found = {}
    is_used = np.zeros(len(texts), dtype=bool)
    for name in names:
        values, present = columns[name]
        flags = present[chosen]
        if flags.any():
            found[name] = values[chosen], packed(flags)
            if values.dtype == np.int32:
                is_used[found[name][0][flags]] = True
    place = np.maximum(np.cumsum(is_used) - 1, 0).astype(np.int32)
    found |= {name: (place[one[0]], one[1]) for name, one in found.items() if one[0].dtype == np.int32}
    return RowPart(len(chosen), found, Texts([texts[at] for at in np.flatnonzero(is_used).tolist()]))


def _ranked(ids: npt.NDArray[Any], end: int) -> tuple[Int64, Int64]:
    """The place of each of some ids, all below `end`, among their distinct ones, and these."""
    is_there = np.zeros(end, dtype=bool)
    is_there[ids] = True
    return (np.cumsum(is_there) - 1)[ids], np.flatnonzero(is_there)


def _is(column: _Flagged, texts: list[str | None], text: str) -> npt.NDArray[np.bool_]:
    """Rows whose text is this one."""
    values, present = column
    same: npt.NDArray[np.bool_] = np.array([one == text for one in texts], dtype=bool)
    found: npt.NDArray[np.bool_] = present & same[values]
    return found
