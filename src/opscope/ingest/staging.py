"""The events of one trace as tables for `kineto.sql`: operators, calls, activities and so on, by class.

Events of a Kineto file are scanned into columns (`scan`), which the engine reads in place while they fit in
memory. In a session on disk, and where events must be changed first, they are rows of `staging.staged`, and
each class is a view; a reader of another kind of file fills that table itself, in `staging_area`.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.arrow import ArrowRows, Column, RowPart, Texts
from opscope.ingest.scan import FORMATS, MEMBERS, Chunk, ColumnKind, Scanned, pooled, scan
from opscope.ingest.source import EventArray, OpenArray, error_offset, open_array, trailer
from opscope.model.queries import sql
from opscope.model.session import Session, registered

CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "cuda_sync", "overhead", "fwdbwd", "Trace",
)  # fmt: skip
# Of recorders until 2021.
_LEGACY = {
    "Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}  # fmt: skip
_SQL_TYPES = {
    ColumnKind.TEXT: "VARCHAR",
    ColumnKind.INTEGER: "BIGINT",
    ColumnKind.UNSIGNED: "UBIGINT",
    ColumnKind.REAL: "DOUBLE",
}
# The arguments in `staging.details`: keys that only few events have, and what finds those events again.
_FINDING = {
    "External id": ("external_id", "BIGINT"), "correlation": ("correlation_id", "BIGINT"),
    "device": ("device", "BIGINT"), "stream": ("stream", "BIGINT"), "grid": ("grid", "VARCHAR"),
}  # fmt: skip
DETAILS = {key: kind for key, (_, kind) in _FINDING.items()} | {
    member.key: _SQL_TYPES[member.kind] for member in MEMBERS if member.is_rare
}

_KINDS = {member.name: member.kind for member in MEMBERS}
_PLACED = ("row_id", "thread_key", "start_ns", "duration_ns", "name")
_ARGUMENTS = ("input_shapes", "input_types", "input_strides", "concrete_inputs")
# Columns of each class, and whether only spans with usable times count.
_CLASSES: dict[str, tuple[tuple[str, ...], bool]] = {
    "operator": ((
        *_PLACED, "category", "pid", "tid", "ph", "external_id", "sequence_number", "forward_thread_id",
        *_ARGUMENTS, "python_module_id", "has_details",
    ), True),
    "call": ((
        *_PLACED, "category", "pid", "tid", "ph", "external_id", "correlation_id", "launched_kernel", "grid",
        "block",
    ), True),
    "activity": ((
        *_PLACED, "category", "pid", "tid", "ph", "external_id", "correlation_id", "device", "stream",
        "context", "grid", "block", "registers_per_thread", "shared_memory_bytes", "blocks_per_sm",
        "warps_per_sm", "occupancy_percent", "size_bytes", "graph_id", "graph_node_id", "replay",
    ), True),
    "frame": ((
        *_PLACED, "category", "pid", "tid", "ph", "python_id", "parent_python_id", "python_module_id",
        "has_details",
    ), True),
    "annotation": ((*_PLACED, "category", "pid", "tid", "ph", "external_id"), False),
    "overhead": ((*_PLACED, "category", "pid", "tid", "ph"), True),
    "flow": ((*_PLACED, "category", "pid", "tid", "ph", "id"), False),
    "label": ((*_PLACED, "category", "pid", "tid", "ph", "label"), False),
}  # fmt: skip
_CLASS_OF = {
    "cpu_op": "operator", "cuda_runtime": "call", "cuda_driver": "call", "kernel": "activity",
    "gpu_memcpy": "activity", "gpu_memset": "activity", "python_function": "frame",
    "user_annotation": "annotation", "gpu_user_annotation": "annotation", "overhead": "overhead",
    "fwdbwd": "flow",
}  # fmt: skip
_COUNTED = (*_PLACED, "category", "other_category", "pid", "tid", "ph", "has_details")
_OWN_FORMATS = {
    "row_id": "l", "thread_key": "L", "replay": "l", "has_details": "b", "category": "u",
    "other_category": "u",
}  # fmt: skip


def _formats(names: tuple[str, ...]) -> dict[str, str]:
    return {name: _OWN_FORMATS.get(name) or FORMATS.get(_KINDS[name], "l") for name in names}


class StagedEvents:
    """The events of one trace, to be read as `operator_events`, `call_events`, … and `staging.details`.

    Args:
        session: Whose database reads them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.parts: dict[str, list[RowPart]] | None = None  # None: in table `staging.staged`
        self.census = quality.Census(0, {}, {}, 0, 0, [])
        self.array = EventArray(0, 0)
        self.flaws: dict[str, int] = {}

    def show_on(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a connection read the events; to be done anew after `as_table`."""
        for name, (columns, _) in _CLASSES.items():
            if self.parts is None:
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {name}_events AS FROM staging.{name}_events")
            else:
                connection.register(f"{name}_events", ArrowRows(_formats(columns), self.parts[name]))

    def as_table(self) -> None:
        """Move events that lie in memory to `staging.staged`, where statements can change them."""
        connection = self._session.connection
        if self.parts is None:
            return
        for name, parts in self.parts.items():
            connection.unregister(f"{name}_events")
            _insert(connection, name, parts)
        self.parts = None
        self.show_on(connection)


def _insert(connection: duckdb.DuckDBPyConnection, name: str, parts: list[RowPart]) -> None:
    """Rows of one class → `staging.staged`."""
    with registered(connection, added_events=ArrowRows(_formats(_CLASSES[name][0]), parts)):
        connection.execute("INSERT INTO staging.staged BY NAME SELECT * EXCLUDE row_id FROM added_events")


@contextmanager
def staging_area(session: Session) -> Iterator[StagedEvents]:
    """The database `staging`, with its tables empty, for the duration of the block."""
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        # Not TEMP tables: those belong to one connection, and two of them fill the tables side by side.
        place = str(Path(folder) / "staging.duckdb") if session.is_file_backed else ":memory:"
        session.connection.execute("ATTACH '{}' AS staging".format(place.replace("'", "''")))
        try:
            # Joins run as written, the larger side first: the engine does not know the sizes of arrays.
            session.connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
            session.connection.execute(f"CREATE TYPE staging.kineto_category AS ENUM {CATEGORIES}")
            create_tables(session)
            yield StagedEvents(session)
        finally:
            with suppress(duckdb.ConnectionException):  # a signal came meanwhile, and it has been closed
                for name in _CLASSES:
                    session.connection.unregister(f"{name}_events")
                    session.connection.execute(f"DROP VIEW IF EXISTS temp.{name}_events")
                session.connection.execute("RESET disabled_optimizers")
                session.connection.execute("DETACH staging")


def create_tables(session: Session) -> None:
    """Make `staging.staged` and `staging.details` anew, without rows."""
    fields = ", ".join(f'"{key}" {kind}' for key, kind in DETAILS.items())
    session.connection.execute(sql(__package__, "kineto:tables").format(fields=fields))


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
        stager = _Stager(session)
        for chunk in scan(text, opened.start, threads):
            stager.add(chunk)
        events.array = _array_end(text, opened, chunk.scanned, source, damage)
        events.census, events.flaws = stager.census(), stager.flaws
        events.parts = stager.held()
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


class _Stager:
    """Splits chunks of events into classes and counts them; keeps them in memory, or in tables."""

    def __init__(self, session: Session) -> None:
        self._connection = session.connection
        self.parts: dict[str, list[RowPart]] = defaultdict(list)
        self._is_on_disk, self._held = session.is_file_backed, 0
        self._counts: list[dict[str, Any]] = []
        self._threads: dict[tuple[str | None, str | None], int] = {}
        self._row_count = self._irregular_count = self._legacy_count = 0
        self.broken_count = 0
        self.flaws: dict[str, int] = {}

    def held(self) -> dict[str, list[RowPart]] | None:
        """The rows in memory; None if they are in tables now."""
        if self._is_on_disk:
            self._write()
            return None
        return self.parts

    def _write(self) -> None:
        for name, parts in self.parts.items():
            _insert(self._connection, name, parts)
        self.parts.clear()
        self._held = 0

    def census(self) -> quality.Census:
        """All events so far, counted."""
        return replace(
            quality.take_census(self._counts, is_lenient=self._irregular_count > 0),
            broken_count=self.broken_count,
            is_legacy=self._legacy_count > 0,
        )

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        scanned, texts = chunk.scanned, [*chunk.texts]
        self.broken_count += scanned.broken_count
        self._irregular_count += scanned.irregular_count
        for kind, first_byte in chunk.flaws.items():
            self.flaws.setdefault(kind, first_byte)
        rows = scanned.row_count
        if not rows:
            return
        columns = {name: (values, _flags(bits, rows)) for name, (values, bits) in scanned.columns.items()}
        nothing = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
        place = {name: len(texts) + at for at, name in enumerate((*CATEGORIES, ""))}
        texts += place
        classes = self._categories(columns, texts, nothing, place)
        every = np.ones(rows, dtype=bool)
        columns["row_id"] = np.arange(self._row_count, self._row_count + rows), every
        columns["thread_key"] = self._thread_keys(columns, texts, nothing), every
        pool = pooled(texts)
        columns["has_details"] = self._details(chunk, columns, pool, place["cuda_sync"]), every
        self._row_count += rows
        start, duration = columns.get("start_ns", nothing), columns.get("duration_ns", nothing)
        is_span = _is(columns.get("ph", nothing), texts, "X")
        is_span &= start[1] & duration[1] & (duration[0] >= 0)
        counted = self._part(columns, _COUNTED, np.arange(rows), pool)
        with registered(self._connection, counted_events=ArrowRows(_formats(_COUNTED), [counted])):
            cursor = self._connection.execute(sql(__package__, "kineto:census"))
            names = [one[0] for one in cursor.description]
            self._counts += [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for name, (wanted, is_timed) in _CLASSES.items():
            chosen = np.flatnonzero(classes[name] & is_span if is_timed else classes[name])
            if not len(chosen):
                continue
            part = self._part(columns, wanted, chosen, pool)
            self.parts[name].append(part)
            self._held += len(chosen)
        if self._is_on_disk and self._held >= _HELD_ROWS:
            self._write()

    def _categories(
        self, columns: _Columns, texts: list[str | None], nothing: _Flagged, place: dict[str, int]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Add columns `category` and `other_category`; which rows are of each class."""
        cat, has_cat = columns.get("cat", nothing)
        known = [place.get(_LEGACY.get(one, one), -1) if one else -1 for one in texts]
        category = np.where(has_cat, np.array(known, dtype=np.int32)[cat], -1).astype(np.int32)
        self._legacy_count += int((has_cat & np.array([one in _LEGACY for one in texts])[cat]).sum())
        name, has_name = columns.get("name", nothing)
        is_step = has_name & np.array([(one or "").startswith("ProfilerStep#") for one in texts])[name]
        category[is_step & (category == place["cpu_op"])] = place["user_annotation"]
        columns["category"] = category, category >= 0
        columns["other_category"] = np.where(has_cat, cat, place[""]).astype(np.int32), category < 0
        classes = {
            of: np.isin(category, [place[one] for one, other in _CLASS_OF.items() if other == of])
            for of in _CLASSES
        }
        classes["label"] = _is(columns.get("ph", nothing), texts, "M")
        return classes

    def _thread_keys(
        self, columns: _Columns, texts: list[str | None], nothing: _Flagged
    ) -> npt.NDArray[np.int64]:
        """A number for each pair of process and thread, the same in all chunks."""
        none = len(texts)
        (pid, pids), (tid, tids) = (
            _ranked(np.where(has, values, none), none + 1)
            for values, has in (columns.get(name, nothing) for name in ("pid", "tid"))
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

    def _details(
        self, chunk: Chunk, columns: _Columns, pool: Texts, synchronization: int
    ) -> npt.NDArray[np.bool_]:
        """Write `staging.details`; which rows have rarer arguments of their own."""
        rows = chunk.scanned.row_count
        of_row, of_member, value = chunk.scanned.rare
        has, is_text = np.zeros(rows, dtype=bool), np.diff(pool.ends) > 0
        rare: _Columns = {}
        for at in np.unique(of_member).tolist():
            member, own = MEMBERS[at], of_member == at
            values = np.zeros(rows, dtype=np.int32 if member.kind is ColumnKind.TEXT else np.int64)
            present = np.zeros(rows, dtype=bool)
            values[of_row[own]], present[of_row[own]] = value[own], True
            rare[member.key] = values, present
            if member.key in _STACKS:
                has |= present & is_text[values]
            elif member.key in ("Collective name", "kernel_backend"):
                has |= present
        wanted = columns["category"][0] == synchronization
        wanted[of_row] = True
        if wanted.any():
            kinds = {member.key: FORMATS.get(member.kind, "l") for member in MEMBERS if member.is_rare}
            names = (*_COUNTED, *(name for name, _ in _FINDING.values()))
            part = self._part(
                {**columns, "has_details": (has, columns["row_id"][1]), **rare}, (*names, *kinds),
                np.flatnonzero(wanted), pool,
            )  # fmt: skip
            of_key = {key: name for key, (name, _) in _FINDING.items()}
            arguments = ", ".join(
                f"'{key}': \"{of_key.get(key, key)}\"::{kind}" for key, kind in DETAILS.items()
            )
            detailed = ArrowRows({**_formats(names), **kinds}, [part])
            with registered(self._connection, detailed_events=detailed):
                self._connection.execute(sql(__package__, "kineto:details").format(arguments=arguments))
        return has

    def _part(
        self, columns: _Columns, names: tuple[str, ...], chosen: npt.NDArray[np.int64], pool: Texts
    ) -> RowPart:
        """Some rows, with the columns in which they have values."""
        found: dict[str, Column] = {}
        for name in names:
            if name in columns:
                values, present = columns[name]
                flags = present[chosen]
                if flags.any():
                    own = values[chosen]
                    found[name] = (
                        np.packbits(own, bitorder="little") if own.dtype == bool else own,
                        np.packbits(flags, bitorder="little"),
                    )
        return RowPart(len(chosen), found, pool)


# Rows in memory before they are written in a session on disk: the engine writes few large pieces faster.
_HELD_ROWS = 250_000
_STACKS = ("Call stack", "Module Hierarchy")


def _flags(bits: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, count=count, bitorder="little").astype(bool)


def _ranked(ids: npt.NDArray[Any], end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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
