"""`read_export`: an export → the tables of a Session, one trace for each process that called CUDA.

All tables are copied once; then each process is staged as a Kineto trace would be, and the same statements
nest, link and fill. An export arrives wholly or not at all. The file is never written, not even a lock or
journal beside it; whatever is wrong with it is said in one sentence.
"""

from __future__ import annotations

import copy
import json
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opscope.errors import InputError
from opscope.hardware.driver import version_text
from opscope.ingest.kineto import Filler
from opscope.ingest.kineto_file import distrust
from opscope.ingest.nesting import Forest, Int64, enclosing, nest, subtree_sums
from opscope.ingest.quality import (
    integer,
    is_of_torch,
    read_findings,
    trace_findings,
    valid_text,
    write_devices,
    write_trace,
)
from opscope.ingest.replays import Demangle
from opscope.ingest.source import EXPORT_COMMAND, LocalText, TraceFile, other_file
from opscope.ingest.staging import Columns, StagedEvents, Stager, rows_of
from opscope.ingest.wording import asked, finding
from opscope.model.finding import Finding
from opscope.model.queries import sql
from opscope.model.session import Session, registered
from opscope.model.sidecar import RANK_VARIABLES, rank_of

# Some other program may be writing it; a second tells a slow write from a held lock.
_LOCK_TIMEOUT_S = 1.0
# Steps of SQLite's machine: a row takes some dozens. A view or a recursion can have rows without an end.
_LEAST_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 20_000_000, 1000, 100_000
_LENGTH, _LONGEST_VALUE_BYTES = 0, 64 << 20  # SQLITE_LIMIT_LENGTH
# What tells an export from other databases: texts by id, and one table of nsys at least.
_STRINGS = "StringIds"
_MARKS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")
_EXPORTED = f"{EXPORT_COMMAND} FILE.nsys-rep makes one"


class Export(msgspec.Struct, frozen=True):
    name: str  # The file, for people
    connection: sqlite3.Connection  # Read-only
    columns: Mapping[str, frozenset[str]]  # Names of the columns by table

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has a table with these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, parameters).fetchall()

    def of(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of a small table; no rows if it has not all of them."""
        return self.rows(f"SELECT {', '.join(columns)} FROM {table}") if self.has(table, *columns) else []


@contextmanager
def open_export(name: str, path: Path) -> Iterator[Export]:
    size_bytes = path.stat().st_size
    if not size_bytes:
        raise InputError("the file is empty", source=name)
    try:
        with closing(_connect(path)) as connection:
            # Bound what reading may cost: a few words of a schema describe tables without an end.
            left = _LEAST_STEPS + _STEPS_PER_BYTE * size_bytes

            def take() -> bool:
                nonlocal left
                left -= _STEPS_AT_ONCE
                return left < 0

            connection.set_progress_handler(take, _STEPS_AT_ONCE)
            connection.execute("PRAGMA trusted_schema = OFF")
            if hasattr(connection, "setlimit"):  # Python 3.11
                connection.setlimit(_LENGTH, _LONGEST_VALUE_BYTES)
            listed = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            tables = [table for (table,) in listed.fetchall()]
            if _STRINGS not in tables or not any(table.startswith(_MARKS) for table in tables):
                shown = ", ".join(sorted(tables)[:3])
                found = f"its tables are {shown} …" if tables else "it has no tables"
                what = f"a SQLite database, but not an export of Nsight Systems ({found})"
                known = other_file("tables", lambda mark: any(one.startswith(mark) for one in tables), name)
                raise known or InputError(what, source=name, hint=_EXPORTED)
            columns = {
                table: frozenset(
                    one for (one,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                )
                for table in tables
            }
            yield Export(name, connection, columns)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        reason = str(error)
        if "locked" in reason or "busy" in reason:
            raise InputError(
                "another program is writing it (the database is locked)",
                source=name,
                hint="Wait until nsys has finished the export",
            ) from error
        raise InputError(
            "not a SQLite database: damaged, cut off or encrypted"
            if "not a database" in reason
            else f"the database cannot be read, it is cut off or damaged (SQLite: {reason})",
            source=name,
            hint=f"Copy it again, or export again: {EXPORT_COMMAND} FILE.nsys-rep",
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        return _opened(uri)
    except sqlite3.OperationalError as error:
        # A database with a write-ahead log needs files beside it; in a read-only folder there can be none.
        if "unable to open" not in str(error) or Path(f"{path}-wal").exists():
            raise
        return _opened(f"{uri}&immutable=1")


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


_CHUNK_ROWS = 16384
# Stands for NULL among integers; nsys writes nothing near it.
_NULL = -(1 << 63)
_PLACE = "start end deviceId contextId streamId correlationId globalPid"
# What each table becomes in the staging database, and the columns read of it; the first two are required.
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "kernels",
        f"{_PLACE} demangledName shortName mangledName registersPerThread gridX gridY gridZ blockX blockY "
        "blockZ staticSharedMemory dynamicSharedMemory graphId graphNodeId",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copies", f"{_PLACE} bytes copyKind srcKind dstKind graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("sets", f"{_PLACE} bytes memKind graphNodeId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("graphs", f"{_PLACE} graphId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("calls", "start end eventClass globalTid correlationId nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("syncs", f"{_PLACE} syncType eventId"),
    "NVTX_EVENTS": ("ranges", "start end eventType globalTid endGlobalTid textId domainId text"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("cuda_overheads", "start end globalTid nameId overheadType"),
    "PROFILER_OVERHEAD": ("overheads", "start end globalTid nameId overheadType"),
    "ThreadNames": ("thread_names", "nameId globalTid"),
    "PROCESSES": ("processes", "globalPid pid name"),
    "StringIds": ("strings", "id value"),
}
_EVENTS = tuple(name for name, columns in _TABLES.values() if columns.startswith("start"))
_TEXTS = {"text", "name", "value"}
# Written only where there is something to write, or not by every version: that they lack says nothing.
_OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD", "NVTX_EVENTS",
}  # fmt: skip
# Of texts an export may hold millions more than are used.
_TEXT_IDS = frozenset(("demangledName", "shortName", "mangledName", "nameId", "textId"))
_OPTIONAL_COLUMNS = {"graphId", "memKind", "contextId", "endGlobalTid"}


# What an export lacks: tables, columns as `TABLE.column`, and of how many rows which process they are of.
Missing = tuple[list[str], list[str], int]


def copy_tables(session: Session, export: Export) -> Missing:
    """Copy all tables into the staging database; what is not there becomes an empty table, or NULL.

    Each gets `process` and `thread` in place of a global id. Returns what is missing.
    """
    tables: list[str] = []
    columns: list[str] = []
    used: list[str] = []
    is_mixed = False
    for table, (staged, listed) in _TABLES.items():
        present, wanted = export.columns.get(table, frozenset()), listed.split()
        selected = _selected(wanted, present)
        kinds = ", ".join(f'"{name}" {"VARCHAR" if name in _TEXTS else "BIGINT"}' for name in selected)
        session.execute(f"CREATE OR REPLACE TABLE staging.raw_{staged} ({kinds})")
        if present.issuperset(wanted[:2]):
            only = f" WHERE id IN ({' UNION '.join(used or ['SELECT NULL'])})" if table == _STRINGS else ""
            _copy(session, export, table, selected, only)
            lacking = {column for column in wanted if column not in present} - _OPTIONAL_COLUMNS
            columns += [f"{table}.{one}" for one in wanted if one in lacking]
            is_mixed |= bool(lacking & {"globalPid", "globalTid"})
            used += [
                f'SELECT "{one}" FROM "{table}"' for one in _TEXT_IDS if one in present and one in wanted
            ]
        elif table not in _OPTIONAL or present:
            tables.append(table)
    return tables, columns, _complete_processes(session, is_mixed=is_mixed)


def _selected(columns: Sequence[str], present: frozenset[str]) -> dict[str, str]:
    """What SQLite selects for each staged column.

    A global id has process and thread in 24 bits each. Source: Nsight Systems user guide, "Serialized Process
    and Thread Identifiers".
    """
    selected: dict[str, str] = {}
    for column in columns:
        value = f'"{column}"' if column in present else "NULL"
        if column == "endGlobalTid":
            selected["end_thread"] = f"{value} & 16777215"
        elif column in {"globalPid", "globalTid"}:
            selected["process"], selected["thread"] = f"{value} >> 24 & 16777215", f"{value} & 16777215"
        else:
            selected[column] = value
    return selected


def _copy(session: Session, export: Export, table: str, selected: Mapping[str, str], only: str) -> None:
    """Some thousands of rows at a time."""
    wanted = (value if name in _TEXTS else f"ifnull({value}, {_NULL})" for name, value in selected.items())
    rows = export.connection.execute(f'SELECT {", ".join(wanted)} FROM "{table}"{only}')
    names = ", ".join(f'"{one}"' if one in _TEXTS else f'nullif("{one}", {_NULL})' for one in selected)
    while batch := rows.fetchmany(_CHUNK_ROWS):
        try:
            chunk = {
                name: np.array(values, dtype=object if name in _TEXTS else np.int64)
                for name, values in zip(selected, zip(*batch, strict=True), strict=True)
            }
        except (TypeError, ValueError) as error:
            raise InputError(
                f"table {table} holds something else than numbers ({error})", source=export.name
            ) from error
        with registered(session, export_chunk=chunk):
            session.execute(f"INSERT INTO staging.raw_{_TABLES[table][0]} SELECT {names} FROM export_chunk")


def _complete_processes(session: Session, *, is_mixed: bool) -> int:
    """Give rows without a process the only one there is (all, if a table has none); how many stay without."""
    union = " UNION ALL ".join(f"SELECT process FROM staging.raw_{name}" for name in _EVENTS)
    counts = dict(session.query(f"SELECT process, count(*) FROM ({union}) GROUP BY process"))
    without = int(counts.pop(None, 0))
    if not is_mixed and len(counts) != 1:
        return without
    for name in _EVENTS:
        condition = "" if is_mixed else " WHERE process IS NULL"
        session.execute(f"UPDATE staging.raw_{name} SET process = {min(counts, default=0)}{condition}")
    return 0


def owning_ranges(operators: Columns, ranges: Columns, launches: Columns) -> Int64:
    """Ids of the ranges that own device work, ascending.

    Operators and ranges (pushed and popped, no operators) of one process have a thread, a start, a duration
    and an id, of equal ones the outer the smaller one; ranges also the hash of a name; launches thread and
    start.
    """
    if not len(ranges["range_id"]) or not len(launches["start_ns"]):
        return np.empty(0, dtype=np.int64)

    def forest_of(rows: Columns) -> Forest:
        return nest(rows["thread"], rows["start_ns"], rows["duration_ns"], rows["range_id"])

    calls = forest_of(operators)
    is_free = enclosing(calls, ranges["thread"], ranges["start_ns"]) < 0
    free = {name: column[is_free] for name, column in ranges.items()}
    is_outside = enclosing(calls, launches["thread"], launches["start_ns"]) < 0
    forest = forest_of(free)
    owner = enclosing(forest, launches["thread"][is_outside], launches["start_ns"][is_outside])
    launched = np.bincount(owner[owner >= 0], minlength=len(forest)).astype(np.int64)
    holds_launch = np.zeros(len(forest), dtype=np.bool_)
    holds_launch[forest.order] = subtree_sums(forest.last_descendant, launched) > 0
    chosen = np.isin(free["name_hash"], free["name_hash"][holds_launch])
    return np.sort(free["range_id"][chosen])


_STAGED_ROWS = 1 << 18


def read_export(
    session: Session, trace_id: int, trace: TraceFile, local: LocalText, demangle: Demangle | None
) -> None:
    """Read an export into the tables: `trace_id` is of its first process, others follow by their numbers."""
    with (
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
        open_export(trace.name, local.path) as export,
    ):
        # Joins run as written, the larger side first: the engine does not know the sizes of arrays.
        session.execute("CREATE SCHEMA staging; SET disabled_optimizers = 'join_order,build_side_probe_side'")
        missing = copy_tables(session, export)
        _stage_texts(session, demangle)
        rows = session.query(sql(__package__, "nsys:processes"))
        cuda = [process for process, _, is_cuda in rows if is_cuda]
        chosen = cuda or [process for process, _, _ in rows]
        if not chosen:
            said = _unsupported(export)
            if _is_cuda_traced(export):
                raise InputError(
                    "CUDA was traced, and the export holds no CUDA calls, no device work and no NVTX ranges",
                    source=export.name,
                    hint=said
                    or "Either the program made no CUDA call, or nsys could not trace it: check that it uses "
                    "the GPU, and that nsys is as new as the driver",
                )
            raise InputError(
                "the export holds no CUDA calls, no device work and no NVTX ranges",
                source=export.name,
                hint=said or "Record with `nsys profile --trace=cuda,nvtx`",
            )
        reader = _Reader(session, export, local, Path(folder), has_cuda=bool(cuda))
        for offset, process in enumerate(chosen):
            reader.fill(trace_id + offset, process, is_only=len(chosen) == 1)
        others = [process for process, _, _ in rows if process not in chosen]
        session.add_findings(export_findings(trace_id, export, missing, others))
        session.execute("RESET disabled_optimizers; DROP SCHEMA staging CASCADE")


def _problems(export: Export) -> list[str]:
    """What nsys warned of while it recorded, each once."""
    named = export.of("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "name")
    levels = {number for number, name in named if name in ("Warning", "Error")} if named else {2, 3}
    rows = export.of("DIAGNOSTIC_EVENT", "severity", "text")
    return list(dict.fromkeys(" ".join(str(text).split()) for level, text in rows if level in levels))


_TRACING_FAILED = re.compile("CUPTI_ERROR|CUDA profiling|CUDA.* not supported")


def _is_cuda_traced(export: Export) -> bool:
    """Whether nsys says that it was asked to trace CUDA, in one way until 2023 and in another since."""
    said = [(str(name), value) for name, value in export.of("META_DATA_CAPTURE", "name", "value")]
    is_asked = any(name.endswith(":COLLECT_CUDA_TRACE") and value == "true" for name, value in said)
    return is_asked or ("CAPTURE_EVENT_TYPE", "Cuda") in said


_FAILED_LAUNCHES = f"""SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN {_STRINGS} ON id = nameId
WHERE returnValue <> 0 AND value LIKE '%Launch%' LIMIT 1"""


def _unsupported(export: Export) -> str:
    """Those that say why nothing was recorded, as a hint."""
    # Some versions keep what they say among all texts alone.
    texts = _problems(export) or [
        text for (text,) in export.of(_STRINGS, "value") if "not supported" in str(text)
    ]
    found = [one for one in texts if _TRACING_FAILED.search(one)]
    return f"Nsight Systems says: {'; '.join(one.rstrip('.') for one in found)}" if found else ""


def _stage_texts(session: Session, demangle: Demangle | None) -> None:
    """Words for the numbers of an export, names of its kernels, and its ranges taken apart.

    For each pair of demangled and mangled id (-1: none) the name as Kineto has it, as nsys has it, and the
    mangled one; the next best where one is missing.
    """
    session.execute(sql(__package__, "nsys:words"))
    rows = []
    for demangled, mangled, recorded, symbol, short in session.query(sql(__package__, "nsys:kernel_names")):
        name = shown = recorded or short or symbol or ""
        if symbol is not None:
            text = demangle(symbol) if demangle is not None and symbol.startswith("_Z") else None
            name = text or (shown if symbol.startswith("_Z") else symbol)
        rows.append((demangled, mangled, name, shown, symbol))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 5
    session.execute(sql(__package__, "nsys:kernel_texts"), columns)
    patterns = {"emitted_operator": EMITTED_OPERATOR, "bare_operator": BARE_OPERATOR}
    session.execute(sql(__package__, "nsys:ranges").format(**patterns))


class _Reader:
    """Fills the tables from processes of an export; `has_cuda`: one of them called it, or used a device."""

    def __init__(
        self, session: Session, export: Export, local: LocalText, folder: Path, *, has_cuda: bool
    ) -> None:
        self.session, self.export, self.folder, self.has_cuda = session, export, folder, has_cuda
        self.damage, self.size_bytes = local.damage, local.path.stat().st_size

    def fill(self, trace_id: int, process: int, *, is_only: bool) -> None:
        events, owners = self._stage_process(process)
        system = _pairs(self.export, "TARGET_INFO_SYSTEM_ENV")
        recorder = "wsl2" if "WSL2" in system.get("SoftwareReleaseVersion", "") else "nsys"
        if self.export.has("CUPTI_ACTIVITY_KIND_RUNTIME", "returnValue"):
            recorder = "failed" if self.export.rows(_FAILED_LAUNCHES) else recorder
        defects = [*distrust(self.session, trace_id, events, recorder=recorder)]
        census = Filler(self.session, trace_id, events).fill()
        self.session.execute(sql(__package__, "nsys:kernel_symbols"))
        export, exported = self.export, _exported(self.export)
        rank, world_size = _rank(export) if is_only else (None, None)
        properties = {
            "recorder": "Nsight Systems",
            "nsys_version": exported.get("EXPORT_PRODUCT_VERSION"),
            "schema_version": exported.get("EXPORT_SCHEMA_VERSION"),
            # `Graph` where launches of CUDA graphs are recorded as a whole, `Node` where node by node
            "cuda_graph_trace": _pairs(export, "META_DATA_CAPTURE").get("CUDA_GRAPH_TRACE_OPTIONS:MODE"),
            "process": process,
            "process_name": _process_names(export).get(process),
        }
        write_trace(
            self.session,
            trace_id=trace_id,
            source=valid_text(export.name),
            format="nsys",
            rank=rank,
            world_size=world_size,
            base_time_ns=_base_time(export, exported),
            cuda_driver_version=(version := integer(system.get("CudaDriverVersion"))),
            driver_version=version_text(version),
            size_bytes=self.size_bytes,
            event_count=census.event_count,
            properties=valid_text(json.dumps(properties, ensure_ascii=False)),
        )
        write_devices(self.session, trace_id, devices_of(self.export, process))
        operators = census.categories.get("cpu_op", 0) - owners
        found = (
            *read_findings(trace_id, census, size_bytes=self.size_bytes, damage=self.damage),
            *defects,
            *trace_findings(self.session, trace_id, is_explained=bool(defects) or not self.has_cuda),
            *process_findings(self.session, trace_id, owners, operators, export, has_cuda=self.has_cuda),
        )
        self.session.add_findings(
            msgspec.structs.replace(one, suggestion=_unsupported(export) or one.suggestion)
            if one.code in ("recording.empty", "nsys.no_cuda")
            else one
            for one in found
        )

    def _stage_process(self, process: int) -> tuple[StagedEvents, int]:
        """The events of one process; how many ranges stand among its operators."""
        events = StagedEvents(self.session, self.folder)
        stager = Stager(events)
        # Ranges that stand among the operators: all where there is nothing else to tell.
        operators, ranges, launches = (
            self._arrays(statement, process) for statement in ("operator_ranges", "user_ranges", "launches")
        )
        owners = owning_ranges(operators, ranges, launches)
        if not self.has_cuda and not len(operators["thread"]):
            owners = self._arrays("timed_ranges", process)["range_id"]
        with registered(self.session, range_owners={"range_id": owners}):
            self._stage(stager, "owners")
        self._stage(stager, "operators", process=process, takes_lists=TAKES_TENSOR_LISTS)
        for statement in ("annotations", "calls", "activities", "overheads", "syncs"):
            self._stage(stager, statement, process=process)
        events.census = copy.deepcopy(stager.census)
        self._stage(stager, "labels", process=process)  # which are no events
        return events, len(owners)

    def _stage(self, stager: Stager, statement: str, **values: Any) -> None:
        """Stage what a statement selects, some rows at a time: each text becomes an object of its own."""
        query = sql(__package__, f"nsys:stage_{statement}").format(**values)
        self.session.execute(f"CREATE OR REPLACE TABLE staging.selected AS {query}")
        count = int(self.session.scalar("SELECT count(*) FROM staging.selected"))
        for first in range(0, count, _STAGED_ROWS):
            extent = f"rowid >= {first} AND rowid < {first + _STAGED_ROWS}"
            query = f"FROM staging.selected WHERE {extent} ORDER BY rowid"
            stager.add(rows_of(self.session.execute(query).fetchnumpy()))

    def _arrays(self, statement: str, process: int) -> Columns:
        query = sql(__package__, f"nsys:{statement}").format(process=process)
        columns: Columns = self.session.execute(query).fetchnumpy()
        return columns


_ALTERNATIVES = (
    r"[A-Za-z_][\w.]*(?:::[\w.~]+)+",  # aten::mm, c10d::allreduce_
    r"autograd::engine::evaluate_function: .*",
    r"Torch-Compiled Region.*",
    r"triton_\w+",
    r"detach_?|record_param_comms",  # recorded in C++ without a namespace
)
# Of a range with the marks of emit_nvtx, but without a sequence number.
EMITTED_OPERATOR = f"^(?:{'|'.join(_ALTERNATIVES)})$"
# Of a range without any marks: a user's own C++ may well push `Solver::step`.
BARE_OPERATOR = r"^(?:aten::\w+|autograd::engine::evaluate_function: .*|torch::(?:autograd|jit)::\w+)$"

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
# Of operators with a list of tensors among their arguments: which shape is whose cannot be told.
TAKES_TENSOR_LISTS = f"^aten::(?:{'|'.join(_LISTS)})$"


# What an export says once: of the recording, its machine, its processes and devices.
#
# Read by name from small tables that no version of nsys writes alike; what is not there is None. Environment
# variables and arguments of the recorded program, which exports hold in full, are left where they are: only a
# rank among them is looked for.

_VARIABLE = re.compile(r'(?P<name>\w+)="?(?P<value>\d{1,9})"?')


def _exported(export: Export) -> dict[str, str]:
    """What the nsys that exported says of the file: its version, and that of the tables, e.g. `3.25.0`."""
    return _pairs(export, "META_DATA_EXPORT") or _pairs(export, "EXPORT_META_DATA")  # until nsys 2023


def _process_names(export: Export) -> dict[int, str]:
    rows = export.of("PROCESSES", "pid", "name")
    return {pid: str(name) for pid, name in rows if isinstance(pid, int) and name is not None}


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
    """Rank of the program that was started, where its launcher told it one, and number of ranks."""
    if not export.has("META_DATA_CAPTURE", "name", "value"):
        return None, None
    wanted = [f"{name}=%" for pair in RANK_VARIABLES for name in pair]
    likes = " OR ".join("value LIKE ?" for _ in wanted)
    rows = export.rows(
        f"SELECT value FROM META_DATA_CAPTURE WHERE name = ? AND ({likes})",
        ["PROCESS_0:ENVIRONMENT_VARIABLE", *wanted],
    )
    matches = [_VARIABLE.fullmatch(str(value)) for (value,) in rows]
    return rank_of({match["name"]: match["value"] for match in matches if match is not None})


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
    is_newer = export.has("TARGET_INFO_GPU", "id")
    table, identity = ("TARGET_INFO_GPU", "id") if is_newer else ("TARGET_INFO_CUDA_GPU", "deviceId")
    if not export.has(table, identity):
        return []
    present = {
        key: text
        for key, text in (_GPU if is_newer else _CUDA_GPU).items()
        if export.has(table, *re.findall(r"[A-Za-z]\w*", text))
    }
    # nsys writes 0 where it knows nothing; only a minor version can be 0.
    gpus = {
        gpu: {
            key: value if value or key == "computeMinor" else None
            for key, value in zip(present, values, strict=True)
        }
        for gpu, *values in export.rows(
            f"SELECT {', '.join([identity, *present.values()])} FROM {table} ORDER BY 1"
        )
    }
    # CUDA_VISIBLE_DEVICES makes ordinals differ from those of the machine.
    named = export.of("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid") if is_newer else []
    own = sorted((ordinal, gpu) for ordinal, gpu, pid in named if pid == process and gpu is not None)
    return [
        {**gpus[gpu], "id": ordinal} for ordinal, gpu in own or zip(gpus, gpus, strict=True) if gpu in gpus
    ]


_NEWEST_SCHEMA = 3
_SHOWN_PROBLEMS = 3


def export_findings(
    trace_id: int, export: Export, missing: Missing, others: Sequence[int]
) -> Iterator[Finding]:
    """What concerns a whole export, said of its first trace.

    `others` are processes with NVTX ranges that called no CUDA, and so are no traces.
    """
    schema = _exported(export).get("EXPORT_SCHEMA_VERSION", "unknown")
    tables, columns, row_count = missing
    if tables or columns:
        lacking, names = {"tables": tables, "columns": columns}, ", ".join((*tables, *columns))
        kind = "tables" if tables else None
        yield finding("nsys.missing", trace_id, lacking, kind=kind, schema=schema, names=names)
    if row_count:
        yield finding("nsys.without_process", trace_id, {"row_count": row_count})
    major = schema.partition(".")[0]
    if major.isdecimal() and int(major) > _NEWEST_SCHEMA:
        yield finding("nsys.newer_schema", trace_id, schema=schema, newest=_NEWEST_SCHEMA)
    problems = _problems(export)
    if problems:
        rest = len(problems) - _SHOWN_PROBLEMS
        said = " ".join([*problems[:_SHOWN_PROBLEMS], *([f"And {rest} more."] if rest > 0 else ())])
        yield finding("nsys.diagnostics", trace_id, {"messages": problems}, said=said)
    if others:
        programs = _process_names(export)
        names = ", ".join(f"{process} ({programs.get(process, '?')})" for process in others)
        yield finding("nsys.other_processes", trace_id, {"processes": list(others)}, names=names)


def process_findings(
    session: Session, trace_id: int, owner_count: int, operator_count: int, export: Export, *, has_cuda: bool
) -> Iterator[Finding]:
    """What concerns the trace of one process, whose rows are there.

    Of ranges that stand among the operators there are `owner_count`, of those that PyTorch itself named
    `operator_count`; `has_cuda` is of all processes.
    """
    if not has_cuda:
        kind = "traced" if _is_cuda_traced(export) else None
        yield finding("nsys.no_cuda", trace_id, {"range_count": owner_count}, kind=kind)
    elif owner_count:
        yield finding("nsys.ranges_own", trace_id, {"range_count": owner_count})
    has_work = bool(session.scalar("SELECT count(*) FROM device_activities WHERE trace_id = ?", [trace_id]))
    if has_work and not operator_count and is_of_torch(session):
        yield finding("nsys.no_operators", trace_id)
    yield from asked(session, "nsys.graphs_whole", trace_id=trace_id)
