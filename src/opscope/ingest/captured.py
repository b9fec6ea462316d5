"""Captured CUDA graphs, from the staged events of a trace: each launch in its order, inside its operators.

While a stream captures, launch calls are recorded and no device activity follows them. What Kineto keeps of a
launch differs: on AMD its kernel's name and grid, on NVIDIA neither, so there the nodes that the driver told
(`model.sidecar.GraphNode`) or the operator that is named after its kernel fill in.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest import linking, nesting
from opscope.ingest.linking import CallKind
from opscope.ingest.nesting import Forest, Int64
from opscope.ingest.staging import REPEATED, StagedEvents, columns, module_calls, unmasked
from opscope.model.queries import sql
from opscope.model.schema import ReplaySource
from opscope.model.sidecar import GraphNode

Demangle = Callable[[str], str | None]  # Kineto's text of a mangled name
_GENERATED = "triton_"
_NONE = -1


class CapturedLaunch(msgspec.Struct, frozen=True):
    kind: str  # `kernel`, `memcpy` or `memset`
    name: str | None = None  # Of the kernel, as the trace would show it; None if nothing tells
    grid: str | None = None  # Blocks, as a trace writes them; None if not recorded
    block: str | None = None  # Threads, likewise
    number: int | None = None  # Id of its node in the graph; None if the driver told none
    event: int = _NONE  # Index of its innermost operator among the capture's events; -1 for none
    # What it has in common with launches of other calls: operator, arguments, and which launch of the
    # operator it is. Launches of one place run one kernel
    place: int = _NONE


class CapturedEvent(msgspec.Struct, frozen=True):
    """An operator, or the call of a module, that launched something: its first launch and its last.

    `columns` are its name and arguments, by the names of their columns.
    """

    category: str
    first: int
    last: int
    columns: dict[str, Any]


class Capture(msgspec.Struct, frozen=True):
    """What one graph is made of. Events come outermost first."""

    source: ReplaySource  # Where it is known from
    file: str  # The trace it was read from
    launches: tuple[CapturedLaunch, ...]  # In their order
    events: tuple[CapturedEvent, ...]  # Those around them


def captured_phases(events: StagedEvents, source: ReplaySource, file: str) -> tuple[Capture, ...]:
    """One capture for each stretch in which a stream was captured, in order of time; empty ones left out."""
    return tuple(Capture(source, file, *one) for one in _Staged(events).phases() if one[0])


def with_nodes(capture: Capture, nodes: Sequence[GraphNode] | None, demangle: Demangle | None) -> Capture:
    """A capture with what the driver told of its nodes, where these are as many and of the same kinds."""
    if nodes is None or [one.kind for one in nodes] != [one.kind for one in capture.launches]:
        return capture
    launches = []
    for launch, node in zip(capture.launches, nodes, strict=True):
        name = node.name
        if name is not None and name.startswith("_Z"):
            name = demangle(name) if demangle is not None else None
        grid, block = (None if sizes is None else json.dumps(sizes) for sizes in (node.grid, node.block))
        launches.append(
            msgspec.structs.replace(
                launch, name=launch.name if name is None else name, number=node.number,
                grid=launch.grid or grid, block=launch.block or block,
            )
        )  # fmt: skip
    return msgspec.structs.replace(capture, launches=tuple(launches))


_Phase = tuple[tuple[CapturedLaunch, ...], tuple[CapturedEvent, ...]]
# Whose grid is given in threads.
_GLOBAL_SIZE = re.compile(r"hip(?:Hcc|Ext)ModuleLaunchKernel")


class _Staged:
    """The staged calls, operators and modules of a trace, nested and linked."""

    def __init__(self, events: StagedEvents) -> None:
        self._events = events
        placed = ("row_id", "thread_key", "start_ns", "duration_ns")
        operators = columns(events.rows["operator"], *placed, "external_id")
        modules = columns(map(module_calls, events.rows["frame"]), *placed)
        found = events.session.connection.execute(sql(__package__, "kineto:captured_calls")).fetchnumpy()
        order = np.argsort(found["row_id"], kind="stable")
        self._calls: dict[str, npt.NDArray[Any]] = {
            name: unmasked(column)[order] for name, column in found.items()
        }
        self._calls["kind"] = np.array([*map(linking.kind_of_call, self._calls["name"])], dtype=np.int64)
        placed_rows = (operators, modules, self._calls)
        threads = np.unique(np.concatenate([one["thread_key"] for one in placed_rows]))
        for one in placed_rows:
            one["thread"] = np.searchsorted(threads, one["thread_key"])
        self._operators, self._operator_rows = _nested(operators, operators["external_id"])
        self._modules, self._module_rows = _nested(modules, modules["row_id"])
        self._call_operator = self._linked(operators["external_id"][self._operators.order])
        self._call_module = nesting.enclosing(self._modules, self._calls["thread"], self._calls["start_ns"])

    def phases(self) -> Iterator[_Phase]:
        calls = self._calls
        free = np.isin(calls["kind"], linking.OWN_LAUNCHES) & (calls["was_executed"] == 0)
        stretches = list(_stretches(calls))
        for begin, end, thread in stretches:
            alone = not any(b < end and begin < e and t != thread for b, e, t in stretches)
            inside = free & (calls["start_ns"] > begin) & (calls["start_ns"] < end)
            yield self._phase(np.flatnonzero(inside & (alone | (calls["thread"] == thread))), begin)

    def _phase(self, calls: Int64, begin_ns: int) -> _Phase:
        calls = calls[np.argsort(self._calls["start_ns"][calls], kind="stable")]
        spans: list[tuple[str, int, int, int, int]] = []
        for category, forest, rows, owners in (
            ("cpu_op", self._operators, self._operator_rows, self._call_operator),
            ("python_function", self._modules, self._module_rows, self._call_module),
        ):
            for position, (first, last) in _covered(forest, owners[calls]).items():
                if forest.start_ns[position] >= begin_ns:
                    spans.append((category, first, -last, position, int(rows[position])))
        # Preorder positions put the outer of equal ones first.
        spans.sort(key=lambda one: (one[1], one[2], one[0] == "cpu_op", one[3]))
        told = self._told(np.array([row for *_, row in spans], dtype=np.int64))
        owner_key = {one[3]: index for index, one in enumerate(spans) if one[0] == "cpu_op"}
        events = [
            CapturedEvent(category, first, -last, told.get(row, {}))
            for category, first, last, _, row in spans
        ]
        return tuple(self._launches(calls, owner_key, events)), tuple(events)

    def _launches(
        self, calls: Int64, owners: dict[int, int], events: list[CapturedEvent]
    ) -> Iterator[CapturedLaunch]:
        places: dict[Any, int] = {}
        counts: dict[int, int] = {}
        for call in calls.tolist():
            position = int(self._call_operator[call])
            event = owners.get(position, _NONE)
            kind = CallKind(self._calls["kind"][call])
            nth = counts[position] = counts.get(position, -1) + 1
            fields = events[event].columns if event >= 0 else {}
            key = (fields.get("name"), fields.get("input_shapes"), fields.get("input_types"), nth)
            place = places.setdefault(key, len(places)) if event >= 0 else _NONE
            name = self._calls["kernel"][call] or None
            if name is None and str(fields.get("name")).startswith(_GENERATED):
                name = fields["name"]
            grid, block = self._calls["grid"][call], self._calls["block"][call]
            if _GLOBAL_SIZE.match(self._calls["name"][call]):
                grid = _in_blocks(grid, block)
            yield CapturedLaunch(
                kind.name.lower(), name if kind is CallKind.KERNEL else None, grid or None, block or None,
                event=event, place=place,
            )  # fmt: skip

    def _linked(self, external_id: Int64) -> Int64:
        calls = self._calls
        none = np.empty(0, dtype=np.int64)
        links = linking.link(
            self._operators,
            external_id,
            linking.Calls(
                calls["thread"], calls["start_ns"], calls["correlation_id"], calls["external_id"],
                np.zeros(len(calls["thread"]), dtype=bool),
            ),
            linking.Activities(none, none, none),
        )  # fmt: skip
        return links.call_operator

    def _told(self, row_id: Int64) -> dict[int, dict[str, Any]]:
        """What a replay repeats of operators and calls of modules, by their rows."""
        found: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, wanted in REPEATED.items():
            for part in self._events.rows[name]:
                for row in part.taken(np.isin(part.integers("row_id"), row_id)).records():
                    if name != "detail" or "kernel_backend" in row:
                        found[row["row_id"]] |= {key: row[key] for key in wanted if key in row}
        return found


def _nested(rows: dict[str, npt.NDArray[Any]], sequence: Int64) -> tuple[Forest, Int64]:
    forest = nesting.nest(rows["thread"], rows["start_ns"], rows["duration_ns"], sequence)
    return forest, rows["row_id"][forest.order]


def _stretches(calls: dict[str, npt.NDArray[Any]]) -> Iterator[tuple[int, int, int]]:
    """Start, end and thread of each stretch of capturing; one that never ends lasts to the end."""
    opened: dict[int, int] = {}
    order = np.argsort(calls["start_ns"], kind="stable")
    for index in order.tolist():
        thread, start_ns = int(calls["thread"][index]), int(calls["start_ns"][index])
        if calls["kind"][index] == CallKind.BEGIN_CAPTURE:
            opened.setdefault(thread, start_ns)
        elif calls["kind"][index] == CallKind.END_CAPTURE and thread in opened:
            yield opened.pop(thread), start_ns, thread
    for thread, start_ns in opened.items():
        yield start_ns, int(np.iinfo(np.int64).max), thread


def _covered(forest: Forest, owners: Int64) -> dict[int, tuple[int, int]]:
    """First and last launch of each interval around the launches that it owns itself or by others."""
    found: dict[int, tuple[int, int]] = {}
    for launch, owner in enumerate(owners.tolist()):
        position = owner
        while position >= 0:
            first = found.get(position, (launch, launch))[0]
            found[position] = (first, launch)
            position = int(forest.parent[position])
    return found


def _in_blocks(grid: str | None, block: str | None) -> str | None:
    """Threads of a grid as blocks; None where they do not divide."""
    try:
        threads, sizes = json.loads(grid or ""), json.loads(block or "")
        blocks = [-(-whole // part) for whole, part in zip(threads, sizes, strict=True)]
    except (ValueError, TypeError, ZeroDivisionError):
        return None
    return json.dumps(blocks)
