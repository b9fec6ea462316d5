"""What stands in stacks: operators and Python frames as intervals with readable names.

Frames and operators of a thread nest in each other by time; equal ones by `sequence`, frames outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from opscope.analysis.program.call_paths import PathTree
from opscope.analysis.program.frames import read_structure
from opscope.analysis.program.modules import module_places, read_modules
from opscope.analysis.program.recorded import NONE, Operators, call_forest, columns
from opscope.analysis.queries import sql
from opscope.attribution.nesting import Int64
from opscope.model.session import Session

__all__ = ["Intervals", "frame_intervals", "operator_intervals"]

# Of a bound method; it would split the stacks of one function by the object it was called on.
_OBJECT_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+>")
_AFTER_FRAMES = 1 << 61


@dataclass(frozen=True)
class Intervals:
    """Frames and operators as columns; `operator` is a position, -1 for a frame."""

    trace: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    sequence: Int64
    name_id: Int64
    operator: Int64

    def chosen(self, at: Int64) -> Intervals:
        """Those at some positions."""
        return Intervals(*(getattr(self, name)[at] for name in self.__dataclass_fields__))

    def joined(self, other: Intervals) -> Intervals:
        """These and others."""
        return Intervals(
            *(
                np.concatenate((getattr(self, name), getattr(other, name)))
                for name in self.__dataclass_fields__
            )
        )

    def within(self, windows: dict[int, tuple[int, int]]) -> Intervals:
        """What of them lies in a window of their trace; without a window, nothing does."""
        low, high = np.ones(len(self.trace), np.int64), np.zeros(len(self.trace), np.int64)
        for trace, (start_ns, end_ns) in windows.items():
            low[self.trace == trace], high[self.trace == trace] = start_ns, end_ns
        cut = replace(self, start_ns=np.maximum(self.start_ns, low), end_ns=np.minimum(self.end_ns, high))
        return cut.chosen(np.flatnonzero(cut.end_ns > cut.start_ns))


def operator_intervals(session: Session, operators: Operators, tree: PathTree) -> Intervals:
    """All operators, named as recorded."""
    query = "SELECT operator_id, hash(coalesce(name, '')) AS name_hash FROM operators"
    name_hash = columns(session, query, order_by="operator_id")["name_hash"]
    names = dict(session.query("SELECT DISTINCT hash(coalesce(name, '')), coalesce(name, '') FROM operators"))
    at = np.arange(len(operators))
    return Intervals(
        operators.trace,
        operators.thread,
        operators.start_ns,
        operators.end_ns,
        at + _AFTER_FRAMES,
        tree.named(name_hash, names),
        at,
    )


def frame_intervals(session: Session, tree: PathTree, *, only_modules: bool) -> Intervals:
    """Python frames, or calls of modules alone; modules by their attribute names where these are known."""
    condition = "module_id IS NOT NULL" if only_modules else "true"
    rows = columns(session, sql("program/stack_frames").format(condition=condition), order_by="frame_id")
    names = {
        key: _OBJECT_ADDRESS.sub(">", name)
        for key, name in session.query(
            "SELECT DISTINCT hash(coalesce(name, '')), coalesce(name, '') FROM frames"
        )
    }
    frames = Intervals(
        rows["trace_id"],
        rows["thread"],
        rows["start_ns"],
        rows["start_ns"] + rows["duration_ns"],
        rows["sequence"],
        tree.named(rows["name_hash"], names),
        np.full(len(rows["frame_id"]), NONE),
    )
    return _with_attribute_names(session, tree, frames, rows["module_id"])


def _with_attribute_names(session: Session, tree: PathTree, frames: Intervals, module_id: Int64) -> Intervals:
    structure = read_structure(session)
    at = np.flatnonzero(module_id >= 0)
    if not structure.by_trace or not len(at):
        return frames
    calls = frames.chosen(at)
    forest = call_forest(calls.thread, calls.start_ns, calls.end_ns, calls.sequence)
    at = at[forest.order]
    places, place_of_call = module_places(
        forest, module_id[at], read_modules(session), structure.attribute_name
    )
    names = [
        place.name if place.segment == place.name else f"{place.segment} ({place.name})" for place in places
    ]
    name_id = frames.name_id.copy()
    name_id[at] = tree.name_ids(f"nn.Module: {name}" for name in names)[place_of_call]
    return replace(frames, name_id=name_id)
