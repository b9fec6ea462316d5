"""Device time by nn.Module and by source line of the program, forward and backward.

Σ self time over modules = `module_ns` and over lines = `line_ns`, to the nanosecond, neither above all device
time: every activity is charged to one place or to none.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from opscope.analysis.arrays import NONE, Flags, columns
from opscope.analysis.program.places import (
    Frames,
    LineTotal,
    ModuleTotal,
    ProgramStructure,
    ProgramTotals,
    innermost_line,
    line_totals,
    lines_of_frames,
    module_places,
    module_totals,
    read_frames,
    read_modules,
    read_structure,
)
from opscope.analysis.program.recorded import (
    BackwardCalls,
    charge,
    inherit,
    read_activities,
    read_operators,
    within,
)
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
    """Operators and activities of a Session, and which activities autograd's engine launched.

    Where no device was recorded (`is_host`), the work is what operators do themselves on the CPU.
    """

    def __init__(self, session: Session) -> None:
        self.operators = read_operators(session)
        self.activities = read_activities(session, self.operators.first_id)
        self.is_host = not len(self.activities)
        if self.is_host:
            self.activities = read_activities(session, self.operators.first_id, of_host=True)
        self.backward: Flags = gather(self.operators.engine, self.activities.operator) >= 0

    def charged(self, frames: Frames, forest: Forest) -> Int64:
        """The call each activity is charged to, as a position in the forest."""
        calls = frames.at(frames.is_backward_call)
        calls = calls.at(np.argsort(calls.start_ns, kind="stable"))
        place = enclosing(forest, calls.thread, calls.start_ns)
        made = BackwardCalls(calls.trace, calls.start_ns, calls.end_ns, place)
        at_operator = within(forest, self.operators)
        return charge(self.operators, self.activities, at_operator, forest, made)


def _modules(
    session: Session, recorded: _Recorded, frames: Frames, structure: ProgramStructure
) -> tuple[ModuleTotal, ...]:
    forest, calls = frames.nested(frames.module_id >= 0)
    places, place_of_call = module_places(
        forest, calls.module_id, read_modules(session), structure.attribute_name
    )
    charged = gather(place_of_call, recorded.charged(frames, forest))
    totals = module_totals(places, place_of_call, charged, recorded.activities, recorded.backward)
    if not recorded.is_host:
        return totals
    return tuple(
        replace(
            one,
            self_device_ns=0,
            total_device_ns=0,
            self_cpu_ns=one.self_device_ns,
            total_cpu_ns=one.total_device_ns,
        )
        for one in totals
    )


def _lines(recorded: _Recorded, frames: Frames) -> tuple[LineTotal, ...]:
    forest, calls = frames.nested((frames.function >= 0) | (frames.line >= 0))
    lines, line_of_frame = lines_of_frames(forest, calls)
    charged = gather(line_of_frame, recorded.charged(frames, forest))
    return line_totals(lines, charged, recorded.activities, recorded.backward)


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
