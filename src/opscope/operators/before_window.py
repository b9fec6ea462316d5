"""Which recorded calls the launches from before the recording window belong to.

They are the end of what ran before, so on each stream they are matched, backwards and in order, with the
same run of launches inside the window: same names, same geometry, and followed by what follows here. The
longest run decides; where it occurs several times, all occurrences must be of the same call. A call of which
only a part ran into the window matches nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.model.queries import sql
from opscope.model.session import Session

_Int64 = npt.NDArray[np.int64]
# Calls compared behind a run.
_LONGEST_CONTEXT = 64


class MatchedCall(msgspec.Struct, frozen=True):
    """Launches from before the window that are whole calls like a recorded one."""

    call_id: int  # the recorded distinct call
    calls: int
    activity_ids: tuple[int, ...]  # all launches of them


def match_before_window(session: Session) -> tuple[MatchedCall, ...]:
    """Matches of all streams, by call_id. Reads `activity_costs`, which must hold what is in the window."""
    if not session.scalar("SELECT count(*) FROM device_activities WHERE attribution = 'before_window'"):
        return ()
    columns: Mapping[str, Any] = session.connection.execute(sql(__package__, "streams")).fetchnumpy()
    stream = np.asarray(columns["stream_number"])
    spans: list[_Span] = []
    bounds = [*np.flatnonzero(np.diff(stream, prepend=0)).tolist(), len(stream)]
    for low, high in pairwise(bounds):
        spans += _match_stream({name: np.asarray(values)[low:high] for name, values in columns.items()})
    launches = _launches(session, spans)
    found: dict[int, list[_Span]] = defaultdict(list)
    for span in spans:
        if len(span.activity_ids) == launches.get(span.member, 1):
            found[span.call_id].append(span)
    return tuple(
        MatchedCall(call_id, len(parts), tuple(one for part in parts for one in part.activity_ids))
        for call_id, parts in sorted(found.items())
    )


class _Span(msgspec.Struct, frozen=True):
    """Launches that are those of one recorded call, or of a part of it; `member` is its operator."""

    call_id: int
    member: int
    activity_ids: tuple[int, ...]


def _launches(session: Session, spans: Iterable[_Span]) -> dict[int, int]:
    """Launches of each operator, on whichever streams."""
    members = sorted({span.member for span in spans})
    rows = session.query(
        "SELECT operator_id, count(*) FROM device_activities "
        "WHERE operator_id IN (SELECT unnest(?::BIGINT[])) AND attribution <> 'graph' GROUP BY operator_id",
        [members],
    )
    return dict(rows)


def _match_stream(columns: Mapping[str, Any]) -> Iterator[_Span]:
    is_before = columns["is_before"].astype(bool)
    before, window = columns["launch"][is_before], columns["launch"][~is_before]
    activities = columns["activity_id"][is_before]
    calls, members = columns["call_id"][~is_before], columns["member"][~is_before]
    for start, end, places in _runs(before, window, calls):
        place = int(places[-1])
        agreed = _agreed(calls, places, end - start)
        for first, last in _spans(members[place : place + end - start]):
            if agreed[first:last].all():
                ids = tuple(map(int, activities[start + first : start + last]))
                yield _Span(int(calls[place + first]), int(members[place + first]), ids)


def _runs(before: _Int64, window: _Int64, calls: _Int64) -> Iterator[tuple[int, int, _Int64]]:
    """Runs of `before`, last one first, each as long as `window` has it too: start, end, places of its start.

    What follows a run is known: the window, or the run found before. Places where the same calls follow win.
    """
    end, following = len(before), calls[:_LONGEST_CONTEXT]
    while end:
        places = _continued(np.flatnonzero(window == before[end - 1]), calls, following)
        length = min(1, len(places))
        while 0 < length < end:
            longer = places[places >= length]
            longer = longer[window[longer - length] == before[end - 1 - length]]
            if not len(longer):
                break
            places, length = longer, length + 1
        if length:
            starts = places - length + 1
            yield end - length, end, starts
            following = calls[starts[-1] : starts[-1] + min(length, _LONGEST_CONTEXT)]
        else:
            following = calls[:0]
        end -= max(1, length)


def _continued(places: _Int64, calls: _Int64, following: _Int64) -> _Int64:
    """The places behind which the same calls follow, as far as the window goes; all, if there are none."""
    left = places[places + 1 < len(calls)]
    for offset, call in enumerate(following, start=1):
        reached = left + offset
        left = left[(reached >= len(calls)) | (calls[np.minimum(reached, len(calls) - 1)] == call)]
    return left if len(left) and len(following) else places


def _agreed(calls: _Int64, places: _Int64, length: int) -> npt.NDArray[np.bool_]:
    """For each launch of a run, whether it belongs to the same call at all places."""
    agreed = np.ones(length, bool)
    reference = calls[places[-1] : places[-1] + length]
    for place in places[:-1]:
        agreed &= calls[place : place + length] == reference
    return agreed


def _spans(members: _Int64) -> Iterator[tuple[int, int]]:
    """Stretches of equal values: start and end."""
    borders = np.flatnonzero(np.diff(members)) + 1
    edges = [0, *map(int, borders), len(members)]
    yield from pairwise(edges)
