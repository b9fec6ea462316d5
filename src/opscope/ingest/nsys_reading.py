"""`read_export`: an export → the tables of a Session, one trace for each process that called CUDA.

All tables are copied once; then each process is staged as a Kineto trace would be, and the same statements
nest, link and fill. An export arrives wholly or not at all.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.kineto import fill_tables
from opscope.ingest.nesting import Int64, enclosing, nest, subtree_sums
from opscope.ingest.nsys_export import Export, Missing, copy_tables, open_export
from opscope.ingest.nsys_facts import ExportFacts, devices_of, export_findings, process_findings, read_facts
from opscope.ingest.nsys_words import (
    BARE_OPERATOR,
    EMITTED_OPERATOR,
    TAKES_TENSOR_LISTS,
    Demangle,
    stage_kernel_texts,
    stage_strings,
)
from opscope.ingest.source import LocalText, TraceFile
from opscope.ingest.staging import Columns, StagedEvents, Stager, rows_of, staging_area
from opscope.ingest.trace_rows import valid_text, write_devices, write_trace
from opscope.model.queries import sql
from opscope.model.session import Session, registered


class Intervals(msgspec.Struct, frozen=True):
    """Ranges of one process, as columns."""

    thread: Int64  # Thread, by any number that tells threads apart
    start_ns: Int64  # Start
    duration_ns: Int64  # Duration, ≥ 0
    range_id: Int64  # Id; the outer of two equal ranges has the smaller one

    def __len__(self) -> int:
        return len(self.thread)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Intervals:
        """Some of them."""
        columns = (self.thread, self.start_ns, self.duration_ns, self.range_id)
        return Intervals(*(column[chosen] for column in columns))


def owning_ranges(
    operators: Intervals,
    ranges: Intervals,
    names: npt.NDArray[np.uint64],
    launch_thread: Int64,
    launch_ns: Int64,
) -> Int64:
    """Ids of the ranges that own device work, ascending.

    Args:
        operators: Operators.
        ranges: Pushed and popped ranges that are no operators.
        names: Hash of each range's name.
        launch_thread: Thread of each launch.
        launch_ns: Its start.
    """
    if not len(ranges) or not len(launch_ns):
        return np.empty(0, dtype=np.int64)
    calls = nest(operators.thread, operators.start_ns, operators.duration_ns, operators.range_id)
    is_free = enclosing(calls, ranges.thread, ranges.start_ns) < 0
    free, names = ranges.where(is_free), names[is_free]
    is_outside = enclosing(calls, launch_thread, launch_ns) < 0
    forest = nest(free.thread, free.start_ns, free.duration_ns, free.range_id)
    owner = enclosing(forest, launch_thread[is_outside], launch_ns[is_outside])
    launches = np.bincount(owner[owner >= 0], minlength=len(forest)).astype(np.int64)
    holds_launch = np.zeros(len(forest), dtype=np.bool_)
    holds_launch[forest.order] = subtree_sums(forest.last_descendant, launches) > 0
    chosen = np.isin(names, names[holds_launch])
    return np.sort(free.range_id[chosen])


_STAGED_ROWS = 1 << 18


class _Process(msgspec.Struct, frozen=True):
    """One process of an export: its place in the Session, and what it is called by the system."""

    trace_id: int
    process: int
    is_only: bool


def read_export(
    session: Session, trace_id: int, trace: TraceFile, local: LocalText, demangle: Demangle | None
) -> None:
    """Read an export into the tables.

    Args:
        session: Where the rows go.
        trace_id: Of its first process; the others follow in the order of their numbers.
        trace: The file as the user named it.
        local: The same, local and uncompressed.
        demangle: Makes Kineto's text of a mangled kernel name.

    Raises:
        InputError: It cannot be read, or holds nothing to read.
    """
    with staging_area(session) as events, open_export(trace.name, local.path) as export:
        reader = _Reader(session, export, local, events)
        missing = reader.stage(demangle)
        chosen, others = reader.processes()
        for offset, process in enumerate(chosen):
            reader.fill(_Process(trace_id + offset, process, is_only=len(chosen) == 1))
        session.add_findings(export_findings(trace_id, reader.facts, missing, others))


class _Reader:
    """Reads one export; `stage` comes first, then each process is filled."""

    def __init__(self, session: Session, export: Export, local: LocalText, events: StagedEvents) -> None:
        self.session = session
        self.events = events
        self.export = export
        self.facts: ExportFacts = read_facts(export)
        self.damage = local.damage
        self.size_bytes = local.path.stat().st_size
        self.has_cuda = False  # calls or work of a device, in any process

    def stage(self, demangle: Demangle | None) -> Missing:
        """Copy every table, with texts and words for its numbers."""
        missing = copy_tables(self.session, self.export)
        self._run("words")
        stage_strings(self.session, self.export)
        stage_kernel_texts(self.session, demangle)
        self._run("ranges", emitted_operator=EMITTED_OPERATOR, bare_operator=BARE_OPERATOR)
        return missing

    def processes(self) -> tuple[list[int], list[int]]:
        """Processes that become traces, and those left out.

        Raises:
            InputError: None has a call, an activity or a range.
        """
        rows = self.session.query(sql(__package__, "nsys:processes"))
        cuda = [process for process, _, is_cuda in rows if is_cuda]
        chosen = cuda or [process for process, _, _ in rows]
        self.has_cuda = bool(cuda)
        if not chosen:
            raise InputError(
                "the export holds no CUDA calls, no device work and no NVTX ranges",
                source=self.export.name,
                hint="Record with `nsys profile --trace=cuda,nvtx`",
            )
        return chosen, [process for process, _, _ in rows if process not in chosen]

    def fill(self, one: _Process) -> None:
        """The rows of one process."""
        events, owners = self._stage_process(one.process)
        census = fill_tables(self.session, one.trace_id, events)
        self._run("kernel_symbols")
        self._write_trace(one, census)
        write_devices(self.session, one.trace_id, devices_of(self.export, one.process))
        self.session.add_findings(
            quality.read_findings(one.trace_id, census, size_bytes=self.size_bytes, damage=self.damage)
        )
        self.session.add_findings(quality.trace_findings(self.session, one.trace_id))
        operators = census.categories.get("cpu_op", 0) - owners
        self.session.add_findings(
            process_findings(self.session, one.trace_id, owners, operators, has_cuda=self.has_cuda)
        )

    def _stage_process(self, process: int) -> tuple[StagedEvents, int]:
        """The events of one process; how many ranges stand among its operators."""
        events = self.events.renewed()
        stager = Stager(events)
        owners = self._owners(process)
        with registered(self.session.connection, range_owners={"range_id": owners}):
            self._stage(stager, "owners")
        self._stage(stager, "operators", process=process, takes_lists=TAKES_TENSOR_LISTS)
        for statement in ("annotations", "calls", "activities", "overheads", "syncs"):
            self._stage(stager, statement, process=process)
        events.census = stager.census()
        self._stage(stager, "labels", process=process)  # which are no events
        return events, len(owners)

    def _stage(self, stager: Stager, statement: str, **values: Any) -> None:
        """Stage what a statement selects, some rows at a time: each text becomes an object of its own."""
        query = sql(__package__, f"nsys:stage_{statement}").format(**values)
        connection = self.session.connection
        connection.execute(f"CREATE OR REPLACE TABLE staging.selected AS {query}")
        count = int(self.session.scalar("SELECT count(*) FROM staging.selected"))
        for first in range(0, count, _STAGED_ROWS):
            extent = f"rowid >= {first} AND rowid < {first + _STAGED_ROWS}"
            rows = connection.execute(f"FROM staging.selected WHERE {extent} ORDER BY rowid").fetchnumpy()
            stager.add(rows_of(rows))

    def _owners(self, process: int) -> Any:
        """Ids of the ranges that stand among the operators: all where there is nothing else to tell."""
        operators, ranges, launches = (
            self._arrays(statement, process) for statement in ("operator_ranges", "user_ranges", "launches")
        )
        if not self.has_cuda and not len(operators["thread_key"]):
            return self._arrays("timed_ranges", process)["range_id"]
        keys = np.concatenate([rows["thread_key"] for rows in (operators, ranges, launches)])
        ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        counts = np.cumsum([len(operators["thread_key"]), len(ranges["thread_key"])])
        of_operators, of_ranges, of_launches = np.split(ranks, counts)
        return owning_ranges(
            Intervals(of_operators, *_extents(operators)),
            Intervals(of_ranges, *_extents(ranges)),
            ranges["name_hash"],
            of_launches,
            launches["start_ns"],
        )

    def _write_trace(self, one: _Process, census: quality.Census) -> None:
        facts = self.facts
        version = facts.driver_version
        properties = {
            "recorder": "Nsight Systems",
            "nsys_version": facts.product_version,
            "schema_version": facts.schema_version,
            "cuda_graph_trace": facts.graph_mode,
            "process": one.process,
            "process_name": facts.process_names.get(one.process),
        }
        write_trace(
            self.session,
            trace_id=one.trace_id,
            source=valid_text(self.export.name),
            format="nsys",
            rank=facts.rank if one.is_only else None,
            world_size=facts.world_size if one.is_only else None,
            base_time_ns=facts.base_time_ns,
            cuda_driver_version=version,
            driver_version=None if version is None else f"{version // 1000}.{version % 1000 // 10}",
            size_bytes=self.size_bytes,
            event_count=census.event_count,
            properties=valid_text(json.dumps(properties, ensure_ascii=False)),
        )

    def _run(self, statement: str, **values: Any) -> None:
        self.session.connection.execute(sql(__package__, f"nsys:{statement}").format(**values))

    def _arrays(self, statement: str, process: int) -> Columns:
        query = sql(__package__, f"nsys:{statement}").format(process=process)
        columns: Columns = self.session.connection.execute(query).fetchnumpy()
        return columns


def _extents(rows: Columns) -> tuple[Any, Any, Any]:
    return rows["start_ns"], rows["duration_ns"], rows["range_id"]
