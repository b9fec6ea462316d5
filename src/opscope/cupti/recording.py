"""One traced process's file → its records as arrays, its names, and how the recording went.

The layout is that of `native/record_format.h`; a test compiles the header and holds the two against each
other. A file whose process was killed ends anywhere: whatever is whole before that is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opscope.errors import InputError

MARK = b"opscope cuda 01"
LATEST_NS = 1 << 62  # the year 2116
ABSENT = 0xFFFFFFFF  # an id that a record does not have


class FileState(IntEnum):
    STARTED, RECORDING, ENDED = range(1, 4)


class UnifiedState(IntEnum):
    """Whether copies of unified memory are recorded."""

    UNTRIED, RECORDED, REFUSED, UNWANTED = range(4)


class ChunkKind(IntEnum):
    KERNELS, COPIES, SETS, RUNTIME_CALLS, DRIVER_CALLS, MIGRATIONS, OVERHEADS, DEVICES, TEXTS = range(1, 10)


class TextTable(IntEnum):
    KERNEL, RUNTIME_FUNCTION, DRIVER_FUNCTION, THREAD, COMMAND, MAPS = range(1, 7)


WRITE_LIMIT = -1


def _layout(text: str) -> np.dtype:
    """Fields in a row: `name:type`, little endian."""
    return np.dtype([(name, kind) for name, kind in (field.split(":") for field in text.split())])


HEADER = _layout("""
    mark:S16 header_bytes:<u4 state:<u4 process:<u4 parent_process:<u4 start_ns:<u8 start_realtime_ns:<u8
    end_ns:<u8 cupti_built:<u4 cupti_loaded:<u4 driver_version:<u4 signal:<i4 failed_code:<i4 unified_code:<i4
    unified_state:<u4 write_errno:<i4 record_count:<u8 dropped_count:<u8 lost_count:<u8 unreadable_count:<u8
    failed_text:S192 unified_text:S96 cupti_path:S256 program:S256 reserved:V104
""")
CHUNK_HEAD = _layout("kind:<u4 count:<u4 bytes:<u8")
TEXT_HEAD = _layout("table:<u4 id:<u4 bytes:<u4 unused:<u4")
_INTERVAL = "start_ns:<u8 end_ns:<u8"
_CALL = _layout(f"{_INTERVAL} correlation:<u4 thread:<u4 function:<u4 result:<u4")
_PLACE = "correlation:<u4 device:<u4 context:<u4 stream:<u4 graph:<u4"
RECORDS: dict[ChunkKind, np.dtype] = {
    ChunkKind.KERNELS: _layout(f"""
        {_INTERVAL} graph_node:<u8 name:<u4 {_PLACE} grid:3<i4 block:3<i4 static_shared_bytes:<u4
        dynamic_shared_bytes:<u4 registers:<u4 unused:<u4
    """),
    ChunkKind.COPIES: _layout(f"""
        {_INTERVAL} size_bytes:<u8 graph_node:<u8 {_PLACE} source_device:<u4 target_device:<u4 kind:u1
        source:u1 target:u1 flags:u1
    """),
    ChunkKind.SETS: _layout(f"{_INTERVAL} size_bytes:<u8 graph_node:<u8 {_PLACE} memory_kind:<u4"),
    ChunkKind.RUNTIME_CALLS: _CALL,
    ChunkKind.DRIVER_CALLS: _CALL,
    ChunkKind.MIGRATIONS: _layout(f"""
        {_INTERVAL} size_bytes:<u8 address:<u8 kind:<u4 source:<u4 target:<u4 unused:<u4
    """),
    ChunkKind.OVERHEADS: _layout(f"{_INTERVAL} kind:<u4 thread:<u4"),
    ChunkKind.DEVICES: _layout("""
        memory_bytes:<u8 device:<i4 major:<i4 minor:<i4 multiprocessors:<i4 warp_size:<i4
        threads_per_block:<i4 threads_per_multiprocessor:<i4 registers_per_block:<i4
        registers_per_multiprocessor:<i4 shared_per_block:<i4 shared_per_block_optin:<i4
        shared_per_multiprocessor:<i4 name:S128
    """),
}


Records = npt.NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    state: FileState
    failure: str | None = None  # what kept it from starting
    failed_code: int = 0  # CUPTI's result then; -1 if CUPTI was not reached
    signal: int | None = None  # that ended the process
    unified: UnifiedState = UnifiedState.UNTRIED
    unified_refusal: str | None = None  # CUPTI's result where it refused them
    dropped_count: int = 0  # records CUPTI dropped
    lost_count: int = 0  # records that could not be written
    write_errno: int = 0  # why not; `WRITE_LIMIT` if the file had grown as large as it may
    unreadable_count: int = 0  # buffers CUPTI could not read to their end
    truncated_bytes: int = 0  # of an incomplete record at the end of the file


@dataclass(frozen=True)
class CuptiRecording:
    """What was recorded of one process. Times are nanoseconds on CUPTI's clock."""

    path: Path
    process: int
    parent_process: int  # when it started CUDA
    program: str  # path of its executable; empty if unknown
    command: tuple[str, ...]  # the program's own name first
    start_ns: int  # when CUDA was started
    start_realtime_ns: int  # the same moment since the Unix epoch
    end_ns: int | None  # None if the process was killed
    cupti_version: int
    cupti_path: str
    driver_version: int | None  # CUDA that the driver serves, e.g. 13000
    outcome: Outcome
    records: Mapping[ChunkKind, Records]  # an array for each kind but texts
    names: Mapping[TextTable, Mapping[int, str]]
    maps: str  # lines as of `/proc/self/maps`, for files it ran code of; a file may be there several times

    def of(self, kind: ChunkKind) -> Records:
        return self.records[kind]

    @property
    def activity_count(self) -> int:
        left_out = (ChunkKind.DEVICES, ChunkKind.OVERHEADS)
        return sum(len(records) for kind, records in self.records.items() if kind not in left_out)

    @property
    def clock_offset_ns(self) -> int:
        """What to add to CUPTI's time for nanoseconds since the Unix epoch."""
        return self.start_realtime_ns - self.start_ns


def read_recording(path: Path) -> CuptiRecording:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the records cannot be read ({error.strerror})", source=path) from error
    if len(content) < HEADER.itemsize:
        raise InputError("the file of records has no header", source=path, byte_offset=len(content))
    header = dict(zip(HEADER.names or (), np.frombuffer(content, HEADER, 1)[0].item(), strict=True))
    if (
        header["mark"] != MARK
        or header["header_bytes"] != HEADER.itemsize
        or header["state"] not in FileState._value2member_map_
        or header["unified_state"] not in UnifiedState._value2member_map_
    ):
        raise InputError("not a file of records of this opscope", source=path, byte_offset=0)
    if max(header["start_ns"], header["start_realtime_ns"], header["end_ns"]) >= LATEST_NS:
        raise InputError("the header of the records is damaged", source=path, byte_offset=0)
    records, texts, truncated_bytes = _read_chunks(content)
    unified = UnifiedState(header["unified_state"])
    # Arguments are as `/proc/self/cmdline` has them: each ends in a null byte.
    command = texts[TextTable.COMMAND].get(0, b"").removesuffix(b"\0")
    return CuptiRecording(
        path=path,
        process=header["process"],
        parent_process=header["parent_process"],
        program=_text(header["program"]),
        command=tuple(_text(part) for part in command.split(b"\0")) if command else (),
        start_ns=header["start_ns"],
        start_realtime_ns=header["start_realtime_ns"],
        end_ns=header["end_ns"] or None,
        cupti_version=header["cupti_loaded"],
        cupti_path=_text(header["cupti_path"]),
        driver_version=header["driver_version"] or None,
        outcome=Outcome(
            state=FileState(header["state"]),
            failure=_text(header["failed_text"]) or None,
            signal=header["signal"] or None,
            unified=unified,
            unified_refusal=_text(header["unified_text"]) if unified is UnifiedState.REFUSED else None,
            truncated_bytes=truncated_bytes,
            **{name: header[name] for name in _COUNTS},
        ),
        records=records,
        names={table: {id_: _text(text) for id_, text in found.items()} for table, found in texts.items()},
        maps="".join(_text(part) for _, part in sorted(texts[TextTable.MAPS].items())),
    )


_COUNTS = ("failed_code", "dropped_count", "lost_count", "write_errno", "unreadable_count")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _read_chunks(content: bytes) -> tuple[dict[ChunkKind, Records], dict[TextTable, dict[int, bytes]], int]:
    """Records and texts of the chunks, as far as they are whole, and the bytes that follow the last."""
    parts: dict[int, list[Records]] = {kind: [] for kind in RECORDS}
    texts: dict[TextTable, dict[int, bytes]] = {table: {} for table in TextTable}
    position = HEADER.itemsize
    while position + CHUNK_HEAD.itemsize <= len(content):
        kind, _, length = np.frombuffer(content, CHUNK_HEAD, 1, position)[0].tolist()
        start = position + CHUNK_HEAD.itemsize
        end = min(start + length, len(content))
        is_whole = start + length <= len(content)
        if kind in RECORDS:
            dtype = RECORDS[ChunkKind(kind)]
            count = (end - start) // dtype.itemsize
            parts[kind].append(np.frombuffer(content, dtype, count, start))
            if not is_whole:  # of a last one cut off, its whole records
                position = start + count * dtype.itemsize if count else position
                break
        elif kind == ChunkKind.TEXTS and is_whole:
            while start + TEXT_HEAD.itemsize <= end:
                table, id_, size, _ = np.frombuffer(content, TEXT_HEAD, 1, start)[0].tolist()
                first = start + TEXT_HEAD.itemsize
                if table in TextTable._value2member_map_:
                    texts[TextTable(table)][id_] = content[first : first + size]
                start = first + (size + 7) // 8 * 8
        else:
            break
        position = end
    records = {
        kind: np.concatenate(parts[kind]) if parts[kind] else np.empty(0, dtype)
        for kind, dtype in RECORDS.items()
    }
    return records, texts, len(content) - position
