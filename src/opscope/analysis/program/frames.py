"""Recorded Python calls that work is charged to: the program's functions, calls from known lines, modules.

Read from the Session as arrays; what opscope's own recordings know beyond the trace (whose files, which
attribute, which line) comes from their sidecars, everything else is judged by names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

import msgspec
import numpy as np

from opscope.analysis.program.recorded import (
    NONE,
    Bools,
    ProgramActivities,
    call_forest,
    columns,
    inherit,
    sum_by,
)
from opscope.analysis.program.values import LineKind, LineTotal
from opscope.ingest.nesting import Forest, Int64
from opscope.model.files import UNREADABLE_JSON
from opscope.model.location import FrameName, is_program_file, parse_frame
from opscope.model.queries import sql
from opscope.model.session import Session, registered
from opscope.model.sidecar import RecordedStructure


class _Sidecar(msgspec.Struct):
    """The one field of a kept sidecar that is read here."""

    structure: RecordedStructure | None = None


class ProgramStructure(msgspec.Struct, frozen=True, dict=True):
    """What the recording programs noted of themselves, by trace, and each trace's time zero."""

    by_trace: dict[int, RecordedStructure]
    base_time_ns: dict[int, int]

    @cached_property
    def _names(self) -> dict[tuple[int, str, str], str]:
        return {
            (trace, module.parent, module.child): module.name
            for trace, structure in self.by_trace.items()
            for module in structure.modules
        }

    def attribute_name(self, trace: int, parent: str, child: str) -> str | None:
        """Name by which a module is an attribute of the one that called it; None if unknown."""
        return self._names.get((trace, parent, child))

    def is_program_file(self, file: str) -> bool:
        """Whether a file is the program's own: as noted where any trace noted it, else by its name."""
        noted = list(self.by_trace.values())
        return any(file in one.files for one in noted) if noted else is_program_file(file)

    def calls(self) -> dict[str, Int64]:
        """Calls made from known lines of the program, as columns trace_id, start_ns and line."""
        noted = self.by_trace.items()
        return {
            "trace_id": _joined(np.full(len(one.call_lines), trace) for trace, one in noted),
            "start_ns": _joined(
                np.array(one.call_starts_ns, np.int64) + (one.origin_ns - self.base_time_ns.get(trace, 0))
                for trace, one in noted
            ),
            "line": _joined(np.array(one.call_lines, np.int64) for _, one in noted),
        }


class Frames(msgspec.Struct, frozen=True):
    """Frames as columns, in no order; what does not apply is -1.

    Attributes:
        trace: Trace of each.
        thread: Its thread.
        start_ns: Its start.
        duration_ns: Its duration.
        sequence: Order of opening.
        module_id: Its module, if it is a module's call.
        function: Position in `functions`, if it is a call of a function of the program.
        line: Line of the program it was called from, where known.
        is_backward_call: Whether it runs a backward pass.
        is_running: Whether it was already running when recording began.
        functions: Functions of the program.
    """

    trace: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    sequence: Int64
    module_id: Int64
    function: Int64
    line: Int64
    is_backward_call: Bools
    is_running: Bools
    functions: list[FrameName]

    def nested(self, chosen: Bools) -> tuple[Forest, Int64]:
        """Call trees of some frames, and the position among all frames of each tree position."""
        at = np.flatnonzero(chosen)
        start_ns = self.start_ns[at]
        end_ns = start_ns + self.duration_ns[at]
        forest = call_forest(self.thread[at], start_ns, end_ns, self.sequence[at])
        return forest, at[forest.order]


def read_structure(session: Session) -> ProgramStructure:
    """What the sidecars of a Session say of the programs' structure."""
    rows = session.query("SELECT key, value FROM metadata WHERE starts_with(key, 'sidecar:') ORDER BY key")
    kept: dict[int, RecordedStructure | None] = {}
    for key, value in rows:
        with suppress(*UNREADABLE_JSON):  # a saved session may be a stranger's
            kept[int(key.removeprefix("sidecar:"))] = msgspec.json.decode(value, type=_Sidecar).structure
    bases = dict(session.query("SELECT trace_id, coalesce(base_time_ns, 0) FROM traces"))
    return ProgramStructure({trace: one for trace, one in kept.items() if one is not None}, bases)


def program_functions(session: Session, structure: ProgramStructure) -> dict[str, FrameName]:
    """Functions of the program by their recorded names."""
    parsed = {
        name: (frame, is_outermost)
        for name, is_outermost in session.query(sql(__package__, "program:functions"))
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
    """The frames that work is charged to."""
    functions = program_functions(session, structure)
    names = {
        "name": np.array(list(functions), dtype=object),
        "function_index": np.arange(len(functions), dtype=np.int64),
    }
    with registered(session.connection, program_functions=names, program_calls=structure.calls()):
        rows = columns(session, sql(__package__, "program:frames"), order_by="frame_id")
    first_calls = dict(session.query(sql(__package__, "program:first_calls")))
    first_call_ns = np.full(int(rows["trace_id"].max(initial=0)) + 1, np.iinfo(np.int64).min)
    for trace, start_ns in first_calls.items():
        first_call_ns[trace : trace + 1] = start_ns
    return Frames(
        rows["trace_id"],
        rows["thread"],
        rows["start_ns"],
        rows["duration_ns"],
        rows["sequence"],
        rows["module_id"],
        rows["function_index"],
        rows["line"],
        rows["is_backward_call"],
        rows["start_ns"] < first_call_ns[rows["trace_id"]],
        list(functions.values()),
    )


def _joined(parts: Iterator[Int64]) -> Int64:
    return np.concatenate([np.empty(0, np.int64), *parts])


class Line(msgspec.Struct, frozen=True):
    """A line as LineTotal describes it."""

    file: str
    line: int
    function: str
    kind: LineKind
    calls: int | None


def lines_of_frames(
    forest: Forest, function_index: Int64, call_line: Int64, is_running: Bools, functions: list[FrameName]
) -> tuple[list[Line], Int64]:
    """The line of each frame, as an index into the distinct ones.

    Args:
        forest: Frames of program functions, and other calls that were made from known lines.
        function_index: Function of each frame, in preorder; -1 for the other calls.
        call_line: Line each was called from; -1 if unknown.
        is_running: Whether each was already running when recording began.
        functions: The functions.

    Returns:
        The lines, and the line of each frame; -1 for a call whose caller is not among the frames.
    """
    is_function = function_index >= 0
    function = inherit(function_index, forest.parent, forest.depth)
    executed = np.where(is_function, NONE, call_line)
    keys = np.stack((function, executed, np.where(is_function, is_running, 0)))
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    calls = np.bincount(function_index[is_function], minlength=len(functions)).tolist()
    lines: list[Line] = []
    index = []
    for where, line, running in distinct.T.tolist():
        if where < 0:
            index.append(-1)
            continue
        index.append(len(lines))
        name = functions[where]
        if line >= 0:
            lines.append(Line(name.file, line, name.function, LineKind.EXECUTED, calls[where]))
        else:
            kind = LineKind.RUNNING if running else LineKind.FUNCTION
            lines.append(Line(name.file, name.line, name.function, kind, calls[where]))
    return lines, np.array(index, dtype=np.int64)[inverse.reshape(-1)]


def innermost_line(call_stack: str) -> Line | None:
    """The innermost frame of the program in a stack as text, `inner;…;outer`, each at its current line."""
    for text in call_stack.split(";"):
        name = parse_frame(text)
        if name is not None and is_program_file(name.file):
            return Line(name.file, name.line, name.function, LineKind.EXECUTED, None)
    return None


def line_totals(
    lines: list[Line], charged: Int64, activities: ProgramActivities, backward: Bools
) -> tuple[LineTotal, ...]:
    """Totals of the lines under which something was launched, most device time first.

    Args:
        lines: The lines.
        charged: Line of each activity; -1 for none.
        activities: The activities.
        backward: Whether each was launched by the engine.
    """
    count = len(lines)
    self_ns = sum_by(charged, count, activities.duration_ns)
    forward_ns = sum_by(np.where(backward, NONE, charged), count, activities.duration_ns)
    kernels = sum_by(charged, count, activities.is_kernel.astype(np.int64))
    used = np.flatnonzero(np.bincount(charged[charged >= 0], minlength=count))
    totals = [
        LineTotal(
            lines[index].file,
            lines[index].line,
            lines[index].function,
            lines[index].calls,
            int(self_ns[index]),
            int(forward_ns[index]),
            int(self_ns[index] - forward_ns[index]),
            int(kernels[index]),
            lines[index].kind,
        )
        for index in used.tolist()
    ]
    return tuple(sorted(totals, key=lambda line: (-line.self_device_ns, line.file, line.line, line.function)))
