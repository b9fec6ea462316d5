"""Places of nn.Modules: which instance was called inside which others, as a tree of paths.

A place is a path of recorded names. Calls that differ only in time, step or rank share one; a module called
inside its own call (recursion) keeps the place it has there, so paths stay finite.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np

from opscope.analysis.columns import NONE, Flags, sum_by
from opscope.analysis.program.recorded import ProgramActivities
from opscope.analysis.program.values import ModuleTotal
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64
from opscope.model.session import Session

# Name of a module in its caller, by (trace, name of the caller's module, own recorded name); None if unknown.
AttributeName = Callable[[int, str, str], str | None]


class ModulePlace(msgspec.Struct, frozen=True):
    """One place."""

    parent: int  # index of the place around it; -1 for none
    depth: int  # places above it
    name: str  # the recorder's name of the module
    segment: str  # its part of the path: the attribute it is reached by, else the recorder's name
    class_name: str  # its class


def read_modules(session: Session) -> dict[int, tuple[int, str, str]]:
    rows = session.query("SELECT module_id, trace_id, name, class_name FROM modules")
    return {module_id: (trace, name, class_name) for module_id, trace, name, class_name in rows}


def module_places(
    forest: Forest,
    module_id: Int64,
    modules: dict[int, tuple[int, str, str]],
    attribute_name: AttributeName = lambda *_: None,
) -> tuple[list[ModulePlace], Int64]:
    """The places of module calls.

    Returns:
        The places, each after the one around it, and the place of each call.
    """
    places: list[ModulePlace] = []
    known: dict[tuple[int, str, str], int] = {}
    found = np.full(len(forest), NONE)
    levels = int(forest.depth.max()) + 1 if len(forest) else 0
    for level in range(levels):
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
                segment = attribute_name(trace, places[parent].name, name) or name
            key = (parent, name, segment)
            if key not in known:
                known[key] = len(places)
                depth = places[parent].depth + 1 if parent >= 0 else 0
                places.append(ModulePlace(parent, depth, name, segment, class_name))
            index.append(known[key])
        found[calls] = np.array(index, dtype=np.int64)[inverse.reshape(-1)]
    return places, found


def module_totals(
    places: list[ModulePlace],
    place_of_call: Int64,
    charged: Int64,
    activities: ProgramActivities,
    backward: Flags,
) -> tuple[ModuleTotal, ...]:
    """Totals of all places, in tree order.

    `charged` is the place of each activity, -1 for none; `backward` whether the engine launched it.
    """
    count = len(places)
    self_ns = sum_by(charged, activities.duration_ns, count)
    forward_ns = sum_by(np.where(backward, NONE, charged), activities.duration_ns, count)
    kernels = sum_by(charged, activities.is_kernel.astype(np.int64), count)
    calls = np.bincount(place_of_call, minlength=count).tolist()
    totals = np.stack((self_ns, forward_ns, self_ns - forward_ns, kernels))
    # Each place comes after the one around it, so from the end every subtree is whole when it is added.
    for index in range(count - 1, -1, -1):
        if places[index].parent >= 0:
            totals[:, places[index].parent] += totals[:, index]
    paths: list[str] = []
    for place in places:
        paths.append(f"{paths[place.parent]}.{place.segment}" if place.parent >= 0 else place.segment)
    # Each before those inside it, the one with more time first.
    figures, inside = totals.T.tolist(), defaultdict(list)
    for index, place in enumerate(places):
        inside[place.parent].append(index)
    found, pending = [], [-1]
    while pending:
        index = pending.pop()
        if index >= 0:
            one = places[index]
            own = calls[index], int(self_ns[index])
            found.append(ModuleTotal(paths[index], one.class_name, one.depth, *own, *figures[index]))
        # The last one is taken first.
        pending += sorted(
            inside[index], key=lambda one: (-figures[one][0], _natural(places[one].segment)), reverse=True
        )
    return tuple(found)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that orders `layer.2` before `layer.10`."""
    parts = re.split(r"(\d{1,18})", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
