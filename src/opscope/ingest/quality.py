"""What is wrong or absent in a trace, as findings with stable codes.

A trace that cannot be read raises; a trace that can be read, but not wholly trusted, says so here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from opscope.ingest.trace_rows import is_of_torch
from opscope.ingest.wording import asked, finding
from opscope.model.finding import Finding, Severity
from opscope.model.schema import Attribution
from opscope.model.session import Session

_HOST = {"cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function", "overhead"}
_INGESTED = _HOST | {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync"}
# Spans and arrows say nothing that intervals and ids do not; marks and track names have no category.
_REDUNDANT = {"Trace", "fwdbwd"}


# Of the operators of the shorter of two cycles of one loop, at least so many are in the other.
_LEAST_SHARED = 0.5


class Census(msgspec.Struct, frozen=True):
    event_count: int  # Events read; arrows from launches to kernels, which repeat correlation ids, are not
    categories: dict[str, int]  # Events by category (legacy names translated)
    ignored: dict[str, int]  # Events by category that no table holds
    without_time: int  # Events of ingested categories without a usable time; they are in no table
    detailed_count: int  # Events with arguments that few have
    # (key, process, thread) of every host thread, by first event
    threads: list[tuple[int, str | None, str | None]]
    thread_count: int = 0  # How many keys of threads there are, of tracks of devices too
    is_legacy: bool = False  # Categories are those of 2021 (`Operator`, `Kernel`)
    is_lenient: bool = False  # Some value was of another type than its column; such values are NULL
    window_start_ns: int | None = None  # Opening of the recording window, where the trace says
    window_end_ns: int | None = None  # Its end
    broken_count: int = 0  # Events that are no JSON, and so are not read
    irregular_count: int = 0  # Operators that overlap another without nesting in it
    impossible_id_count: int = 0  # External ids that name an operator that was not open
    are_ids_used: bool = True  # Whether external ids were used for attribution


class Counted(NamedTuple):
    """Events of one category, phase and thread."""

    category: str
    phase: str | None
    thread_key: int
    process: str | None
    thread: str | None
    events: int
    without_time: int
    detailed: int
    extent: tuple[int, int] | None = None  # of spans of the recording


def take_census(rows: Iterable[Counted], **known: Any) -> Census:
    """Census of the staged events; `known` are further fields."""
    categories: dict[str, int] = {}
    ignored: dict[str, int] = {}
    threads: dict[int, tuple[int, str | None, str | None]] = {}
    spans: list[tuple[int, int]] = []
    without_time = event_count = detailed_count = 0
    for row in rows:
        category, phase = row.category, row.phase
        is_memory = False
        if category == "cpu_instant_event" or (category == "" and phase == "i"):
            is_memory = phase == "i" and row.detailed > 0
            category = "memory" if is_memory else ""
        if is_memory or (category in _INGESTED and phase == "X"):
            categories[category] = categories.get(category, 0) + row.events
            without_time += row.without_time
            if is_memory or category in _HOST:
                threads.setdefault(row.thread_key, (row.thread_key, row.process, row.thread))
        elif phase != "M" and category not in _REDUNDANT and (category or phase != "i"):
            name = f"{category} (phase {phase})" if category in _INGESTED else category or f"phase {phase}"
            ignored[name] = ignored.get(name, 0) + row.events
        event_count += row.events
        detailed_count += row.detailed
        spans += [] if row.extent is None else [row.extent]
    return Census(
        event_count, categories, ignored, without_time, detailed_count, list(threads.values()),
        window_start_ns=min((start_ns for start_ns, _ in spans), default=None),
        window_end_ns=max((end_ns for _, end_ns in spans), default=None),
        **known,
    )  # fmt: skip


def read_findings(
    trace_id: int,
    census: Census,
    *,
    size_bytes: int,
    lost_bytes: int = 0,
    damage: str | None = None,
    repairs: Mapping[str, int] | None = None,
) -> Iterator[Finding]:
    if damage:
        yield finding("trace.compression_damaged", trace_id, damage=damage)
    if lost_bytes:
        yield finding("trace.truncated", trace_id, {"lost_bytes": lost_bytes, "size_bytes": size_bytes})
    for kind, first_byte in (repairs or {}).items():
        first = {"first_byte": first_byte}
        yield finding(f"trace.{kind}", trace_id, first, broken_count=census.broken_count)
    if census.is_lenient:
        yield finding("trace.unexpected_types", trace_id)
    if census.without_time:
        yield finding("trace.events_without_time", trace_id, {"event_count": census.without_time})
    if census.ignored:
        names = ", ".join(f"{count} of {name}" for name, count in sorted(census.ignored.items()))
        yield finding("trace.categories_ignored", trace_id, {"event_count": census.ignored}, names=names)
    if census.irregular_count:
        yield finding("trace.operators_overlap", trace_id, {"operator_count": census.irregular_count})
    if census.impossible_id_count:
        kind, count = "used" if census.are_ids_used else "unused", {"id_count": census.impossible_id_count}
        yield finding("attribution.impossible_external_ids", trace_id, count, kind=kind)


def trace_findings(
    session: Session, trace_id: int, *, is_explained: bool = False, had_device: bool = True
) -> Iterator[Finding]:
    """What the filled tables of one trace say about its completeness; nothing is missing without a device."""
    recorder = session.scalar("SELECT format FROM traces WHERE trace_id = ?", [trace_id])
    activities = session.scalar("SELECT count(*) FROM device_activities WHERE trace_id = ?", [trace_id])
    if not activities and had_device:
        yield finding("trace.no_device_activity", trace_id, kind="explained" if is_explained else recorder)
    of_torch = is_of_torch(session)
    has_torch = of_torch or not (activities or recorder == "nsys")

    def has(table: str, column: str = "trace_id") -> bool:
        query = f"SELECT count({column}) FROM {table} WHERE trace_id = ?"
        return bool(session.scalar(query, [trace_id]))

    # One after the other: the engine takes longer to plan them as parts of one query.
    has_operators = has("operators")
    has_unshaped = has_operators and not (has_torch and has("operators", "input_shapes"))
    absent = [
        text
        for text, is_absent in (
            ("operators", has_torch and not has_operators),
            ("runtime calls", activities and not has("runtime_calls")),
            ("input shapes (record_shapes)", has_torch and has_unshaped),
            ("profiler steps", has_torch and not has("steps")),
            ("device properties", activities and not has("devices", "name")),
        )
        if is_absent
    ]
    if absent:
        yield finding("trace.absent", trace_id, {"absent": absent}, names=", ".join(absent))
    if activities:
        # What runs outside of operators is no surprise where there are none.
        silent = () if of_torch or recorder == "nsys" else (Attribution.OUTSIDE_OPERATOR,)
        yield from _unattributed(session, trace_id, recorder, silent)
        yield from asked(session, "trace.same_stream_overlap", trace_id=trace_id)


def _unattributed(
    session: Session, trace_id: int, recorder: str, silent: Collection[Attribution]
) -> Iterator[Finding]:
    rows = session.query(
        """SELECT attribution, count(*), sum(duration_ns)::BIGINT FROM device_activities
        WHERE trace_id = ? GROUP BY attribution, operator_id IS NULL ORDER BY attribution""",
        [trace_id],
    )
    total_ns = sum(duration_ns for *_, duration_ns in rows)
    for name, count, duration_ns in rows:
        attribution = Attribution(name)
        if attribution in _UNATTRIBUTED and attribution not in silent and total_ns:
            fraction = duration_ns / total_ns
            yield finding(
                f"attribution.{name}",
                trace_id,
                {"duration_ns": duration_ns, "activity_count": count, "fraction": fraction},
                kind=recorder,
                severity=Severity.WARNING if fraction >= 0.01 else Severity.INFO,
                percent=f"{100 * fraction:.1f}",
                meaning=attribution.meaning,
            )


_UNATTRIBUTED = (
    Attribution.BEFORE_WINDOW, Attribution.NO_LAUNCH_RECORD, Attribution.OUTSIDE_OPERATOR,
    Attribution.NO_CORRELATION,
)  # fmt: skip


def unrelated(session: Session, workloads: Mapping[int, object]) -> str | None:
    """Why the traces of several files are not of one job, in words; None if nothing speaks against it.

    Those of one job name one world size; of one rank (or none) they are cycles of one process and workload
    (which sidecars tell), one after the other, which share most of their operators and kernels.
    """
    rows = session.query(
        """SELECT trace_id, source, rank, world_size, process, format,
            trace_id IN (SELECT trace_id FROM findings WHERE code = 'trace.truncated') FROM traces LEFT JOIN (
            SELECT trace_id, coalesce(
                min(process) FILTER (thread_id IN (SELECT thread_id FROM operators)), min(process)) AS process
            FROM threads GROUP BY trace_id
        ) USING (trace_id) ORDER BY trace_id"""
    )
    used = {
        what: {trace_id: set(names) for trace_id, names in session.query(query)}
        for what, query in _USED_SQL.items()
    }
    query = "SELECT trace_id, min(start_ns), max(start_ns + duration_ns) FROM operators GROUP BY trace_id"
    times = {trace_id: extent for trace_id, *extent in session.query(query)}
    first: dict[tuple[int | None, str], tuple[Any, ...]] = {}
    ranked = next(
        ((source, world) for _, source, rank, world, *_ in rows if rank is not None and (world or 0) > 1),
        None,
    )
    for trace_id, source, rank, world_size, process, recorder, is_cut in rows:
        if ranked is not None and rank is None and not is_cut:
            return f"{source} has no rank, while {ranked[0]} is one of {ranked[1]:,}"
        of_rank = first.setdefault((rank, recorder), (trace_id, source, process))
        one, other = times.get(of_rank[0]), times.get(trace_id)
        is_at_once = one is not None and other is not None and one[0] < other[1] and other[0] < one[1]
        if rank is not None and source != of_rank[1] and is_at_once:
            return f"{of_rank[1]} and {source} are both of rank {rank}, at the same time"
        facts = [("world sizes", rows[0][1], rows[0][3], world_size), ("processes", *of_rank[1:], process)]
        facts.append(("workloads", of_rank[1], workloads.get(of_rank[0]), workloads.get(trace_id)))
        for what, before, expected, found in facts:
            if source != before and None not in (expected, found) and expected != found:
                return f"{before} and {source} are of different {what}"
        for what, of_trace in used.items():
            names, others = of_trace.get(trace_id, set()), of_trace.get(of_rank[0], set())
            if source != of_rank[1] and len(names & others) < _LEAST_SHARED * min(len(names), len(others)):
                return f"{of_rank[1]} and {source} have few {what} in common"
    return None


_USED_SQL = {
    "operators": "SELECT trace_id, list(DISTINCT name) FROM operators GROUP BY 1",
    "kernels": """SELECT trace_id, list(DISTINCT name_id) FROM device_activities
        WHERE kind = 'kernel' GROUP BY 1""",
}


def rank_findings(session: Session) -> Iterator[Finding]:
    """What the ranks of several traces leave unclear; one trace needs no rank."""
    if session.scalar("SELECT count(*) FROM traces") > 1:
        kinds = ("without_rank", "same_rank", "missing_ranks", "step_counts")
        yield from asked(session, *(f"traces.{kind}" for kind in kinds))
