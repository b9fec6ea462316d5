"""What activities are called in a trace: as Kineto calls them, so that all readers of its traces know them.

Source: libkineto/src/cupti_strings.cpp and CuptiActivity.cpp; the numbers are those of cupti_activity.h.
Copies of unified memory, which Kineto does not record, are called after Nsight Systems.
"""

from __future__ import annotations

import re

__all__ = ["call_name", "copy_name", "migration_name", "overhead_name", "set_name"]

_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
_MEMORY = {
    0: "Unknown", 1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device Static",
    7: "Managed Static",
}  # fmt: skip
_MIGRATIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}
_OVERHEADS = {
    1: "Driver Compiler", 1 << 16: "Buffer Flush", 2 << 16: "Instrumentation", 3 << 16: "Resource",
    4 << 16: "Runtime Triggered Module Loading", 5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full", 7 << 16: "Activity Buffer Request", 8 << 16: "UVM Activity Init",
}  # fmt: skip
_UNKNOWN = "<unknown>"
# CUPTI numbers the versions of a runtime function; those of the driver are part of their names.
_RUNTIME_VERSION = re.compile(r"_v\d{4,}$")
_PER_THREAD_STREAM = re.compile(r"_pts[zd]$")


def copy_name(kind: int, source: int, target: int) -> str:
    """`Memcpy HtoD (Pageable -> Device)`."""
    ends = f"{_MEMORY.get(source, _UNKNOWN)} -> {_MEMORY.get(target, _UNKNOWN)}"
    return f"Memcpy {_COPIES.get(kind, _UNKNOWN)} ({ends})"


def set_name(memory_kind: int) -> str:
    """`Memset (Device)`."""
    return f"Memset ({_MEMORY.get(memory_kind, _UNKNOWN)})"


def migration_name(kind: int) -> str:
    """`Memcpy Unified HtoD`."""
    return f"Memcpy Unified {_MIGRATIONS.get(kind, _UNKNOWN)}"


def overhead_name(kind: int) -> str:
    """`Buffer Flush`."""
    return _OVERHEADS.get(kind, "Unknown")


def call_name(name: str | None, function: int, *, is_driver: bool) -> str:
    """`cudaLaunchKernel`, of CUPTI's `cudaLaunchKernel_ptsz_v7000`.

    Args:
        name: CUPTI's name, None if it knows none.
        function: Its number, shown then.
        is_driver: Whether it is a function of the driver.
    """
    if name is None:
        return f"{'driver' if is_driver else 'runtime'} function {function}"
    bare = name if is_driver else _RUNTIME_VERSION.sub("", name)
    return _PER_THREAD_STREAM.sub("", bare)
