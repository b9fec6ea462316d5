"""Files of records as bytes: the header, records of a kind, texts; for tests and for what mutates them."""

from __future__ import annotations

import numpy as np

from opscope.cupti.recording import (
    CHUNK_HEAD,
    HEADER,
    MARK,
    RECORDS,
    TEXT_HEAD,
    ChunkKind,
    FileState,
    TextTable,
)


def header(**values: object) -> bytes:
    """The header of a process that records, with other values."""
    row = np.zeros(1, HEADER)
    row["mark"], row["header_bytes"], row["state"] = MARK, HEADER.itemsize, int(FileState.RECORDING)
    for name, value in values.items():
        row[name] = value
    return row.tobytes()


def chunk(kind: ChunkKind, count: int) -> bytes:
    """So many records of a kind, one after the other in time, with correlation ids where they have such."""
    records = np.zeros(count, RECORDS[kind])
    for name, first in (("start_ns", 10), ("end_ns", 20), ("correlation", 0)):
        if name in (records.dtype.names or ()):
            records[name] = np.arange(count) + first
    head = np.array([(int(kind), count, records.nbytes)], CHUNK_HEAD)
    return head.tobytes() + records.tobytes()


def text(table: TextTable, id_: int, content: bytes) -> bytes:
    """One text."""
    padded = content.ljust((len(content) + 7) // 8 * 8, b"\0")
    head = np.array([(int(table), id_, len(content), 0)], TEXT_HEAD)
    size = len(padded) + TEXT_HEAD.itemsize
    return np.array([(int(ChunkKind.TEXTS), 1, size)], CHUNK_HEAD).tobytes() + head.tobytes() + padded


def every_kind() -> bytes:
    """The file of a process that has ended, with two records of each kind and a text of each table."""
    times = {"start_ns": 1_000, "end_ns": 1_000_000, "start_realtime_ns": 1_790_857_026_000_000_000}
    parts = [header(state=int(FileState.ENDED), process=4711, **times)]
    parts += [chunk(kind, 2) for kind in RECORDS]
    command = b"/usr/bin/python\0train.py\0"
    parts += [text(table, 0, command if table is TextTable.COMMAND else b"_Z3addPf") for table in TextTable]
    return b"".join(parts)
