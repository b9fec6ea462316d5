"""Why a device was idle: every nanosecond of every gap has one cause, and maybe a call that it is blamed on.

The activity that follows a gap is what the device waited for; the thread that launched it is whom it waited
for. From the return of that launch call on, the work was queued (DEPENDENCY). Before, the gap belongs to what
that thread was in, the most telling first: the recorder itself, a blocking or allocating call, a DataLoader,
an operator or call; where the thread had nothing open, the same of the other launching threads; then Python
frames, short pauses between two recorded moments, and last NOTHING_SCHEDULED. After the last activity nothing
is queued: the device waits for the thread that launched last.

A wait costs more than the idle time inside it: the host comes back to an empty queue, and what it would have
launched meanwhile is late. So host-bound idle time after a wait is blamed on the wait, up to the time that
the host lost in it: had it not waited, everything after would have been launched that much earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from opscope.analysis.arrays import (
    NOTHING,
    Arrays,
    Flags,
    Spans,
    between,
    covering,
    cut,
    distinct,
    merge,
    overlap,
    sum_by,
)
from opscope.analysis.timeline.host import Host, NamedRanges
from opscope.analysis.timeline.records import CallRole, DeviceRecords, RuntimeCalls, TraceRecords
from opscope.analysis.timeline.values import IdleCause, IdleGap, WaitingCall
from opscope.analysis.timeline.windows import Occupation, TraceWindow
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Int64
from opscope.model.queries import grouped, sql
from opscope.model.session import Session

CAUSES: tuple[IdleCause, ...] = tuple(IdleCause)
# Python between two operators is not recorded without stacks. Of the pauses between recorded events of a
# launching thread, 99 in 100 take less than 0.2 ms in recordings of BERT, GPT-2, ResNet and DLRM on H200,
# A100 and V100. Those up to 1 ms are the framework's own: starting a backward pass 0.3 to 0.5 ms, an
# optimizer grouping its parameters 0.6 ms, setting up `generate` 0.9 ms. What is longer is something that the
# recorder does not see.
PAUSE_NS = 1_000_000


class IdleAccount(msgspec.Struct, frozen=True):
    """Idle time of one device by gap and cause, filled entry by entry."""

    gaps: Spans  # the gaps, ascending; where the window begins or ends in one, two touch
    followed_by: Int64  # position of the activity that comes next, among the device's activities; -1 for none
    thread: Int64  # the thread that the device waits for; -1 if unknown
    # When that had launched the activity, as far as it lies in the gap; its end if it never did
    handed_ns: Int64
    by_cause: Int64  # int64[len(CAUSES), n_gaps]; columns sum to the gaps
    # Idle time blamed on single calls: gap, call and nanoseconds of each entry
    blames: list[tuple[Int64, Int64, Int64]] = msgspec.field(default_factory=list)

    def part(self, chosen: Flags) -> IdleAccount:
        number = np.where(chosen, np.cumsum(chosen) - 1, -1)
        blames = [
            (number[gap[of_it]], call[of_it], ns[of_it])
            for gap, call, ns in self.blames
            for of_it in (chosen[gap],)
        ]
        return IdleAccount(
            Spans(self.gaps.start_ns[chosen], self.gaps.end_ns[chosen]),
            self.followed_by[chosen],
            self.thread[chosen],
            self.handed_ns[chosen],
            self.by_cause[:, chosen],
            blames,
        )

    def unused(self) -> IdleAccount:
        """The account of a device that did nothing at all in the gaps' time: no work was meant for it."""
        by_cause = np.zeros_like(self.by_cause)
        by_cause[CAUSES.index(IdleCause.NOTHING_SCHEDULED)] = self.gaps.end_ns - self.gaps.start_ns
        return IdleAccount(self.gaps, self.followed_by, self.thread, self.handed_ns, by_cause)

    def charge(self, gap: Int64, cause: IdleCause, ns: Int64) -> None:
        row = self.by_cause[CAUSES.index(cause)]
        row += sum_by(gap, ns, len(row))

    def blame(self, gap: Int64, call: Int64, ns: Int64, calls: RuntimeCalls) -> None:
        """Add time to gaps, and say which calls it is blamed on."""
        waits = calls.role[call] == CallRole.WAITS
        for cause, chosen in ((IdleCause.SYNCHRONIZATION, waits), (IdleCause.MEMORY_ALLOCATION, ~waits)):
            self.charge(gap[chosen], cause, ns[chosen])
        self.blames.append((gap, call, ns))

    def blamed_ns(self, call_count: int) -> Int64:
        blamed = np.zeros(call_count, dtype=np.int64)
        for _, call, ns in self.blames:
            blamed += sum_by(call, ns, call_count)
        return blamed

    def blamed_call(self, gap: int) -> int:
        """The call that most of a gap is blamed on, the first of equals; -1 for none."""
        shares = [
            (-int(ns[entry]), int(call[entry]))
            for gaps, call, ns in self.blames
            for entry in np.flatnonzero((gaps == gap) & (ns > 0)).tolist()
        ]
        return min(shares)[1] if shares else -1


# Parts of gaps in which no blocking call begins or ends: gap, start, and the host's own time in each.
_Pieces = tuple[Int64, Int64, Int64]


def account_for_idle(device: DeviceRecords, gaps: Spans, calls: RuntimeCalls, host: Host) -> IdleAccount:
    """The causes of every gap of a device.

    The gaps are all of its idle time in the recording: what a wait costs is spent from the first gap on.
    """
    following = np.searchsorted(device.start_ns, gaps.end_ns, side="left")
    followed_by = np.where(following < len(device), following, -1)
    call = np.where(followed_by >= 0, device.call[followed_by], -1)
    launched = device.call[device.call >= 0]
    last = launched[calls.start_ns[launched].argmax()] if len(launched) else -1
    nothing = (followed_by < 0) & (last >= 0)
    thread = gather(calls.thread_id, np.where(nothing, last, call))
    launched_ns = np.clip(gather(calls.end_ns, call), gaps.start_ns, gaps.end_ns)
    handed_ns = np.where(nothing, gaps.end_ns, np.where(call >= 0, launched_ns, gaps.start_ns))
    account = IdleAccount(
        gaps, followed_by, thread, handed_ns, np.zeros((len(CAUSES), len(thread)), dtype=np.int64)
    )
    # Charge what lies behind the launch of what follows each gap. What was launched before the recording
    # began was queued in every gap that begins later.
    was_open = account.gaps.start_ns >= host.ran.start_ns.min(initial=np.iinfo(np.int64).max)
    is_early = (account.followed_by >= 0) & device.is_early[account.followed_by]
    is_queued = (account.thread >= 0) | (is_early & was_open)
    # The host, or a kernel, reads what is on the other side: the host is at work of its own meanwhile.
    is_page = ~is_queued & (account.followed_by >= 0) & device.is_page[account.followed_by]
    behind_ns = account.gaps.end_ns - account.handed_ns
    for cause, chosen in (
        (IdleCause.DEPENDENCY, is_queued),
        (IdleCause.NOTHING_SCHEDULED, is_page),
        (IdleCause.UNKNOWN, ~(is_queued | is_page)),
    ):
        account.charge(np.flatnonzero(chosen), cause, behind_ns[chosen])
    waited = handed_ns > gaps.start_ns
    pieces = [
        _charge_thread(account, np.flatnonzero(waited & (thread == one)), one, calls, host)
        for one in distinct(thread[waited]).tolist()
    ]
    if pieces:
        _charge_host(account, pieces, calls, host)
    return account


def _charge_thread(
    account: IdleAccount, gaps: Int64, thread: int, calls: RuntimeCalls, host: Host
) -> _Pieces:
    """Charge gaps up to the launches that end them, all by one thread; what is the host's own is returned."""
    holds = np.isin(calls.thread_id, list(host.threads)) & (calls.role != CallRole.OTHER)
    own, others = holds & (calls.thread_id == thread), holds & (calls.thread_id != thread)
    edges = np.concatenate((calls.start_ns[holds], calls.end_ns[holds]))
    index, start_ns, end_ns = cut(account.gaps.start_ns[gaps], account.handed_ns[gaps], edges)
    gap = gaps[index]
    layers = _layers(thread, host)
    # Time of each piece in a layer and in none before it; last, in none.
    covered, covered_ns = NOTHING, [np.zeros(len(start_ns), dtype=np.int64)]
    for _, spans in layers:
        covered = merge(covered, spans)
        covered_ns.append(overlap(covered, start_ns, end_ns))
    shares = np.diff(np.array([*covered_ns, end_ns - start_ns]), axis=0)
    _charge_calls(account, gap, _open_call(calls, own, start_ns), shares[1:], calls)
    # The first three layers are of the launching thread itself.
    _charge_calls(account, gap, _open_call(calls, others, start_ns), shares[3:], calls)
    host_ns = np.zeros(len(gap), dtype=np.int64)
    for (cause, _), share in zip((*layers, (IdleCause.NOTHING_SCHEDULED, None)), shares, strict=True):
        if cause is IdleCause.HOST_LAUNCH:
            host_ns += share
        else:
            account.charge(gap, cause, share)
    return gap, start_ns, host_ns


def _layers(thread: int, host: Host) -> list[tuple[IdleCause, Spans]]:
    """What a moment counts as, the first that holds it."""
    own = host.threads[thread]
    layers = [
        (IdleCause.PROFILER_OVERHEAD, host.recorder),
        (IdleCause.DATA_LOADING, own.loading),
        (IdleCause.HOST_LAUNCH, own.ran),
        (IdleCause.DATA_LOADING, host.loading),
        (IdleCause.HOST_LAUNCH, host.ran),
        (IdleCause.NOTHING_SCHEDULED, own.asleep),
        (IdleCause.HOST_LAUNCH, host.named),
    ]
    recorded = merge(*(spans for _, spans in layers))
    edges_ns = np.array(host.step_edges_ns, dtype=np.int64)
    edges_ns = edges_ns[covering(recorded, edges_ns) < 0]
    pauses = between(Spans(*(np.sort(np.concatenate((bounds, edges_ns))) for bounds in recorded)))
    is_short = pauses.end_ns - pauses.start_ns <= PAUSE_NS
    return [*layers, (IdleCause.HOST_LAUNCH, Spans(pauses.start_ns[is_short], pauses.end_ns[is_short]))]


def _open_call(calls: RuntimeCalls, chosen: Flags, time_ns: Int64) -> Int64:
    """Of the chosen calls the outermost open at each moment; -1 for none."""
    found = np.flatnonzero(chosen)
    found = found[np.argsort(calls.start_ns[found], kind="stable")]
    outermost = np.ones(len(found), dtype=bool)
    outermost[1:] = calls.start_ns[found[1:]] >= np.maximum.accumulate(calls.end_ns[found])[:-1]
    found = found[outermost]
    slot = covering(Spans(calls.start_ns[found], calls.end_ns[found]), time_ns)
    return np.where(slot >= 0, found[slot], -1) if len(found) else slot


def _charge_calls(account: IdleAccount, gap: Int64, call: Int64, shares: Int64, calls: RuntimeCalls) -> None:
    """Charge to calls what shares are left of the pieces in them, and leave none."""
    pieces = np.flatnonzero(call >= 0)
    taken = shares[:, pieces].sum(axis=0)
    shares[:, pieces] = 0
    account.blame(gap[pieces], call[pieces], taken, calls)


def _charge_host(account: IdleAccount, pieces: list[_Pieces], calls: RuntimeCalls, host: Host) -> None:
    """Charge the host's own time: to the wait before it as far as that lost so much, else to HOST_LAUNCH."""
    gap, start_ns, host_ns = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(start_ns, kind="stable")
    gap, start_ns, host_ns = gap[order], start_ns[order], host_ns[order]
    waits = np.flatnonzero(
        np.isin(calls.thread_id, list(host.threads)) & np.isin(calls.role, (CallRole.WAITS, CallRole.FREES))
    )
    waits = waits[np.argsort(calls.end_ns[waits], kind="stable")]
    last = np.searchsorted(calls.end_ns[waits], start_ns, side="right") - 1
    after = np.flatnonzero(last >= 0)
    late_ns = np.zeros(len(gap), dtype=np.int64)
    if len(after):
        lost_ns = calls.end_ns[waits] - calls.start_ns[waits] - account.blamed_ns(len(calls))[waits]
        group, longest, limit_ns = _waits_for_the_same(waits, np.maximum(lost_ns, 0), calls)
        # Of each amount, in order, what its group's limit still allows.
        of, amount_ns = group[last[after]], host_ns[after]
        before_ns = np.cumsum(amount_ns) - amount_ns
        spent_ns = before_ns - before_ns[np.searchsorted(of, of, side="left")]
        late_ns[after] = np.clip(limit_ns[of] - spent_ns, 0, amount_ns)
        account.blame(gap[after], longest[of], late_ns[after], calls)
    account.charge(gap, IdleCause.HOST_LAUNCH, host_ns - late_ns)


def _waits_for_the_same(waits: Int64, lost_ns: Int64, calls: RuntimeCalls) -> tuple[Int64, Int64, Int64]:
    """Waits with no launch between them: group of each, the longest wait of each group, and its time lost.

    `.item()` is a copy and a wait for its stream; without the one, the other would take as long. `waits` are
    positions of the calls, by end, at least one.
    """
    launched_ns = np.sort(calls.start_ns[calls.is_launch])
    launches_at_start = np.searchsorted(launched_ns, calls.start_ns[waits], side="left")
    launches_at_end = np.searchsorted(launched_ns, calls.end_ns[waits], side="left")
    is_first = np.ones(len(waits), dtype=np.bool_)
    is_first[1:] = launches_at_start[1:] > launches_at_end[:-1]
    group = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(waits)) - 1
    longest = waits[np.lexsort((lost_ns, group))[last]]
    # Threads may wait at the same time; together they lose no more than passes.
    passed_ns = calls.end_ns[waits[last]] - np.minimum.reduceat(calls.start_ns[waits], first)
    return group, longest, np.minimum(sum_by(group, lost_ns, len(first)), passed_ns)


class DeviceIdle(msgspec.Struct, frozen=True):
    trace: TraceRecords
    window: TraceWindow
    host: Host
    device: DeviceRecords
    occupation: Occupation
    account: IdleAccount


# Tables of `ThreadEvents`, in its order.
_TABLES = ("operators", "calls", "frames", "annotations", "ranges")


class _OpenRange(NamedTuple):
    kind: int  # position of its table
    key: int
    name: str | None  # of an operator or frame still to be looked up
    is_own: bool
    duration_ns: int
    open_ns: int


def longest_gaps(
    session: Session, idle: DeviceIdle, functions: NamedRanges, activities: Mapping[int, str]
) -> Iterator[IdleGap]:
    """The longest gaps of a device, the longest first; of equal ones the earlier."""
    account, device, trace = idle.account, idle.device, idle.trace
    starts_ns, ends_ns = account.gaps
    for index in np.lexsort((starts_ns, starts_ns - ends_ns))[:10].tolist():
        start_ns, end_ns = int(starts_ns[index]), int(ends_ns[index])
        # Whom the device waited for until then, the thread that launched first.
        handed_ns, own = int(account.handed_ns[index]), int(account.thread[index])
        threads = [] if own < 0 else [own, *(one for one in trace.launch_threads if one != own)]
        cause, blamed = CAUSES[int(account.by_cause[:, index].argmax())], account.blamed_call(index)
        host = line = None
        if cause in (IdleCause.SYNCHRONIZATION, IdleCause.MEMORY_ALLOCATION):
            host = trace.call_name(blamed)
        elif cause is IdleCause.PROFILER_OVERHEAD:
            _, host = max(
                (min(one.end_ns, end_ns) - max(one.start_ns, start_ns), one.name) for one in idle.host.stalls
            )
        elif (telling := _telling(idle, cause, threads, (start_ns, handed_ns))) is not None:
            table, key = _TABLES[telling.kind], _IDS.get(_TABLES[telling.kind])
            named = f"SELECT name FROM {table} WHERE {key} = ?"
            host = session.scalar(named, [telling.key]) if key else telling.name
        if cause not in (IdleCause.DEPENDENCY, IdleCause.UNKNOWN):
            # The program's function around the blamed call, else the middle of the gap; of any of them.
            time_ns = (start_ns + handed_ns) // 2 if blamed < 0 else int(trace.calls.start_ns[blamed])
            lines = functions.at(threads, [time_ns] * len(threads))
            line = next((one for one in lines if one is not None), None)
        ended_by = int(account.followed_by[index])
        is_ended = ended_by >= 0 and int(device.start_ns[ended_by]) == end_ns
        step = int(device.step[ended_by]) if is_ended else -1
        yield IdleGap(
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            cause=cause,
            step=step if step >= 0 else idle.window.step_at(start_ns),
            host=host,
            line=line,
            ended_by=activities.get(int(device.name_id[ended_by])) if is_ended else None,
        )


_IDS = {"operators": "operator_id", "frames": "frame_id"}


def _telling(
    idle: DeviceIdle, cause: IdleCause, threads: Sequence[int], gap: tuple[int, int]
) -> _OpenRange | None:
    """Of a gap of the host's own, the range that tells most: the shortest one open for at least half of it.

    Operators and calls tell more than frames and named ranges, the launching thread more than others. Where
    several operators share a gap, the one open longest. The gap lasts until the launch that ends it.
    """

    def most_open(one: _OpenRange) -> tuple[int, int, int, int]:
        return one.open_ns, -one.duration_ns, -one.kind, -one.key

    def ranges(*tables: str) -> list[_OpenRange]:
        return [
            one
            for thread in threads
            for table in tables
            for one in _open(idle, gap, thread, table, is_own=thread == threads[0])
        ]

    if cause is IdleCause.DATA_LOADING:
        return max(ranges("ranges"), key=most_open, default=None)
    if cause not in (IdleCause.HOST_LAUNCH, IdleCause.NOTHING_SCHEDULED):
        return None
    candidates: list[_OpenRange] = []
    for found in (ranges("operators", "calls"), ranges("frames", "annotations")):
        most = [one for one in found if 2 * one.open_ns >= gap[1] - gap[0]]
        if most:
            return min(most, key=lambda one: (not one.is_own, one.duration_ns, one.kind, one.key))
        candidates += found
    return None if cause is IdleCause.NOTHING_SCHEDULED else max(candidates, key=most_open, default=None)


def _open(
    idle: DeviceIdle, gap: tuple[int, int], thread: int, table: str, *, is_own: bool
) -> Iterator[_OpenRange]:
    """Of one kind, the range open longest in a gap, and the shortest that is open for half of it."""
    found: Arrays = getattr(idle.host.threads[thread], table)
    start_ns, end_ns = found["start_ns"], found["end_ns"]
    hits = np.flatnonzero((start_ns < gap[1]) & (end_ns > gap[0]))
    open_ns = np.minimum(end_ns[hits], gap[1]) - np.maximum(start_ns[hits], gap[0])
    duration_ns = end_ns[hits] - start_ns[hits]
    covering = 2 * open_ns >= gap[1] - gap[0]
    shortest_first, longest_first = np.argsort(duration_ns), np.lexsort((duration_ns, -open_ns))
    for order, chosen in ((shortest_first, covering), (longest_first, ~covering)):
        for best in order[chosen[order]][:1].tolist():
            key = int(found["id"][hits[best]])
            name = found["name"][hits[best]] if "name" in found else None
            name = idle.trace.call_name(key) if table == "calls" else name
            extent = int(duration_ns[best]), int(open_ns[best])
            yield _OpenRange(_TABLES.index(table), key, name, is_own, *extent)


def waiting_calls(  # noqa: PLR0917 - what a place is told by
    session: Session,
    traces: Sequence[TraceRecords],
    windows: Mapping[int, TraceWindow],
    blamed_ns: Mapping[int, Int64],
    functions: NamedRanges,
    annotations: NamedRanges,
) -> tuple[WaitingCall, ...]:
    """Calls of launching threads that wait for the device, those that cost most idle time first."""
    chosen: list[tuple[TraceRecords, Int64]] = []
    for trace in traces:
        calls = trace.calls
        if len(calls):
            waits = (calls.role == CallRole.WAITS) & np.isin(calls.thread_id, trace.launch_threads)
            is_inside = covering(windows[trace.trace_id].host, calls.start_ns) >= 0
            chosen.append((trace, np.flatnonzero(waits & (is_inside | (blamed_ns[trace.trace_id] > 0)))))
    operator_ids = {one for trace, found in chosen for one in trace.calls.operator_id[found].tolist()}
    operators = _called_operators(session, operator_ids - {-1})
    names = dict(session.known("SELECT name_id, name FROM kernel_names"))
    copying = [
        int(one)
        for trace, found in chosen
        for one in trace.calls.call_id[found][trace.calls.copy_name[found] >= 0]
    ]
    sizes = dict(session.query(_SIZES_SQL, [copying])) if copying else {}
    waits_of_each = []
    for trace, found in chosen:
        calls = trace.calls.at(found)
        where = (calls.thread_id.tolist(), calls.start_ns.tolist())
        rows = zip(
            found.tolist(), calls.call_id.tolist(), calls.operator_id.tolist(), functions.at(*where),
            annotations.at(*where), (calls.end_ns - calls.start_ns).tolist(),
            blamed_ns[trace.trace_id][found].tolist(), calls.copy_name.tolist(), strict=True,
        )  # fmt: skip
        for index, call_id, operator_id, line, annotation, host_ns, idle_ns, copy in rows:
            waits_of_each.append(
                WaitingCall(
                    trace.call_name(index),
                    operators.get(operator_id, annotation),
                    line,
                    1,
                    host_ns,
                    idle_ns,
                    names.get(copy),
                    sizes.get(call_id),
                    (call_id,),
                )
            )
    return by_place(waits_of_each)


def _called_operators(session: Session, operator_ids: Set[int]) -> dict[int, str]:
    """What the program called, by operator: going outward while operators are ATen's, the last of them."""
    known: dict[int, tuple[int, str]] = {}
    asked = operator_ids
    while asked:  # level by level: a recursive query holds all operators of the trace
        rows = session.query(sql(__package__, "timeline:called_operators"), [sorted(asked)])
        known |= {operator_id: (parent_id, name) for operator_id, parent_id, name in rows}
        asked = {parent for _, parent, name in rows if name.startswith("aten::")} - known.keys() - {-1}

    def outermost(operator_id: int) -> str:
        parent_id, name = known[operator_id]
        is_below = name.startswith("aten::") and known.get(parent_id, (0, ""))[1].startswith("aten::")
        return outermost(parent_id) if is_below else name

    return {one: name for one in operator_ids & known.keys() if (name := outermost(one))}


_SIZES_SQL = """SELECT runtime_call_id, sum(size_bytes)::BIGINT FROM device_activities
WHERE list_contains(?::BIGINT[], runtime_call_id) AND size_bytes IS NOT NULL GROUP BY ALL"""


def by_place(waits: Iterable[WaitingCall]) -> tuple[WaitingCall, ...]:
    groups = grouped(((one.name, one.operator, one.line, one.copy), one) for one in waits)
    merged = []
    for alike in groups.values():
        sizes = [one.size_bytes for one in alike if one.size_bytes is not None]
        merged.append(
            msgspec.structs.replace(
                alike[0],
                calls=sum(one.calls for one in alike),
                host_ns=sum(one.host_ns for one in alike),
                idle_ns=sum(one.idle_ns for one in alike),
                size_bytes=sum(sizes) if sizes else None,
                call_ids=tuple(chain.from_iterable(one.call_ids for one in alike)),
            )
        )
    return tuple(sorted(merged, key=lambda row: (-row.idle_ns, -row.host_ns, row.name, row.operator or "")))
