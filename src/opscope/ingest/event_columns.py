"""What a scan takes of each event: its members by column, and what a pass over the text gives.

`scan.c` and `scan_pass.py` make such passes; `scan.py` chooses between them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

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
# Of Arrow; others are `l`.
FORMATS = {ColumnKind.TEXT: "u", ColumnKind.JSON: "u", ColumnKind.REAL: "g", ColumnKind.UNSIGNED: "L"}


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
