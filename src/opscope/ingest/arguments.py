"""The keys of a Kineto event's `args` that tables hold, with the type each is read as.

Names are those of libkineto/include/MetadataFieldCatalog.h and of the older writers in
torch/csrc/profiler/kineto_shim.cpp. A key absent here is in no table.
"""

from __future__ import annotations

import json
from collections.abc import Callable

__all__ = [
    "ARGUMENTS",
    "CATEGORIES",
    "CATEGORY",
    "DETAILS",
    "LEGACY_CATEGORIES",
    "LEGACY_CATEGORY",
    "Reading",
    "lenient_events",
    "no_events",
    "strict_events",
]

CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "cuda_sync", "overhead", "fwdbwd", "Trace",
)  # fmt: skip
LEGACY_CATEGORIES = ("Operator", "Kernel", "Memcpy", "Memset", "Runtime")

ARGUMENTS: dict[str, str] = {
    "External id": "BIGINT", "correlation": "BIGINT", "name": "VARCHAR",
    "Sequence number": "BIGINT", "Fwd thread id": "BIGINT",
    "Input Dims": "JSON", "Input type": "JSON", "Input Strides": "JSON", "Concrete Inputs": "JSON",
    "Python id": "BIGINT", "Python parent id": "BIGINT", "Python module id": "BIGINT",
    "Call stack": "VARCHAR", "Module Hierarchy": "VARCHAR",
    "device": "INTEGER", "stream": "BIGINT", "context": "INTEGER", "grid": "VARCHAR", "block": "VARCHAR",
    "registers per thread": "INTEGER", "shared memory": "INTEGER", "blocks per SM": "DOUBLE",
    "warps per SM": "DOUBLE", "est. achieved occupancy %": "DOUBLE", "bytes": "BIGINT",
    "graph id": "BIGINT", "graph node id": "BIGINT",
    "Collective name": "VARCHAR", "kernel_backend": "VARCHAR",
}  # fmt: skip

# Keys of few events, read a second time if there are any. (No DuckDB struct holds both `bytes` and `Bytes`.)
DETAILS: dict[str, str] = {
    "External id": "BIGINT", "correlation": "BIGINT", "Call stack": "VARCHAR", "Module Hierarchy": "VARCHAR",
    "device": "BIGINT", "stream": "BIGINT", "grid": "VARCHAR",
    "Collective name": "VARCHAR", "dtype": "VARCHAR", "In msg nelems": "BIGINT", "Out msg nelems": "BIGINT",
    "In split size": "VARCHAR", "Out split size": "VARCHAR", "Process Group Name": "VARCHAR",
    "Process Group Description": "VARCHAR", "Group size": "BIGINT", "Process Group Ranks": "VARCHAR",
    "Src Rank": "BIGINT", "Dst Rank": "BIGINT", "Seq": "BIGINT",
    "kernel_name": "VARCHAR", "kernel_backend": "VARCHAR", "kernel_file": "VARCHAR", "kernel_hash": "VARCHAR",
    "kernel_kwargs": "VARCHAR", "num_warps": "BIGINT", "num_stages": "BIGINT", "kernel_flop": "DOUBLE",
    "kernel_num_gb": "DOUBLE",
    "Addr": "UBIGINT", "Bytes": "BIGINT", "Device Type": "BIGINT", "Device Id": "BIGINT",
    "Total Allocated": "BIGINT", "Total Reserved": "BIGINT",
    "cuda_sync_kind": "VARCHAR", "wait_on_stream": "BIGINT", "wait_on_cuda_event_id": "BIGINT",
    "wait_on_cuda_event_record_corr_id": "BIGINT",
}  # fmt: skip

_READ = """read_json({urls}, format = 'array', records = true, maximum_object_size = {largest}, columns = {{
    ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', ts: '{time_type}', dur: 'DOUBLE',
    pid: 'VARCHAR', tid: 'VARCHAR', id: 'VARCHAR', args: '{args_type}'}})"""


CATEGORY = "TRY_CAST(cat AS staging.kineto_category)"
LEGACY_CATEGORY = """CASE cat
    WHEN 'Operator' THEN CASE WHEN name LIKE 'ProfilerStep#%' THEN 'user_annotation' ELSE 'cpu_op' END
    WHEN 'Kernel' THEN 'kernel' WHEN 'Memcpy' THEN 'gpu_memcpy' WHEN 'Memset' THEN 'gpu_memset'
    WHEN 'Runtime' THEN 'cuda_runtime' ELSE TRY_CAST(cat AS staging.kineto_category)
    END::staging.kineto_category"""

Reading = Callable[[dict[str, str], list[str], str, int], str]


def strict_events(keys: dict[str, str], urls: list[str], time_type: str, largest_event_bytes: int) -> str:
    """FROM clause that reads `args` by the declared types in one go; a value of another type is an error."""
    fields = ", ".join(f'"{key}" {kind}' for key, kind in keys.items())
    return _READ.format(
        urls=urls, largest=largest_event_bytes, time_type=time_type, args_type=f"STRUCT({fields})"
    )


def lenient_events(keys: dict[str, str], urls: list[str], time_type: str, largest_event_bytes: int) -> str:
    """The same, but a value of another type becomes NULL. Slower: `args` is parsed twice."""
    text = _READ.format(urls=urls, largest=largest_event_bytes, time_type=time_type, args_type="JSON")
    return f"(SELECT * REPLACE (from_json(args, '{json.dumps(keys)}') AS args) FROM {text})"


def no_events(keys: dict[str, str]) -> str:
    """FROM clause without rows: the columns of `strict_events` alone."""
    fields = ", ".join(f'"{key}" {kind}' for key, kind in keys.items())
    texts = ", ".join(f"NULL::VARCHAR AS {name}" for name in ("ph", "cat", "name", "pid", "tid", "id"))
    return (
        f"(SELECT {texts}, NULL::DOUBLE AS ts, NULL::DOUBLE AS dur, NULL::STRUCT({fields}) AS args LIMIT 0)"
    )
