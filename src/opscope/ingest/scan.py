"""The text of an event array → columns, chunk by chunk, in one forward pass.

`scan.c` does it where the package was built with a compiler; where not, the pass in Python here, far slower,
by the same rules and with the same results. Chunks are scanned side by side: a chunk holds only if the one
before it ends exactly where it begins; if it does not (a cut inside of a text), it is scanned anew from
there.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import mmap
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.arrow import Column, packed


class ColumnKind(IntEnum):
    """Types of columns; as in scan.c."""

    INTEGER, UNSIGNED, REAL, TEXT, JSON, TIME, OBJECT, INT32 = range(8)


class Member(NamedTuple):
    """A member of an event, or of its `args`, and the column it goes into."""

    key: str
    name: str
    kind: ColumnKind
    in_arguments: bool = True
    is_rare: bool = False


_EVENT = (
    Member("ph", "ph", ColumnKind.TEXT, in_arguments=False),
    Member("cat", "cat", ColumnKind.TEXT, in_arguments=False),
    Member("name", "name", ColumnKind.TEXT, in_arguments=False),
    Member("pid", "pid", ColumnKind.TEXT, in_arguments=False),
    Member("tid", "tid", ColumnKind.TEXT, in_arguments=False),
    Member("id", "id", ColumnKind.INTEGER, in_arguments=False),
    Member("ts", "start_ns", ColumnKind.TIME, in_arguments=False),
    Member("dur", "duration_ns", ColumnKind.TIME, in_arguments=False),
    Member("args", "args", ColumnKind.OBJECT, in_arguments=False),
)
_ARGUMENTS = (
    Member("name", "label", ColumnKind.TEXT),
    Member("External id", "external_id", ColumnKind.INTEGER),
    Member("external id", "external_id", ColumnKind.INTEGER),  # of recorders until 2021
    Member("correlation", "correlation_id", ColumnKind.INTEGER),
    Member("Sequence number", "sequence_number", ColumnKind.INTEGER),
    Member("Fwd thread id", "forward_thread_id", ColumnKind.INTEGER),
    Member("Input Dims", "input_shapes", ColumnKind.JSON),
    Member("Input type", "input_types", ColumnKind.JSON),
    Member("Input Strides", "input_strides", ColumnKind.JSON),
    Member("Concrete Inputs", "concrete_inputs", ColumnKind.JSON),
    Member("Python id", "python_id", ColumnKind.INTEGER),
    Member("Python parent id", "parent_python_id", ColumnKind.INTEGER),
    Member("Python module id", "python_module_id", ColumnKind.INTEGER),
    Member("device", "device", ColumnKind.INT32),
    Member("stream", "stream", ColumnKind.INTEGER),
    Member("context", "context", ColumnKind.INT32),
    Member("grid", "grid", ColumnKind.TEXT),
    Member("block", "block", ColumnKind.TEXT),
    Member("registers per thread", "registers_per_thread", ColumnKind.INT32),
    Member("shared memory", "shared_memory_bytes", ColumnKind.INT32),
    Member("blocks per SM", "blocks_per_sm", ColumnKind.REAL),
    Member("warps per SM", "warps_per_sm", ColumnKind.REAL),
    Member("est. achieved occupancy %", "occupancy_percent", ColumnKind.REAL),
    Member("bytes", "size_bytes", ColumnKind.INTEGER),
    Member("graph id", "graph_id", ColumnKind.INTEGER),
    Member("graph node id", "graph_node_id", ColumnKind.INTEGER),
    Member("kernel", "launched_kernel", ColumnKind.TEXT),
    Member("", "counter_value", ColumnKind.REAL, is_rare=True),
)
# Those of `staging.details`, by their keys.
_DETAILS = {
    ColumnKind.TEXT: (
        "Call stack", "Module Hierarchy", "Collective name", "dtype", "In split size", "Out split size",
        "Process Group Name", "Process Group Description", "Process Group Ranks", "kernel_name",
        "kernel_backend", "kernel_file", "kernel_hash", "kernel_kwargs", "cuda_sync_kind",
    ),
    ColumnKind.INTEGER: (
        "In msg nelems", "Out msg nelems", "Seq", "Bytes", "Total Allocated", "Total Reserved",
        "wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id",
    ),
    ColumnKind.INT32: ("Group size", "Src Rank", "Dst Rank", "num_warps", "num_stages",
                       "Device Type", "Device Id"),
    ColumnKind.UNSIGNED: ("Addr",),
    ColumnKind.REAL: ("kernel_flop", "kernel_num_gb"),
}  # fmt: skip
MEMBERS = (
    *_EVENT,
    *_ARGUMENTS,
    *(Member(key, key, kind, is_rare=True) for kind, keys in _DETAILS.items() for key in keys),
)
# The first members, all of them texts: what a row says in these is its head.
HEADS = tuple(member.name for member in MEMBERS[:5])
# Rows of a class lie together; what has no category, or another one, is in the first class.
_CATEGORIES = {
    "cpu_op": 1, "Operator": 1, "cuda_runtime": 2, "cuda_driver": 2, "Runtime": 2,
    "kernel": 3, "gpu_memcpy": 3, "gpu_memset": 3, "Kernel": 3, "Memcpy": 3, "Memset": 3,
    "python_function": 4, "fwdbwd": 5,
    # Arrows from launches to kernels repeat what correlation ids say: they are skipped.
    "ac2g": -1, "async": -1, "async_cpu_to_gpu": -1,
}  # fmt: skip
_CLASS_COUNT = 6
# Of Arrow; others are `l`.
FORMATS = {ColumnKind.TEXT: "u", ColumnKind.JSON: "u", ColumnKind.REAL: "g", ColumnKind.UNSIGNED: "L"}
_TYPES = [np.int32 if FORMATS.get(member.kind) == "u" else np.int64 for member in MEMBERS]


# Some events in the order of the file: the place of each among all that were found, that of its head, and the
# columns that have any values (of reals, bits; of texts, indices).
Events = tuple[npt.NDArray[Any], npt.NDArray[Any], dict[str, Column]]


class Scanned(NamedTuple):
    """What a pass found; offsets are of the whole text."""

    row_count: int  # Events kept
    # Where it stopped: before an event, at the bracket that closes the array, or where the text ends
    end: int
    sound_end: int  # Behind the last sound event
    is_closed: bool  # It stopped at that bracket
    is_cut: bool  # It stopped because no sound event follows what stands there
    broken_count: int  # Events left out for not being JSON
    first_broken: int  # Where the first of them begins
    irregular_count: int  # Values of another type than their column; they are absent
    heads: dict[str, Column]  # What rows have in common, each once, in the order of its first row
    classes: list[Events]
    # `int64[3, n]` of begin, length, and care: 0 if it is to be taken as it stands, 1 for a string with
    # escapes or other than printable ASCII, 2 for JSON, 3 if no event has it
    texts: npt.NDArray[np.int64]
    decoded: Sequence[str | None] = ()  # Each text; None for JSON that is none
    flaws: Mapping[str, int] = {}  # For each kind of flaw that was mended, its first byte


_DEEPEST, _LARGEST_EVENT, _LARGEST_RETRIED, _MOST_TRIES = 64, 16 << 20, 1 << 20, 1000
_SPACE = rb"[ \n\t\r]*"
_UNIT = (  # half a character is none
    rb"(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_TEXT = rb'"[^"\\]*(?:\\(?:["\\/bfnrt]|u%b)[^"\\]*)*"' % _UNIT
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NO_NUMBER = rb"-?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![a-zA-Z])"
_STRING, _SPACES = re.compile(_TEXT), re.compile(_SPACE)
_TOKEN = re.compile(rb"%b|(?:true|false|null)(?![a-zA-Z])|%b" % (_NUMBER, _NO_NUMBER))
_BRACKET = re.compile(rb'[\[\]{}"]')
# What stands around a value: its key; behind it the end of its object, or what leads to the next key.
_KEY = re.compile(rb"(%b)%b:%b" % (_TEXT, _SPACE, _SPACE))
_NEXT_KEY = re.compile(rb"%b(?:,%b|(\}))" % (_SPACE, _SPACE))
_NEXT_EVENT = re.compile(rb"%b(?:,%b|(?=\])|\Z)" % (_SPACE, _SPACE))
_BEGIN = re.compile(rb'\{[ \n\t\r]*"(?:ph|name|cat|pid|tid|ts|id|dur|args|s|bp)"[ \n\t\r]*:')
_HANDLE = re.compile(rb"0[xX][0-9a-fA-F]{1,16}")
_WHOLE = re.compile(rb"(-?[0-9]+)(?:\.0*)?")
_CARE = re.compile(rb"[\x00-\x1f\\\x80-\xff]")
_PLACES = {(one.key.encode(), one.in_arguments): at for at, one in enumerate(MEMBERS)}
# The column that each member gives values to: several may go into one.
TARGETS = [[one.name for one in MEMBERS].index(one.name) for one in MEMBERS]
_PHASE, _CATEGORY, _ARGUMENTS_PLACE = (_PLACES[key, False] for key in (b"ph", b"cat", b"args"))
_RANGES = {ColumnKind.UNSIGNED: (0, 1 << 64), ColumnKind.INT32: (-(1 << 31), 1 << 31)}
_LONGEST_REAL, _UNUSED = 64, 3
_EXACT = Context(prec=1 << 20)

_Row = dict[int, int]  # values of an event, as 64 bits, by their columns' places in `MEMBERS`


class _Pass:
    """The grammar. Texts are interned by their bytes, and whether they are JSON: number and begin of each."""

    def __init__(self, text: mmap.mmap) -> None:
        self.text = text
        self.texts: dict[tuple[bytes, bool], tuple[int, int]] = {}
        self.irregular = 0  # values of the event that was read last

    def event(self, at: int, end: int, largest: int) -> tuple[_Row, int, int] | None:
        """The event, where it ends, and where the next one begins; None if there is none."""
        row: _Row = {}
        sound_end = behind = None
        self.irregular = 0
        if self.text[at : at + 1] == b"{":
            sound_end = self.members(row, at + 1, min(end, at + largest), in_arguments=False)
        if sound_end is not None:
            behind = _NEXT_EVENT.match(self.text, sound_end, end)
        return None if sound_end is None or behind is None else (row, sound_end, behind.end())

    def members(self, row: _Row, at: int, end: int, *, in_arguments: bool) -> int | None:
        """Read the members of an object behind its brace: behind the object, None if it is none."""
        text = self.text
        at = self.space_end(at, end)
        if text[at : min(at + 1, end)] == b"}":
            return at + 1
        while (key := _KEY.match(text, at, end)) is not None:
            at = key.end()
            place = _PLACES.get((key[1][1:-1], in_arguments))
            if place == _ARGUMENTS_PLACE and text[at : min(at + 1, end)] == b"{":
                behind = self.members(row, at + 1, end, in_arguments=True)
            else:
                behind = self.value_end(at, end)
                if behind is not None and place is not None:
                    self.store(row, place, at, behind)
            found = None if behind is None else _NEXT_KEY.match(text, behind, end)
            if found is None or found[1]:
                return found and found.end()
            at = found.end()
        return None

    def space_end(self, at: int, end: int) -> int:
        found = _SPACES.match(self.text, at, end)
        return at if found is None else found.end()

    def value_end(self, at: int, end: int) -> int | None:
        first = self.text[at : at + 1] if at < end else b""
        if first not in (b"[", b"{"):
            found = (_STRING if first == b'"' else _TOKEN).match(self.text, at, end)
            return found and found.end()
        opened: list[bytes] = []
        while (found := _BRACKET.search(self.text, at, end)) is not None:
            at, mark = found.end(), found.group()
            if mark == b'"':
                found = _STRING.match(self.text, at - 1, end)
                if found is None:
                    return None
                at = found.end()
            elif mark in b"[{":
                opened.append(mark)
                if len(opened) > _DEEPEST:
                    return None
            elif opened.pop() != (b"{" if mark == b"}" else b"["):
                return None
            elif not opened:
                return at
        return None

    def store(self, row: _Row, place: int, begin: int, end: int) -> None:
        """Keep the value of a member; one of another type than its column is none, and counted."""
        member, raw = MEMBERS[place], self.text[begin:end]
        row.pop(TARGETS[place], None)  # of the same key before
        if raw == b"null":
            return
        is_quoted, value = raw[:1] == b'"', None
        if member.kind is ColumnKind.OBJECT:
            self.irregular += raw[:1] != b"n"
        elif member.kind in (ColumnKind.TEXT, ColumnKind.JSON):
            is_json = member.kind is ColumnKind.JSON or not is_quoted
            key = raw if is_json else raw[1:-1], is_json
            value, _ = self.texts.setdefault(key, (len(self.texts), begin + (not is_json)))
        else:
            raw = raw[1:-1] if is_quoted else raw
            is_number = _TOKEN.fullmatch(raw) is not None and raw not in (b"true", b"false")
            is_integer = member.kind in (ColumnKind.INTEGER, ColumnKind.UNSIGNED)
            if is_quoted and is_integer and _HANDLE.fullmatch(raw):
                value = int(raw, 16)
            elif is_number:
                value = _number(member.kind, raw)
            if value is None:
                self.irregular += not (is_number and member.kind in (ColumnKind.TIME, ColumnKind.REAL))
        if value is not None:
            row[TARGETS[place]] = value - (1 << 64) if value >= 1 << 63 else value


def _number(kind: ColumnKind, raw: bytes) -> int | None:
    """A number as the bits that its column holds; None if it does not fit."""
    if kind is ColumnKind.REAL:
        value = float(raw) if len(raw) < _LONGEST_REAL and raw[-1:].isdigit() else math.inf
        return int(np.float64(value).view(np.int64)) if math.isfinite(value) else None
    if kind is ColumnKind.TIME:  # microseconds, rounded half away from zero
        try:
            number_ns = int(_EXACT.scaleb(Decimal(raw.decode()), 3).to_integral_value(ROUND_HALF_UP))
        except (ArithmeticError, ValueError):  # beyond all bounds, or not a number
            return None
        return number_ns if abs(number_ns) < 1 << 63 else None
    low, high = _RANGES.get(kind, (-(1 << 63), 1 << 63))
    found = _WHOLE.fullmatch(raw)
    return int(found[1]) if found is not None and low <= int(found[1]) < high else None


def scan_in_python(text: mmap.mmap, start: int, limit: int) -> Scanned:
    """As `scan.scan_natively`."""
    one, end = _Pass(text), len(text)
    heads: dict[tuple[int, ...], int] = {}
    used: set[int] = set()  # texts of events that are kept
    classes: list[list[tuple[int, int, _Row]]] = [[] for _ in range(_CLASS_COUNT)]
    row_count = irregular = broken_count = first_broken = 0
    tries, is_cut = _MOST_TRIES, False
    at = sound_end = one.space_end(start, end)
    while at < end and at < limit and text[at : at + 1] != b"]":
        found = one.event(at, end, _LARGEST_EVENT)
        if found is not None:
            row, sound_end, at = found
            irregular += one.irregular
            known = {one.texts[name.encode(), False][0]: at_class for name, at_class in _CATEGORIES.items()
                     if (name.encode(), False) in one.texts}  # fmt: skip
            at_class = known.get(row.get(_CATEGORY, -1), 0)
            if at_class >= 0:
                used.update(text for place, text in row.items() if _TYPES[place] == np.int32)
                head = tuple(row.pop(place, -1) for place in range(len(HEADS)))
                classes[at_class].append((row_count, heads.setdefault(head, len(heads)), row))
                row_count += 1
            continue
        # What stands here is no event: on to the next that is one, which is then read in its turn.
        begin = at
        while found is None and tries and (next_begin := _BEGIN.search(text, at + 1)) is not None:
            tries -= 1
            at = next_begin.start()
            found = one.event(at, end, _LARGEST_RETRIED)
            found = found if found is not None and _PHASE in found[0] else None
        if found is None:
            at, is_cut = end, True
            break
        first_broken = first_broken if broken_count else begin
        broken_count += 1
    found_classes = []
    for rows in classes:
        columns: dict[str, Column] = {}
        for place in sorted({place for *_, row in rows for place in row}):
            present = packed(np.array([place in row for *_, row in rows]))
            values = np.array([row.get(place, 0) for *_, row in rows], dtype=_TYPES[place])
            columns[MEMBERS[place].name] = values, present
        found_classes.append((*np.array([row[:2] for row in rows], dtype=np.int32).reshape(-1, 2).T, columns))
    texts = [
        (begin, len(raw), 2 if is_json and raw[:1] in (b"[", b"{", b'"') else _CARE.search(raw) is not None)
        if number in used
        else (begin, len(raw), _UNUSED)
        for (raw, is_json), (number, begin) in one.texts.items()
    ]
    return Scanned(
        row_count, at, sound_end, at < end and text[at : at + 1] == b"]", is_cut, broken_count, first_broken,
        irregular, _heads(np.array(list(heads), dtype=np.int32)), found_classes,
        np.array(texts, dtype=np.int64).reshape(-1, 3).T,
    )  # fmt: skip


def _heads(texts: npt.NDArray[np.int32]) -> dict[str, Column]:
    columns = zip(HEADS, texts.reshape(-1, len(HEADS)).T, strict=True)
    return {name: (np.maximum(column, 0), packed(column >= 0)) for name, column in columns}


_CHUNK_BYTES = 32 << 20
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|ts)\"\s*:)")
_SEARCH_BYTES = 1 << 20


class _Column(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char_p), ("length", ctypes.c_int32), ("kind", ctypes.c_int32),
        ("target", ctypes.c_int32), ("in_arguments", ctypes.c_int32),
    )  # fmt: skip


_COUNTS = ("rows", "end", "sound_end", "is_closed", "is_cut", "broken", "first_broken", "irregular")
_LISTS = {"text_begin": np.int64, "text_length": np.int32, "text_care": np.uint8}
_MOST_COLUMNS, _MOST_CLASSES = 96, 8
_OF_CLASSES = ctypes.c_void_p * _MOST_CLASSES
_OF_COLUMNS = ctypes.c_void_p * _MOST_COLUMNS * _MOST_CLASSES


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (*_COUNTS, "text_count", "head_count")),
        ("class_rows", ctypes.c_int64 * _MOST_CLASSES),
        ("row", _OF_CLASSES), ("head", _OF_CLASSES), ("values", _OF_COLUMNS), ("present", _OF_COLUMNS),
        ("heads", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _LISTS),
    )  # fmt: skip


_CONTRACT = 3


@cache
def native_library() -> Any:
    """What is compiled of the package; None where it was not built, or before it changed."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_scan.so")))
        if library.scan_contract() != _CONTRACT:
            return None
    except (OSError, AttributeError):  # of another machine, perhaps
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.scan_events.restype = ctypes.POINTER(_Result)
    library.scan_events.argtypes = [
        address, number, number, number, address, ctypes.c_int32, address, address, ctypes.c_int32,
    ]  # fmt: skip
    library.scan_free.restype, library.scan_free.argtypes = None, [address]
    library.simulate_nodes.restype = None
    library.simulate_nodes.argtypes = [address, number, number, address, address, address, address]
    return library


_NATIVE_COLUMNS = (_Column * len(MEMBERS))(
    *(
        _Column(key.encode(), len(key.encode()), kind, target, in_arguments)
        for (key, _, kind, in_arguments, _), target in zip(MEMBERS, TARGETS, strict=True)
    )
)
_NATIVE_CATEGORIES = (ctypes.c_char_p * len(_CATEGORIES))(*map(str.encode, _CATEGORIES))
_NATIVE_CLASSES = (ctypes.c_int32 * len(_CATEGORIES))(*_CATEGORIES.values())


def scan_natively(text: mmap.mmap, start: int, limit: int) -> Scanned:
    """Scan from an event on, to the first that begins at `limit` or behind it, or to the end of the array."""
    whole = np.frombuffer(text, dtype=np.uint8)
    result = native_library().scan_events(
        whole.ctypes.data, len(whole), start, limit, _NATIVE_COLUMNS, len(MEMBERS), _NATIVE_CATEGORIES,
        _NATIVE_CLASSES, len(_CATEGORIES),
    )  # fmt: skip
    if not result:
        raise MemoryError
    found = result.contents
    finalize(found, native_library().scan_free, ctypes.addressof(found))  # when no array of it is left
    classes = []
    for at in range(_CLASS_COUNT):
        count = found.class_rows[at]
        lists = zip(MEMBERS, _TYPES, found.values[at], found.present[at], strict=False)
        columns = {
            member.name: (_array(found, one, count, kind), _array(found, bits, (count + 7) // 8, np.uint8))
            for member, kind, one, bits in lists
            if bits and count
        }
        place, head = (_array(found, one[at], count, np.int32) for one in (found.row, found.head))
        classes.append((place, head, columns))
    texts = [_array(found, getattr(found, name), found.text_count, kind) for name, kind in _LISTS.items()]
    heads = _array(found, found.heads, len(HEADS) * found.head_count, np.int32)
    return Scanned(
        found.rows, found.end, found.sound_end, bool(found.is_closed), bool(found.is_cut), found.broken,
        found.first_broken, found.irregular, _heads(heads), classes, np.stack(texts),
    )  # fmt: skip


def _array(found: Any, address: int | None, count: int, kind: Any) -> npt.NDArray[Any]:
    size_bytes = count * np.dtype(kind).itemsize
    there: Any = (ctypes.c_uint8 * size_bytes).from_address(address or ctypes.addressof(found))
    there.found = found
    return np.frombuffer(there, dtype=kind, count=count)


@contextmanager
def scan(text: mmap.mmap, start: int, threads: int) -> Iterator[Iterator[Scanned]]:
    """The events of an array whose bracket opens before `start`, chunk by chunk, in order.

    So many chunks as there are threads are scanned side by side, and one waits; from now on.
    """
    scan_one = scan_in_python if native_library() is None else scan_natively
    cuts = [start]  # where chunks begin, as far as one can see from near by
    count = -(-round((len(text) - start) / _CHUNK_BYTES) // threads) * threads  # the last end together
    for number in range(1, count):
        guess = start + (len(text) - start) * number // count
        found = _BOUNDARY.search(text, guess, min(len(text), guess + _SEARCH_BYTES))
        if found is not None:
            cuts.append(found.end())
    ends = [*cuts[1:], len(text)]

    def chunks() -> Iterator[Scanned]:
        position = start
        for index, limit in enumerate(ends):
            scanned = ahead.popleft().result()
            if later := next(waiting, None):
                ahead.append(executor.submit(scan_one, text, *later))
            if cuts[index] != position:  # it was inside of a text
                scanned = scan_one(text, position, limit)
            position = scanned.end
            scanned = _decoded(text, scanned)
            # The pages that were scanned are let go: the file has them, and this process need not.
            first_page = cuts[index] - cuts[index] % mmap.PAGESIZE
            if hasattr(text, "madvise") and position > first_page:
                text.madvise(mmap.MADV_DONTNEED, first_page, position - first_page)
            yield scanned
            if scanned.is_closed or scanned.is_cut:
                return

    executor, waiting = ThreadPoolExecutor(threads), zip(cuts, ends, strict=True)
    first = itertools.islice(waiting, threads + 1)
    ahead = deque(executor.submit(scan_one, text, *extent) for extent in first)
    try:
        yield chunks()
    finally:
        executor.shutdown(cancel_futures=True)


def _decoded(text: mmap.mmap, scanned: Scanned) -> Scanned:
    flaws = {"broken_events": scanned.first_broken} if scanned.broken_count else {}
    texts = [
        None
        if care == _UNUSED
        else text[begin : begin + length].decode()
        if not care
        else _mended(text[begin : begin + length], begin, flaws)
        if care == 1
        else _json_text(text[begin : begin + length], begin, flaws)
        for begin, length, care in scanned.texts.T.tolist()
    ]
    is_none = np.array([one is None for one in texts], dtype=bool) & (scanned.texts[2] != _UNUSED)
    for columns in (scanned.heads, *(one for *_, one in scanned.classes)) if is_none.any() else ():
        for name, (values, present) in columns.items():
            if values.dtype == np.int32:
                lost = packed(is_none[values]) & present
                columns[name] = values, present & ~lost
                irregular = scanned.irregular_count + int(np.count_nonzero(lost))
                scanned = scanned._replace(irregular_count=irregular)
    return scanned._replace(decoded=texts, flaws=flaws)


_CONTROL = re.compile("[\\x00-\\x1f]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _mended(raw: bytes, begin: int, flaws: dict[str, int]) -> str:
    """A string's text, decoded. What no text may hold is replaced, and noted with its place."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        flaws.setdefault("invalid_utf8", begin + error.start)
        text = raw.decode(errors="replace").replace("\ufffd", "?")
    if control := _CONTROL.search(text):
        flaws.setdefault("control_characters", begin + len(text[: control.start()].encode()))
        text = _CONTROL.sub(" ", text)
    if "\\" in text:
        text = json.loads(f'"{text}"')
    return text


def _json_text(raw: bytes, begin: int, flaws: dict[str, int]) -> str | None:
    """JSON without spaces; None if it is none."""
    try:
        return msgspec.json.format(raw, indent=-1).decode()
    except (ValueError, RecursionError, msgspec.DecodeError):
        mended = _JSON_STRING.sub(
            lambda match: json.dumps(_mended(match.group()[1:-1].encode("latin-1"), begin, flaws)),
            raw.decode("latin-1"),
        )
    with suppress(ValueError, RecursionError, msgspec.DecodeError):
        return msgspec.json.format(mended.encode(), indent=-1).decode()
    return None
