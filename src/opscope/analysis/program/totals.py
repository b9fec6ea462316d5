"""Device time by nn.Module and by source line of the program, forward and backward.

Σ self time over modules = `module_ns` and over lines = `line_ns`, to the nanosecond, neither above all device
time: every activity is charged to one place or to none.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from opscope.analysis.program.frames import (
    Frames,
    ProgramStructure,
    innermost_line,
    line_totals,
    lines_of_frames,
    read_frames,
    read_structure,
)
from opscope.analysis.program.modules import module_places, module_totals, read_modules
from opscope.analysis.program.recorded import (
    NONE,
    BackwardCalls,
    Bools,
    Operators,
    ProgramActivities,
    charge,
    columns,
    inherit,
    is_backward,
    read_activities,
    read_operators,
    within,
)
from opscope.analysis.program.values import LineTotal, ModuleTotal, ProgramTotals
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, enclosing
from opscope.model.queries import sql
from opscope.model.session import Session


def program_totals(session: Session) -> ProgramTotals:
    """Device time by module and by line; empty where neither modules nor stacks were recorded."""
    has_frames, has_modules, has_texts = session.query(
        "SELECT EXISTS (FROM frames), EXISTS (FROM modules), "
        "EXISTS (SELECT 1 FROM operators WHERE call_stack IS NOT NULL)"
    )[0]
    if not has_frames and not has_texts:
        return ProgramTotals()
    recorded = _Recorded(session)
    modules: tuple[ModuleTotal, ...] = ()
    lines: tuple[LineTotal, ...] = ()
    if has_frames:
        structure = read_structure(session)
        frames = read_frames(session, structure)
        modules = _modules(session, recorded, frames, structure) if has_modules else ()
        lines = () if recorded.is_host else _lines(recorded, frames)
    if has_texts and not lines and not recorded.is_host:
        lines = _lines_of_texts(session, recorded)
    return ProgramTotals(
        modules,
        lines,
        sum(module.self_cpu_ns if recorded.is_host else module.self_device_ns for module in modules),
        sum(line.self_device_ns for line in lines),
        has_modules,
        has_stacks=True,
    )


class _Recorded:
    """Operators and activities of a Session, and which activities the engine launched.

    Where no device was recorded (`is_host`), the work is what operators do themselves on the CPU.
    """

    def __init__(self, session: Session) -> None:
        self.operators: Operators = read_operators(session)
        self.activities: ProgramActivities = read_activities(session, self.operators.first_id)
        self.is_host = not len(self.activities.operator)
        if self.is_host:
            self.activities = read_activities(session, self.operators.first_id, of_host=True)
        self.backward: Bools = is_backward(self.operators, self.activities)


def _modules(
    session: Session, recorded: _Recorded, frames: Frames, structure: ProgramStructure
) -> tuple[ModuleTotal, ...]:
    forest, at = frames.nested(frames.module_id >= 0)
    places, place_of_call = module_places(
        forest, frames.module_id[at], read_modules(session), structure.attribute_name
    )
    charged = _charged(recorded, frames, forest)
    totals = module_totals(
        places, place_of_call, gather(place_of_call, charged), recorded.activities, recorded.backward
    )
    return tuple(map(_of_host, totals)) if recorded.is_host else totals


def _of_host(total: ModuleTotal) -> ModuleTotal:
    return replace(
        total,
        self_device_ns=0,
        total_device_ns=0,
        self_cpu_ns=total.self_device_ns,
        total_cpu_ns=total.total_device_ns,
    )


def _lines(recorded: _Recorded, frames: Frames) -> tuple[LineTotal, ...]:
    forest, at = frames.nested((frames.function >= 0) | (frames.line >= 0))
    lines, line_of_frame = lines_of_frames(
        forest, frames.function[at], frames.line[at], frames.is_running[at], frames.functions
    )
    charged = gather(line_of_frame, _charged(recorded, frames, forest))
    return line_totals(lines, charged, recorded.activities, recorded.backward)


def _charged(recorded: _Recorded, frames: Frames, forest: Forest) -> Int64:
    """The call each activity is charged to, as a position in the forest."""
    operators, activities = recorded.operators, recorded.activities
    calls = _backward_calls(frames, forest)
    return charge(operators, activities, within(forest, operators), forest, calls)


def _backward_calls(frames: Frames, forest: Forest) -> BackwardCalls:
    at = np.flatnonzero(frames.is_backward_call)
    at = at[np.argsort(frames.start_ns[at], kind="stable")]
    start_ns = frames.start_ns[at]
    place = enclosing(forest, frames.thread[at], start_ns)
    return BackwardCalls(frames.trace[at], start_ns, start_ns + frames.duration_ns[at], place)


def _lines_of_texts(session: Session, recorded: _Recorded) -> tuple[LineTotal, ...]:
    """Lines of the oldest format, which keeps each operator's stack as text."""
    texts = dict(
        session.query("SELECT hash(call_stack), any_value(call_stack) FROM operators GROUP BY call_stack")
    )
    found = {key: innermost_line(text) for key, text in texts.items() if text is not None}
    lines = sorted(
        {line for line in found.values() if line is not None},
        key=lambda line: (line.file, line.line, line.function),
    )
    index = {line: position for position, line in enumerate(lines)}
    rows = columns(session, sql(__package__, "program:operator_stacks"), order_by="operator_id")
    keys, inverse = np.unique(rows["stack_hash"], return_inverse=True)
    of_key = np.array([index.get(found[key], -1) for key in keys.tolist()], dtype=np.int64)  # type: ignore[arg-type]
    operators = recorded.operators
    own = np.full(len(operators), NONE)
    own[rows["operator_id"] - operators.first_id] = of_key[inverse]
    around = inherit(np.where(own >= 0, np.arange(len(own)), NONE), operators.parent, operators.depth)
    # As with frames: of what the engine ran, only stacks that were taken inside of it count.
    at_operator = gather(own, np.where(around >= operators.engine, around, NONE))
    charged = charge(operators, recorded.activities, at_operator, None)
    return line_totals(lines, charged, recorded.activities, recorded.backward)
