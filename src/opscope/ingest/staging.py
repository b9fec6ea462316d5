"""The events of one trace by class: operators, calls, activities and so on.

Rows of events (of a Kineto file `scan`, of another kind its own reader) are split into columns by class; of a
session on disk they lie in files. Statements read them in place, as `operator_events`, `call_events`, ….
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.arrow import ArrowRows, Column, RowPart, Texts, packed
from opscope.ingest.nesting import Extent, Int64
from opscope.ingest.scan import FORMATS, HEADS, MEMBERS, Events, Scanned, scan
from opscope.ingest.source import EventArray, OpenArray, error_offset, open_array, trailer
from opscope.model.session import Session

_MOST_SCANNERS = 4  # that this thread keeps up with
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
    "counter": ((*_PLACED, "pid", "counter_value"), False),
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
    category: list(_CLASSES).index(name)
    for name, categories in {
        "operator": ("cpu_op",), "call": ("cuda_runtime", "cuda_driver"), "frame": ("python_function",),
        "activity": ("kernel", "gpu_memcpy", "gpu_memset"), "overhead": ("overhead",), "flow": ("fwdbwd",),
        "annotation": ("user_annotation", "gpu_user_annotation"),
    }.items()
    for category in categories
}  # fmt: skip
_COUNTERS = re.compile(r"GPU [0-9]{1,9} Counters")  # the process of a device's counters
_HOST = {"cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function", "overhead"}
_INGESTED = _HOST | {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync"}
# Spans and arrows say nothing that intervals and ids do not; marks and track names have no category.
_REDUNDANT = {"Trace", "fwdbwd"}
_OWN_FORMATS = {"row_id": "l", "thread_key": "L", "replay": "l", "category": "u"}


class EventRows:
    """The rows of one class in the order of the file, in parts.

    Each part lies at `place`, with its number; in memory if None.
    """

    def __init__(self, names: tuple[str, ...], place: Path | None) -> None:
        self.formats = {name: _OWN_FORMATS.get(name) or FORMATS.get(_KINDS[name], "l") for name in names}
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
        self._parts.append(None)
        self._extents.append((0, 0))
        self._write(len(self._parts) - 1, part)

    def change(self, given: RowPart) -> None:
        """Give some rows, by their `row_id`, other numbers, and texts where they have none."""
        row_id = given.integers("row_id")
        for number, part in enumerate(self):
            own = part.integers("row_id")
            here = np.flatnonzero((row_id >= own.min(initial=_LAST)) & (row_id <= own.max(initial=-1)))
            if not len(here):
                continue
            row, changed = np.searchsorted(own, row_id[here]), dict(part.columns)
            for name, (new, _) in given.columns.items():
                flags = part.has(name)
                wanted = given.has(name)[here] & ~(flags[row] & given.is_text(name))
                if name != "row_id" and wanted.any():
                    values = changed[name][0].copy() if name in changed else np.zeros(len(own), new.dtype)
                    values[row[wanted]] = new[here][wanted] + given.is_text(name) * len(part.texts.texts)
                    flags[row[wanted]] = True
                    changed[name] = values, packed(flags)
            texts = Texts([*part.texts.texts, *given.texts.texts])
            self._write(number, RowPart(part.row_count, changed, texts))

    def drop(self, row_id: Int64) -> None:
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


def unmasked(texts: Any) -> Any:
    """Texts as the engine returns them, None where there is none (`filled(None)` would put "?" there)."""
    if not hasattr(texts, "mask") or texts.dtype != object:  # `numpy.ma` takes time to import
        return texts
    return np.where(texts.mask, np.array(None), texts.data)


def rows_of(found: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> RowPart:
    """Rows of columns as the engine returns them, or of lists."""
    places: dict[str | None, int] = {None: 0}
    made: dict[str, Column] = {}
    for name, column in found.items():
        given = unmasked(column)
        if isinstance(column, np.ndarray) and column.dtype != object:
            values = np.asarray(column).astype(np.int64)
            present = ~np.broadcast_to(getattr(column, "mask", False), len(column))
        elif any(isinstance(one, int) for one in given):
            values = np.array([one or 0 for one in given], dtype=np.int64)
            present = np.array([one is not None for one in given])
        else:
            values = np.array([places.setdefault(one, len(places)) for one in given], dtype=np.int32)
            present = values > 0
        made[name] = values, packed(present)
    return RowPart(len(values), made, Texts(list(places)))


class StagedEvents:
    """The events of one trace: `rows` by class; in a folder of a session that is on disk."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.rows = {
            name: EventRows(columns, folder / name if session.is_file_backed else None)
            for name, (columns, _) in _CLASSES.items()
        }
        self.row_count = 0  # how many rows have a number
        self.census = quality.Census()
        self.array = EventArray(0, 0)
        self.flaws: dict[str, int] = {}

    def read_by(self, statement: str) -> dict[str, Any]:
        """The events that a statement reads, for `registered`."""
        views = ((f"{name}_events", rows) for name, rows in self.rows.items())
        return {name: ArrowRows(rows.formats, rows.within) for name, rows in views if name in statement}

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            part = rows_of({key: [row.get(key) for row in rows] for key in self.rows[name].formats})
            self.rows[name].add(part.given({"row_id": np.arange(part.row_count) + self.row_count}))
            self.row_count += part.row_count


@contextmanager
def staged_events(
    session: Session, text: mmap.mmap, source: str, *, damage: str | None = None
) -> Iterator[StagedEvents]:
    """The events of a Kineto file for the duration of the block; `damage` is what is known to be wrong."""
    opened = open_array(text, source)
    threads = min(session.threads or os.cpu_count() or 1, _MOST_SCANNERS)
    with (
        scan(text, opened.start, threads) as chunks,
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
    ):
        events = StagedEvents(session, Path(folder))
        stager = Stager(events)
        for chunk in chunks:
            stager.add_chunk(chunk)
        events.array = _array_end(text, opened, chunk, source, damage)
        events.census, events.flaws = stager.census, stager.flaws
        yield events


def locate_events(text: mmap.mmap, source: str) -> EventArray:
    """Where the event array of a Kineto file lies."""
    opened = open_array(text, source)
    with scan(text, opened.start, threads=1) as chunks:
        *_, last = chunks
    return _array_end(text, opened, last, source, None)


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


def _traits(phase: str | None, category: str, name: str | None, process: str | None) -> tuple[bool, ...]:
    is_memory = phase == "i" and name == "[memory]" and category in ("", "cpu_instant_event")
    may_count = phase == "C" and _COUNTERS.fullmatch(process or "") is not None
    return phase == "X", phase == "M", is_memory or category == "cuda_sync", may_count, category == "Trace"


class Stager:
    """Splits rows of events into classes, and counts them."""

    def __init__(self, events: StagedEvents) -> None:
        self._events = events
        self._threads: dict[tuple[str | None, str | None], int] = {}
        self.census = quality.Census()
        self.flaws: dict[str, int] = {}

    def add_chunk(self, scanned: Scanned) -> None:
        self.census.broken_count += scanned.broken_count
        self.census.is_lenient |= scanned.irregular_count > 0
        for kind, first_byte in scanned.flaws.items():
            self.flaws.setdefault(kind, first_byte)
        heads = RowPart(len(scanned.heads["ph"][0]), scanned.heads, Texts(scanned.decoded))
        self._add(heads, scanned.classes)

    def add(self, rows: RowPart) -> None:
        """Take in rows, with the members of events by their columns' names."""
        number, first = rows.distinct(*HEADS)
        self._add(rows.taken(first, HEADS), [(np.arange(rows.row_count), number, rows.columns)])

    def _add(self, heads: RowPart, classes: Sequence[Events]) -> None:
        if not heads.row_count:
            return
        heads = heads.retold("category", self._category, "cat", "name").given({
            "thread_key": heads.told(
                lambda *thread: self._threads.setdefault(thread, len(self._threads)), "pid", "tid"
            ),
        })  # fmt: skip
        class_of = heads.told(lambda category: _CLASS_OF.get(category, -1), "category")
        traits = heads.told(_traits, "ph", "category", "name", "pid").T
        group, first = heads.distinct("category", "ph", "thread_key")
        counts = np.zeros((3, len(first)), dtype=np.int64)  # all, those without a usable time, detailed ones
        for place, head, columns in classes:
            rows = RowPart(len(place), columns, heads.texts)
            has_start = rows.has("start_ns")
            is_span, is_label, is_detail, may_count, is_window = traits[:, head]
            is_timed = has_start & (rows.integers("duration_ns") >= 0)
            is_usable = np.where(is_span, is_timed, has_start)
            detailed = rows.has("Collective name") | rows.has("kernel_backend") | is_detail
            is_counter = may_count & rows.has("counter_value")
            for at, chosen in enumerate((slice(None), ~is_usable, detailed | is_counter)):
                counts[at] += np.bincount(group[head[chosen]], minlength=len(first))
            if len(window := np.flatnonzero(is_window & is_usable)):
                start_ns, duration_ns = (rows.integers(one)[window] for one in ("start_ns", "duration_ns"))
                first_ns, last_ns = int(start_ns.min()), int((start_ns + duration_ns).max())
                if (known := self.census).window_start_ns is not None and known.window_end_ns is not None:
                    first_ns = min(first_ns, known.window_start_ns)
                    last_ns = max(last_ns, known.window_end_ns)
                known.window_start_ns, known.window_end_ns = first_ns, last_ns
            of_class, is_interval = class_of[head], is_span & is_timed
            chosen_by_name = {"label": is_label, "detail": detailed, "counter": is_counter}
            for at, (name, (wanted, is_of_spans)) in enumerate(_CLASSES.items()):
                is_chosen = chosen_by_name.get(name, of_class == at)
                chosen = is_chosen & is_interval if is_of_spans else is_chosen
                if chosen.any():
                    chosen = slice(None) if chosen.all() else np.flatnonzero(chosen)
                    own, shared = rows.taken(chosen, wanted), heads.taken(head[chosen], wanted)
                    part = own._replace(columns=own.columns | shared.columns)
                    row_id = place[chosen] + self._events.row_count
                    self._events.rows[name].add(part.given({"row_id": row_id}).compact())
        self._events.row_count += int(counts[0].sum())
        self.census.thread_count = len(self._threads)
        self._count(heads.taken(first), counts)

    def _category(self, recorded: str | None, name: str | None) -> str:
        """Ours, else as recorded; empty if there is none."""
        self.census.is_legacy |= recorded in _LEGACY
        category = _LEGACY.get(recorded or "", recorded or "")
        is_step = category == "cpu_op" and (name or "").startswith("ProfilerStep#")
        return "user_annotation" if is_step else category

    def _count(self, heads: RowPart, counts: Int64) -> None:
        census = self.census
        told = zip(*map(heads.values, ("category", "ph", "thread_key", "pid", "tid")), strict=True)
        for (recorded, phase, key, *thread), numbers in zip(told, counts.T.tolist(), strict=True):
            count, timeless, detail = numbers
            census.event_count += count
            census.detailed_count += detail
            is_counter = phase == "C" and detail > 0
            is_memory, category = False, "counter" if is_counter else recorded
            if recorded == "cpu_instant_event" or (recorded == "" and phase == "i"):
                is_memory = phase == "i" and detail > 0
                category = "memory" if is_memory else ""
            if is_memory or is_counter or (category in _INGESTED and phase == "X"):
                census.categories[category] += count
                census.without_time += timeless
                if is_memory or category in _HOST:
                    census.threads.setdefault(key, tuple(thread))
            elif phase != "M" and category not in _REDUNDANT and (category or phase != "i"):
                name = f"{category} (phase {phase})" if category in _INGESTED else category
                census.ignored[name or f"phase {phase}"] += count
