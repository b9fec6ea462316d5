"""Stacks with weights: who called whom down to the kernel, and how much device time or host time.

Python frames, modules and operators nest as they were open; the kernel is the leaf. The weights of a trace
sum to all its device time (or the time its threads spent in what is shown), to the nanosecond: what has no
operator or no stack stands under a root that says so, in square brackets. Above modules the backward pass
stands under the forward operators that it differentiates, else where it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from opscope.analysis.arrays import NONE, Arrays, Flags, columns
from opscope.analysis.program.places import (
    call_forest,
    inherit,
    module_places,
    read_activities,
    read_operators,
    read_structure,
    recorded_places,
)
from opscope.errors import InputError
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, children_time, enclosing
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.text_enum import TextEnum


class PathTree:
    """Distinct paths: a node is the name at a position under the node before it, -1 for none."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # with their positions
        self.nodes: dict[tuple[int, int], int] = {}  # by the node before it and its name

    def name_id(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def name_ids(self, names: Iterable[str]) -> Int64:
        return np.array([self.name_id(name) for name in names], dtype=np.int64)

    def named(self, key: Int64, names: Mapping[int, str]) -> Int64:
        keys, inverse = np.unique(key, return_inverse=True)
        return self.name_ids(names[one] for one in keys.tolist())[inverse]

    def node(self, parent: int, name_id: int) -> int:
        return self.nodes.setdefault((parent, name_id), len(self.nodes))

    def under(self, parent: Int64, name_id: Int64) -> Int64:
        distinct, inverse = np.unique(np.stack((parent, name_id)), axis=1, return_inverse=True)
        nodes = np.array([self.node(*pair) for pair in distinct.T.tolist()], dtype=np.int64)
        return nodes[inverse.reshape(-1)]


# Of a bound method; it would split the stacks of one function by the object it was called on.
_OBJECT_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+>")
_AFTER_FRAMES = 1 << 61


def _frame_intervals(session: Session, tree: PathTree, *, only_modules: bool) -> Arrays:
    """Python frames, or calls of modules alone; modules by their attribute names where these are known."""
    query = sql(__package__, "program:stack_frames")
    condition = "module_id IS NOT NULL" if only_modules else "true"
    rows = columns(session, query.format(condition=condition), order_by="frame_id")
    names = session.query("SELECT DISTINCT hash(coalesce(name, '')), coalesce(name, '') FROM frames")
    rows["name_id"] = tree.named(
        rows.pop("name_hash"), {key: _OBJECT_ADDRESS.sub(">", name) for key, name in names}
    )
    rows["operator"] = np.full(len(rows.pop("frame_id")), NONE)
    module_id, structure = rows.pop("module_id"), read_structure(session)
    at = np.flatnonzero(module_id >= 0)
    if structure.by_trace and len(at):
        forest = _forest({name: column[at] for name, column in rows.items()})
        at = at[forest.order]
        places, place_of_call = module_places(session, structure, forest, module_id[at])
        named = (one.name if one.segment == one.name else f"{one.segment} ({one.name})" for one in places)
        rows["name_id"][at] = tree.name_ids(f"nn.Module: {name}" for name in named)[place_of_call]
    return rows


def _forest(of: Arrays) -> Forest:
    return call_forest(of["thread"], of["start_ns"], of["end_ns"], of["sequence"])


class StackBasis(TextEnum):
    PYTHON = "python"
    MODULE = "module"
    OPERATOR = "operator"


class StackWeight(TextEnum):
    DEVICE = "device"
    CPU = "cpu"


class StackProfile(msgspec.Struct, frozen=True):
    name: str  # of the trace
    names: Sequence[str]  # what stacks are made of, shared by all profiles of a Session
    # Each as positions in `names`, outermost first; in the order of their names
    stacks: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]  # nanoseconds of each

    @property
    def total(self) -> int:
        return sum(self.weights)


def stack_profiles(
    session: Session, *, by: StackBasis | None = None, weight: StackWeight = StackWeight.DEVICE
) -> tuple[StackProfile, ...]:
    """The stacks of each trace that has any.

    Above the operators stand Python frames where they were recorded, unless `by` says otherwise.
    """
    is_host = weight is StackWeight.CPU
    stacks = _Stacks(session, _basis(session, by))
    if not is_host and not session.holds("device_activities"):
        raise InputError("no device activity was recorded", hint="Use --weight cpu for host time")
    profiles = _profiles(session, stacks.tree, stacks.host() if is_host else stacks.launched())
    if not profiles:
        raise InputError("no host time was recorded")
    return profiles


def _basis(session: Session, by: StackBasis | None) -> StackBasis:
    has_frames, has_modules = recorded_places(session)
    if by is None:
        return StackBasis.PYTHON if has_frames else StackBasis.OPERATOR
    if by is StackBasis.PYTHON and not has_frames:
        raise InputError(
            "no Python stacks were recorded",
            hint="Use --by operator, or record again with with_stack=True (opscope run --record stack)",
        )
    if by is StackBasis.MODULE and not has_modules:
        raise InputError(
            "no calls of modules were recorded",
            hint="Use --by operator, or record again with with_modules=True (opscope run --record modules)",
        )
    return by


class _Stacks:
    """Call forest of a Session with the names of stacks."""

    def __init__(self, session: Session, basis: StackBasis) -> None:
        self.tree = PathTree()
        self._session, self._basis = session, basis
        self._operators = read_operators(session)
        # Operators, in the columns that frames have too; `operator` is the position, -1 of a frame.
        query = "SELECT operator_id, hash(coalesce(name, '')) AS name_hash FROM operators"
        name_hash = columns(session, query, order_by="operator_id")["name_hash"]
        names = dict(
            session.query("SELECT DISTINCT hash(coalesce(name, '')), coalesce(name, '') FROM operators")
        )
        at, one = np.arange(len(self._operators)), self._operators
        found = {
            "trace": one.trace,
            "thread": one.thread,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "sequence": at + _AFTER_FRAMES,
            "name_id": self.tree.named(name_hash, names),
            "operator": at,
        }
        if basis is not StackBasis.OPERATOR:
            frames = _frame_intervals(session, self.tree, only_modules=basis is StackBasis.MODULE)
            found = {name: np.concatenate((column, frames[name])) for name, column in found.items()}
        self._forest = _forest(found)
        self._trace, self._name_id, self._operator = (
            found[name][self._forest.order] for name in ("trace", "name_id", "operator")
        )

    def _nodes(self) -> Int64:
        """The path of each interval, in preorder."""
        node, root = np.full((2, len(self._forest)), NONE)
        if self._basis is not StackBasis.OPERATOR:
            what = "module" if self._basis is StackBasis.MODULE else "Python stack"
            bare = (self._forest.parent < 0) & (self._operator >= 0)
            root[bare] = self.tree.node(-1, self.tree.name_id(f"[no {what}]"))
        if self._basis is not StackBasis.MODULE:
            self._descend(node, root, np.ones(len(node), dtype=np.bool_))
            return node
        # What the engine ran, with its subtree, is hung under the forward operator.
        forward = gather(self._operators.forward, self._operator)
        # The engine's range and the operator in it differentiate the same; the outer one is hung.
        outside = gather(self._operators.forward, gather(self._operators.parent, self._operator))
        target = gather(self._interval_of(), np.where(outside == forward, NONE, forward))
        own = np.where(target >= 0, np.arange(len(node)), NONE)
        unit = inherit(own, self._forest.parent, self._forest.depth)
        self._descend(node, root, unit < 0)
        waiting, marker = np.flatnonzero(target >= 0), self.tree.name_id("[backward]")
        while len(ready := waiting[node[target[waiting]] >= 0]):
            above = self.tree.under(node[target[ready]], np.full(len(ready), marker))
            node[ready] = self.tree.under(above, self._name_id[ready])
            self._descend(node, root, np.isin(unit, ready) & (own < 0))
            waiting = waiting[node[waiting] < 0]
        # What waits for itself, as no sound trace has it, stays where it ran.
        self._descend(node, root, node < 0)
        return node

    def _descend(self, node: Int64, root: Int64, chosen: Flags) -> None:
        """Fill in the nodes of the chosen intervals, whose parents are chosen or have theirs."""
        at = np.flatnonzero(chosen)
        at = at[np.argsort(self._forest.depth[at], kind="stable")]
        bounds = np.flatnonzero(np.diff(self._forest.depth[at], prepend=-1, append=-1))
        for low, high in pairwise(bounds.tolist()):
            here = at[low:high]
            parent = self._forest.parent[here]
            above = np.where(parent >= 0, gather(node, parent), root[here])
            node[here] = self.tree.under(above, self._name_id[here])

    def host(self) -> tuple[Int64, Int64, Int64]:
        """Trace, path and own time of each interval."""
        forest = self._forest
        return self._trace, self._nodes(), forest.end_ns - forest.start_ns - children_time(forest)

    def launched(self) -> tuple[Int64, Int64, Int64]:
        """Trace, path and time of each activity."""
        activities = read_activities(self._session, self._operators.first_id)
        rows = columns(self._session, sql(__package__, "program:stack_activities"), order_by="activity_id")
        # Frames that an operator opened may lie between it and the launch; other operators may not.
        called = enclosing(self._forest, activities.call_thread, activities.call_start_ns)
        around = gather(inherit(self._operator, self._forest.parent, self._forest.depth), called)
        caller = gather(self._interval_of(), activities.operator)
        caller = np.where((called >= 0) & (around == activities.operator), called, caller)
        above = gather(self._nodes(), caller)
        reasons, which = np.unique(rows["reason"].astype(str), return_inverse=True)
        unattributed = self.tree.name_ids(f"[unattributed: {reason}]" for reason in reasons.tolist())
        lost = np.flatnonzero(above < 0)
        above[lost] = self.tree.under(np.full(len(lost), NONE), unattributed[which[lost]])
        names = dict(self._session.known("SELECT name_id, name FROM kernel_names"))
        leaf = self.tree.under(above, self.tree.named(rows["name_id"], names))
        return activities.trace, leaf, activities.duration_ns

    def _interval_of(self) -> Int64:
        """The interval of each operator; -1 for none."""
        found = np.full(len(self._operators), NONE)
        shown = np.flatnonzero(self._operator >= 0)
        found[self._operator[shown]] = shown
        return found


def _profiles(
    session: Session, tree: PathTree, samples: tuple[Int64, Int64, Int64]
) -> tuple[StackProfile, ...]:
    """The samples by trace, equal stacks added up, empty ones left out."""
    trace, leaf, weights = samples
    names, pairs = list(tree.names), list(tree.nodes)
    rank_of = {at: rank for rank, at in enumerate(sorted(range(len(names)), key=names.__getitem__))}

    def path(node: int) -> tuple[int, ...]:
        labels = []
        while node >= 0:
            node, label = pairs[node]
            labels.append(label)
        return tuple(reversed(labels))

    found = []
    for one, source, rank in session.query("SELECT trace_id, source, rank FROM traces ORDER BY trace_id"):
        own = trace == one
        sums = np.bincount(leaf[own], weights=weights[own]).astype(np.int64)
        stacks = {path(node): int(sums[node]) for node in np.flatnonzero(sums).tolist()}
        if stacks:
            name = re.split(r"[/\\]", source)[-1] if rank is None else f"rank {rank}"
            order = sorted(stacks, key=lambda stack: [rank_of[frame] for frame in stack])
            found.append(StackProfile(name, names, tuple(order), tuple(stacks[stack] for stack in order)))
    return tuple(found)
