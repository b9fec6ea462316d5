"""Replays of CUDA graphs opened: each activity gets the operator that launched it when it was captured.

While a stream captures, launch calls are recorded and no device activity follows them. What Kineto keeps of a
launch differs: on AMD its kernel's name and grid, on NVIDIA neither, so there the nodes that the driver told
(`model.sidecar.GraphNode`) or the operator that is named after its kernel fill in.

A replay is one launch call. What was captured (`Capture`) is matched with the activities of each replay, by
node ids where these are recorded, else by the sequence of kernels; a capture that does not fit is refused.
The captured operators and modules are then repeated, as staged events, inside the launch call: from there on
the replay is read as if it had been launched eagerly, and every later stage is that of eager code. A replay
that nothing explains and that no operator launched becomes an operator of its own, `graph N`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest import linking, nesting
from opscope.ingest.staging import REPEATED, StagedEvents, columns, module_calls, rows_of, unmasked
from opscope.model.queries import grouped, sql
from opscope.model.schema import Attribution, ReplayEvidence, ReplaySource
from opscope.model.session import registered
from opscope.model.sidecar import GraphNode

Demangle = Callable[[str], str | None]  # Kineto's text of a mangled name
_NONE = -1


class CapturedLaunch(msgspec.Struct, frozen=True):
    kind: str  # `kernel`, `memcpy` or `memset`
    name: str | None = None  # Of the kernel, as the trace would show it; None if nothing tells
    grid: str | None = None  # Blocks, as a trace writes them; None if not recorded
    block: str | None = None  # Threads, likewise
    number: int | None = None  # Id of its node in the graph; None if the driver told none
    event: int = _NONE  # Index of its innermost operator among the capture's events; -1 for none
    # What it has in common with launches of other calls: operator, arguments, and which launch of the
    # operator it is. Launches of one place run one kernel
    place: int = _NONE


class CapturedEvent(msgspec.Struct, frozen=True):
    """An operator, or the call of a module, that launched something: its first launch and its last.

    `columns` are its name and arguments, by the names of their columns.
    """

    category: str
    first: int
    last: int
    columns: dict[str, Any]


class Capture(msgspec.Struct, frozen=True):
    """What one graph is made of. Events come outermost first."""

    source: ReplaySource  # Where it is known from
    file: str  # The trace it was read from
    launches: tuple[CapturedLaunch, ...]  # In their order
    events: tuple[CapturedEvent, ...]  # Those around them


def captured_phases(events: StagedEvents, source: ReplaySource, file: str) -> tuple[Capture, ...]:
    """One capture for each stretch in which a stream was captured, in order of time; empty ones left out."""
    return tuple(Capture(source, file, *one) for one in _Staged(events).phases() if one[0])


def with_nodes(capture: Capture, nodes: Sequence[GraphNode] | None, demangle: Demangle | None) -> Capture:
    """A capture with what the driver told of its nodes, where these are as many and of the same kinds."""
    if nodes is None or [one.kind for one in nodes] != [one.kind for one in capture.launches]:
        return capture
    launches = []
    for launch, node in zip(capture.launches, nodes, strict=True):
        name = node.name
        if name is not None and name.startswith("_Z"):
            name = demangle(name) if demangle is not None else None
        grid, block = (None if sizes is None else json.dumps(sizes) for sizes in (node.grid, node.block))
        launches.append(
            msgspec.structs.replace(
                launch, name=launch.name if name is None else name, number=node.number,
                grid=launch.grid or grid, block=launch.block or block,
            )
        )  # fmt: skip
    return msgspec.structs.replace(capture, launches=tuple(launches))


_Phase = tuple[tuple[CapturedLaunch, ...], tuple[CapturedEvent, ...]]
# Whose grid is given in threads.
_GLOBAL_SIZE = re.compile(r"hip(?:Hcc|Ext)ModuleLaunchKernel")


class _Staged:
    def __init__(self, events: StagedEvents) -> None:
        self._events = events
        placed = ("row_id", "thread_key", "start_ns", "duration_ns")
        operators = columns(events.rows["operator"], *placed, "external_id")
        modules = columns(map(module_calls, events.rows["frame"]), *placed)
        text = sql(__package__, "kineto:captured_calls")
        with registered(events.session, **events.read_by(text)):
            found = events.session.execute(text).fetchnumpy()
        self._calls: dict[str, npt.NDArray[Any]] = {name: unmasked(one) for name, one in found.items()}
        self._calls["kind"] = np.array([*map(linking.kind_of_call, self._calls["name"])], dtype=np.int64)
        placed_rows = (operators, modules, self._calls)
        threads = np.unique(np.concatenate([one["thread_key"] for one in placed_rows]))
        for one in placed_rows:
            one["thread"] = np.searchsorted(threads, one["thread_key"])
        self._operators, self._operator_rows = _nested(operators, operators["external_id"])
        self._modules, self._module_rows = _nested(modules, modules["row_id"])
        linked = ("thread", "start_ns", "correlation_id", "external_id")
        calls = linking.Calls(
            **{name: self._calls[name] for name in linked},
            is_graph_launch=np.zeros(len(self._calls["thread"]), dtype=bool),
        )
        none = linking.Activities(*[np.empty(0, dtype=np.int64)] * 4)
        external_id = operators["external_id"][self._operators.order]
        self._call_operator = linking.link(self._operators, external_id, calls, none).call_operator
        self._call_module = nesting.enclosing(self._modules, self._calls["thread"], self._calls["start_ns"])

    def phases(self) -> Iterator[_Phase]:
        calls = self._calls
        free = np.isin(calls["kind"], linking.OWN_LAUNCHES) & (calls["was_executed"] == 0)
        stretches = list(_stretches(calls))
        for begin, end, thread in stretches:
            alone = not any(b < end and begin < e and t != thread for b, e, t in stretches)
            inside = free & (calls["start_ns"] > begin) & (calls["start_ns"] < end)
            yield self._phase(np.flatnonzero(inside & (alone | (calls["thread"] == thread))), begin)

    def _phase(self, calls: nesting.Int64, begin_ns: int) -> _Phase:
        calls = calls[np.argsort(self._calls["start_ns"][calls], kind="stable")]
        spans: list[tuple[str, int, int, int, int]] = []
        for category, forest, rows, owners in (
            ("cpu_op", self._operators, self._operator_rows, self._call_operator),
            ("python_function", self._modules, self._module_rows, self._call_module),
        ):
            for position, (first, last) in _covered(forest, owners[calls]).items():
                if forest.start_ns[position] >= begin_ns:
                    spans.append((category, first, -last, position, int(rows[position])))
        # Preorder positions put the outer of equal ones first.
        spans.sort(key=lambda one: (one[1], one[2], one[0] == "cpu_op", one[3]))
        told = self._told(np.array([row for *_, row in spans], dtype=np.int64))
        owner_key = {one[3]: index for index, one in enumerate(spans) if one[0] == "cpu_op"}
        events = [
            CapturedEvent(category, first, -last, told.get(row, {}))
            for category, first, last, _, row in spans
        ]
        return tuple(self._launches(calls, owner_key, events)), tuple(events)

    def _launches(
        self, calls: nesting.Int64, owners: dict[int, int], events: list[CapturedEvent]
    ) -> Iterator[CapturedLaunch]:
        places: dict[Any, int] = {}
        counts: dict[int, int] = {}
        for call in calls.tolist():
            position = int(self._call_operator[call])
            event = owners.get(position, _NONE)
            kind = linking.CallKind(self._calls["kind"][call])
            nth = counts[position] = counts.get(position, -1) + 1
            fields = events[event].columns if event >= 0 else {}
            key = (fields.get("name"), fields.get("input_shapes"), fields.get("input_types"), nth)
            place = places.setdefault(key, len(places)) if event >= 0 else _NONE
            name = self._calls["kernel"][call] or None
            if name is None and str(fields.get("name")).startswith("triton_"):
                name = fields["name"]
            grid, block = self._calls["grid"][call], self._calls["block"][call]
            if _GLOBAL_SIZE.match(self._calls["name"][call]):
                grid = _in_blocks(grid, block)
            yield CapturedLaunch(
                kind.name.lower(),
                name if kind is linking.CallKind.KERNEL else None,
                grid or None,
                block or None,
                event=event,
                place=place,
            )

    def _told(self, row_id: nesting.Int64) -> dict[int, dict[str, Any]]:
        """What a replay repeats of operators and calls of modules, by their rows."""
        found: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, wanted in REPEATED.items():
            for part in self._events.rows[name]:
                for row in part.taken(np.isin(part.integers("row_id"), row_id)).records():
                    if name != "detail" or "kernel_backend" in row:
                        found[row["row_id"]] |= {key: row[key] for key in wanted if key in row}
        return found


def _nested(
    rows: dict[str, npt.NDArray[Any]], sequence: nesting.Int64
) -> tuple[nesting.Forest, nesting.Int64]:
    forest = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], sequence)
    return forest, rows["row_id"][forest.order]


def _stretches(calls: dict[str, npt.NDArray[Any]]) -> Iterator[tuple[int, int, int]]:
    """Start, end and thread of each stretch of capturing; one that never ends lasts to the end."""
    opened: dict[int, int] = {}
    for index in np.argsort(calls["start_ns"], kind="stable").tolist():
        thread, start_ns = int(calls["thread"][index]), int(calls["start_ns"][index])
        if calls["kind"][index] == linking.CallKind.BEGIN_CAPTURE:
            opened.setdefault(thread, start_ns)
        elif calls["kind"][index] == linking.CallKind.END_CAPTURE and thread in opened:
            yield opened.pop(thread), start_ns, thread
    for thread, start_ns in opened.items():
        yield start_ns, int(np.iinfo(np.int64).max), thread


def _covered(forest: nesting.Forest, owners: nesting.Int64) -> dict[int, tuple[int, int]]:
    """First and last launch of each interval around the launches that it owns itself or by others."""
    found: dict[int, tuple[int, int]] = {}
    for launch, owner in enumerate(owners.tolist()):
        position = owner
        while position >= 0:
            found[position] = (found.get(position, (launch, launch))[0], launch)
            position = int(forest.parent[position])
    return found


def _in_blocks(grid: str | None, block: str | None) -> str | None:
    """Threads of a grid as blocks; None where they do not divide."""
    try:
        threads, sizes = json.loads(grid or ""), json.loads(block or "")
        blocks = [-(-whole // part) for whole, part in zip(threads, sizes, strict=True)]
    except (ValueError, TypeError, ZeroDivisionError):
        return None
    return json.dumps(blocks)


_BY_NODE, _BY_SEQUENCE, _BY_GRAPH = (
    linking.REPLAYS.index(one) + 1
    for one in (Attribution.GRAPH_NODE, Attribution.GRAPH_SEQUENCE, Attribution.GRAPH)
)
_SHOWN = 60


class Replay(msgspec.Struct, frozen=True):
    """The activities of one launch of a graph, in order of start."""

    call: int  # Row of the launch call
    call_start_ns: int  # Its start
    call_duration_ns: int  # Its duration
    correlation_id: int  # Of it and its activities
    activities: tuple[int, ...]  # Their rows
    kinds: tuple[str, ...]  # `kernel`, `memcpy` or `memset`
    names: tuple[str, ...]  # Their names
    device_ns: int  # Their time
    graph_id: int | None = None  # Of the graph, where recorded
    numbers: tuple[int, ...] | None = None  # Ids of their nodes in the graph; None where one is not recorded
    # Blocks of each, as recorded; None of those not recorded. Empty if of none
    grids: tuple[str | None, ...] = ()


class ReplayMatch(msgspec.Struct, frozen=True):
    """Which captured launch each activity of a replay is; `evidence` None and a reason where none fits."""

    launches: tuple[int, ...] = ()
    evidence: ReplayEvidence | None = None
    reason: str | None = None
    agreed: int = 0


def open_replays(events: StagedEvents, trace_id: int, captures: Sequence[Capture]) -> tuple[int, int]:
    """Repeat the captured operators inside the launch calls of the staged trace, and note how it went.

    Captures come best source first. The trace may have had no calls of modules and no rarer arguments before:
    how many of either were added is returned.
    """
    session, text = events.session, sql(__package__, "kineto:replayed")
    with registered(session, **events.read_by(text)):
        # Those whose activities were recorded, in order of their calls.
        replays = msgspec.convert(session.records(text), list[Replay])
    if not replays:
        return 0, 0
    alike = grouped(((one.kinds, one.names, one.numbers, one.grids), one) for one in replays)
    opened: dict[int, _Opened] = {}
    for same in alike.values():
        fitting, refusal = _fitting(same[0], captures)
        for one, choice in zip(same, _assigned(same, fitting), strict=True):
            opened[one.correlation_id] = choice or (None, refusal)
    numbers: dict[Any, int] = {}  # of graphs, by recorded ids, else by their activities
    graphs = {
        one.correlation_id: numbers.setdefault(one.graph_id or (one.kinds, one.names), len(numbers) + 1)
        for one in replays
    }
    found = [(one, opened[one.correlation_id]) for one in replays]
    added = _write(events, found, graphs)
    session.insert_rows(
        "graph_replays",
        [
            {
                "trace_id": trace_id,
                "correlation_id": one.correlation_id,
                "graph": graphs[one.correlation_id],
                "activity_count": len(one.activities),
                "device_ns": one.device_ns,
                "source": None if capture is None else capture.source.value,
                "evidence": None if matched.evidence is None else matched.evidence.value,
                "file": None if capture is None else capture.file,
                "reason": matched.reason,
            }
            for one, (capture, matched) in found
        ],
    )
    return added


_Fit = tuple[Capture, ReplayMatch]
_Opened = tuple[Capture | None, ReplayMatch]


def _assigned(same: Sequence[Replay], fitting: Sequence[_Fit]) -> Sequence[_Opened | None]:
    """Which of the captures that fit equal replays each of them is of; None where none fits.

    Graphs of equal layers are equal: they are replayed in the order in which they were captured, and have
    ids in that order. Where neither tells which is which, what differs between the captures is left out.
    """
    if len(fitting) < 2:
        return list(fitting or (None,)) * len(same)
    of_same = [-1 if one.graph_id is None else one.graph_id for one in same]
    ids = sorted(set(of_same))
    if len(ids) == len(fitting) and ids[0] >= 0:
        return [fitting[ids.index(one)] for one in of_same]
    first, *others = ([one for one in capture.events if one.category == _OPERATOR] for capture, _ in fitting)
    if len(same) % len(fitting) == 0 and all(one == first for one in others):
        return [fitting[at % len(fitting)] for at in range(len(same))]
    return [_common(fitting)] * len(same)


def _common(fitting: Sequence[_Fit]) -> _Opened:
    """What captures of the same kernels agree in; nothing if other operators launched these."""
    captures, (first, matched) = [capture for capture, _ in fitting], fitting[0]
    owners = {
        tuple(_place(one.events[launch.event]) if launch.event >= 0 else None for launch in one.launches)
        for one in captures
    }
    if len(owners) > 1:
        reason = f"{len(captures)} captures have its kernels, from different operators"
        return None, ReplayMatch(reason=reason)
    known = [{_place(event): event.columns for event in one.events} for one in captures]
    kept = [at for at, one in enumerate(first.events) if all(_place(one) in other for other in known)]
    index = {at: new for new, at in enumerate(kept)}
    events = tuple(
        msgspec.structs.replace(
            one,
            columns={
                key: value
                for key, value in one.columns.items()
                if all(other[_place(one)].get(key) == value for other in known)
            },
        )
        for one in (first.events[at] for at in kept)
    )
    launches = tuple(msgspec.structs.replace(one, event=index.get(one.event, -1)) for one in first.launches)
    if events != first.events:
        reason = f"{len(captures)} captures have its kernels: what differs between them is left out"
        matched = msgspec.structs.replace(matched, reason=reason)
    return Capture(first.source, first.file, launches, events), matched


def _place(event: CapturedEvent) -> tuple[str, int, int, str]:
    return event.category, event.first, event.last, str(event.columns.get("name"))


def _fitting(replay: Replay, captures: Sequence[Capture]) -> tuple[list[_Fit], ReplayMatch]:
    """The captures that fit best; else why the one that agrees longest does not."""
    matches = [(capture, match(capture, replay)) for capture in captures]
    ranks = {
        place: (_EVIDENCE.index(found.evidence), _SOURCES.index(capture.source))
        for place, (capture, found) in enumerate(matches)
        if found.evidence is not None
    }
    if ranks:
        best = min(ranks.values())
        return [matches[place] for place, rank in ranks.items() if rank == best], ReplayMatch()
    if not matches:
        return [], ReplayMatch(reason="its capture is not in the trace")
    return [], max((one[1] for one in matches), key=lambda one: one.agreed)


_MOST_OF_GRAPH = 0.95
_EVIDENCE, _SOURCES = tuple(ReplayEvidence), tuple(ReplaySource)


def match(capture: Capture, replay: Replay) -> ReplayMatch:
    """Which launch of a capture each activity of a replay is, if it is a replay of it."""
    launches, count = capture.launches, len(replay.activities)
    captured = [_told(one.kind, one.name) for one in launches]
    replayed = [_told(*one) for one in zip(replay.kinds, replay.names, strict=True)]
    in_time = range(count)
    # The recording may end before the replay does; names tell that all before is the same.
    if count >= _MOST_OF_GRAPH * len(launches) and captured[:count] == replayed:
        launches, captured = launches[:count], captured[:count]
        capture = msgspec.structs.replace(capture, launches=launches)
    if len(launches) != count:
        agreed = _agreed(captured, replayed)
        reason = (
            f"the graph has {count} kernels, copies and sets, the capture in {capture.file} "
            f"{len(launches)}{_differing(captured, replayed, agreed)}"
        )
        return ReplayMatch(reason=reason, agreed=agreed)
    for order in (*_node_orders(capture, replay), in_time):
        if _fits(captured, [replayed[at] for at in order], launches):
            other = _other_grid(capture, replay, order)
            if other is not None:
                return ReplayMatch(reason=other, agreed=count)
            named = all(name is not None for kind, name in captured if kind == "kernel")
            in_order = ReplayEvidence.KERNEL_SEQUENCE if named else ReplayEvidence.LAUNCH_ORDER
            evidence = in_order if order is in_time else ReplayEvidence.NODE_IDS
            return ReplayMatch(tuple(sorted(range(count), key=order.__getitem__)), evidence)
    agreed = _agreed(captured, replayed)
    reason = (
        f"the capture in {capture.file} is of another graph{_differing(captured, replayed, agreed)}"
        if agreed < count
        else f"equal calls of the capture in {capture.file} would have run different kernels"
    )
    return ReplayMatch(reason=reason, agreed=agreed)


def _told(kind: str, name: str | None) -> tuple[str, str | None]:
    """What can be compared: copies and sets are named by their sides, which a launch does not tell."""
    return kind, name if kind == "kernel" else None


_Sequence = Sequence[tuple[str, str | None]]


def _agreed(captured: _Sequence, replayed: _Sequence) -> int:
    for at, ((kind, name), (other_kind, other)) in enumerate(zip(captured, replayed, strict=False)):
        if kind != other_kind or (name is not None and name != other):
            return at
    return min(len(captured), len(replayed))


def _differing(captured: _Sequence, replayed: _Sequence, at: int) -> str:
    if at >= min(len(captured), len(replayed)):
        return ""
    own, other = ((name or kind)[:_SHOWN] for kind, name in (replayed[at], captured[at]))
    return f": its launch {at + 1} is {own}, in the capture {other}"


def _fits(captured: _Sequence, replayed: _Sequence, launches: Sequence[Any]) -> bool:
    """Whether all agree; launches of one place, where their kernels are not told, run one kernel."""
    if _agreed(captured, replayed) < len(captured):
        return False
    kernels: dict[int, str | None] = {}
    return all(
        launch.place < 0 or name is not None or kernels.setdefault(launch.place, other) == other
        for launch, (_, name), (_, other) in zip(launches, captured, replayed, strict=True)
    )


def _node_orders(capture: Capture, replay: Replay) -> Iterator[list[int]]:
    """Positions of the activities in the order of the captured launches, by the ids of their nodes."""
    if replay.numbers is None:
        return
    by_number = {number: at for at, number in enumerate(replay.numbers)}
    numbers = [one.number for one in capture.launches]
    if all(number in by_number for number in numbers):
        yield [by_number[number] for number in numbers if number is not None]
    # Nodes are numbered as they are captured.
    yield sorted(range(len(replay.numbers)), key=replay.numbers.__getitem__)


def _other_grid(capture: Capture, replay: Replay, order: Sequence[int]) -> str | None:
    """Why a replay with the captured kernels is none of the capture: one runs another number of blocks."""
    if not replay.grids:
        return None
    for launch, at in zip(capture.launches, order, strict=True):
        captured, replayed = _blocks(launch.grid), _blocks(replay.grids[at])
        if captured is not None and replayed is not None and captured != replayed:
            return (
                f"its {replay.names[at][:_SHOWN]} runs {replayed} blocks, {captured} in the capture in "
                f"{capture.file}: the capture is of another batch, or the graph was updated after it"
            )
    return None


@lru_cache(maxsize=65536)
def _blocks(grid: str | None) -> str | None:
    """`32×8×1`."""
    try:
        return "×".join(str(int(size)) for size in json.loads(grid or ""))
    except (ValueError, TypeError):
        return None


_OPERATOR, _UNKNOWN = "cpu_op", "replay of graph {number}"


def _write(
    events: StagedEvents, found: Sequence[tuple[Replay, _Opened]], graphs: dict[int, int]
) -> tuple[int, int]:
    """Add the events of replays to the staged ones, and tie the activities to them."""
    given = columns((*events.rows["operator"], *events.rows["activity"]), "external_id")
    next_ids = count(int(given["external_id"].max(initial=0)) + 1)
    own = columns(events.rows["operator"], "thread_key", "start_ns", "duration_ns")
    placed = columns(events.rows["call"], "row_id", "thread_key").values()
    threads = dict(zip(*(one.tolist() for one in placed), strict=True))
    operators: list[dict[str, Any]] = []
    modules: list[dict[str, Any]] = []
    activities: list[tuple[int, int | None, int, str | None, str | None]] = []

    def add(replay: Replay, category: str, start_ns: int, end_ns: int, **fields: Any) -> int | None:
        """Add an event inside a launch call; its external id if it is an operator."""
        external_id = next(next_ids) if category == _OPERATOR else None
        (operators if category == _OPERATOR else modules).append({
            **fields, "category": category, "thread_key": threads[replay.call],
            "start_ns": start_ns, "duration_ns": end_ns - start_ns, "external_id": external_id,
        })  # fmt: skip
        return external_id

    for replay, (capture, matched) in found:
        if capture is not None and matched.evidence is not None:
            ids = [
                add(
                    replay,
                    event.category,
                    *_between(replay, len(capture.launches), event.first, event.last + 1),
                    **event.columns,
                )
                for event in capture.events
            ]
            code = _BY_NODE if matched.evidence is ReplayEvidence.NODE_IDS else _BY_SEQUENCE
            launches = [capture.launches[position] for position in matched.launches]
            activities += (
                (activity, ids[launch.event], code, launch.grid, launch.block)
                for activity, launch in zip(replay.activities, launches, strict=True)
                if launch.event >= 0
            )
            continue
        time_ns = replay.call_start_ns
        around = (own["thread_key"] == threads[replay.call]) & (own["start_ns"] <= time_ns)
        if not (around & (own["start_ns"] + own["duration_ns"] > time_ns)).any():
            # An operator for a replay of which nothing else is known.
            name = _UNKNOWN.format(number=graphs[replay.correlation_id])
            external_id = add(replay, _OPERATOR, *_between(replay, 1, 0, 1), name=name)
            activities += ((one, external_id, _BY_GRAPH, None, None) for one in replay.activities)
    details = [row for row in operators if "kernel_backend" in row]
    for name, rows in (("operator", operators), ("frame", modules), ("detail", details)):
        events.add(name, rows)
    if activities:
        names = ("row_id", "external_id", "replay", "grid", "block")
        changes = zip(names, zip(*activities, strict=True), strict=True)
        events.rows["activity"].change(rows_of(dict(changes)))
    return len(modules), len(details)


def _between(replay: Replay, count: int, first: int, end: int) -> tuple[int, int]:
    """Start and end of some of the launches of a replay, equal parts of its launch call.

    A nanosecond each where there is room: what is repeated costs the host next to nothing.
    """
    room_ns, start_ns = min(count, max(0, replay.call_duration_ns - 2)), replay.call_start_ns + 1
    return start_ns + first * room_ns // max(1, count), start_ns + end * room_ns // max(1, count)
