"""Numbers of an export → the words a Kineto trace has for the same things.

An export explains its numbers in tables of its own (`ENUM_…`); those win over the numbers known here, which
serve exports without them.

Source: the ENUM tables of nsys 2026.2 exports; libkineto/src/CuptiActivity.cpp and CuptiActivityApi.cpp, and
torch's traces, for Kineto's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from opscope.ingest.nsys.export import Export

__all__ = ["words_of"]

_COPIES = {
    0: "CUDA_MEMCPY_KIND_UNKNOWN", 1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH",
    3: "CUDA_MEMCPY_KIND_HTOA", 4: "CUDA_MEMCPY_KIND_ATOH", 5: "CUDA_MEMCPY_KIND_ATOA",
    6: "CUDA_MEMCPY_KIND_ATOD", 7: "CUDA_MEMCPY_KIND_DTOA", 8: "CUDA_MEMCPY_KIND_DTOD",
    9: "CUDA_MEMCPY_KIND_HTOH", 10: "CUDA_MEMCPY_KIND_PTOP", 11: "CUDA_MEMCPY_KIND_UVM_HTOD",
    12: "CUDA_MEMCPY_KIND_UVM_DTOH", 13: "CUDA_MEMCPY_KIND_UVM_DTOD",
}  # fmt: skip
_COPY = re.compile(r"(?P<unified>UVM_)?(?P<source>[HDAP])TO(?P<target>[HDAP])$")

_MEMORIES = {
    0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", 1: "CUDA_MEMOPR_MEMORY_KIND_PINNED",
    2: "CUDA_MEMOPR_MEMORY_KIND_DEVICE", 3: "CUDA_MEMOPR_MEMORY_KIND_ARRAY",
    4: "CUDA_MEMOPR_MEMORY_KIND_MANAGED", 5: "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC",
    6: "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", 7: "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN",
}  # fmt: skip

_SYNCS = {
    1: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    2: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
    3: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    4: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
}
_SYNC_WORDS = {
    "EVENT_SYNCHRONIZE": "Event Sync",
    "STREAM_WAIT_EVENT": "Stream Wait Event",
    "STREAM_SYNCHRONIZE": "Stream Sync",
    "CONTEXT_SYNCHRONIZE": "Context Sync",
}

_OVERHEADS = {
    2: "OVERHEAD_DRIVER_COMPILER", 3: "OVERHEAD_CUPTI_BUFFER_FLUSH", 4: "OVERHEAD_CUPTI_INSTRUMENTATION",
    5: "OVERHEAD_CUPTI_RESOURCE", 6: "OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING",
    7: "OVERHEAD_LAZY_FUNCTION_LOADING", 8: "OVERHEAD_COMMAND_BUFFER_FULL",
}  # fmt: skip
_OVERHEAD_WORDS = {
    "OVERHEAD_DRIVER_COMPILER": "Driver Compiler",
    "OVERHEAD_CUPTI_BUFFER_FLUSH": "Buffer Flush",
    "OVERHEAD_CUPTI_INSTRUMENTATION": "Instrumentation",
    "OVERHEAD_CUPTI_RESOURCE": "Resource",
    "OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING": "Runtime Triggered Module Loading",
    "OVERHEAD_LAZY_FUNCTION_LOADING": "Lazy Function Loading",
    "OVERHEAD_COMMAND_BUFFER_FULL": "Command Buffer Full",
}

_RANGES = {
    34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange",
    70: "NvtxtPushPopRange", 71: "NvtxtStartEndRange", 75: "NvtxDomainCreate",
}  # fmt: skip
_RANGE_KINDS = {
    "NvtxMark": "mark",
    "NvtxPushPopRange": "nested",
    "NvtxtPushPopRange": "nested",
    "NvtxStartEndRange": "loose",
    "NvtxtStartEndRange": "loose",
    "NvtxDomainCreate": "domain",
}

_APIS = {0: "TRACE_PROCESS_EVENT_CUDA_RUNTIME", 1: "TRACE_PROCESS_EVENT_CUDA_DRIVER"}


def words_of(export: Export) -> list[tuple[str, int, str]]:
    """Topic, number and word of everything an export says by number.

    Topics: `copy` (direction: `HtoD`, `Unified HtoD`, `Unknown`), `memory` (`Pageable`, `Device Static`),
    `sync` (`Stream Sync`), `overhead` (`Buffer Flush`; those that nsys names itself are absent), `range`
    (`nested`: pushed and popped, `loose`: started and ended, `mark`, `domain`: its creation; others are
    absent) and `api` (`cuda_runtime`, `cuda_driver`).
    """
    return [
        (topic, number, word)
        for topic, enumeration, known, word_of in _TOPICS
        for number, name in _names(export, enumeration, known).items()
        if (word := word_of(name)) is not None
    ]


def _direction(name: str) -> str:
    match = _COPY.search(name)
    if match is None:
        return "Unknown"
    return f"{'Unified ' if match['unified'] else ''}{match['source']}to{match['target']}"


def _memory(name: str) -> str:
    return name.rpartition("MEMORY_KIND_")[2].replace("_", " ").title()


def _sync(name: str) -> str | None:
    return _SYNC_WORDS.get(name.rpartition("_TYPE_")[2])


def _api(name: str) -> str:
    return "cuda_driver" if "DRIVER" in name else "cuda_runtime"


_TOPICS: tuple[tuple[str, str, Mapping[int, str], Callable[[str], str | None]], ...] = (
    ("copy", "CUDA_MEMCPY_OPER", _COPIES, _direction),
    ("memory", "CUDA_MEM_KIND", _MEMORIES, _memory),
    ("sync", "CUPTI_SYNC_TYPE", _SYNCS, _sync),
    ("overhead", "CUPTI_OVERHEAD_TYPE", _OVERHEADS, _OVERHEAD_WORDS.get),
    ("range", "NSYS_EVENT_TYPE", _RANGES, _RANGE_KINDS.get),
    ("api", "NSYS_EVENT_CLASS", _APIS, _api),
)


def _names(export: Export, enumeration: str, known: Mapping[int, str]) -> dict[int, str]:
    """Symbols by number: the known ones, and over them the export's own."""
    table = f"ENUM_{enumeration}"
    if not export.has(table, "id", "name"):
        return dict(known)
    own = export.rows(f"SELECT id, name FROM {table} WHERE typeof(id) = 'integer' AND typeof(name) = 'text'")
    return {**known, **dict(own)}
