"""The outermost layer of a report file: blocks, which process each result is of, who wrote it and how.

NVIDIA's reader answers a file that is cut off, or no report at all, with an empty or shorter list, so the
blocks are walked here and their results counted. A report file is the magic, a header and blocks; each of
them is a length of 4 bytes and a protobuf message, a block's followed by its payload.

Source: Nsight Compute, Customization Guide, "Report File Format", and extras/FileFormat/ProfilerReport.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from opscope.errors import InputError

__all__ = ["MAGIC", "Container", "Process", "read_container"]

MAGIC = b"NVR\0"
# The file header's version, the same since 2019.
_KNOWN_VERSION = 7
# Fields of ProfilerReport.proto: of the file header, of a block header, of its session details and process.
_VERSION = 1
_RESULTS, _SESSION, _PAYLOAD_SIZE, _PROCESS = 2, 3, 5, 6
_SOFTWARE, _COMMAND = 8, 11
_SOFTWARE_NAME, _SOFTWARE_VERSION = 1, 2
_PROCESS_ID, _EXECUTABLE = 1, 3
_WRITER = "Nsight Compute Target"
_CUDA = "CUDA Version"
# Headers seen have up to 10 kB; a length beyond this is no length.
_LONGEST_HEADER = 1 << 26
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Process:
    """A process that launched kernels; what the file does not say is None."""

    process_id: int | None = None
    executable: str | None = None


@dataclass(frozen=True)
class Container:
    """What the blocks say.

    Attributes:
        format_version: Of the file.
        processes: Of every result, in the order of the results; None if the format is not known here.
        ncu_version: `2025.3.1.0`; None if the file does not say.
        cuda_version: Newest CUDA the driver served, `13.0`.
        command: The command line of ncu.
    """

    format_version: int | None
    processes: tuple[Process, ...] | None = None
    ncu_version: str | None = None
    cuda_version: str | None = None
    command: str | None = None


def read_container(path: Path) -> Container:
    """The blocks of a report; of one in a format unknown here only its version.

    Raises:
        InputError: Not a report, cut off, or damaged.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError("not a report of Nsight Compute", source=path, hint="ncu -o FILE writes them")
        size = path.stat().st_size
        version = _integer(_message(file, path, size), _VERSION)
        if version != _KNOWN_VERSION:
            return Container(version)
        return _container(_blocks(file, path, size))


Fields = dict[int, list[int | bytes]]


def _blocks(file: BinaryIO, path: Path, size: int) -> Iterator[Fields]:
    while file.tell() < size:
        header = _message(file, path, size)
        end = file.tell() + (_integer(header, _PAYLOAD_SIZE) or 0)
        if end > size:
            raise _cut_off(path, size, end)
        file.seek(end)
        yield header


def _container(blocks: Iterator[Fields]) -> Container:
    processes: list[Process] = []
    software: dict[str, str] = {}
    command: str | None = None
    for block in blocks:
        processes += [_process(block)] * (_integer(block, _RESULTS) or 0)
        for session in _messages(block, _SESSION):
            command = command or _text(session, _COMMAND)
            for one in _messages(session, _SOFTWARE):
                software[_text(one, _SOFTWARE_NAME) or ""] = _text(one, _SOFTWARE_VERSION) or ""
    writer = software.get(_WRITER, "").split(" ", maxsplit=1)[0]
    return Container(
        _KNOWN_VERSION, tuple(processes), writer or None, software.get(_CUDA), command and command.strip()
    )


def _process(block: Fields) -> Process:
    for found in _messages(block, _PROCESS):
        return Process(_integer(found, _PROCESS_ID), _text(found, _EXECUTABLE))
    return Process()


def _message(file: BinaryIO, path: Path, size: int) -> Fields:
    """The message that starts here, its length before it."""
    start = file.tell()
    prefix = file.read(4)
    if len(prefix) < 4:
        raise _cut_off(path, size, start + 4)
    (length,) = struct.unpack("<I", prefix)
    if length > _LONGEST_HEADER:
        raise _damaged(path, start)
    content = file.read(length)
    if len(content) < length:
        raise _cut_off(path, size, start + 4 + length)
    try:
        return _fields(content)
    except (IndexError, ValueError) as error:
        raise _damaged(path, start) from error


def _cut_off(path: Path, size: int, needed: int) -> InputError:
    return InputError(
        f"the report is cut off: it needs at least {needed:,} bytes and has {size:,}",
        source=path,
        byte_offset=size,
        hint="Copy it again, or let ncu end before reading it",
    )


def _damaged(path: Path, offset: int) -> InputError:
    return InputError(
        "the report is damaged: what should be the header of a block is none",
        source=path,
        byte_offset=offset,
        hint="Copy it again, or record it anew",
    )


def _fields(content: bytes) -> Fields:
    """Values of a protobuf message by field number.

    Raises:
        IndexError: The content ends within a value.
        ValueError: A wire type that does not exist.
    """
    fields: Fields = {}
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        value: int | bytes
        if key & 7 == _VARINT:
            value, position = _varint(content, position)
        else:
            length, position = _length(content, position, key & 7)
            if position + length > len(content):
                raise IndexError
            value, position = content[position : position + length], position + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _length(content: bytes, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _BYTES:
        return _varint(content, position)
    if wire_type in (_FIXED64, _FIXED32):
        return (8 if wire_type == _FIXED64 else 4), position
    raise ValueError(wire_type)


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _integer(fields: Fields, number: int) -> int | None:
    value = fields.get(number, [None])[-1]
    return value if isinstance(value, int) else None


def _text(fields: Fields, number: int) -> str | None:
    value = fields.get(number, [None])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def _messages(fields: Fields, number: int) -> Iterator[Fields]:
    """Messages within a message; what is none is left out: only what can be done without is read so."""
    for value in fields.get(number, []):
        if isinstance(value, bytes):
            try:
                yield _fields(value)
            except (IndexError, ValueError):
                continue
