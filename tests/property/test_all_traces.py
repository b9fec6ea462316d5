"""Laws on every trace of shared/traces, against a reading of the raw JSON that shares no code with ours."""

import gzip
import json
import tarfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

import opscope

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
TRACES = sorted(str(path.relative_to(SHARED)) for path in SHARED.rglob("*.json*")) if SHARED.is_dir() else []
ARCHIVES = {"public/param/et_replay/tests/inputs/dlrm_kineto.tar.gz": 8}
MEMBERS = [f"{archive}:{index}" for archive, count in ARCHIVES.items() for index in range(count)]

DEVICE_SIDE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
# Operators that stand for replays of CUDA graphs of which nothing else is known.
OF_REPLAYS = "regexp_matches(name, '^replay of graph \\d+$')"

TABLES = {
    "operators": {"cpu_op", "Operator"},
    "runtime_calls": {"cuda_runtime", "cuda_driver", "Runtime"},
    "device_activities": DEVICE_SIDE,
    "frames": {"python_function"},
    "annotations": {"user_annotation", "gpu_user_annotation"},
    "syncs": {"cuda_sync"},
    "overheads": {"overhead"},
}

needs_traces = pytest.mark.skipif(not TRACES, reason=f"no {SHARED}")


@dataclass
class Raw:
    """What the raw text of one trace says, in exact integers."""

    counts: Counter[str] = field(default_factory=Counter)
    intervals: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    operator_ns: int = 0
    memory_events: int = 0
    events: int = 0


def exact_ns(value):
    """Nanoseconds of a number of microseconds whose digits were kept."""
    scaled = Decimal(str(value)) * 1000
    assert scaled == scaled.to_integral_value(), f"{value} us is no whole number of ns"
    return int(scaled)


def read_raw(text):
    document = json.loads(text, parse_float=str, strict=False)
    events = document if isinstance(document, list) else document["traceEvents"]
    raw = Raw(events=len(events))
    for event in events:
        category = event.get("cat", "")
        if event.get("ph") == "i" and event.get("name") == "[memory]":
            raw.memory_events += 1
        if event.get("ph") != "X":
            continue
        is_step = category == "Operator" and str(event["name"]).startswith("ProfilerStep#")
        raw.counts["user_annotation" if is_step else category] += 1
        if category in DEVICE_SIDE:
            start, duration = exact_ns(event["ts"]), exact_ns(event["dur"])
            device = int(event["args"].get("device", event["pid"]))
            raw.intervals[device].append((start, start + duration))
        elif category in TABLES["operators"] and not is_step:
            raw.operator_ns += exact_ns(event["dur"])
    return raw


def union_length(intervals):
    covered, until = 0, None
    for start, end in sorted(intervals):
        if until is None or start > until:
            covered, until = covered + end - start, end
        elif end > until:
            covered, until = covered + end - until, end
    return covered


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    @cache
    def extract(archive):
        folder = tmp_path_factory.mktemp("archive")
        with tarfile.open(SHARED / archive) as tar:
            tar.extractall(folder, filter="data")
        return sorted(path for path in folder.rglob("*.json*") if path.is_file())

    return extract


@pytest.fixture(scope="module", params=TRACES + MEMBERS)
def case(request, extracted):
    name, _, index = request.param.partition(":")
    path = extracted(name)[int(index)] if index else SHARED / name
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    with opscope.load(path) as session:
        yield session, read_raw(text)


@needs_traces
@pytest.mark.exhaustive
class TestEveryTrace:
    def test_the_laws_hold(self, case):
        session, _ = case
        assert [(check.name, check.violations) for check in session.check() if not check.holds] == []

    def test_busy_and_idle_are_the_union_of_intervals(self, case):
        session, raw = case
        expected = {}
        for device, intervals in raw.intervals.items():
            span = max(end for _, end in intervals) - min(start for start, _ in intervals)
            busy = union_length(intervals)
            expected[device] = (len(intervals), span, busy, span - busy)
        query = (
            "SELECT device, activity_count, span_ns, busy_ns, idle_ns FROM devices WHERE activity_count > 0"
        )
        assert {row[0]: row[1:] for row in session.query(query)} == expected

    def test_device_time_is_the_raw_sum(self, case):
        session, raw = case
        total = sum(end - start for intervals in raw.intervals.values() for start, end in intervals)
        assert session.scalar("SELECT coalesce(sum(duration_ns), 0) FROM device_activities") == total
        summary = opscope.summarize(session)
        assert summary.device_time_ns == total
        assert summary.attributed_ns + sum(summary.unattributed_ns.values()) == total
        assert sum(operator.self_device_ns for operator in summary.operators) == summary.attributed_ns

    def test_every_activity_has_its_exact_interval(self, case):
        session, raw = case
        query = "SELECT device, start_ns, start_ns + duration_ns FROM device_activities ORDER BY ALL"
        expected = sorted((device, *one) for device, ones in raw.intervals.items() for one in ones)
        assert session.query(query) == expected

    def test_operators_keep_their_durations(self, case):
        session, raw = case
        recorded = f"SELECT coalesce(sum(duration_ns), 0) FROM operators WHERE NOT {OF_REPLAYS}"
        assert session.scalar(recorded) == raw.operator_ns
        assert session.scalar("SELECT count(*) FROM operators WHERE self_cpu_ns < 0") == 0

    def test_every_event_is_in_a_table(self, case):
        session, raw = case
        for table, categories in TABLES.items():
            expected = sum(raw.counts[category] for category in categories)
            added = OF_REPLAYS if table == "operators" else "false"
            assert session.scalar(f"SELECT count(*) FROM {table} WHERE NOT ({added})") == expected, table
        assert session.scalar("SELECT count(*) FROM memory_events") == raw.memory_events
        ignored = [
            f.evidence["event_count"] for f in session.findings() if f.code == "trace.categories_ignored"
        ]
        known = set().union(*TABLES.values()) | {"Trace"}
        unknown = {category: count for category, count in raw.counts.items() if category not in known}
        assert unknown.items() <= (ignored[0] if ignored else {}).items()

    def test_steps_hold_what_was_launched_in_them(self, case):
        session, _ = case
        broken = """SELECT s.step FROM steps s
            JOIN device_activities a ON a.trace_id = s.trace_id AND a.step = s.step
            JOIN runtime_calls c USING (runtime_call_id)
            WHERE c.start_ns < s.start_ns OR c.start_ns >= s.start_ns + s.duration_ns"""
        assert session.query(broken) == []


@needs_traces
@pytest.mark.exhaustive(few=False)
def test_the_eight_ranks_of_an_archive_are_one_session(extracted):
    (archive,) = ARCHIVES
    with opscope.load(extracted(archive)) as session:
        assert all(check.holds for check in session.check())
        assert session.query("SELECT rank FROM traces ORDER BY rank") == [(rank,) for rank in range(8)]
        summary = opscope.summarize(session)
    assert len(summary.devices) == 8
    assert len({device.rank for device in summary.devices}) == 8


@needs_traces
@pytest.mark.parametrize("name", ["h200/bert_bs8_seq128_infer.json.gz", "h200/misc_ops_fp32.json.gz"])
def test_a_trace_cut_in_the_middle_is_a_smaller_trace(name, tmp_path):
    text = gzip.decompress((SHARED / name).read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(text[: len(text) // 2])
    with opscope.load(path) as session:
        (truncated,) = (f for f in session.findings() if f.code == "trace.truncated")
        end = len(text) // 2 - truncated.evidence["lost_bytes"]
        raw = read_raw(text[:end] + b"]}")
        assert session.scalar("SELECT count(*) FROM operators") == raw.counts["cpu_op"]
        assert all(check.holds for check in session.check())


@needs_traces
def test_the_order_of_events_in_a_real_trace_is_irrelevant(tmp_path):
    text = gzip.decompress((SHARED / "h200/misc_ops_fp32.json.gz").read_bytes())
    document = json.loads(text)
    document["traceEvents"].reverse()
    path = tmp_path / "reversed.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    columns = "name, start_ns, depth, self_cpu_ns, self_device_ns, total_device_ns"
    query = f"SELECT {columns} FROM operators ORDER BY ALL"
    with opscope.load(SHARED / "h200/misc_ops_fp32.json.gz") as first, opscope.load(path) as second:
        assert first.query(query) == second.query(query)
