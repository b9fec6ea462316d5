"""Which operator call launched what ncu profiled: launches matched by name, grid, block and order.

ncu numbers launches of a run that is not the recorded one, so an index proves nothing. A launch whose like in
the recording all come of calls alike belongs to such a call; else the profiled launches, in their order, must
occur in the recording, and wherever they do, in the same call. What neither settles stays open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from opscope.analysis.cost.session_costs import cost_of_row, fill_costs
from opscope.analysis.counters.values import CountedKernel, Match, RecordedCall
from opscope.analysis.queries import sql
from opscope.model.session import Session
from opscope.provenance.demangle import demangle
from opscope.provenance.kernel_names import decode
from opscope.toolchain.ncu.report import Extent, KernelCounters, NcuReport

__all__ = ["join_counters", "recorded_name"]

Kind = tuple[str, Extent | None, Extent | None]
_UNKNOWN = -1


@dataclass(frozen=True)
class _Launch:
    kind: Kind
    duration_ns: int
    step: int | None
    call_id: int
    is_launch_recorded: bool


@dataclass(frozen=True)
class _Recording:
    """Launches of the kernels asked for, those alike together, and their calls by id."""

    launches: Sequence[_Launch]
    alike: Mapping[Kind, Sequence[_Launch]]
    calls: Mapping[int, RecordedCall]
    steps: int


def recorded_name(kernel: KernelCounters) -> str:
    """A kernel's name as Kineto writes it, which is not how ncu demangles.

    Where this machine cannot demangle, ncu's own text.
    """
    if not kernel.mangled_name.startswith("_Z"):
        return kernel.mangled_name or kernel.name
    return demangle(kernel.mangled_name) or kernel.name


def join_counters(report: NcuReport, session: Session | None = None) -> tuple[CountedKernel, ...]:
    """The kernels of a report, in order, with the calls of a recording that launched them."""
    names = [recorded_name(kernel) for kernel in report.kernels]
    if session is None:
        pairs = zip(report.kernels, names, strict=True)
        return tuple(CountedKernel(kernel, name, decode(name)) for kernel, name in pairs)
    recording = _recording(session, names)
    kinds = [(name, kernel.grid, kernel.block) for kernel, name in zip(report.kernels, names, strict=True)]
    by_order = _by_order(kinds, recording.launches)
    return tuple(
        _counted(kernel, kind, recording, call_id)
        for kernel, kind, call_id in zip(report.kernels, kinds, by_order, strict=True)
    )


def _recording(session: Session, names: Sequence[str]) -> _Recording:
    launches = _launches(session, names)
    alike: dict[Kind, list[_Launch]] = defaultdict(list)
    for launch in launches:
        alike[launch.kind].append(launch)
    steps = session.scalar("SELECT count(DISTINCT (trace_id, step)) FROM steps")
    calls = _calls(session, {launch.call_id for launch in launches})
    return _Recording(launches, alike, calls, int(steps))


def _launches(session: Session, names: Sequence[str]) -> list[_Launch]:
    fill_costs(session)
    rows = session.query(sql("counted_launches"), [sorted(set(names))])
    return [_Launch((name, extent(rest[0:3]), extent(rest[3:6])), *rest[6:]) for name, *rest in rows]


def extent(sizes: Sequence[int | None]) -> Extent | None:
    """Blocks or threads along x, y and z; None where one is unknown."""
    x, y, z = sizes
    return None if x is None or y is None or z is None else (x, y, z)


def _calls(session: Session, call_ids: set[int]) -> dict[int, RecordedCall]:
    rows = session.records(sql("counted_calls"), [sorted(call_ids)])
    return {
        row["call_id"]: RecordedCall(
            operator=row["operator"],
            overload=row["overload"],
            shapes=row["shapes"],
            types=row["types"],
            concrete=row["concrete"],
            calls=row["calls"],
            attribution=row["attribution"],
            activities_per_call=row["activities"] / row["calls"],
            cost=cost_of_row(row),
        )
        for row in rows
    }


def _by_order(kinds: Sequence[Kind], launches: Sequence[_Launch]) -> list[int | None]:
    """The call of each profiled launch, where every place the sequence occurs at agrees on it."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(launch.kind for launch in launches))}
    wanted = [numbers[kind] for kind in kinds if kind in numbers]
    recorded = np.array([numbers[launch.kind] for launch in launches], dtype=np.int64)
    starts = np.arange(max(0, len(recorded) - len(wanted) + 1))
    for offset, number in enumerate(wanted):
        starts = starts[recorded[starts + offset] == number]
    call_ids = np.array(
        [launch.call_id if launch.is_launch_recorded else _UNKNOWN for launch in launches], dtype=np.int64
    )
    found: list[int | None] = []
    for offset in range(len(wanted)):
        calls = np.setdiff1d(call_ids[starts + offset], [_UNKNOWN])
        found.append(int(calls[0]) if len(calls) == 1 else None)
    places = iter(found)
    return [next(places) if kind in numbers else None for kind in kinds]


def _counted(
    kernel: KernelCounters, kind: Kind, recording: _Recording, call_by_order: int | None
) -> CountedKernel:
    alike = recording.alike.get(kind, ())
    # What was launched before the recording began has an operator too, only not a recorded one.
    alike = [launch for launch in alike if launch.is_launch_recorded] or alike
    match, call_id = _match({launch.call_id for launch in alike}, call_by_order)
    of_call = [launch for launch in alike if call_id is None or launch.call_id == call_id]
    operators = {recording.calls[launch.call_id].operator for launch in of_call}
    in_steps = sum(launch.step is not None for launch in of_call)
    return CountedKernel(
        counters=kernel,
        name=kind[0],
        decoded=decode(kind[0]),
        match=match,
        call=None if call_id is None else recording.calls[call_id],
        operators=tuple(sorted(name for name in operators if name is not None)),
        launches=len(of_call),
        launches_per_step=in_steps / recording.steps if recording.steps and in_steps else None,
        recorded_ns=median_low(launch.duration_ns for launch in of_call) if of_call else None,
    )


def _match(call_ids: set[int], call_by_order: int | None) -> tuple[Match, int | None]:
    if not call_ids:
        return Match.NOT_RECORDED, None
    if len(call_ids) == 1:
        return Match.SAME_CALL, next(iter(call_ids))
    if call_by_order is not None:
        return Match.ORDER, call_by_order
    return Match.AMBIGUOUS, None
