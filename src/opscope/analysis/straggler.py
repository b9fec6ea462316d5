"""The rank for which the others wait, and what takes it longer than their median.

A rank is waited for in a step if there the others wait for it more than for anybody else. One that is late
once, by however much, is no straggler: its collective tells that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from opscope.analysis.timeline.values import RankSkew
from opscope.model.queries import grouped, sql
from opscope.model.session import Session


class RankStep(msgspec.Struct, frozen=True):
    """How one rank arrived at the collectives of one step."""

    trace_id: int
    rank: int | None
    step: int | None
    collectives: int  # those of the step that were matched
    last_count: int  # of those, how often it was clearly the last
    waiting_ns: int  # time its kernels waited for others
    awaited_ns: int  # time the kernels of others waited for it, summed over them


class RankDifference(msgspec.Struct, frozen=True):
    """What an operator has in a step of one rank beyond the median of the other ranks."""

    name: str
    device_ns: float
    host_ns: float
    calls: float


class Straggler(msgspec.Struct, frozen=True):
    trace_id: int
    rank: int | None
    lag_ns_per_step: float  # what every other rank waits for it, or more
    awaited_fraction: float  # of all waiting, what is for this rank
    late_steps: int  # steps in which the others waited for it more than for anybody else, and for long
    steps: int  # steps in which collectives were matched
    differences: tuple[RankDifference, ...] = ()  # what takes it longer than the others, the most first


# Of a step: what all others wait.
_LEAST_LAG_FRACTION = 0.05


def find_straggler(
    session: Session,
    skews: Sequence[RankSkew],
    rank_steps: Sequence[RankStep],
    durations: Sequence[tuple[int, int]],
    left_out: Collection[tuple[int, int | None]] = (),
) -> Straggler | None:
    """The rank for which the others wait in most collectives.

    None as well where not all ranks of the job were recorded: the last one may be another. `durations`
    are trace and ns of each step, `left_out` trace and number of those that count for none.
    """
    if not durations or len(skews) <= 1:
        return None
    world = session.scalar("SELECT max(world_size) FROM traces") or 0
    steps = Counter(trace_id for trace_id, _ in durations)
    step_ns = sum(duration_ns for _, duration_ns in durations) / len(durations)
    caused_ns = sum(skew.awaited_ns for skew in skews)
    late = max(skews, key=lambda skew: skew.awaited_ns)
    others = [skew for skew in skews if skew is not late]
    awaited = late.awaited_ns / max(1, caused_ns)
    # By chance each rank comes last equally often.
    if world > len(skews) or awaited < 0.7:
        return None
    by_step = grouped((one.step, one) for one in rank_steps if (one.trace_id, one.step) not in left_out)
    count, late_steps = len(by_step), Counter[int]()
    for ranks in by_step.values():
        # Whom others waited for most, where each of them waited so long on the mean.
        awaited_most = max(ranks, key=lambda one: one.awaited_ns)
        if awaited_most.awaited_ns >= _LEAST_LAG_FRACTION * step_ns * (len(ranks) - 1) > 0:
            late_steps[awaited_most.trace_id] += 1
    if count and late_steps[late.trace_id] <= count / 2:
        return None
    least = min(others, key=lambda skew: skew.waiting_ns)
    lag_ns = least.waiting_ns / max(1, steps.get(least.trace_id, 0))
    if lag_ns < _LEAST_LAG_FRACTION * step_ns:
        return None
    ids = [skew.trace_id for skew in (late, *others)]
    counts = [max(1, steps.get(one, 0)) for one in ids]
    parameters = [late.trace_id, ids, counts, [list(one) for one in sorted(left_out)]]
    rows = session.query(sql(__package__, "collectives:beyond_others"), parameters)
    # Of what the others wait: an operator that takes the late rank longer by less explains nothing.
    least_ns = 0.02 * lag_ns
    differences = tuple(RankDifference(*row) for row in rows if max(row[1:3]) >= least_ns)
    return Straggler(late.trace_id, late.rank, lag_ns, awaited, late_steps[late.trace_id], count, differences)
