"""The clocks of ranks by one: a collective ends on all its ranks together, whatever their clocks say.

Ranks of one process group are aligned by the median of what their ends of the same collectives differ by,
and groups that share a rank are chained, the largest first. By how much aligned ends still differ is the
error: it holds how far ends of a collective are really apart, and how clocks drift meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np


class RankClock(msgspec.Struct, frozen=True):
    """The clock of one rank against that of a reference."""

    offset_ns: int  # what to take from its times to have them by the reference's clock
    # The most by which an aligned end of its collectives is off the middle of that collective's ends; with
    # that of the rank by which its group is tied to the reference
    error_ns: int
    collectives: int  # how many this rests on


def align(ends: Iterable[Mapping[int, int]]) -> dict[int, RankClock]:
    """The clocks of ranks, by rank; the least rank of the largest group is the reference.

    Ranks that share no group with the reference, directly or through others, are left out.

    `ends` are, of each collective, when it ended on each rank, in ns by that rank's own clock.
    """
    groups: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for one in ends:
        if len(one) > 1:
            ranks = tuple(sorted(one))
            groups[ranks].append([one[rank] for rank in ranks])
    waiting = sorted(groups.items(), key=lambda item: (-len(item[0]), -len(item[1]), item[0]))
    known: dict[int, RankClock] = {}
    while waiting:
        tied = (item for item in waiting if not known or any(rank in known for rank in item[0]))
        chosen = next(tied, None)
        if chosen is None:
            break
        waiting.remove(chosen)
        ranks, rows = chosen
        by = next((rank for rank in ranks if rank in known), ranks[0])
        tie, reference = known.get(by, RankClock(0, 0, 0)), ranks.index(by)
        ends_ns = np.array(rows, dtype=np.int64)
        # Small before they are floating-point numbers: nanoseconds of today have 61 bits.
        apart_ns = ends_ns - ends_ns[:, [reference]]
        offsets = np.median(apart_ns - np.median(apart_ns, axis=1, keepdims=True), axis=0)
        offsets_ns = np.rint(offsets - offsets[reference]).astype(np.int64)
        aligned_ns = apart_ns - offsets_ns
        errors = np.abs(aligned_ns - np.median(aligned_ns, axis=1, keepdims=True)).max(axis=0)
        clocks = zip(ranks, offsets_ns.tolist(), np.ceil(errors).tolist(), strict=True)
        for rank, offset_ns, error_ns in clocks:
            clock = RankClock(tie.offset_ns + offset_ns, tie.error_ns + int(error_ns), len(rows))
            known.setdefault(rank, clock)
    return known
