"""The text of an event array → columns, chunk by chunk, in one forward pass.

`scan.c` does it where the package was built with a compiler, `scan_pass.py` where not, by the same rules and
with the same results. Chunks are scanned side by side: a chunk holds only if the one before it ends exactly
where it begins; if it does not (a cut inside of a text), it is scanned anew from there.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.arrow import Column


class ColumnKind(IntEnum):
    """Types of columns; as in scan.c."""

    INTEGER, UNSIGNED, REAL, TEXT, JSON, TIME, OBJECT, INT32 = range(8)


class Member(NamedTuple):
    """A member of an event, or of its `args`, and the column it goes into.

    A rare one is kept as (row, column, value) instead.
    """

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
)
# Those of `staging.details`, by their keys.
_DETAILS = {
    ColumnKind.TEXT: (
        "Call stack", "Module Hierarchy", "Collective name", "dtype", "In split size", "Out split size",
        "Process Group Name", "Process Group Description", "Process Group Ranks", "kernel_name",
        "kernel_backend", "kernel_file", "kernel_hash", "kernel_kwargs", "cuda_sync_kind",
    ),
    ColumnKind.INTEGER: (
        "In msg nelems", "Out msg nelems", "Group size", "Src Rank", "Dst Rank", "Seq", "num_warps",
        "num_stages", "Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved",
        "wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id",
    ),
    ColumnKind.UNSIGNED: ("Addr",),
    ColumnKind.REAL: ("kernel_flop", "kernel_num_gb"),
}  # fmt: skip
MEMBERS = (
    *_EVENT,
    *_ARGUMENTS,
    *(Member(key, key, kind, is_rare=True) for kind, keys in _DETAILS.items() for key in keys),
)
# Arrows from launches to kernels repeat what correlation ids say.
SKIPPED_CATEGORIES = ("ac2g", "async", "async_cpu_to_gpu")
FORMATS = {
    ColumnKind.TEXT: "u",
    ColumnKind.JSON: "u",
    ColumnKind.REAL: "g",
    ColumnKind.UNSIGNED: "L",
}  # of Arrow; others are `l`

_CHUNK_BYTES = 32 << 20
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|ts)\"\s*:)")
_SEARCH_BYTES = 1 << 20


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
    # Values of each dense column that has any, and a bit per row that says whether one is there; values of
    # texts are indices
    columns: dict[str, Column]
    # `int64[3, n]` of row, index in `MEMBERS`, and value (bits of a float64; index of a text)
    rare: npt.NDArray[np.int64]
    # `int64[3, n]` of begin, length, and care: 0 if it is to be taken as it stands, 1 for a string with
    # escapes or other than printable ASCII, 2 for JSON
    texts: npt.NDArray[np.int64]


class _Column(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char_p), ("length", ctypes.c_int32), ("kind", ctypes.c_int32),
        ("target", ctypes.c_int32), ("in_arguments", ctypes.c_int32), ("is_rare", ctypes.c_int32),
    )  # fmt: skip


_COUNTS = ("rows", "end", "sound_end", "is_closed", "is_cut", "broken", "first_broken", "irregular")
_LISTS = {
    "rare_row": np.int32, "rare_column": np.int32, "rare_value": np.int64,
    "text_begin": np.int64, "text_length": np.int32, "text_care": np.uint8,
}  # fmt: skip
_MOST_COLUMNS = 96


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (*_COUNTS, "rare_count", "text_count")),
        ("values", ctypes.c_void_p * _MOST_COLUMNS),
        ("present", ctypes.c_void_p * _MOST_COLUMNS),
        *((name, ctypes.c_void_p) for name in _LISTS),
    )


_CONTRACT = 1


@cache
def _library() -> Any:
    """The compiled scanner; None where it was not built, or before it changed."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_scan.so")))
        if library.scan_contract() != _CONTRACT:
            return None
    except (OSError, AttributeError):  # of another machine, perhaps
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.scan_events.restype = ctypes.POINTER(_Result)
    library.scan_events.argtypes = [
        address, number, number, number, address, *[ctypes.c_int32] * 3, address, ctypes.c_int32,
    ]  # fmt: skip
    library.scan_free.restype, library.scan_free.argtypes = None, [address]
    return library


_TARGETS = [[one.name for one in MEMBERS].index(column.name) for column in MEMBERS]
_NATIVE_COLUMNS = (_Column * len(MEMBERS))(
    *(
        _Column(key.encode(), len(key.encode()), kind, target, in_arguments, is_rare)
        for (key, _, kind, in_arguments, is_rare), target in zip(MEMBERS, _TARGETS, strict=True)
    )
)
_NATIVE_SKIPPED = (ctypes.c_char_p * len(SKIPPED_CATEGORIES))(*map(str.encode, SKIPPED_CATEGORIES))


def scan_natively(text: mmap.mmap, start: int, limit: int) -> Scanned:
    """Scan from an event on, to the first that begins at `limit` or behind it, or to the end of the array."""
    whole = np.frombuffer(text, dtype=np.uint8)
    result = _library().scan_events(
        whole.ctypes.data, len(whole), start, limit, _NATIVE_COLUMNS, len(MEMBERS), 0, 1,
        _NATIVE_SKIPPED, len(SKIPPED_CATEGORIES),
    )  # fmt: skip
    if not result:
        raise MemoryError
    try:
        found = result.contents
        rows = found.rows
        columns = {}
        for index, column in enumerate(MEMBERS):
            if not found.present[index] or not rows:
                continue
            present = _copied(found.present[index], (rows + 7) // 8, np.uint8)
            if present.any():
                kind = np.int32 if FORMATS.get(column.kind) == "u" else np.int64
                columns[column.name] = _copied(found.values[index], rows, kind), present
        lists = [
            _copied(getattr(found, name), getattr(found, f"{name[:4]}_count"), kind)
            for name, kind in _LISTS.items()
        ]
        return Scanned(
            found.rows, found.end, found.sound_end, bool(found.is_closed), bool(found.is_cut), found.broken,
            found.first_broken, found.irregular, columns, np.stack(lists[:3]), np.stack(lists[3:]),
        )  # fmt: skip
    finally:
        _library().scan_free(result)


def _copied(address: int, count: int, kind: Any) -> npt.NDArray[Any]:
    if not count:
        return np.empty(0, dtype=kind)
    size = count * np.dtype(kind).itemsize
    there = np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=kind)
    copied: npt.NDArray[Any] = there.copy()
    return copied


class Chunk(NamedTuple):
    """Some of the events, in the order of the file."""

    scanned: Scanned  # As found; the row of each rare value is one of these
    texts: list[str | None]  # Each text, decoded; None for JSON that is none
    flaws: dict[str, int]  # For each kind of flaw that was mended, its first byte


def scan(text: mmap.mmap, start: int, threads: int) -> Iterator[Chunk]:
    """The events of an array whose bracket opens before `start`, chunk by chunk, in order.

    Args:
        text: The whole file.
        start: Where the first event begins.
        threads: How many chunks to scan side by side.
    """
    scan_one = _scanner()
    cuts = _cuts(text, start)
    ends = [*cuts[1:], len(text)]
    position = start
    with ThreadPoolExecutor(threads) as executor:
        ahead: deque[Future[Scanned]] = deque()
        for index, limit in enumerate(ends):
            for later in range(index + len(ahead), min(index + threads, len(ends))):
                ahead.append(executor.submit(scan_one, text, cuts[later], ends[later]))
            scanned = ahead.popleft().result()
            if cuts[index] != position:  # it was inside of a text
                scanned = scan_one(text, position, limit)
            position = scanned.end
            chunk = _decoded(text, scanned)
            _release(text, cuts[index], position)
            yield chunk
            if scanned.is_closed or scanned.is_cut:
                return


def _release(text: mmap.mmap, start: int, end: int) -> None:
    """Let go of the pages of a text that was scanned: the file has them, and this process need not."""
    start -= start % mmap.PAGESIZE
    if hasattr(text, "madvise") and end > start:
        text.madvise(mmap.MADV_DONTNEED, start, end - start)


def _scanner() -> Callable[[mmap.mmap, int, int], Scanned]:
    if _library() is not None:
        return scan_natively
    from opscope.ingest.scan_pass import scan_in_python  # noqa: PLC0415 - which imports this module

    return scan_in_python


def _cuts(text: mmap.mmap, start: int) -> list[int]:
    """Where chunks begin, as far as one can see from near by."""
    cuts = [start]
    for guess in range(start + _CHUNK_BYTES, len(text) - _CHUNK_BYTES // 2, _CHUNK_BYTES):
        found = _BOUNDARY.search(text, guess, min(len(text), guess + _SEARCH_BYTES))
        if found is not None:
            cuts.append(found.end())
    return cuts


def _decoded(text: mmap.mmap, scanned: Scanned) -> Chunk:
    flaws = {"broken_events": scanned.first_broken} if scanned.broken_count else {}
    used = _used(scanned) if scanned.broken_count else itertools.repeat(True)
    texts = [
        None
        if not is_used
        else text[begin : begin + length].decode()
        if not care
        else _mended(text[begin : begin + length], begin, flaws)
        if care == 1
        else _json_text(text[begin : begin + length], begin, flaws)
        for (begin, length, care), is_used in zip(scanned.texts.T.tolist(), used, strict=False)
    ]
    is_none = np.array([one is None for one in texts], dtype=bool)
    if is_none.any():
        for name, (values, present) in scanned.columns.items():
            if values.dtype == np.int32:
                lost = np.packbits(is_none[values], bitorder="little") & present
                scanned.columns[name] = values, present & ~lost
                irregular = scanned.irregular_count + int(np.count_nonzero(lost))
                scanned = scanned._replace(irregular_count=irregular)
    return Chunk(scanned, texts, flaws)


def _used(scanned: Scanned) -> list[bool]:
    """Whether an event that was kept has each text; others are of broken ones."""
    used = np.zeros(scanned.texts.shape[1], dtype=bool)
    for values, bits in scanned.columns.values():
        if values.dtype == np.int32:
            used[values[np.unpackbits(bits, count=len(values), bitorder="little").astype(bool)]] = True
    is_text = np.array([member.kind is ColumnKind.TEXT for member in MEMBERS])
    used[scanned.rare[2][is_text[scanned.rare[1]]]] = True
    return list(used.tolist())


_CONTROL = re.compile("[\\x00-\\x1f]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


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
        mended = _STRING.sub(
            lambda match: json.dumps(_mended(match.group()[1:-1].encode("latin-1"), begin, flaws)),
            raw.decode("latin-1"),
        )
    with suppress(ValueError, RecursionError, msgspec.DecodeError):
        return msgspec.json.format(mended.encode(), indent=-1).decode()
    return None
