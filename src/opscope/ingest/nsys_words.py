"""Texts of an export: of what is used of its strings, of kernels, and which NVTX ranges are operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opscope.ingest.nsys_export import Export
from opscope.model.session import Session, registered

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
    with registered(session.connection, export_chunk=chunk):
        session.connection.execute(f"INSERT INTO staging.{table} SELECT * FROM export_chunk")


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
    r"_thnn_\w+", r"_scaled_\w*mm_v2", r"_scaled_addmm_?",
)  # fmt: skip
TAKES_TENSOR_LISTS = f"^aten::(?:{'|'.join(_LISTS)})$"
"""Of operators with a list of tensors among their arguments: which shape is whose cannot be told."""
