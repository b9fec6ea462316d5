"""Where work belongs in the program: device time by nn.Module and by source line, forward and backward.

Calls of the program's functions, from known lines and of modules are read as arrays; what opscope's own
recordings know beyond the trace (whose files, which attribute, which line) comes from their sidecars,
everything else is judged by names. A place of a module is a path of recorded names. Calls that differ only in
time, step or rank share one; a module called inside its own call (recursion) keeps the place it has there, so
paths stay finite.

Σ self time over modules = `module_ns` and over lines = `line_ns`, to the nanosecond, neither above all device
time: every activity is charged to one place or to none.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from opscope.analysis.arrays import NONE, Columns, Flags, columns, sum_by
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, enclosing, nest
from opscope.ingest.source import natural_order
from opscope.model.files import UNREADABLE_JSON
from opscope.model.origin import FrameName, is_program_file, parse_frame
from opscope.model.queries import sql
from opscope.model.session import Session, registered
from opscope.model.sidecar import RecordedStructure
from opscope.text_enum import TextEnum


class LineKind(TextEnum):
    """What the line number of a LineTotal is.

    Torch's recorder names a function by its first line; only opscope's own recordings say from which line of
    it a call was made.
    """

    EXECUTED = "executed"  # the line that made the calls
    FUNCTION = "function"  # the first line of the function; what runs inside is not told apart
    # Where the function stood when recording began, which is not where the work was called from
    RUNNING = "running"


class ModuleTotal(msgspec.Struct, frozen=True):
    """One nn.Module instance by its place in the program.

    A module that several others call has a place in each. A module called inside its own call keeps its
    place. Ranks are summed by path.
    """

    # Names from the outermost module down, joined by dots; the recorder's names (`BertLayer_3`) where
    # attribute names are unknown
    path: str
    class_name: str  # its class
    depth: int  # modules above it
    calls: int  # recorded forward calls, those of a recomputation included
    self_device_ns: int  # device time launched in it and in none of its submodules, forward and backward
    total_device_ns: int  # with its submodules
    forward_ns: int  # the part of `total_device_ns` (else of `total_cpu_ns`) launched in its forward calls
    # The part launched by backward operators of its forward operators, recomputation included
    backward_ns: int
    kernel_launches: int  # kernels of `total_device_ns`
    self_cpu_ns: int = 0  # where no device was recorded, its operators' own CPU time; else 0
    total_cpu_ns: int = 0  # with its submodules


class LineTotal(msgspec.Struct, frozen=True):
    """One line of the user's program, with the device time launched under it as the innermost such line.

    A library (site-packages, torch, the standard library) is not the user's program. Backward time is charged
    to the line of the forward operator it differentiates; what the backward pass launches for no forward
    operator (gradient accumulation) to the line that called it.
    """

    file: str  # as the recorder names it
    line: int  # see `kind`
    function: str  # the function it is in
    calls: int  # recorded calls of the function
    self_device_ns: int = 0  # device time, forward and backward
    forward_ns: int = 0  # the part of it (else of `self_cpu_ns`) that no backward operator launched
    backward_ns: int = 0  # the rest
    kernel_launches: int = 0  # kernels of `self_device_ns`
    kind: LineKind = LineKind.FUNCTION  # what `line` is
    self_cpu_ns: int = 0  # where no device was recorded, the operators' own CPU time; else 0


class ProgramTotals(msgspec.Struct, frozen=True):
    """By module and by line; empty where neither modules nor stacks were recorded.

    `module_ns` and `line_ns` are the device time that could be charged to any module or line, the sum of
    their self times; the rest of all device time has none.
    """

    # Every recorded module, as a tree: each before its submodules, the one with more time first
    modules: tuple[ModuleTotal, ...] = ()
    # Lines under which something was launched or, without a device, computed; most time first
    lines: tuple[LineTotal, ...] = ()
    module_ns: int = 0  # device time with a module; where no device was recorded, the operators' own CPU time
    line_ns: int = 0  # the same with a line
    has_modules: bool = False  # whether calls of modules were recorded
    has_stacks: bool = False  # whether Python stacks were recorded


class _Sidecar(msgspec.Struct):
    structure: RecordedStructure | None = None


class ProgramStructure(msgspec.Struct, frozen=True):
    """What the recording programs noted of themselves, by trace, and each trace's time zero."""

    by_trace: dict[int, RecordedStructure]
    base_time_ns: dict[int, int]

    def is_program_file(self, file: str) -> bool:
        """Whether a file is the program's own: as noted where any trace noted it, else by its name."""
        noted = list(self.by_trace.values())
        return any(file in one.files for one in noted) if noted else is_program_file(file)

    def calls(self) -> dict[str, Int64]:
        """Calls made from known lines of the program, as columns trace_id, start_ns and line."""
        rows = [
            (trace, start_ns + one.origin_ns - self.base_time_ns.get(trace, 0), line)
            for trace, one in self.by_trace.items()
            for start_ns, line in zip(one.call_starts_ns, one.call_lines, strict=True)
        ]
        found = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return dict(zip(("trace_id", "start_ns", "line"), map(np.ascontiguousarray, found), strict=True))


class Frames(Columns, frozen=True):
    """Frames, in no order; what does not apply is -1."""

    trace: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    sequence: Int64  # order of opening
    module_id: Int64  # its module, if it is a module's call
    function: Int64  # position in `functions`, if it is a call of a function of the program
    line: Int64  # line of the program it was called from, where known
    is_backward_call: Flags  # whether it runs a backward pass
    is_running: Flags  # whether it was already running when recording began
    functions: list[FrameName]  # functions of the program

    def nested(self, chosen: Flags) -> tuple[Forest, Frames]:
        """Call trees of some frames, and these frames in their order."""
        mine = self.at(chosen)
        forest = call_forest(mine.thread, mine.start_ns, mine.end_ns, mine.sequence)
        return forest, mine.at(forest.order)


def read_structure(session: Session) -> ProgramStructure:
    rows = session.known("SELECT key, value FROM metadata WHERE starts_with(key, 'sidecar:') ORDER BY key")
    kept: dict[int, RecordedStructure | None] = {}
    for key, value in rows:
        with suppress(*UNREADABLE_JSON):  # a saved session may be a stranger's
            kept[int(key.removeprefix("sidecar:"))] = msgspec.json.decode(value, type=_Sidecar).structure
    bases = dict(session.known("SELECT trace_id, coalesce(base_time_ns, 0) FROM traces"))
    return ProgramStructure({trace: one for trace, one in kept.items() if one is not None}, bases)


def program_functions(session: Session, structure: ProgramStructure | None = None) -> dict[str, FrameName]:
    """Functions of the program by their recorded names; the structure is read if it is not given."""
    structure = structure or read_structure(session)
    parsed = {
        name: (frame, is_outermost)
        for name, is_outermost in session.known(sql(__package__, "program:functions"))
        if (frame := parse_frame(name)) is not None
    }
    # A script may be named like a module of the standard library: it runs as the outermost frame.
    scripts = {
        frame.file
        for frame, is_outermost in parsed.values()
        if is_outermost and frame.function == "<module>" and not set(frame.file) & set("/\\<")
    }
    files = {frame.file for frame, _ in parsed.values()}
    own = {file for file in files if structure.is_program_file(file)} | scripts
    return {name: frame for name, (frame, _) in parsed.items() if frame.file in own}


def read_frames(session: Session, structure: ProgramStructure) -> Frames:
    functions = program_functions(session, structure)
    names = {
        "name": np.array(list(functions), dtype=object),
        "function_index": np.arange(len(functions), dtype=np.int64),
    }
    with registered(session, program_functions=names, program_calls=structure.calls()):
        rows = columns(session, sql(__package__, "program:frames"), order_by="frame_id")
    del rows["frame_id"]
    first_call_ns = np.full(int(rows["trace"].max(initial=0)) + 1, np.iinfo(np.int64).min)
    for trace, start_ns in session.query(sql(__package__, "program:first_calls")):
        first_call_ns[trace : trace + 1] = start_ns
    return Frames(
        **rows, is_running=rows["start_ns"] < first_call_ns[rows["trace"]], functions=list(functions.values())
    )


def recorded_places(session: Session) -> tuple[bool, bool]:
    """Whether frames and calls of modules were recorded."""
    return session.holds("frames"), session.holds("modules")


def program_totals(session: Session) -> ProgramTotals:
    """Device time by module and by line; empty where neither modules nor stacks were recorded."""
    has_frames, has_modules = recorded_places(session)
    if not has_frames:
        return ProgramTotals()
    operators = read_operators(session)
    activities = read_activities(session, operators.first_id)
    is_host = not len(activities)
    if is_host:  # the work is what operators do themselves on the CPU
        activities = read_activities(session, operators.first_id, of_host=True)
    backward: Flags = gather(operators.engine, activities.operator) >= 0

    def figures(place: Int64, count: int) -> Int64:
        """int64[4, count]: time in all, forward and backward, and kernels, of what is charged to each."""
        self_ns = sum_by(place, activities.duration_ns, count)
        forward_ns = sum_by(np.where(backward, NONE, place), activities.duration_ns, count)
        kernels = sum_by(place, activities.is_kernel.astype(np.int64), count)
        return np.stack((self_ns, forward_ns, self_ns - forward_ns, kernels))

    places, place_of_call, place, lines, charged = _charged_work(session, operators, activities)
    call_counts = np.bincount(place_of_call, minlength=len(places)).tolist()
    modules = _module_totals(places, call_counts, figures(place, len(places)), is_host=is_host)
    used = set(charged[charged >= 0].tolist())
    own = "self_cpu_ns" if is_host else "self_device_ns"
    totals = [
        msgspec.structs.replace(
            one, **{own: ns[0]}, forward_ns=ns[1], backward_ns=ns[2], kernel_launches=ns[3]
        )
        for index, (one, ns) in enumerate(zip(lines, figures(charged, len(lines)).T.tolist(), strict=True))
        if index in used
    ]
    totals.sort(key=lambda line: (-getattr(line, own), line.file, line.line, line.function))
    return ProgramTotals(
        modules,
        tuple(totals),
        sum(getattr(one, own) for one in modules),
        sum(getattr(one, own) for one in totals),
        has_modules,
        has_stacks=True,
    )


def _charged_work(
    session: Session, operators: Operators, activities: ProgramActivities
) -> tuple[list[ModulePlace], Int64, Int64, list[LineTotal], Int64]:
    """Places of modules, that of each call and that of each activity; lines, and that of each activity."""
    has_frames, has_modules = recorded_places(session)
    places: list[ModulePlace] = []
    lines: list[LineTotal] = []
    place_of_call: Int64 = np.zeros(0, dtype=np.int64)
    place: Int64 = np.full(len(activities), NONE)
    charged = place
    if has_frames:
        structure = read_structure(session)
        frames = read_frames(session, structure)
        if has_modules:
            forest, calls = frames.nested(frames.module_id >= 0)
            places, place_of_call = module_places(session, structure, forest, calls.module_id)
            place = gather(place_of_call, _charged(operators, activities, frames, forest))
        forest, calls = frames.nested((frames.function >= 0) | (frames.line >= 0))
        lines, line_of_frame = _lines_of_frames(forest, calls)
        charged = gather(line_of_frame, _charged(operators, activities, frames, forest))
    return places, place_of_call, place, lines, charged


def work_places(session: Session) -> dict[int, set[str]]:
    """Of operators that something was launched below, the paths of modules and lines `model.py:12` of it."""
    operators = read_operators(session)
    activities = read_activities(session, operators.first_id)
    places, _, place, lines, charged = _charged_work(session, operators, activities)
    names = [*module_paths(places), *(f"{one.file}:{one.line}" for one in lines), ""]
    line = np.where(charged >= 0, charged + len(places), NONE)
    found: dict[int, set[str]] = defaultdict(set)
    for within_operator, *where in np.unique(np.stack((activities.operator, place, line)), axis=1).T.tolist():
        operator = within_operator
        while operator >= 0:
            found[operators.first_id + operator] |= {names[one] for one in where}
            operator = int(operators.parent[operator])
    return found


def _charged(operators: Operators, activities: ProgramActivities, frames: Frames, forest: Forest) -> Int64:
    """The call each activity is charged to, as a position in the forest; -1 for none."""
    # By way of forward operators and callers, from where each operator was called; and the one asked last.
    at_operator, asked = within(forest, operators), activities.operator
    place, last = gather(at_operator, asked), asked.copy()
    left = np.flatnonzero((place < 0) & (asked >= 0))
    # Backward of backward of …: each goes to the forward operator or outwards, so a sound trace needs few.
    for _ in range(64):
        engine = gather(operators.engine, last[left])
        onward = gather(operators.forward, engine)
        onward = np.where(onward < 0, gather(operators.parent, engine), onward)
        left, onward = left[onward >= 0], onward[onward >= 0]
        if not len(left):
            break
        last[left], place[left] = onward, at_operator[onward]
        left = left[place[left] < 0]
    # A composite operator may call Python again, so the launch itself may lie deeper than its start.
    called = enclosing(forest, activities.call_thread, activities.call_start_ns)
    called = _inside(forest, called, operators, activities.operator)
    place = np.where(called >= 0, called, place)
    # What the engine ran without a forward operator: to the one backward call of the trace that was open; to
    # none where none or several were.
    engine = gather(operators.engine, last)
    stray = np.flatnonzero((place < 0) & (engine >= 0) & (gather(operators.forward, engine) < 0))
    trace, time_ns = activities.trace[stray], operators.start_ns[activities.operator[stray]]
    calls = frames.at(frames.is_backward_call)
    calls = calls.at(np.argsort(calls.start_ns, kind="stable"))
    called_from = enclosing(forest, calls.thread, calls.start_ns)
    found = np.full(len(trace), NONE)
    for one in np.unique(trace).tolist():
        own, here = np.flatnonzero(calls.trace == one), np.flatnonzero(trace == one)
        started = np.searchsorted(calls.start_ns[own], time_ns[here], side="right")
        alone = started - np.searchsorted(np.sort(calls.end_ns[own]), time_ns[here], side="right") == 1
        latest = own[started[alone] - 1]
        is_open = calls.end_ns[latest] > time_ns[here[alone]]
        found[here[alone][is_open]] = called_from[latest[is_open]]
    place[stray] = found
    return place


def _lines_of_frames(forest: Forest, frames: Frames) -> tuple[list[LineTotal], Int64]:
    """The distinct lines, and the line of each frame; -1 for a call whose caller is not among the frames.

    `frames` are those of the forest, in preorder: of program functions, and other calls that were made from
    known lines.
    """
    is_function = frames.function >= 0
    function = inherit(frames.function, forest.parent, forest.depth)
    executed = np.where(is_function, NONE, frames.line)
    keys = np.stack((function, executed, np.where(is_function, frames.is_running, 0)))
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    calls = np.bincount(frames.function[is_function], minlength=len(frames.functions)).tolist()
    lines: list[LineTotal] = []
    index = []
    for where, line, running in distinct.T.tolist():
        index.append(len(lines) if where >= 0 else -1)
        if where >= 0:
            name = frames.functions[where]
            at, kind = name.line, LineKind.RUNNING if running else LineKind.FUNCTION
            if line >= 0:
                at, kind = line, LineKind.EXECUTED
            lines.append(LineTotal(name.file, at, name.function, calls[where], kind=kind))
    return lines, np.array(index, dtype=np.int64)[inverse.reshape(-1)]


class ModulePlace(msgspec.Struct, frozen=True):
    parent: int  # index of the place around it; -1 for none
    depth: int  # places above it
    name: str  # the recorder's name of the module
    segment: str  # its part of the path: the attribute it is reached by, else the recorder's name
    class_name: str  # its class


def module_places(
    session: Session, structure: ProgramStructure, forest: Forest, module_id: Int64
) -> tuple[list[ModulePlace], Int64]:
    """The places of module calls, each after the one around it; and the place of each call."""
    rows = session.query("SELECT module_id, trace_id, name, class_name FROM modules")
    modules = {module_id: rest for module_id, *rest in rows}
    # By which each is an attribute of the one that called it.
    names = {
        (trace, one.parent, one.child): one.name
        for trace, noted in structure.by_trace.items()
        for one in noted.modules
    }
    places: list[ModulePlace] = []
    known: dict[tuple[int, str, str], int] = {}
    found = np.full(len(forest), NONE)
    for level in range(int(forest.depth.max(initial=-1)) + 1):
        calls = np.flatnonzero(forest.depth == level)
        pairs = np.stack((gather(found, forest.parent[calls]), module_id[calls]))
        distinct, inverse = np.unique(pairs, axis=1, return_inverse=True)
        index = []
        for parent, module in distinct.T.tolist():
            trace, name, class_name = modules[module]
            # The place of that name among the parent and those around it.
            above = parent
            while above >= 0 and places[above].name != name:
                above = places[above].parent
            if above >= 0:
                index.append(above)
                continue
            segment = name
            if parent >= 0:
                segment = names.get((trace, places[parent].name, name)) or name
            key = (parent, name, segment)
            if key not in known:
                known[key] = len(places)
                depth = places[parent].depth + 1 if parent >= 0 else 0
                places.append(ModulePlace(parent, depth, name, segment, class_name))
            index.append(known[key])
        found[calls] = np.array(index, dtype=np.int64)[inverse.reshape(-1)]
    return places, found


def module_paths(places: list[ModulePlace]) -> list[str]:
    paths: list[str] = []
    for place in places:
        paths.append(f"{paths[place.parent]}.{place.segment}" if place.parent >= 0 else place.segment)
    return paths


def _module_totals(
    places: list[ModulePlace], calls: list[int], figures: Int64, *, is_host: bool
) -> tuple[ModuleTotal, ...]:
    """Totals of all places, each before those inside it, the one with more time first."""
    self_ns, totals, inside = figures[0].tolist(), figures.copy(), defaultdict(list)
    paths = module_paths(places)
    for index, place in enumerate(places):
        inside[place.parent].append(index)
    # Each place comes after the one around it, so from the end every subtree is whole when it is added.
    for index in range(len(places) - 1, -1, -1):
        if places[index].parent >= 0:
            totals[:, places[index].parent] += totals[:, index]
    found, pending = [], [-1]
    while pending:
        index = pending.pop()
        if index >= 0:
            one, (total_ns, *rest) = places[index], totals[:, index].tolist()
            own, none = (self_ns[index], total_ns), (0, 0)
            device, cpu = (none, own) if is_host else (own, none)
            named = paths[index], one.class_name, one.depth, calls[index]
            found.append(ModuleTotal(*named, *device, *rest, *cpu))
        # The last one is taken first.
        pending += sorted(
            inside[index], key=lambda one: (-totals[0, one], natural_order(places[one].segment)), reverse=True
        )
    return tuple(found)


# Columns that charging works on: operators, activities, links and launch points, as arrays.
#
# Operators stand in the order of their ids, which is preorder, so that an operator is its position; every
# reference to one is such a position, -1 for none. Threads and ids are unique over all traces of a Session.

_AT_ONCE = 1 << 20  # operators


class Operators(Columns, frozen=True):
    """All operators of a Session in preorder."""

    first_id: int  # operator_id of position 0
    trace: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    depth: Int64  # 0 without a parent
    engine: Int64  # the innermost operator, itself included, that autograd's engine ran
    forward: Int64  # the forward operator it differentiates, if it is a backward one


class ProgramActivities(Columns, frozen=True):
    """All device activities of a Session in the order of their ids."""

    trace: Int64
    operator: Int64
    call_thread: Int64  # thread of the call that launched it
    call_start_ns: Int64
    duration_ns: Int64
    is_kernel: Flags


def read_operators(session: Session) -> Operators:
    rows = columns(session, sql(__package__, "program:operators"), order_by="operator_id")
    links = columns(session, sql(__package__, "program:links"), order_by="backward_id")
    first_id = int(rows["operator_id"][0]) if len(rows["operator_id"]) else 0
    del rows["operator_id"]
    rows["end_ns"] = rows.pop("duration_ns")
    rows["end_ns"] += rows["start_ns"]
    count = len(rows["start_ns"])
    # Of a long trace these are the largest arrays of all.
    place = np.int32 if count < 1 << 31 else np.int64
    parent = rows.pop("parent_id")
    parent[parent >= 0] -= first_id
    parent = parent.astype(place)
    forward: Any = np.full(count, NONE, dtype=place)
    forward[links["backward_id"] - first_id] = links["forward_id"] - first_id
    by_engine = np.where(rows.pop("is_backward") | (forward >= 0), np.arange(count, dtype=place), place(-1))
    engine = inherit(by_engine, parent, rows["depth"])
    return Operators(first_id=first_id, parent=parent, engine=engine, forward=forward, **rows)


def read_activities(session: Session, first_operator_id: int, *, of_host: bool = False) -> ProgramActivities:
    """The activities, with the point each was launched at; of the host each operator's own time is one."""
    query = sql(__package__, "program:host_work" if of_host else "program:activities")
    rows = columns(session, query, order_by="activity_id")
    del rows["activity_id"]
    rows["operator"] = np.where(rows["operator"] >= 0, rows["operator"] - first_operator_id, NONE)
    return ProgramActivities(**rows)


def call_forest(thread: Int64, start_ns: Int64, end_ns: Int64, sequence: Int64) -> Forest:
    """Call trees of intervals; `sequence` orders equal ones, the outer one first."""
    # Clocks that tick in microseconds let a child end up to one tick after its parent.
    ticks_us = not np.any(start_ns % 1000) and not np.any(end_ns % 1000)
    return nest(thread, start_ns, end_ns - start_ns, sequence, tolerance_ns=1000 if ticks_us else 0)


def inherit(own: Int64, parent: Int64, depth: Int64) -> Int64:
    """The value of the innermost of a forest around each, itself included, that has one; -1 for none."""
    found: Int64 = own.copy()
    if not len(found) or not np.any(own >= 0):
        return found
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(bounds) - 1):
        here = by_depth[bounds[level] : bounds[level + 1]]
        lacking = here[found[here] < 0]
        found[lacking] = found[parent[lacking]]
    return found


def within(forest: Forest, operators: Operators) -> Int64:
    """Innermost interval open at each operator's start, as a position in the forest; -1 for none.

    For what the engine ran only intervals count that were opened inside of it.
    """
    place = np.full(len(operators), NONE)
    for low in range(0, len(operators), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        found = enclosing(forest, operators.thread[part], operators.start_ns[part])
        place[part] = _inside(forest, found, operators, operators.engine[part])
    return place


def _inside(forest: Forest, place: Int64, operators: Operators, around: Int64) -> Int64:
    """The places that were opened inside an operator each, -1 for the others; all stay where it is -1."""
    asked = np.flatnonzero((place >= 0) & (around >= 0))
    call, operator = place[asked], around[asked]
    is_inside = forest.thread[call] == operators.thread[operator]
    is_inside &= forest.start_ns[call] >= operators.start_ns[operator]
    kept: Int64 = place.copy()
    kept[asked[~is_inside]] = NONE
    return kept
