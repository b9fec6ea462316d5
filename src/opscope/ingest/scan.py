"""The text of an event array → columns, chunk by chunk, in one forward pass of `scan.c`.

Chunks are scanned side by side: a chunk holds only if the one before it ends exactly where it begins; if it
does not (a cut inside of a text), it is scanned anew from there.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.errors import DependencyError
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


_CARE_UNUSED = 3  # of a text that no event has
# The column that each member gives values to: several may go into one.
TARGETS = [[one.name for one in MEMBERS].index(one.name) for one in MEMBERS]


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
    if native_library() is None:
        raise DependencyError(
            "the trace scanner was not compiled",
            hint="Install opscope from a wheel, or again where there is a C compiler "
            "(apt install gcc, xcode-select --install)",
        )
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
                ahead.append(executor.submit(scan_natively, text, *later))
            if cuts[index] != position:  # it was inside of a text
                scanned = scan_natively(text, position, limit)
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
    ahead = deque(executor.submit(scan_natively, text, *extent) for extent in first)
    try:
        yield chunks()
    finally:
        executor.shutdown(cancel_futures=True)


def _decoded(text: mmap.mmap, scanned: Scanned) -> Scanned:
    flaws = {"broken_events": scanned.first_broken} if scanned.broken_count else {}
    texts = [
        None
        if care == _CARE_UNUSED
        else text[begin : begin + length].decode()
        if not care
        else _mended(text[begin : begin + length], begin, flaws)
        if care == 1
        else _json_text(text[begin : begin + length], begin, flaws)
        for begin, length, care in scanned.texts.T.tolist()
    ]
    is_none = np.array([one is None for one in texts], dtype=bool) & (scanned.texts[2] != _CARE_UNUSED)
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
