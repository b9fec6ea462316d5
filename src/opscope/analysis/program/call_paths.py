"""A tree of distinct call paths: every interval of a call forest becomes a node named like its stack.

Two intervals share a node exactly if their stacks read the same. A subtree may be hung elsewhere than where
it ran: what the backward pass called, under the forward operator it differentiates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from opscope.analysis.program.recorded import NONE, Bools, inherit
from opscope.attribution.linking import gather
from opscope.attribution.nesting import Forest, Int64

__all__ = ["CallPaths", "PathTree"]


class PathTree:
    """Distinct paths. A node is a path: a name under the node of the path before it; -1 is the empty path.

    Attributes:
        names: Distinct names; a node refers to one by its position.
        parents: Node before each node.
        labels: Name of each node.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.parents: list[int] = []
        self.labels: list[int] = []
        self._name_ids: dict[str, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}

    def name_id(self, name: str) -> int:
        """Position of a name, added if new."""
        if name not in self._name_ids:
            self._name_ids[name] = len(self.names)
            self.names.append(name)
        return self._name_ids[name]

    def name_ids(self, names: Iterable[str]) -> Int64:
        """Positions of names."""
        return np.array([self.name_id(name) for name in names], dtype=np.int64)

    def named(self, key: Int64, names: Mapping[int, str]) -> Int64:
        """Position of the name of each key."""
        keys, inverse = np.unique(key, return_inverse=True)
        return self.name_ids(names[one] for one in keys.tolist())[inverse]

    def node(self, parent: int, name_id: int) -> int:
        """The node of a name under another node, added if new."""
        key = (parent, name_id)
        if key not in self._nodes:
            self._nodes[key] = len(self.parents)
            self.parents.append(parent)
            self.labels.append(name_id)
        return self._nodes[key]

    def under(self, parent: Int64, name_id: Int64) -> Int64:
        """The nodes of names under nodes."""
        distinct, inverse = np.unique(np.stack((parent, name_id)), axis=1, return_inverse=True)
        nodes = np.array([self.node(*pair) for pair in distinct.T.tolist()], dtype=np.int64)
        return nodes[inverse.reshape(-1)]

    def path(self, node: int) -> tuple[int, ...]:
        """Positions of the names on a path, the outermost first."""
        labels = []
        while node >= 0:
            labels.append(self.labels[node])
            node = self.parents[node]
        return tuple(reversed(labels))


@dataclass(frozen=True)
class CallPaths:
    """Gives the intervals of a forest their paths.

    Attributes:
        tree: Takes the paths.
        forest: The intervals.
        name_id: Name of each, in preorder.
        root: Node that each interval without a parent hangs under; -1 for none.
    """

    tree: PathTree
    forest: Forest
    name_id: Int64
    root: Int64

    def where_they_ran(self) -> Int64:
        """The node of each interval."""
        node = np.full(len(self.forest), NONE)
        self._descend(node, np.ones(len(node), dtype=np.bool_))
        return node

    def hung(self, target: Int64, marker: str) -> Int64:
        """The node of each interval, some of them with their subtrees hung under other intervals.

        Args:
            target: Interval that each is hung under; -1 where it stays.
            marker: Name of the node between the two.
        """
        node = np.full(len(self.forest), NONE)
        own = np.where(target >= 0, np.arange(len(node)), NONE)
        unit = inherit(own, self.forest.parent, self.forest.depth)
        self._descend(node, unit < 0)
        waiting = np.flatnonzero(target >= 0)
        marker_id = self.tree.name_id(marker)
        while len(waiting):
            ready = waiting[node[target[waiting]] >= 0]
            if not len(ready):
                break
            above = self.tree.under(node[target[ready]], np.full(len(ready), marker_id))
            node[ready] = self.tree.under(above, self.name_id[ready])
            self._descend(node, np.isin(unit, ready) & (own < 0))
            waiting = waiting[node[waiting] < 0]
        # What waits for itself, as no sound trace has it, stays where it ran.
        self._descend(node, node < 0)
        return node

    def _descend(self, node: Int64, chosen: Bools) -> None:
        """Fill in the nodes of the chosen intervals, whose parents are chosen or have theirs."""
        at = np.flatnonzero(chosen)
        if not len(at):
            return
        at = at[np.argsort(self.forest.depth[at], kind="stable")]
        bounds = np.flatnonzero(np.diff(self.forest.depth[at], prepend=-1, append=-1))
        for low, high in pairwise(bounds.tolist()):
            here = at[low:high]
            parent = self.forest.parent[here]
            above = np.where(parent >= 0, gather(node, parent), self.root[here])
            node[here] = self.tree.under(above, self.name_id[here])
