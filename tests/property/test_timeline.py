"""Laws of the timeline: causes of idle time against an oracle that goes tick by tick, sums on every trace.

The oracle is written from the rules in docs/timeline.md and shares no code with the library.
"""

import tarfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opscope
from opscope.analysis.arrays import total
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import Host, Stall, ThreadEvents
from opscope.analysis.timeline.idle import CAUSES, PAUSE_NS, account_for_idle
from opscope.analysis.timeline.records import CallRole, DeviceRecords, RuntimeCalls, WorkKind
from opscope.analysis.timeline.values import IdleCause
from opscope.analysis.timeline.windows import Step, TraceWindow, occupation, read_windows

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
TRACES = sorted(str(path.relative_to(SHARED)) for path in SHARED.rglob("*.json*")) if SHARED.is_dir() else []
ARCHIVE, MEMBERS = "public/param/et_replay/tests/inputs/dlrm_kineto.tar.gz", 8
needs_traces = pytest.mark.skipif(not TRACES, reason=f"no {SHARED}")

HELD = (CallRole.WAITS, CallRole.ALLOCATES, CallRole.FREES)
# Ticks are long enough for some pauses to count as short and some as long.
TICK = PAUSE_NS // 5


@dataclass(frozen=True)
class Call:
    thread: int
    start: int
    end: int
    role: CallRole


@dataclass(frozen=True)
class Activity:
    start: int
    end: int
    call: int | None
    is_early: bool
    work: WorkKind


@dataclass(frozen=True)
class Scene:
    """A small recording, in ticks. `ranges` are by kind and thread."""

    calls: tuple[Call, ...]
    activities: tuple[Activity, ...]
    ranges: dict[tuple[str, int], tuple[tuple[int, int], ...]]
    stalls: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...] = ()
    threads: tuple[int, ...] = (1, 2)

    @property
    def span(self):
        """First and last moment of anything."""
        events = [*self.calls, *self.activities]
        pairs = [pair for found in self.ranges.values() for pair in found]
        pairs += [(one.start, one.end) for one in events] + [step[1:3] for step in self.steps]
        return min(start for start, _ in pairs), max(end for _, end in pairs)

    def step_of(self, one):
        """Number of the step that launched it, -1 for none."""
        at = None if one.call is None else self.calls[one.call].start
        return next((s.number for s in self.steps if at is not None and s.start_ns <= at < s.end_ns), -1)

    def in_window(self, tick):
        """Whether the window of the device holds a tick."""
        if not self.steps:
            return True
        for step in self.steps:
            done = [one.end for one in self.activities if self.step_of(one) == step.number]
            if step.start_ns <= tick < max([step.until_ns, *done]):
                return True
        return False


KINDS = ("operators", "loading", "named", "asleep")


def spans(longest):
    pair = st.tuples(st.integers(0, 90), st.integers(1, longest)).map(lambda p: (p[0], p[0] + p[1]))
    return st.lists(pair, max_size=3).map(tuple)


@st.composite
def scenes(draw):
    calls = []
    for thread in (1, 2):
        now = draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 6))):
            now += draw(st.integers(0, 12))
            duration = draw(st.integers(0, 12))
            calls.append(Call(thread, now, now + duration, draw(st.sampled_from((CallRole.OTHER, *HELD)))))
            now += duration
    activities = []
    for _ in range(draw(st.integers(1, 7))):
        start = draw(st.integers(0, 100))
        call = draw(st.one_of(st.none(), st.integers(0, len(calls) - 1))) if calls else None
        is_early = call is None and draw(st.booleans())
        work = draw(st.sampled_from(WorkKind))
        activities.append(Activity(start, start + draw(st.integers(0, 12)), call, is_early, work))
    ranges = {(kind, thread): draw(spans(25)) for kind in KINDS for thread in (1, 2)}
    return Scene(tuple(calls), tuple(activities), ranges, draw(spans(10)), draw(steps()))


@st.composite
def steps(draw):
    """Steps one after the other, some of them not recorded. Their times are ticks."""
    found = []
    now = draw(st.integers(0, 40))
    for number in sorted(draw(st.sets(st.integers(1, 4)))):
        start, end = now, now + draw(st.integers(1, 30))
        now = end + draw(st.integers(0, 15))
        if found and found[-1].number == number - 1:
            found[-1] = found[-1]._replace(until_ns=start)
        found.append(Step(number, start, end, end))
    return tuple(found)


def covers(ranges, tick):
    return any(start <= tick < end for start, end in ranges)


class Oracle:
    """Causes of idle ticks, one tick at a time."""

    def __init__(self, scene):
        self.scene = scene
        self.ticks: dict[IdleCause, int] = defaultdict(int)
        self.blamed: dict[int, int] = defaultdict(int)
        self.blamed_anywhere: dict[int, int] = defaultdict(int)
        first, last = scene.span
        inside = [scene.in_window(tick) for tick in range(first - 1, last + 1)]
        self.bounds = [first + n for n, (a, b) in enumerate(pairwise(inside)) if a != b]
        self.launches = sorted(
            scene.calls[one.call].start for one in scene.activities if one.call is not None
        )
        self.launching = {scene.calls[one.call] for one in scene.activities if one.call is not None}
        self.launch_starts = sorted(call.start for call in self.launching)
        begins = [call.start for call in scene.calls if call.end > call.start]
        begins += [start for thread in scene.threads for start, _ in scene.ranges["operators", thread]]
        self.first = min(begins, default=None)
        self.host_ticks: list[int] = []
        for tick in self.idle_ticks():
            self.charge(tick)
        self.charge_host()

    def idle_ticks(self):
        activities = self.scene.activities
        for tick in range(*self.scene.span):
            if not any(one.start <= tick < one.end for one in activities):
                yield tick

    def gap_of(self, tick):
        """Start of the gap, or of the part of it in the window, and the activity that comes next."""
        idle = set(self.idle_ticks())
        start = tick
        while start - 1 in idle and start not in self.bounds:
            start -= 1
        end = tick + 1
        while end in idle and end not in self.bounds:
            end += 1

        following = [one for one in self.scene.activities if one.start >= end]
        return start, min(following, key=lambda one: order_of(self.scene, one), default=None)

    def charge(self, tick):
        gap_start, next_one = self.gap_of(tick)
        if next_one is None:
            self.charge_after_the_last(tick)
        elif next_one.call is None:
            is_queued = next_one.is_early and self.first is not None and gap_start >= self.first
            self.count(tick, IdleCause.DEPENDENCY if is_queued else IdleCause.UNKNOWN)
        elif tick >= self.scene.calls[next_one.call].end:
            self.count(tick, IdleCause.DEPENDENCY)
        else:
            self.charge_to_host(tick, self.scene.calls[next_one.call].thread)

    def charge_after_the_last(self, tick):
        in_order = sorted(self.scene.activities, key=lambda one: order_of(self.scene, one))
        calls = [self.scene.calls[one.call] for one in in_order if one.call is not None]
        if calls:
            self.charge_to_host(tick, max(calls, key=lambda call: call.start).thread)
        else:
            self.count(tick, IdleCause.UNKNOWN)

    def count(self, tick, cause):
        if self.scene.in_window(tick):
            self.ticks[cause] += 1

    def charge_to_host(self, tick, thread):
        scene = self.scene
        others = [one for one in scene.threads if one != thread]
        if covers(scene.stalls, tick):
            self.count(tick, IdleCause.PROFILER_OVERHEAD)
        elif (call := self.held(tick, [thread])) is not None:
            self.blame(tick, call)
        elif covers(scene.ranges["loading", thread], tick):
            self.count(tick, IdleCause.DATA_LOADING)
        elif self.ran(tick, [thread]):
            self.host_ticks.append(tick)
        elif (call := self.held(tick, others)) is not None:
            self.blame(tick, call)
        elif any(covers(scene.ranges["loading", one], tick) for one in others):
            self.count(tick, IdleCause.DATA_LOADING)
        elif self.ran(tick, others):
            self.host_ticks.append(tick)
        elif covers(scene.ranges["asleep", thread], tick):
            self.count(tick, IdleCause.NOTHING_SCHEDULED)
        elif any(covers(scene.ranges["named", one], tick) for one in scene.threads) or self.is_pause(
            tick, thread
        ):
            self.host_ticks.append(tick)
        else:
            self.count(tick, IdleCause.NOTHING_SCHEDULED)

    def ran(self, tick, threads):
        calls = any(one.thread in threads and one.start <= tick < one.end for one in self.scene.calls)
        return calls or any(covers(self.scene.ranges["operators", one], tick) for one in threads)

    def held(self, tick, threads):
        """The held call open at a tick: calls of one thread do not overlap; of several, the earliest."""
        open_calls = [
            (one.start, number)
            for number, one in enumerate(self.scene.calls)
            if one.thread in threads and one.role in HELD and one.start <= tick < one.end
        ]
        return min(open_calls)[1] if open_calls else None

    def is_pause(self, tick, thread):
        """Whether a moment with nothing recorded lies in a short pause between two recorded ones."""

        def recorded(moment):
            scene = self.scene
            return (
                covers(scene.stalls, moment)
                or self.ran(moment, list(scene.threads))
                or covers(scene.ranges["asleep", thread], moment)
                or any(
                    covers(scene.ranges[kind, one], moment)
                    for kind in ("loading", "named")
                    for one in scene.threads
                )
            )

        edges = [edge for step in self.scene.steps for edge in (step.start_ns, step.end_ns)]
        before = [back + 1 for back in range(tick) if recorded(back)] + [one for one in edges if one <= tick]
        after = [ahead for ahead in range(tick, 200) if recorded(ahead)] + [
            one for one in edges if one > tick
        ]
        return bool(before and after) and (min(after) - max(before)) * TICK <= PAUSE_NS

    def blame(self, tick, call):
        waits = self.scene.calls[call].role == CallRole.WAITS
        self.count(tick, IdleCause.SYNCHRONIZATION if waits else IdleCause.MEMORY_ALLOCATION)
        self.blamed_anywhere[call] += 1
        self.blamed[call] += self.scene.in_window(tick)

    def charge_host(self):
        """Host-bound ticks, in order: to the last wait as far as it lost time, else to launching."""
        left = {}
        for members in self.groups():
            lost = {
                one: max(
                    self.scene.calls[one].end - self.scene.calls[one].start - self.blamed_anywhere[one], 0
                )
                for one in members
            }
            passed = self.scene.calls[members[-1]].end - min(self.scene.calls[one].start for one in members)
            longest = max(members, key=lambda one: (lost[one], members.index(one)))
            left[tuple(members)] = [min(sum(lost.values()), passed), longest]
        for tick in self.host_ticks:
            earlier = [members for members in left if self.scene.calls[members[0]].end <= tick]
            ended = [
                (self.position[one], members)
                for members in earlier
                for one in members
                if self.scene.calls[one].end <= tick
            ]
            group = max(ended)[1] if ended else None
            if group is not None and left[group][0] > 0:
                left[group][0] -= 1
                self.blame(tick, left[group][1])
            else:
                self.count(tick, IdleCause.HOST_LAUNCH)

    def groups(self):
        """Waits with no launch between them, in the order of their ends."""
        waits = [n for n, one in enumerate(self.scene.calls) if one.role in (CallRole.WAITS, CallRole.FREES)]
        waits.sort(key=lambda one: self.scene.calls[one].end)
        self.position = {one: number for number, one in enumerate(waits)}
        group = []
        for one in waits:
            if group:
                since, until = self.scene.calls[group[-1]].end, self.scene.calls[one].start
                if any(since <= start < until for start in self.launch_starts):
                    yield group
                    group = []
            group.append(one)
        if group:
            yield group


def order_of(scene, one):
    """Activities come by start, those that start together by launch."""
    return one.start, float("inf") if one.call is None else scene.calls[one.call].start


def records(scene):
    """The scene as the arrays that the library works on."""
    launched = {one.call for one in scene.activities if one.call is not None}

    def column(values):
        return np.array(values, dtype=np.int64)

    def extents(found):
        return {
            "start_ns": column([a for a, _ in found]) * TICK,
            "end_ns": column([b for _, b in found]) * TICK,
        }

    count = len(scene.calls)
    calls = RuntimeCalls(
        call_id=np.arange(count),
        thread_id=column([one.thread for one in scene.calls]),
        start_ns=column([one.start for one in scene.calls]) * TICK,
        end_ns=column([one.end for one in scene.calls]) * TICK,
        operator_id=np.full(count, -1),
        name_index=np.zeros(count, dtype=np.int64),
        role=column([int(one.role) for one in scene.calls]),
        is_launch=np.array([number in launched for number in range(count)], dtype=bool),
        is_graph=np.zeros(count, dtype=bool),
        copy_name=np.full(count, -1),
    )

    ordered = sorted(scene.activities, key=lambda one: order_of(scene, one))
    activities = len(ordered)
    device = DeviceRecords(
        trace_id=0,
        device=0,
        activity_id=np.arange(activities, dtype=np.int64),
        stream=np.zeros(activities, dtype=np.int64),
        start_ns=column([one.start for one in ordered]) * TICK,
        end_ns=column([one.end for one in ordered]) * TICK,
        name_id=np.zeros(activities, dtype=np.int64),
        work=column([int(one.work) for one in ordered]),
        call=column([-1 if one.call is None else one.call for one in ordered]),
        is_early=np.array([one.is_early for one in ordered], dtype=bool),
        is_page=np.zeros(len(ordered), dtype=bool),
        is_kernel=np.ones(activities, dtype=bool),
        step=column([scene.step_of(one) for one in ordered]),
    )
    threads = {}
    for thread in scene.threads:
        own = calls.thread_id == thread
        operators, named = (extents(scene.ranges[kind, thread]) for kind in ("operators", "named"))
        loading, asleep = (extents(scene.ranges[kind, thread]) for kind in ("loading", "asleep"))
        pauses = {name: np.concatenate((loading[name], asleep[name])) for name in loading}
        is_loading = np.arange(len(pauses["start_ns"])) < len(loading["start_ns"])
        threads[thread] = ThreadEvents(
            operators={**operators, "is_outermost": np.ones(len(operators["start_ns"]), dtype=bool)},
            calls={"start_ns": calls.start_ns[own], "end_ns": calls.end_ns[own]},
            frames={**extents(()), "is_outermost": np.empty(0, dtype=bool)},
            annotations=named,
            ranges={**pauses, "is_loading": is_loading},
        )
    stalls = tuple(Stall("Buffer Flush", start * TICK, end * TICK) for start, end in scene.stalls)
    in_ns = [Step(one.number, *(TICK * tick for tick in one[1:])) for one in scene.steps]
    first, last = scene.span
    edges = tuple(edge for one in in_ns for edge in (one.start_ns, one.end_ns))
    return device, calls, Host(threads, stalls, edges), TraceWindow(first * TICK, last * TICK, tuple(in_ns))


@given(scenes())
def test_parts_of_the_window_are_those_of_its_ticks(scene):
    device, _, _, window = records(scene)
    found = occupation(device, window)
    expected = Counter()
    for tick in range(*scene.span):
        running = [one for one in scene.activities if one.start <= tick < one.end]
        if not scene.in_window(tick):
            expected["outside"] += bool(running)
            continue
        kinds = {one.work for one in running}
        expected["window"] += 1
        expected[str(min(kinds).name) if kinds else "idle"] += 1
        expected["communication"] += WorkKind.COMMUNICATION in kinds
        expected["copies"] += WorkKind.COPY in kinds
        is_outside = [one.is_early or (one.call is not None and scene.step_of(one) < 0) for one in running]
        expected["launched_outside"] += bool(scene.steps and running) and all(is_outside)
    idle_ns = (found.idle.end_ns - found.idle.start_ns)[found.is_inside].sum()
    assert Counter({name: ticks for name, ticks in expected.items() if ticks}) == +Counter(
        {
            "window": total(found.window) // TICK,
            "COMPUTE": found.parts.compute_ns // TICK,
            "COMMUNICATION": found.parts.exposed_communication_ns // TICK,
            "COPY": found.parts.exposed_copy_ns // TICK,
            "idle": int(idle_ns) // TICK,
            "communication": found.parts.communication_ns // TICK,
            "copies": found.parts.copy_ns // TICK,
            "outside": found.parts.outside_steps_ns // TICK,
            "launched_outside": found.parts.launched_outside_ns // TICK,
        }
    )


@given(scenes())
def test_causes_are_those_of_the_oracle(scene):
    device, calls, host, window = records(scene)
    occupied = occupation(device, window)
    account = account_for_idle(device, occupied.idle, calls, host).part(occupied.is_inside)
    assert (account.by_cause >= 0).all()
    assert account.by_cause.sum(axis=0).tolist() == (account.gaps.end_ns - account.gaps.start_ns).tolist()
    oracle = Oracle(scene)
    found = {
        cause: ns // TICK for cause, ns in zip(CAUSES, account.by_cause.sum(axis=1).tolist(), strict=True)
    }
    assert {cause: ticks for cause, ticks in found.items() if ticks} == {
        cause: ticks for cause, ticks in oracle.ticks.items() if ticks
    }
    blamed = (account.blamed_ns(len(calls)) // TICK).tolist()
    assert blamed == [oracle.blamed[number] for number in range(len(calls))]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    @cache
    def extract():
        folder = tmp_path_factory.mktemp("archive")
        with tarfile.open(SHARED / ARCHIVE) as tar:
            tar.extractall(folder, filter="data")
        return sorted(path for path in folder.rglob("*.json*") if path.is_file())

    return extract


@pytest.fixture(scope="module", params=[*TRACES, *range(MEMBERS)] if TRACES else [])
def case(request, extracted):
    path = SHARED / request.param if isinstance(request.param, str) else extracted()[request.param]
    with opscope.load(path) as session:
        yield session, Summary(session).timeline


def window_of(session, trace_id, device):
    """The window of a device by its definition, as pieces that may overlap."""
    done = dict(
        session.query(
            "SELECT step, max(start_ns + duration_ns) FROM device_activities "
            "WHERE trace_id = ? AND device = ? AND step IS NOT NULL GROUP BY step",
            [trace_id, device],
        )
    )
    steps = session.query(
        "SELECT step, thread_id, start_ns, start_ns + duration_ns FROM steps WHERE trace_id = ? "
        "ORDER BY thread_id, start_ns",
        [trace_id],
    )
    pieces = [(start, max(end, done.get(step, end))) for step, _, start, end in steps]
    pieces += [(a[3], b[2]) for a, b in pairwise(steps) if a[1] == b[1] and a[0] + 1 == b[0]]
    if pieces:
        return pieces
    tables = ("operators", "runtime_calls", "frames", "device_activities", "annotations")
    host = {"annotations": " AND side = 'host'"}
    extents = [
        session.query(
            f"SELECT min(start_ns), max(start_ns + duration_ns) FROM {table} "
            f"WHERE trace_id = ?{host.get(table, '')}",
            [trace_id],
        )[0]
        for table in tables
    ]
    known = [extent for extent in extents if extent[0] is not None]
    return [(min(start for start, _ in known), max(end for _, end in known))]


def occupied_ns(session, trace_id, device, held_until_ns=None):
    """Parts of a window by one sweep over all starts and ends, the first kind that is open counting."""
    rows = session.query(
        "SELECT a.kind, n.name, a.start_ns, a.start_ns + a.duration_ns FROM device_activities a "
        "JOIN kernel_names n USING (name_id) WHERE trace_id = ? AND device = ?",
        [trace_id, device],
    )
    edges = []
    for kind, name, start, end in rows:
        is_communication = kind == "kernel" and any(word in name.lower() for word in ("nccl", "multimem"))
        part = "copy" if kind != "kernel" else "communication" if is_communication else "compute"
        edges += [(start, 1, part), (end, -1, part)]
    for begin, end in window_of(session, trace_id, device):
        start = max(begin, held_until_ns or begin)
        edges += [(start, 1, "window"), (end, -1, "window")]
    found = dict.fromkeys(("compute", "communication", "copy", "idle", "outside", "window"), 0)
    running = dict.fromkeys(found, 0)
    last = min(edge[0] for edge in edges)
    for time, change, part in sorted(edges):
        state = next((one for one in ("compute", "communication", "copy") if running[one]), "idle")
        if running["window"]:
            found[state] += time - last
            found["window"] += time - last
        elif state != "idle":
            found["outside"] += time - last
        running[part] += change
        last = time
    return found


@needs_traces
@pytest.mark.exhaustive
class TestEveryTrace:
    def test_the_parts_are_those_of_a_sweep_and_sum_to_the_window(self, case):
        session, found = case
        partitions = found.partitions
        held = {trace_id: one.held_until_ns for trace_id, one in read_windows(session).items()}
        devices = session.query(
            "SELECT trace_id, device, busy_ns FROM devices WHERE activity_count > 0 ORDER BY ALL"
        )
        assert [
            (one.trace_id, one.device, one.busy_ns + one.outside_steps_ns) for one in partitions
        ] == devices
        for one in partitions:
            parts_ns = one.compute_ns + one.exposed_communication_ns + one.exposed_copy_ns
            assert parts_ns + one.idle_ns == one.span_ns
            assert sum(one.idle_by_cause.values()) == one.idle_ns
            assert min(one.idle_by_cause.values(), default=1) > 0
            assert occupied_ns(session, one.trace_id, one.device, held[one.trace_id]) == {
                "compute": one.compute_ns,
                "communication": one.exposed_communication_ns,
                "copy": one.exposed_copy_ns,
                "idle": one.idle_ns,
                "outside": one.outside_steps_ns,
                "window": one.span_ns,
            }
            assert one.exposed_copy_ns <= one.copy_ns <= one.span_ns
            assert one.exposed_communication_ns <= one.communication_ns <= one.span_ns
            assert 0 <= one.launched_outside_ns <= parts_ns

    def test_what_steps_launched_is_within_their_window(self, case):
        session, found = case
        stepped = {trace_id for (trace_id,) in session.query("SELECT DISTINCT trace_id FROM steps")}
        for one in found.partitions:
            assert (one.window == "steps") == (one.trace_id in stepped)
            launched = [
                step.exposed_communication_ns
                for step in found.device_steps
                if (step.trace_id, step.device) == (one.trace_id, one.device)
            ]
            assert sum(launched) <= one.span_ns

    def test_what_is_blamed_on_calls_is_what_their_causes_have(self, case):
        _, found = case
        idle_ns = sum(one.idle_ns for one in found.waits)
        assert idle_ns == sum(one.idle_by_cause.get(IdleCause.SYNCHRONIZATION, 0) for one in found.partitions)
        assert idle_ns <= max(1, len(found.partitions)) * sum(one.host_ns for one in found.waits)

    def test_gaps_steps_and_queues_are_within_the_window(self, case):
        _, found = case
        for one in found.partitions:
            assert sum(gap.duration_ns for gap in one.longest_gaps) <= one.idle_ns
            assert bool(one.longest_gaps) == bool(one.idle_ns)
            durations = [gap.duration_ns for gap in one.longest_gaps]
            assert durations == sorted(durations, reverse=True)
        idle = {(one.trace_id, one.device): one.idle_ns / one.span_ns for one in found.partitions}
        for queue in found.queues:
            assert 0 <= queue.empty_fraction <= idle[queue.trace_id, queue.device] + 1e-12
            assert 0 <= queue.mean <= queue.maximum
        for host in found.host:
            assert 0 <= host.launch_path_ns <= host.step_ns
            assert host.recorder_ns is None or 0 <= host.recorder_ns <= host.launch_path_ns

    def test_the_session_is_left_as_it_is(self, case):
        session, found = case
        query = "SELECT table_name, estimated_size FROM duckdb_tables() ORDER BY ALL"
        before = session.query(query)
        assert Summary(session).timeline == found
        assert session.query(query) == before


@needs_traces
class TestKnownPrograms:
    """What is known of a program from elsewhere is what its timeline says."""

    def shares(self, name):
        with opscope.load(SHARED / name) as session:
            (partition,) = Summary(session).timeline.partitions
        return {cause: ns / partition.idle_ns for cause, ns in partition.idle_by_cause.items()}

    def test_a_launch_bound_token_loop(self):
        shares = self.shares("h200/gpt2_generate_fp16.json.gz")
        assert shares[IdleCause.HOST_LAUNCH] > 0.85
        assert shares[IdleCause.PROFILER_OVERHEAD] > 0.01  # one request for a buffer of 1.4 ms

    def test_training_recorded_with_stacks(self):
        assert self.shares("h200/bert_train_bf16.json.gz")[IdleCause.HOST_LAUNCH] > 0.9

    @pytest.mark.exhaustive
    def test_a_slow_data_loader_and_the_same_program_with_workers(self):
        assert (
            self.shares("public/kineto/worker0.1623143089861.pt.trace.json.gz")[IdleCause.DATA_LOADING] > 0.7
        )
        after = self.shares("public/kineto/worker0.1623212756351.pt.trace.json.gz")
        assert after[IdleCause.DATA_LOADING] < 0.04

    def test_a_program_that_reads_a_result_after_each_step(self):
        shares = self.shares("h200/bert_bs8_seq128_infer.json.gz")
        assert shares[IdleCause.SYNCHRONIZATION] + shares[IdleCause.DEPENDENCY] > 0.98

    def test_preprocessing_before_the_first_kernel(self):
        assert self.shares("field/h100_timesformer.json.gz")[IdleCause.HOST_LAUNCH] > 0.95

    def test_first_calls_that_start_the_driver_and_allocate(self):
        shares = self.shares(
            "public/HTA/tests/data/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz"
        )
        # 30 of 43 s are in the first call of all, and 8.5 s of the rest allocate.
        assert 0.19 < shares[IdleCause.MEMORY_ALLOCATION] < 0.20
        assert shares[IdleCause.HOST_LAUNCH] > 0.8
