"""What a trace is, of whatever kind its file was, and what is wrong or absent in it, as findings.

A trace that cannot be read raises; a trace that can be read, but not wholly trusted, says so here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from opscope.ingest.wording import asked, finding
from opscope.model import schema
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session


def write_trace(session: Session, **values: Any) -> None:
    """Insert a row into `traces`; columns that are not given are NULL."""
    row = [values.pop(column.name, None) for column in schema.table("traces").columns]
    assert not values, f"no columns of traces: {sorted(values)}"
    insert = f"INSERT INTO traces VALUES ({', '.join('?' * len(row))})"
    session.defer("traces", lambda session: session.execute(insert, row))


def is_of_torch(session: Session) -> bool:
    """Whether a program with PyTorch was recorded; an export's operators may be ranges of any program."""
    return bool(session.scalar(_OF_TORCH))


_OF_TORCH = r"""
SELECT EXISTS (FROM operators JOIN traces USING (trace_id) WHERE format <> 'nsys'
        OR regexp_matches(name, '^(aten|autograd|torch|c10d)::|^triton_|^Torch-Compiled'))
    OR EXISTS (FROM kernel_names WHERE contains(name, 'at::native::'))"""


def integer(value: Any, *, bits: int = 32) -> int | None:
    """A value as a signed integer of that width; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << (bits - 1) else None


def valid_text(text: str) -> str:
    """The text without lone surrogates: half characters of JSON escapes, foreign bytes of file names."""
    return text.encode("utf-8", "replace").decode("utf-8")


_TORCH_KEY = re.compile(r"(?:py)?torch(?:[_ -]?version)?", re.IGNORECASE)
_TORCH_PACKAGE = re.compile(r"torch(?:==| )(\d+\.\d+\.\d+[\w.+]*)")
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+[\w.+]*)")
_MOST_VALUES = 20_000


def recorded_release(properties: Mapping[str, Any]) -> str | None:
    """The torch release that a trace's own metadata names, by a key of that name or a list of packages.

    None if it names none, or several.
    """
    found: set[str] = set()
    pending: list[tuple[str, Any]] = list(properties.items())
    for _ in range(_MOST_VALUES):
        if not pending:
            break
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(str(name), one) for name, one in value.items()]
        elif isinstance(value, list):
            pending += [(key, one) for one in value]
        elif isinstance(value, str):
            named = _RELEASE.fullmatch(value.strip()) if _TORCH_KEY.fullmatch(key) else None
            named = named or _TORCH_PACKAGE.fullmatch(value.strip())
            if named is not None:
                found.add(named[1])
    releases = {one.partition("+")[0] for one in found}
    return valid_text(max(found, key=len)) if len(releases) == 1 else None


# Keys of deviceProperties (libkineto/src/DeviceProperties.cpp), in the order of the columns.
_KEYS = (
    "name", "computeMajor", "computeMinor", "numSms", "totalGlobalMem", "warpSize", "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "sharedMemPerBlock",
    "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor",
)  # fmt: skip
_DEVICE_ID = re.compile(r"[0-9]{1,9}")
_AMD_SHARED_PER_SM = "maxSharedMemoryPerMultiProcessor"


# What a trace says may be of any type; what does not fit its column is unknown.
_INSERT = "INSERT INTO devices SELECT " + ", ".join(
    f"TRY_CAST(? AS {column.type})" for column in schema.table("devices").columns
)


def write_devices(session: Session, trace_id: int, properties: Any) -> None:
    """Fill table `devices` for one trace, whose activities are there.

    `deviceProperties` are as the trace has them, which may be anything.
    """
    described: dict[int, dict[str, Any]] = {}
    for entry in properties if isinstance(properties, list) else []:
        if isinstance(entry, dict) and _DEVICE_ID.fullmatch(str(entry.get("id"))):
            described[int(entry["id"])] = entry
    used = {device: figures for device, *figures in session.query(_USE_SQL, [trace_id])}
    # A host's GPUs are of one kind where all that are described are: so is one that is not.
    kinds = {json.dumps({**entry, "id": None}, sort_keys=True) for entry in described.values()}
    common = json.loads(kinds.pop()) if len(kinds) == 1 else {}
    for device in sorted(described.keys() | used.keys()):
        entry = described.get(device, common)
        facts = [entry.get(key) for key in _KEYS]
        for at, key in enumerate(_KEYS):
            # No device has no multiprocessors, also where that is written as text.
            count = None if key in {"name", "computeMajor", "computeMinor"} else integer(facts[at], bits=64)
            facts[at] = None if count is not None and count <= 0 else facts[at]
        if device in used and not str(facts[0] or "").strip():
            from opscope.hardware.architectures import SpecEvidence  # noqa: PLC0415 - seldom needed
            from opscope.hardware.devices import match_device  # noqa: PLC0415

            # That of the one GPU that has what is reported of a nameless one.
            major, minor = (integer(entry.get(key)) for key in ("computeMajor", "computeMinor"))
            found = match_device(
                "",
                compute_capability=None if major is None else f"{major}.{minor or 0}",
                memory_bytes=integer(entry.get("totalGlobalMem"), bits=64),
                sm_count=integer(entry.get("numSms")),
            ).spec
            facts[0] = None
            if found is not None and found.evidence is not SpecEvidence.DEVICE_PROPERTIES:
                facts[0] = found.names[0]
                named = {"device": device, "name": facts[0]}
                session.add_findings([finding("device.recognized", trace_id, named)])
        facts[-1] = facts[-1] if facts[-1] is not None else entry.get(_AMD_SHARED_PER_SM)
        row = [
            valid_text(str(one)) if isinstance(one, str | int | float) and not isinstance(one, bool) else None
            for one in facts
        ]
        figures = used.get(device, (0, None, None, None, None, None))
        session.execute(_INSERT, [trace_id, device, *row, *figures])


# activity_count, first_start, last_end, span, busy and idle of each device that was used.
_USE_SQL = """
SELECT device, count(*), min(start_ns) AS first_ns, max(end_ns) AS last_ns, last_ns - first_ns AS span_ns,
    sum(greatest(0, end_ns - greatest(start_ns, before_ns)))::BIGINT AS busy_ns, span_ns - busy_ns
FROM (SELECT device, start_ns, start_ns + duration_ns AS end_ns, max(start_ns + duration_ns) OVER (
        PARTITION BY device ORDER BY start_ns, activity_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns FROM device_activities WHERE trace_id = ? AND device IS NOT NULL)
GROUP BY device"""


# Of the operators of the shorter of two cycles of one loop, at least so many are in the other.
_LEAST_SHARED = 0.5


class Census(msgspec.Struct):
    # Events read; arrows from launches to kernels, which repeat correlation ids, are not
    event_count: int = 0
    # Events by category (legacy names translated)
    categories: dict[str, int] = msgspec.field(default_factory=Counter)
    # Events by category that no table holds
    ignored: dict[str, int] = msgspec.field(default_factory=Counter)
    without_time: int = 0  # Events of ingested categories without a usable time; they are in no table
    detailed_count: int = 0  # Events with arguments that few have
    # Process and thread of every host thread by its key, by first event
    threads: dict[int, tuple[str | None, str | None]] = {}
    thread_count: int = 0  # How many keys of threads there are, of tracks of devices too
    is_legacy: bool = False  # Categories are those of 2021 (`Operator`, `Kernel`)
    is_lenient: bool = False  # Some value was of another type than its column; such values are NULL
    window_start_ns: int | None = None  # Opening of the recording window, where the trace says
    window_end_ns: int | None = None  # Its end
    broken_count: int = 0  # Events that are no JSON, and so are not read
    irregular_count: int = 0  # Operators that overlap another without nesting in it
    impossible_id_count: int = 0  # External ids that name an operator that was not open
    are_ids_used: bool = True  # Whether external ids were used for attribution
    reach_ns: float = 0  # More than no sum or difference of times of activities is


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
        yield finding(f"trace.{kind}", trace_id, {"first_byte": first_byte}, broken_count=census.broken_count)
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


_IS_OF_TORCH_SQL = """
SELECT bool_and(contains(name, 'at::native')) FROM device_activities JOIN kernel_names USING (name_id)
WHERE trace_id = ? AND attribution = ?"""


def trace_findings(
    session: Session, trace_id: int, *, is_explained: bool = False, had_device: bool = True
) -> Iterator[Finding]:
    """What the filled tables of one trace say about its completeness; nothing is missing without a device."""
    recorder = session.scalar("SELECT format FROM traces WHERE trace_id = ?", [trace_id])
    activities = session.scalar("SELECT count(*) FROM device_activities WHERE trace_id = ?", [trace_id])
    of_torch = is_of_torch(session)
    has_torch = of_torch or not (activities or recorder == "nsys")

    def has(table: str, column: str = "trace_id") -> bool:
        return bool(session.scalar(f"SELECT count({column}) FROM {table} WHERE trace_id = ?", [trace_id]))

    if not activities and had_device and not is_explained:
        is_of_device = recorder == "nsys" or has("devices")
        yield finding("trace.no_device_activity", trace_id, kind=recorder if is_of_device else "cpu")
    if not activities and not has("runtime_calls") and session.scalar(_OF_DEVICE_SQL, [trace_id]):
        yield finding("recording.no_device_operators", trace_id, {"count": 0, "device_ns": None})
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
        usual = () if of_torch or has_operators else (schema.Attribution.OUTSIDE_OPERATOR,)
        silent = usual if recorder != "nsys" else ()
        usual = usual if not has("annotations") else ()
        rows = session.query(
            # Nobody launches what moves pages of managed memory.
            """SELECT attribution, count(*), sum(duration_ns)::BIGINT FROM device_activities a
            WHERE trace_id = ? AND NOT EXISTS (FROM kernel_names n
                WHERE n.name_id = a.name_id AND starts_with(name, 'Memcpy Unified'))
            GROUP BY attribution, operator_id IS NULL ORDER BY attribution""",
            [trace_id],
        )
        total_ns = sum(duration_ns for *_, duration_ns in rows)
        for name, count, duration_ns in rows:
            attribution = schema.Attribution(name)
            if attribution in _UNATTRIBUTED and attribution not in silent and total_ns:
                fraction = duration_ns / total_ns
                kind = recorder if has_operators or recorder == "nsys" else "alone"
                if kind != "nsys" and attribution is schema.Attribution.OUTSIDE_OPERATOR:
                    kind = "own" if session.scalar(_IS_OF_TORCH_SQL, [trace_id, name]) else kind
                yield finding(
                    f"attribution.{name}",
                    trace_id,
                    {"duration_ns": duration_ns, "activity_count": count, "fraction": fraction},
                    kind=kind,
                    severity=Severity.WARNING
                    if fraction >= 0.01 and attribution not in usual
                    else Severity.INFO,
                    percent=f"{100 * fraction:.1f}",
                    meaning=attribution.meaning,
                )
        yield from asked(session, "trace.same_stream_overlap", trace_id=trace_id)


_OF_DEVICE_SQL = """
SELECT EXISTS (FROM operators WHERE trace_id = ? AND regexp_matches(name, '^aten::_?(cudnn|miopen)_')
    AND name <> 'aten::cudnn_is_acceptable')  -- which CPUs ask too"""
_UNATTRIBUTED = (
    schema.Attribution.BEFORE_WINDOW,
    schema.Attribution.NO_LAUNCH_RECORD,
    schema.Attribution.OUTSIDE_OPERATOR,
    schema.Attribution.NO_CORRELATION,
)


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
