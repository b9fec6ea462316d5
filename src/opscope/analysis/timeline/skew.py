"""Which rank the others wait for: collectives matched across ranks, and how long each rank waits in them.

A collective ends on all ranks together and cannot begin before the last has arrived, so a rank's kernel takes
longer than the shortest of that collective by the time it waited. That compares durations, never clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

import msgspec

from opscope.analysis.timeline.device_windows import TraceWindow
from opscope.analysis.timeline.values import RankSkew, SkewEvidence
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names import decode

__all__ = [
    "RankDifference",
    "collective_waits",
    "matched_collectives",
    "more_than_others",
    "rank_skews",
]

# Transfers of one collective differ from rank to rank by a few percent; by less, nobody is called last.
_CLEARLY_LAST = 0.1
# Between two ranks only: the others do not take part, and one side may rightly take longer.
_POINT_TO_POINT = frozenset(("send", "recv", "SendRecv"))


class _Kernel(msgspec.Struct, frozen=True):
    """A collective's kernel on one rank. `members` and `collective` are None where they were not recorded."""

    trace_id: int
    activity_id: int
    kernel: str
    step: int | None
    duration_ns: int
    collective: str | None
    members: str | None
    sequence: int | None
    element_count: int | None

    @property
    def title(self) -> str | None:
        """Which collective, by the record or else by the kernel's name."""
        return self.collective or decode(self.kernel).collective


def rank_skews(
    session: Session, ranks: Mapping[int, int | None], windows: Mapping[int, TraceWindow]
) -> tuple[RankSkew, ...]:
    """How each rank arrived, compared with the other ranks of the Session.

    Empty unless the traces are of different, known ranks and collectives of theirs could be matched.

    Args:
        session: The Session.
        ranks: Rank of each trace, by trace id.
        windows: Their windows: of traces with steps, collectives of these count.
    """
    found, evidence = _collectives(session, ranks, windows)
    return _summed(found, ranks, evidence)


def matched_collectives(session: Session, ranks: Mapping[int, int | None]) -> list[dict[int, int]]:
    """Activities that are one collective each, by trace id; none where ranks or collectives are unknown."""
    found, _ = _collectives(session, ranks, {})
    return [{one.trace_id: one.activity_id for one in run} for run in found]


def collective_waits(
    session: Session, ranks: Mapping[int, int | None], windows: Mapping[int, TraceWindow]
) -> dict[tuple[int, str], int]:
    """How long the kernels of each trace waited, by trace id and collective: the parts of `waiting_ns`."""
    found, _ = _collectives(session, ranks, windows)
    waits: Counter[tuple[int, str]] = Counter()
    for run in found:
        shortest_ns = min(one.duration_ns for one in run)
        for one in run:
            waits[one.trace_id, one.title or ""] += one.duration_ns - shortest_ns
    return dict(waits)


class RankDifference(NamedTuple):
    """What an operator has in a step of one rank beyond the median of the other ranks."""

    name: str
    device_ns: float
    host_ns: float
    calls: float


def more_than_others(
    session: Session,
    trace_id: int,
    others: Sequence[int],
    steps: Mapping[int, int],
    left_out: Iterable[tuple[int, int | None]] = (),
) -> list[RankDifference]:
    """What a rank spends more of a step on than the others, the most first.

    Args:
        session: The Session.
        trace_id: Of the rank.
        others: Of the other ranks.
        steps: How many each trace has.
        left_out: Steps that do not count, by trace id and number.
    """
    found = session.records(
        sql(__package__, "timeline:rank_operators"), [[list(one) for one in sorted(left_out)]]
    )
    rows = {(row["trace_id"], row["name"]): row for row in found}

    def beyond(name: str, what: str) -> float:
        mine, *theirs = (
            rows[one, name][what] / max(1, steps.get(one, 0)) if (one, name) in rows else 0.0
            for one in (trace_id, *others)
        )
        return mine - median(theirs)

    differences = [
        RankDifference(name, *(beyond(name, what) for what in ("device_ns", "host_ns", "calls")))
        for one, name in rows
        if one == trace_id
    ]
    return sorted(differences, key=lambda one: (-max(one.device_ns, one.host_ns), one.name))


def _collectives(
    session: Session, ranks: Mapping[int, int | None], windows: Mapping[int, TraceWindow]
) -> tuple[list[list[_Kernel]], SkewEvidence]:
    if len(ranks) < 2 or None in ranks.values() or len(set(ranks.values())) < len(ranks):
        return [], SkewEvidence.ORDER
    numbers = {trace_id: window.numbers for trace_id, window in windows.items() if window.steps}
    kernels = [
        one for one in _kernels(session) if one.trace_id not in numbers or one.step in numbers[one.trace_id]
    ]
    by_sequence = [one for one in kernels if one.sequence is not None]
    if by_sequence:
        keyed = ((one, (one.members, one.title, one.sequence)) for one in by_sequence)
        return _matched(keyed), SkewEvidence.SEQUENCE
    return _matched(_in_order(kernels)), SkewEvidence.ORDER


def _kernels(session: Session) -> list[_Kernel]:
    names = session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'kernel'")
    communication = [name_id for name_id, name in names if kernel_category(decode(name)) == "communication"]
    if not communication:
        return []
    kernels = [
        _Kernel(*row)
        for row in session.query(sql(__package__, "timeline:collective_kernels"), [communication])
    ]
    return [one for one in kernels if one.title is not None and one.title not in _POINT_TO_POINT]


def _in_order(kernels: Sequence[_Kernel]) -> Iterator[tuple[_Kernel, Hashable]]:
    """Kernels with their place among those of their group and step, where all ranks launched the same."""
    stepped = sorted((one for one in kernels if one.step is not None), key=_place)
    runs = {place: list(run) for place, run in groupby(stepped, key=_place)}
    signatures: dict[Hashable, set[Hashable]] = defaultdict(set)
    for (members, step, _), run in runs.items():
        signatures[members, step].add(tuple((one.title, one.element_count) for one in run))
    for (members, step, _), run in runs.items():
        if len(signatures[members, step]) == 1:
            yield from ((one, (members, step, number)) for number, one in enumerate(run))


def _place(kernel: _Kernel) -> tuple[str, int, int]:
    return kernel.members or "", kernel.step or 0, kernel.trace_id


def _matched(keyed: Iterator[tuple[_Kernel, Hashable]]) -> list[list[_Kernel]]:
    """Kernels of one collective each; only what occurs once on each rank that has it, and on several."""
    found: dict[Hashable, list[_Kernel]] = defaultdict(list)
    for kernel, key in keyed:
        found[key].append(kernel)
    return [run for run in found.values() if len({one.trace_id for one in run}) == len(run) > 1]


def _summed(
    collectives: Sequence[Sequence[_Kernel]], ranks: Mapping[int, int | None], evidence: SkewEvidence
) -> tuple[RankSkew, ...]:
    counts, last, waiting, awaited = (Counter[int]() for _ in range(4))
    for run in collectives:
        shortest = min(run, key=lambda one: (one.duration_ns, one.trace_id))
        waits = {one.trace_id: one.duration_ns - shortest.duration_ns for one in run}
        counts.update(waits.keys())
        waiting.update(waits)
        awaited[shortest.trace_id] += sum(waits.values())
        last[shortest.trace_id] += max(waits.values()) > _CLEARLY_LAST * shortest.duration_ns
    return tuple(
        RankSkew(one, ranks[one], counts[one], last[one], waiting[one], awaited[one], evidence)
        for one in sorted(counts)
    )
