"""One traced process's file → its records as arrays, its names, and how the recording went.

The layout is that of `native/record_format.h`; a test compiles the header and holds the two against each
other. A file whose process was killed ends anywhere: whatever is whole before that is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opscope.errors import InputError

MARK = b"opscope cuda 01"
LATEST_NS = 1 << 62  # the year 2116
ABSENT = 0xFFFFFFFF
"""An id that a record does not have."""


class FileState(IntEnum):
    """How far the recording came."""

    STARTED = 1
    RECORDING = 2
    ENDED = 3


class UnifiedState(IntEnum):
    """Whether copies of unified memory are recorded."""

    UNTRIED = 0
    RECORDED = 1
    REFUSED = 2
    UNWANTED = 3


class ChunkKind(IntEnum):
    """What the records of a chunk are."""

    KERNELS = 1
    COPIES = 2
    SETS = 3
    RUNTIME_CALLS = 4
    DRIVER_CALLS = 5
    MIGRATIONS = 6
    OVERHEADS = 7
    DEVICES = 8
    TEXTS = 9


class TextTable(IntEnum):
    """What a text says."""

    KERNEL = 1
    RUNTIME_FUNCTION = 2
    DRIVER_FUNCTION = 3
    THREAD = 4
    COMMAND = 5
    MAPS = 6


WRITE_LIMIT = -1
HEADER = np.dtype(
    [
        ("mark", "S16"), ("header_bytes", "<u4"), ("state", "<u4"), ("process", "<u4"),
        ("parent_process", "<u4"), ("start_ns", "<u8"), ("start_realtime_ns", "<u8"), ("end_ns", "<u8"),
        ("cupti_built", "<u4"), ("cupti_loaded", "<u4"), ("driver_version", "<u4"), ("signal", "<i4"),
        ("failed_code", "<i4"), ("unified_code", "<i4"), ("unified_state", "<u4"), ("write_errno", "<i4"),
        ("record_count", "<u8"), ("dropped_count", "<u8"), ("lost_count", "<u8"),
        ("unreadable_count", "<u8"), ("failed_text", "S192"), ("unified_text", "S96"),
        ("cupti_path", "S256"), ("program", "S256"), ("reserved", "V104"),
    ]
)  # fmt: skip

CHUNK_HEAD = np.dtype([("kind", "<u4"), ("count", "<u4"), ("bytes", "<u8")])
TEXT_HEAD = np.dtype([("table", "<u4"), ("id", "<u4"), ("bytes", "<u4"), ("unused", "<u4")])

_INTERVAL = [("start_ns", "<u8"), ("end_ns", "<u8")]
_CALL = [*_INTERVAL, ("correlation", "<u4"), ("thread", "<u4"), ("function", "<u4"), ("result", "<u4")]
_PLACE = [("device", "<u4"), ("context", "<u4"), ("stream", "<u4"), ("graph", "<u4")]

RECORDS: dict[ChunkKind, np.dtype] = {
    ChunkKind.KERNELS: np.dtype(
        [
            *_INTERVAL, ("graph_node", "<u8"), ("name", "<u4"), ("correlation", "<u4"), *_PLACE,
            ("grid", "<i4", (3,)), ("block", "<i4", (3,)), ("static_shared_bytes", "<u4"),
            ("dynamic_shared_bytes", "<u4"), ("registers", "<u4"), ("unused", "<u4"),
        ]
    ),
    ChunkKind.COPIES: np.dtype(
        [
            *_INTERVAL, ("size_bytes", "<u8"), ("graph_node", "<u8"), ("correlation", "<u4"), *_PLACE,
            ("source_device", "<u4"), ("target_device", "<u4"),
            ("kind", "u1"), ("source", "u1"), ("target", "u1"), ("flags", "u1"),
        ]
    ),
    ChunkKind.SETS: np.dtype(
        [
            *_INTERVAL, ("size_bytes", "<u8"), ("graph_node", "<u8"), ("correlation", "<u4"), *_PLACE,
            ("memory_kind", "<u4"),
        ]
    ),
    ChunkKind.RUNTIME_CALLS: np.dtype(_CALL),
    ChunkKind.DRIVER_CALLS: np.dtype(_CALL),
    ChunkKind.MIGRATIONS: np.dtype(
        [
            *_INTERVAL, ("size_bytes", "<u8"), ("address", "<u8"), ("kind", "<u4"), ("source", "<u4"),
            ("target", "<u4"), ("unused", "<u4"),
        ]
    ),
    ChunkKind.OVERHEADS: np.dtype([*_INTERVAL, ("kind", "<u4"), ("thread", "<u4")]),
    ChunkKind.DEVICES: np.dtype(
        [
            ("memory_bytes", "<u8"), ("device", "<i4"), ("major", "<i4"), ("minor", "<i4"),
            ("multiprocessors", "<i4"), ("warp_size", "<i4"), ("threads_per_block", "<i4"),
            ("threads_per_multiprocessor", "<i4"), ("registers_per_block", "<i4"),
            ("registers_per_multiprocessor", "<i4"), ("shared_per_block", "<i4"),
            ("shared_per_block_optin", "<i4"), ("shared_per_multiprocessor", "<i4"), ("name", "S128"),
        ]
    ),
}  # fmt: skip


Records = npt.NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """How the recording of one process went.

    Args:
        state: How far it came.
        failure: What kept it from starting, in words; None if it started.
        failed_code: CUPTI's result then; -1 if CUPTI was not reached, 0 without failure.
        signal: Number of the signal that ended the process, or None.
        unified: Whether copies of unified memory were recorded.
        unified_refusal: CUPTI's result where it refused them, else None.
        dropped_count: Records CUPTI dropped.
        lost_count: Records that could not be written.
        write_errno: Why not; 0 if all could be, `WRITE_LIMIT` if the file had grown as large as it may.
        unreadable_count: Buffers CUPTI could not read to their end.
        truncated_bytes: Bytes of an incomplete record at the end of the file.
    """

    state: FileState
    failure: str | None = None
    failed_code: int = 0
    signal: int | None = None
    unified: UnifiedState = UnifiedState.UNTRIED
    unified_refusal: str | None = None
    dropped_count: int = 0
    lost_count: int = 0
    write_errno: int = 0
    unreadable_count: int = 0
    truncated_bytes: int = 0


@dataclass(frozen=True)
class CuptiRecording:
    """What was recorded of one process. Times are nanoseconds on CUPTI's clock.

    Args:
        path: The file.
        process: Process id.
        parent_process: Its parent's, when it started CUDA.
        program: Path of its executable; empty if unknown.
        command: Its arguments, the program's own name first.
        start_ns: When CUDA was started.
        start_realtime_ns: The same moment in nanoseconds since the Unix epoch.
        end_ns: When the recording ended; None if the process was killed.
        cupti_version: Of the library that recorded.
        cupti_path: Its file.
        driver_version: Of CUDA that the driver serves, e.g. 13000; None if unknown.
        outcome: How it went.
        records: One array for each kind but texts.
        names: Texts by id, by what they name.
        maps: Lines of the process's memory map as in `/proc/self/maps`, for files it ran code of; a file may
            be there several times.
    """

    path: Path
    process: int
    parent_process: int
    program: str
    command: tuple[str, ...]
    start_ns: int
    start_realtime_ns: int
    end_ns: int | None
    cupti_version: int
    cupti_path: str
    driver_version: int | None
    outcome: Outcome
    records: Mapping[ChunkKind, Records]
    names: Mapping[TextTable, Mapping[int, str]]
    maps: str

    def of(self, kind: ChunkKind) -> Records:
        """The records of a kind, in no order."""
        return self.records[kind]

    @property
    def activity_count(self) -> int:
        """Kernels, copies, sets, migrations and calls."""
        left_out = (ChunkKind.DEVICES, ChunkKind.OVERHEADS)
        return sum(len(records) for kind, records in self.records.items() if kind not in left_out)

    @property
    def clock_offset_ns(self) -> int:
        """What to add to CUPTI's time for nanoseconds since the Unix epoch."""
        return self.start_realtime_ns - self.start_ns


def read_recording(path: Path) -> CuptiRecording:
    """The recording in a file.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the records cannot be read ({error.strerror})", source=path) from error
    if len(content) < HEADER.itemsize:
        raise InputError("the file of records has no header", source=path, byte_offset=len(content))
    header = np.frombuffer(content, HEADER, 1)[0]
    if (
        bytes(header["mark"]) != MARK
        or int(header["header_bytes"]) != HEADER.itemsize
        or int(header["state"]) not in FileState._value2member_map_
        or int(header["unified_state"]) not in UnifiedState._value2member_map_
    ):
        raise InputError("not a file of records of this opscope", source=path, byte_offset=0)
    if max(int(header[key]) for key in ("start_ns", "start_realtime_ns", "end_ns")) >= LATEST_NS:
        raise InputError("the header of the records is damaged", source=path, byte_offset=0)
    chunks = _Chunks(content)
    records = chunks.records()
    texts = chunks.texts()
    return CuptiRecording(
        path=path,
        process=int(header["process"]),
        parent_process=int(header["parent_process"]),
        program=_text(header["program"]),
        command=_command(texts),
        start_ns=int(header["start_ns"]),
        start_realtime_ns=int(header["start_realtime_ns"]),
        end_ns=int(header["end_ns"]) or None,
        cupti_version=int(header["cupti_loaded"]),
        cupti_path=_text(header["cupti_path"]),
        driver_version=int(header["driver_version"]) or None,
        outcome=_outcome(header, chunks.truncated_bytes),
        records=records,
        names={table: {id_: _text(text) for id_, text in found.items()} for table, found in texts.items()},
        maps="".join(_text(part) for _, part in sorted(texts[TextTable.MAPS].items())),
    )


_COUNTS = ("failed_code", "dropped_count", "lost_count", "write_errno", "unreadable_count")


def _outcome(header: Any, truncated_bytes: int) -> Outcome:
    unified = UnifiedState(int(header["unified_state"]))
    return Outcome(
        state=FileState(int(header["state"])),
        failure=_text(header["failed_text"]) or None,
        signal=int(header["signal"]) or None,
        unified=unified,
        unified_refusal=_text(header["unified_text"]) if unified is UnifiedState.REFUSED else None,
        truncated_bytes=truncated_bytes,
        **{name: int(header[name]) for name in _COUNTS},
    )


def _text(value: bytes) -> str:
    return bytes(value).decode("utf-8", "replace")


def _command(texts: Mapping[TextTable, Mapping[int, bytes]]) -> tuple[str, ...]:
    """Arguments as `/proc/self/cmdline` has them: each ends in a null byte."""
    text = texts[TextTable.COMMAND].get(0, b"")
    return tuple(_text(part) for part in text.removesuffix(b"\0").split(b"\0")) if text else ()


class _Chunks:
    """The chunks of a file, as far as they are whole.

    Args:
        content: The file.

    Attributes:
        truncated_bytes: What follows the last whole record.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.truncated_bytes = 0
        self._found: dict[int, list[tuple[int, int]]] = {}
        for kind, start, end in self._chunks():
            self._found.setdefault(kind, []).append((start, end))

    def _chunks(self) -> Iterator[tuple[int, int, int]]:
        """Kind, start and end of the payload of each chunk; of a last one cut off, its whole records."""
        position = HEADER.itemsize
        while position + CHUNK_HEAD.itemsize <= len(self._content):
            head = np.frombuffer(self._content, CHUNK_HEAD, 1, position)[0]
            kind, start = int(head["kind"]), position + CHUNK_HEAD.itemsize
            end = start + int(head["bytes"])
            if kind not in RECORDS and kind != ChunkKind.TEXTS:
                break
            if end > len(self._content):
                size = RECORDS[ChunkKind(kind)].itemsize if kind != ChunkKind.TEXTS else 0
                whole = (len(self._content) - start) // size * size if size else 0
                if whole:
                    yield kind, start, start + whole
                    position = start + whole
                break
            yield kind, start, end
            position = end
        self.truncated_bytes = len(self._content) - position

    def records(self) -> dict[ChunkKind, Records]:
        return {kind: self._records(kind, dtype) for kind, dtype in RECORDS.items()}

    def _records(self, kind: ChunkKind, dtype: np.dtype[Any]) -> Records:
        parts = [
            np.frombuffer(self._content, dtype, (end - start) // dtype.itemsize, start)
            for start, end in self._found.get(kind, ())
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    def texts(self) -> dict[TextTable, dict[int, bytes]]:
        found: dict[TextTable, dict[int, bytes]] = {table: {} for table in TextTable}
        for start, end in self._found.get(ChunkKind.TEXTS, ()):
            position = start
            while position + TEXT_HEAD.itemsize <= end:
                head = np.frombuffer(self._content, TEXT_HEAD, 1, position)[0]
                first = position + TEXT_HEAD.itemsize
                length = int(head["bytes"])
                if int(head["table"]) in TextTable._value2member_map_:
                    text = self._content[first : first + length]
                    found[TextTable(int(head["table"]))][int(head["id"])] = text
                position = first + (length + 7) // 8 * 8
        return found
