"""Stacks with weights: who called whom down to the kernel, and how much device time, host time or launches.

Python frames, modules and operators nest as they were open; the kernel is the leaf. The weights of a trace
sum to all its device time (or launches, or the time its threads spent in what is shown), to the nanosecond:
what has no operator or no stack stands under a root that says so, in square brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opscope.analysis.program.call_paths import CallPaths, PathTree
from opscope.analysis.program.recorded import (
    NONE,
    Activities,
    Bools,
    Operators,
    call_forest,
    columns,
    inherit,
    read_activities,
    read_operators,
)
from opscope.analysis.program.stack_intervals import frame_intervals, operator_intervals
from opscope.analysis.queries import sql
from opscope.attribution.linking import gather
from opscope.attribution.nesting import Forest, Int64, children_time, enclosing
from opscope.errors import InputError
from opscope.model.session import Session
from opscope.text_enum import TextEnum

__all__ = ["BackwardPlace", "StackBasis", "StackProfile", "StackWeight", "stack_profiles"]

_BACKWARD = "[backward]"


class StackBasis(TextEnum):
    """What stands above the operators."""

    PYTHON = "python"
    MODULE = "module"
    OPERATOR = "operator"


class StackWeight(TextEnum):
    """What is counted."""

    DEVICE = "device"
    CPU = "cpu"
    LAUNCHES = "launches"


class BackwardPlace(TextEnum):
    """Where what autograd's engine called stands: where it ran, or under the forward operator."""

    OWN = "own"
    FORWARD = "forward"


@dataclass(frozen=True)
class StackProfile:
    """The stacks of one trace.

    Attributes:
        name: Of the trace.
        names: What stacks are made of, shared by all profiles of a Session.
        stacks: Each as positions in `names`, outermost first; in the order of their names.
        weights: Nanoseconds of each, or launches.
        unit: `nanoseconds` or `none`, as speedscope calls them.
    """

    name: str
    names: Sequence[str]
    stacks: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]
    unit: str

    @property
    def total(self) -> int:
        """Sum of the weights."""
        return sum(self.weights)


def stack_profiles(
    session: Session,
    *,
    by: StackBasis | None = None,
    weight: StackWeight = StackWeight.DEVICE,
    backward: BackwardPlace | None = None,
    step: int | None = None,
) -> tuple[StackProfile, ...]:
    """The stacks of each trace that has any.

    Args:
        session: The recording.
        by: What stands above the operators; if None, Python frames where they were recorded.
        weight: What is counted.
        backward: Where the backward pass stands; by module under the forward operators, else where it ran, if
            None.
        step: Only what was launched in this step (of host time, what was spent in it).

    Raises:
        InputError: What is asked for was not recorded.
    """
    basis = _basis(session, by)
    windows = _windows(session, step)
    if weight is not StackWeight.CPU and not session.scalar("SELECT EXISTS (FROM device_activities)"):
        raise InputError("no device activity was recorded", hint="Use --weight cpu for host time")
    if backward is None:
        backward = BackwardPlace.FORWARD if basis is StackBasis.MODULE else BackwardPlace.OWN
    stacks = _Stacks(session, basis, windows if weight is StackWeight.CPU else None)
    nodes = stacks.nodes(backward)
    if weight is StackWeight.CPU:
        trace, leaf, weights = stacks.host(nodes)
    else:
        trace, leaf, weights = stacks.launched(nodes, weight, step)
    profiles = _profiles(session, stacks.tree, (trace, leaf, weights), weight)
    if not profiles:
        what = "host time" if weight is StackWeight.CPU else "device activity"
        raise InputError(f"no {what} was recorded" + (f" in step {step}" if step is not None else ""))
    return profiles


def _basis(session: Session, by: StackBasis | None) -> StackBasis:
    has_frames, has_modules, has_texts = session.query(
        "SELECT EXISTS (FROM frames), EXISTS (FROM modules), "
        "EXISTS (SELECT 1 FROM operators WHERE call_stack IS NOT NULL)"
    )[0]
    if by is None:
        return StackBasis.PYTHON if has_frames or has_texts else StackBasis.OPERATOR
    if by is StackBasis.PYTHON and not (has_frames or has_texts):
        raise InputError(
            "no Python stacks were recorded",
            hint="Use --by operator, or record again with with_stack=True (opscope run --with-stack)",
        )
    if by is StackBasis.MODULE and not has_modules:
        raise InputError(
            "no calls of modules were recorded",
            hint="Use --by operator, or record again with with_modules=True (opscope run --with-modules)",
        )
    return by


def _windows(session: Session, step: int | None) -> dict[int, tuple[int, int]] | None:
    """Start and end of a step by trace; None for all of the recording."""
    if step is None:
        return None
    rows = session.query(
        "SELECT trace_id, start_ns, start_ns + duration_ns FROM steps WHERE step = ?", [step]
    )
    if not rows:
        known = [number for (number,) in session.query("SELECT DISTINCT step FROM steps ORDER BY step")]
        hint = f"The steps are {', '.join(map(str, known))}" if known else "No steps were recorded"
        raise InputError(f"there is no step {step}", hint=hint)
    return {trace: (start_ns, end_ns) for trace, start_ns, end_ns in rows}


class _Stacks:
    """Call forest of a Session with the names of stacks.

    Args:
        session: The Session.
        basis: What stands above the operators.
        windows: What to cut the intervals to, by trace; None for all.
    """

    def __init__(
        self, session: Session, basis: StackBasis, windows: dict[int, tuple[int, int]] | None
    ) -> None:
        self.tree = PathTree()
        self._session = session
        self._basis = basis
        self._operators: Operators = read_operators(session)
        intervals = operator_intervals(session, self._operators, self.tree)
        if basis is not StackBasis.OPERATOR:
            is_module = basis is StackBasis.MODULE
            intervals = intervals.joined(frame_intervals(session, self.tree, only_modules=is_module))
        if windows is not None:
            intervals = intervals.within(windows)
        self._forest: Forest = call_forest(
            intervals.thread, intervals.start_ns, intervals.end_ns, intervals.sequence
        )
        self._intervals = intervals.chosen(self._forest.order)

    def nodes(self, backward: BackwardPlace) -> Int64:
        """The path of each interval, in preorder."""
        paths = CallPaths(self.tree, self._forest, self._intervals.name_id, self._roots())
        if backward is BackwardPlace.OWN:
            return paths.where_they_ran()
        operator = self._intervals.operator
        forward = gather(self._operators.forward, operator)
        # The engine's range and the operator in it differentiate the same; the outer one is hung.
        outside = gather(self._operators.forward, gather(self._operators.parent, operator))
        forward = np.where(outside == forward, NONE, forward)
        return paths.hung(gather(self._interval_of(), forward), _BACKWARD)

    def host(self, node: Int64) -> tuple[Int64, Int64, Int64]:
        """Trace, path and own time of each interval."""
        own_ns = self._forest.end_ns - self._forest.start_ns - children_time(self._forest)
        return self._intervals.trace, node, own_ns

    def launched(self, node: Int64, weight: StackWeight, step: int | None) -> tuple[Int64, Int64, Int64]:
        """Trace, path and weight of each activity, those of one step alone if it is given."""
        activities = read_activities(self._session, self._operators.first_id)
        rows = columns(self._session, sql("program/stack_activities"), order_by="activity_id")
        counted = activities.is_kernel if weight is StackWeight.LAUNCHES else np.ones(len(rows["step"]), bool)
        if step is not None:
            counted &= rows["step"] == step
        above = gather(node, self._callers(activities))
        reasons, which = np.unique(rows["reason"].astype(str), return_inverse=True)
        unattributed = self.tree.name_ids(f"[unattributed: {reason}]" for reason in reasons.tolist())
        lost = np.flatnonzero((above < 0) & counted)
        above[lost] = self.tree.under(np.full(len(lost), NONE), unattributed[which[lost]])
        leaf = self.tree.under(above[counted], self._kernel_names(rows["name_id"][counted]))
        weights = np.ones(len(leaf), np.int64)
        if weight is StackWeight.DEVICE:
            weights = activities.duration_ns[counted]
        return activities.trace[counted], leaf, weights

    def _roots(self) -> Int64:
        """What an operator with nothing above it hangs under."""
        root = np.full(len(self._forest), NONE)
        if self._basis is StackBasis.OPERATOR:
            return root
        what = "module" if self._basis is StackBasis.MODULE else "Python stack"
        bare = (self._forest.parent < 0) & (self._intervals.operator >= 0)
        root[bare] = self.tree.node(-1, self.tree.name_id(f"[no {what}]"))
        if self._basis is StackBasis.PYTHON:
            self._hang_under_texts(root, bare)
        return root

    def _hang_under_texts(self, root: Int64, bare: Bools) -> None:
        """In the oldest format an operator carries its stack as text, the innermost frame first."""
        rows = columns(self._session, sql("program/operator_stacks"), order_by="operator_id")
        if not len(rows["operator_id"]):
            return
        texts = self._session.query("SELECT DISTINCT hash(call_stack), call_stack FROM operators")
        node_of = {key: self._node_of_text(text) for key, text in texts if text is not None}
        keys, inverse = np.unique(rows["stack_hash"], return_inverse=True)
        node = np.full(len(self._operators), NONE)
        nodes = np.array([node_of[key] for key in keys.tolist()], np.int64)
        node[rows["operator_id"] - self._operators.first_id] = nodes[inverse]
        own = gather(node, np.where(bare, self._intervals.operator, NONE))
        root[own >= 0] = own[own >= 0]

    def _node_of_text(self, text: str) -> int:
        node = -1
        for name in reversed(text.split(";")):
            node = self.tree.node(node, self.tree.name_id(name))
        return node

    def _callers(self, activities: Activities) -> Int64:
        """The interval each activity was launched in; -1 for none."""
        intervals, forest = self._intervals, self._forest
        caller = gather(self._interval_of(), activities.operator)
        # Frames that an operator opened may lie between it and the launch; other operators may not.
        called = enclosing(forest, activities.call_thread, activities.call_start_ns)
        around = gather(inherit(intervals.operator, forest.parent, forest.depth), called)
        return np.where((called >= 0) & (around == activities.operator), called, caller)

    def _interval_of(self) -> Int64:
        """The interval of each operator; -1 for none."""
        found = np.full(len(self._operators), NONE)
        shown = np.flatnonzero(self._intervals.operator >= 0)
        found[self._intervals.operator[shown]] = shown
        return found

    def _kernel_names(self, name_id: Int64) -> Int64:
        names = dict(self._session.query("SELECT name_id, name FROM kernel_names"))
        return self.tree.named(name_id, names)


def _profiles(
    session: Session, tree: PathTree, samples: tuple[Int64, Int64, Int64], weight: StackWeight
) -> tuple[StackProfile, ...]:
    """The samples by trace, equal stacks added up, empty ones left out."""
    trace, leaf, weights = samples
    unit = "none" if weight is StackWeight.LAUNCHES else "nanoseconds"
    rank_of = {at: rank for rank, at in enumerate(sorted(range(len(tree.names)), key=tree.names.__getitem__))}
    found = []
    for one, source, rank in session.query("SELECT trace_id, source, rank FROM traces ORDER BY trace_id"):
        own = trace == one
        sums = np.bincount(leaf[own], weights=weights[own]).astype(np.int64)
        stacks = {tree.path(node): int(sums[node]) for node in np.flatnonzero(sums).tolist()}
        if stacks:
            name = re.split(r"[/\\]", source)[-1] if rank is None else f"rank {rank}"
            order = sorted(stacks, key=lambda stack: [rank_of[frame] for frame in stack])
            weights_in_order = tuple(stacks[stack] for stack in order)
            found.append(StackProfile(name, tree.names, tuple(order), weights_in_order, unit))
    return tuple(found)
