"""Numbers of an export → the words a Kineto trace has for the same things.

An export explains its numbers in tables of its own (`ENUM_…`); those win over the numbers known here, which
serve exports without them.

Source: the ENUM tables of nsys 2026.2 exports; libkineto/src/CuptiActivity.cpp and CuptiActivityApi.cpp, and
torch's traces, for Kineto's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opscope.ingest.nsys_export import Export
from opscope.model.session import Session

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


_TOPICS: tuple[tuple[str, str, Mapping[int, str], Callable[[str], str | None]], ...] = (
    ("copy", "CUDA_MEMCPY_OPER", _COPIES, _direction),
    (
        "memory",
        "CUDA_MEM_KIND",
        _MEMORIES,
        lambda name: name.rpartition("MEMORY_KIND_")[2].replace("_", " ").title(),
    ),
    ("sync", "CUPTI_SYNC_TYPE", _SYNCS, lambda name: _SYNC_WORDS.get(name.rpartition("_TYPE_")[2])),
    ("overhead", "CUPTI_OVERHEAD_TYPE", _OVERHEADS, _OVERHEAD_WORDS.get),
    ("range", "NSYS_EVENT_TYPE", _RANGES, _RANGE_KINDS.get),
    ("api", "NSYS_EVENT_CLASS", _APIS, lambda name: "cuda_driver" if "DRIVER" in name else "cuda_runtime"),
)


def _names(export: Export, enumeration: str, known: Mapping[int, str]) -> dict[int, str]:
    """Symbols by number: the known ones, and over them the export's own."""
    table = f"ENUM_{enumeration}"
    if not export.has(table, "id", "name"):
        return dict(known)
    own = export.rows(f"SELECT id, name FROM {table} WHERE typeof(id) = 'integer' AND typeof(name) = 'text'")
    return {**known, **dict(own)}


Demangle = Callable[[str], str | None]
_IDS_PER_QUERY = 500  # SQLite takes at least 999 parameters
_USED_IDS = """
SELECT DISTINCT id FROM (
    SELECT unnest([demangledName, shortName, mangledName]) AS id FROM staging.raw_kernels
    UNION ALL SELECT nameId FROM staging.raw_calls
    UNION ALL SELECT textId FROM staging.raw_ranges
    UNION ALL SELECT nameId FROM staging.raw_cuda_overheads
    UNION ALL SELECT nameId FROM staging.raw_overheads
    UNION ALL SELECT nameId FROM staging.raw_thread_names)
WHERE id IS NOT NULL ORDER BY id"""
_PAIRS = """
SELECT k.demangled_id, k.mangled_id, d.value, m.value, s.value
FROM (SELECT coalesce(demangledName, -1) AS demangled_id, coalesce(mangledName, -1) AS mangled_id,
        min(shortName) AS short_id
    FROM staging.raw_kernels GROUP BY ALL) k
LEFT JOIN staging.strings d ON d.id = k.demangled_id
LEFT JOIN staging.strings m ON m.id = k.mangled_id
LEFT JOIN staging.strings s ON s.id = k.short_id
ORDER BY 1, 2"""


def stage_words(session: Session, export: Export) -> None:
    """Make `staging.words` (topic, number, word)."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE staging.words (topic VARCHAR, number BIGINT, word VARCHAR)"
    )
    _insert(session, "words", words_of(export))


def stage_strings(session: Session, export: Export) -> None:
    """Make `staging.strings` (id, value) of the texts that are used; an export may hold millions more."""
    session.connection.execute("CREATE OR REPLACE TABLE staging.strings (id BIGINT, value VARCHAR)")
    if not export.has("StringIds", "id", "value"):
        return
    used = [number for (number,) in session.query(_USED_IDS)]
    for start in range(0, len(used), _IDS_PER_QUERY):
        ids = used[start : start + _IDS_PER_QUERY]
        marks = ", ".join("?" * len(ids))
        found = export.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", ids)
        _insert(session, "strings", found)


def stage_kernel_texts(session: Session, demangle: Demangle | None) -> None:
    """Make `staging.kernel_texts`: for each pair of demangled and mangled id (-1: none), the texts."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE staging.kernel_texts "
        "(demangled_id BIGINT, mangled_id BIGINT, name VARCHAR, recorded_name VARCHAR, mangled_name VARCHAR)"
    )
    rows = [
        (demangled, mangled, *_kernel_texts_names(recorded, symbol, short, demangle))
        for demangled, mangled, recorded, symbol, short in session.query(_PAIRS)
    ]
    _insert(session, "kernel_texts", rows)


def _kernel_texts_names(
    recorded: str | None, symbol: str | None, short: str | None, demangle: Demangle | None
) -> tuple[str, str, str | None]:
    """The name as Kineto has it, as nsys has it, and the mangled one; the next best where one is missing."""
    shown = recorded or short or symbol or ""
    if symbol is None:
        return shown, shown, None
    text = demangle(symbol) if demangle is not None and symbol.startswith("_Z") else None
    is_plain = not symbol.startswith("_Z")
    return text or (symbol if is_plain else shown), shown, symbol


def _insert(session: Session, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Append rows of integers and texts."""
    if not rows:
        return
    chunk = {
        f"column{index}": np.array(column, dtype=np.int64 if isinstance(column[0], int) else object)
        for index, column in enumerate(zip(*rows, strict=True))
    }
    session.connection.register("export_chunk", chunk)
    try:
        session.connection.execute(f"INSERT INTO staging.{table} SELECT * FROM export_chunk")
    finally:
        session.connection.unregister("export_chunk")


_ALTERNATIVES = (
    r"[A-Za-z_][\w.]*(?:::[\w.~]+)+",  # aten::mm, c10d::allreduce_
    r"autograd::engine::evaluate_function: .*",
    r"Torch-Compiled Region.*",
    r"triton_\w+",
    r"detach_?|record_param_comms",  # recorded in C++ without a namespace
)
EMITTED_OPERATOR = f"^(?:{'|'.join(_ALTERNATIVES)})$"
"""Of a range with the marks of emit_nvtx, but without a sequence number."""

BARE_OPERATOR = r"^(?:aten::\w+|autograd::engine::evaluate_function: .*|torch::(?:autograd|jit)::\w+)$"
"""Of a range without any marks: a user's own C++ may well push `Solver::step`."""

_LISTS = (
    r"_foreach_\w+", r"_amp_foreach_\w+", r"_fused_(?:adam|adamw|sgd|adagrad)_?", r"_?stack", r"[hvd]stack",
    r"(?:row|column)_stack", r"cat", r"concat(?:enate)?", r"_chunk_cat", r"block_diag", r"broadcast_tensors",
    r"cartesian_prod", r"chain_matmul", r"linalg_multi_dot", r"einsum", r"meshgrid", r"_to_cpu",
    r"atleast_[123]d",
    r"_?(?:unsafe_)?(?:masked_)?index", r"_?(?:unsafe_)?(?:masked_)?index_put\w*", r"_index_put_impl_?",
    r"gradient", r"_?histogramdd\w*", r"pad_sequence", r"(?:un)?flatten_dense_tensors", r"dequantize",
    r"quantize_per_tensor", r"(?:quantized_)?(?:lstm|gru|rnn_tanh|rnn_relu)(?:_cell)?", r"_lstm_mps",
    r"lstm_mps_backward", r"_cudnn_rnn\w*", r"miopen_rnn\w*", r"_backward",
    r"_nested_tensor_from_tensor_list", r"_jagged_to_padded_dense_forward",
    r"_padded_dense_to_jagged_forward", r"_scaled(?:_grouped)?_mm_v2",
    r"_thnn_\w+", r"_scaled_\w*mm_v2",
)  # fmt: skip
TAKES_TENSOR_LISTS = f"^aten::(?:{'|'.join(_LISTS)})$"
"""Of operators with a list of tensors among their arguments: which shape is whose cannot be told."""
