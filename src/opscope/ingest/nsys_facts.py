"""What an export says once: of the recording, its machine, its processes and devices.

Read by name from small tables that no version of nsys writes alike; what is not there is None. Environment
variables and arguments of the recorded program, which exports hold in full, are left where they are: only a
rank among them is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from opscope.ingest.nsys_export import Export, Missing
from opscope.ingest.trace_rows import integer, is_of_torch
from opscope.ingest.wording import asked, finding
from opscope.model.environment import RANK_VARIABLES, rank_of
from opscope.model.finding import Finding
from opscope.model.session import Session

_ENVIRONMENT = "PROCESS_0:ENVIRONMENT_VARIABLE"
_VARIABLE = re.compile(r'(?P<name>\w+)="?(?P<value>\d{1,9})"?')
_PROBLEMS = ("Warning", "Error")


class ExportFacts(msgspec.Struct, frozen=True):
    """The recording as a whole."""

    product_version: str | None = None  # Of the nsys that exported
    schema_version: str | None = None  # Of the export's tables, e.g. `3.25.0`
    base_time_ns: int | None = None  # What to add to a time for nanoseconds since the epoch
    driver_version: int | None = None  # Newest CUDA the driver serves, as CUDA counts
    # `Graph` where launches of CUDA graphs are recorded as a whole, `Node` where node by node
    graph_mode: str | None = None
    rank: int | None = None  # Rank of the program that was started, where its launcher told it one
    world_size: int | None = None  # Number of ranks
    problems: tuple[str, ...] = ()  # What nsys warned of while it recorded
    process_names: Mapping[int, str] = msgspec.field(default_factory=dict)  # By process


def read_facts(export: Export) -> ExportFacts:
    """The facts of an export."""
    exported = _pairs(export, "META_DATA_EXPORT") or _pairs(export, "EXPORT_META_DATA")  # until nsys 2023
    captured = _pairs(export, "META_DATA_CAPTURE")
    rank, world_size = _rank(export)
    return ExportFacts(
        product_version=exported.get("EXPORT_PRODUCT_VERSION"),
        schema_version=exported.get("EXPORT_SCHEMA_VERSION"),
        base_time_ns=_base_time(export, exported),
        driver_version=integer(_pairs(export, "TARGET_INFO_SYSTEM_ENV").get("CudaDriverVersion")),
        graph_mode=captured.get("CUDA_GRAPH_TRACE_OPTIONS:MODE"),
        rank=rank,
        world_size=world_size,
        problems=_problems(export),
        process_names={
            pid: str(name)
            for pid, name in export.of("PROCESSES", "pid", "name")
            if isinstance(pid, int) and name is not None
        },
    )


def _pairs(export: Export, table: str) -> dict[str, str]:
    """A table of names and values; of a repeated name the first value."""
    rows = reversed(export.of(table, "name", "value"))
    return {str(name): str(value) for name, value in rows if value is not None}


def _base_time(export: Export, exported: Mapping[str, str]) -> int | None:
    """Times count from the start of the recording, unless the export was told to shift them."""
    shift = integer(exported.get("EXPORT_PARAM_TIME_SHIFT", "0"), bits=64) or 0
    if exported.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        return -shift
    starts = export.of("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    start = integer(starts[0][0], bits=64) if starts else None
    return None if start is None else start - shift


def _rank(export: Export) -> tuple[int | None, int | None]:
    if not export.has("META_DATA_CAPTURE", "name", "value"):
        return None, None
    wanted = [f"{name}=%" for pair in RANK_VARIABLES for name in pair]
    likes = " OR ".join("value LIKE ?" for _ in wanted)
    rows = export.rows(
        f"SELECT value FROM META_DATA_CAPTURE WHERE name = ? AND ({likes})", [_ENVIRONMENT, *wanted]
    )
    matches = [_VARIABLE.fullmatch(str(value)) for (value,) in rows]
    return rank_of({match["name"]: match["value"] for match in matches if match is not None})


def _problems(export: Export) -> tuple[str, ...]:
    named = export.of("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "name")
    levels = {number for number, name in named if name in _PROBLEMS} if named else {2, 3}
    rows = export.of("DIAGNOSTIC_EVENT", "severity", "text")
    texts = [" ".join(str(text).split()) for severity, text in rows if severity in levels]
    return tuple(dict.fromkeys(texts))


# Column of TARGET_INFO_GPU by key of Kineto's deviceProperties, and the same of the table it once was.
_GPU = {
    "name": "name", "computeMajor": "computeMajor", "computeMinor": "computeMinor", "numSms": "smCount",
    "totalGlobalMem": "totalMemory", "warpSize": "threadsPerWarp", "maxThreadsPerBlock": "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor": "maxWarpsPerSm * threadsPerWarp", "regsPerBlock": "maxRegistersPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm", "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerBlockOptin": "maxShmemPerBlockOptin", "sharedMemPerMultiprocessor": "maxShmemPerSm",
}  # fmt: skip
_CUDA_GPU = {
    "name": "name", "computeMajor": "computeCapabilityMajor", "computeMinor": "computeCapabilityMinor",
    "numSms": "numMultiprocessors", "warpSize": "numThreadsPerWarp",
    "maxThreadsPerMultiprocessor": "maxWarpsPerMultiprocessor * numThreadsPerWarp",
}  # fmt: skip


def devices_of(export: Export, process: int) -> list[dict[str, Any]]:
    """The devices of a process by its own ordinals, with keys as in Kineto's deviceProperties."""
    if export.has("TARGET_INFO_GPU", "id"):
        gpus = _described(export, "TARGET_INFO_GPU", "id", _GPU)
        ordinals = _ordinals(export, process)
        if ordinals:
            return [{**gpus[gpu], "id": ordinal} for ordinal, gpu in ordinals.items() if gpu in gpus]
        return [{**gpu, "id": ordinal} for ordinal, gpu in gpus.items()]
    if export.has("TARGET_INFO_CUDA_GPU", "deviceId"):
        gpus = _described(export, "TARGET_INFO_CUDA_GPU", "deviceId", _CUDA_GPU)
        return [{**gpu, "id": ordinal} for ordinal, gpu in gpus.items()]
    return []


def _described(
    export: Export, table: str, identity: str, columns: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    present = {
        key: text for key, text in columns.items() if export.has(table, *re.findall(r"[A-Za-z]\w*", text))
    }
    rows = export.rows(f"SELECT {', '.join([identity, *present.values()])} FROM {table} ORDER BY 1")
    # nsys writes 0 where it knows nothing; only a minor version can be 0.
    return {
        row[0]: {
            key: value if value or key == "computeMinor" else None
            for key, value in zip(present, row[1:], strict=True)
        }
        for row in rows
    }


def _ordinals(export: Export, process: int) -> dict[int, int]:
    """GPU by the process's own ordinal; CUDA_VISIBLE_DEVICES makes them differ."""
    if not export.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        return {}
    return dict(
        export.rows(
            "SELECT cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE WHERE pid = ? AND gpuId IS NOT NULL "
            "ORDER BY cudaId",
            (process,),
        )
    )


_NEWEST_SCHEMA = 3
_SHOWN_PROBLEMS = 3


def export_findings(
    trace_id: int, facts: ExportFacts, missing: Missing, others: Sequence[int]
) -> Iterator[Finding]:
    """What concerns a whole export, said of its first trace.

    `others` are processes with NVTX ranges that called no CUDA, and so are no traces.
    """
    schema = facts.schema_version or "unknown"
    if missing.tables or missing.columns:
        lacking = {"tables": list(missing.tables), "columns": list(missing.columns)}
        names = ", ".join((*missing.tables, *missing.columns))
        kind = "tables" if missing.tables else None
        yield finding("nsys.missing", trace_id, lacking, kind=kind, schema=schema, names=names)
    if missing.row_count:
        yield finding("nsys.without_process", trace_id, {"row_count": missing.row_count})
    major = schema.partition(".")[0]
    if major.isdecimal() and int(major) > _NEWEST_SCHEMA:
        yield finding("nsys.newer_schema", trace_id, schema=schema, newest=_NEWEST_SCHEMA)
    if facts.problems:
        rest = len(facts.problems) - _SHOWN_PROBLEMS
        said = " ".join([*facts.problems[:_SHOWN_PROBLEMS], *([f"And {rest} more."] if rest > 0 else ())])
        yield finding("nsys.diagnostics", trace_id, {"messages": list(facts.problems)}, said=said)
    if others:
        names = ", ".join(f"{process} ({facts.process_names.get(process, '?')})" for process in others)
        yield finding("nsys.other_processes", trace_id, {"processes": list(others)}, names=names)


def process_findings(
    session: Session, trace_id: int, owner_count: int, operator_count: int, *, has_cuda: bool = True
) -> Iterator[Finding]:
    """What concerns the trace of one process, whose rows are there.

    Of ranges that stand among the operators there are `owner_count`, of those that PyTorch itself named
    `operator_count`; `has_cuda` is of all processes.
    """
    if not has_cuda:
        yield finding("nsys.no_cuda", trace_id, {"range_count": owner_count})
    elif owner_count:
        yield finding("nsys.ranges_own", trace_id, {"range_count": owner_count})
    has_work = bool(session.scalar("SELECT count(*) FROM device_activities WHERE trace_id = ?", [trace_id]))
    if has_work and not operator_count and is_of_torch(session):
        yield finding("nsys.no_operators", trace_id)
    yield from asked(session, "nsys.graphs_whole", trace_id=trace_id)
