"""Lines of the user's program: which function, and where known which line of it, every call was made from.

The places are frames of the program's own functions, and calls made by them from a known line. Library
frames are no places, so what a library launches is charged to the line that called it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opscope.analysis.program.charging import sum_by
from opscope.analysis.program.recorded import NONE, Activities, Bools, inherit
from opscope.analysis.program.values import LineKind, LineTotal
from opscope.attribution.nesting import Forest, Int64
from opscope.model.program_files import FrameName, is_program_file, parse_frame

__all__ = ["Line", "innermost_line", "line_totals", "lines_of_frames"]


@dataclass(frozen=True)
class Line:
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
    lines: list[Line], charged: Int64, activities: Activities, backward: Bools
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
