"""The layout of the file a traced process writes; `native/record_format.h` in Python.

A test compiles the header and holds the two against each other.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = [
    "ABSENT",
    "CHUNK_HEAD",
    "HEADER",
    "MARK",
    "RECORDS",
    "TEXT_HEAD",
    "ChunkKind",
    "FileState",
    "TextTable",
    "UnifiedState",
]

MARK = b"opscope cuda 01"
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
