"""Advice on communication: what nothing hides, and the rank for which the others wait.

A collective lasts from the first rank's arrival to its end, so the rank that comes last has the shortest
kernel: lateness shows in durations alone, and clocks of different ranks need not agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from opscope.advice.profiled_run import Advice, ProfiledRun, counted, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.step_model import Gain
from opscope.analysis.timeline.skew import RankDifference, more_than_others
from opscope.analysis.timeline.values import RankSkew
from opscope.operators.collective_costs import collective_rates
from opscope.units import format_byte_rate, format_bytes, format_duration, format_fraction

_FAST = float("inf")


@finds
def exposed_communication(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Communication that no other kernel hides, waiting left out where it is known."""
    waiting_ns = {skew.trace_id: skew.waiting_ns for skew in _skews(run)}
    exposed_ns = sum(
        max(0, ns - waiting_ns.get(trace_id, 0)) for trace_id, ns in run.exposed_communication_ns.items()
    )
    if not run.window_ns or exposed_ns < rule.threshold("least_fraction") * run.window_ns:
        return
    per_step_ns = exposed_ns / run.step_count
    is_known = bool(waiting_ns)
    note = "waiting for other ranks left out" if is_known else "which may be waiting for other ranks"
    slow = next(
        (
            rate
            for rate in collective_rates(run.session)
            if rate.size_bytes >= rule.threshold("telling_bytes")
            and (rate.mean_bus_bytes_per_s or _FAST) < rule.threshold("least_bus_bytes_per_s")
        ),
        None,
    )
    if slow is not None:
        note += (
            f"; {slow.name} of {format_bytes(slow.size_bytes)} reaches "
            f"{format_byte_rate(slow.mean_bus_bytes_per_s)} of bus bandwidth, so it is waiting more than "
            "bytes"
        )
    yield Advice(
        f"Communication runs beside no other kernel for {format_duration(per_step_ns)} {run.period} "
        f"({format_fraction(exposed_ns / run.window_ns)} of the time), {note}.",
        {
            "exposed_ns_per_step": per_step_ns,
            "exposed_fraction": exposed_ns / run.window_ns,
            "communication_ns": sum(partition.communication_ns for partition in run.summary.timeline.in_use),
            "waiting_ns": sum(waiting_ns.values()) if is_known else None,
            "bus_bytes_per_s": None if slow is None else slow.mean_bus_bytes_per_s,
        },
        (lambda change: change.scale_communication(waiting_ns)) if is_known else None,
        "at most: all of it hidden behind computation"
        if is_known
        else "not estimated: with the other ranks unrecorded, transfer and waiting cannot be told apart",
        suggestion=None
        if slow is None
        else "Find what makes ranks late: record the others too, and compare what they do before it.",
    )


@finds
def straggler_rank(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """The rank for which the others wait in most collectives."""
    skews = _skews(run)
    caused_ns = sum(skew.awaited_ns for skew in skews)
    late = max(skews, key=lambda skew: skew.awaited_ns, default=None)
    step_ns = _mean_step_ns(run)
    others = [skew for skew in skews if skew is not late]
    if late is None or not others or not caused_ns or step_ns is None:
        return
    least = min(others, key=lambda skew: skew.waiting_ns)
    waits_ns = least.waiting_ns / max(1, _step_count(run, least.trace_id))
    if late.awaited_ns < rule.threshold("least_last_fraction") * caused_ns:
        return
    if waits_ns < rule.threshold("least_wait_fraction") * step_ns:
        return
    more = more_than_others(
        run.session,
        late.trace_id,
        [skew.trace_id for skew in others],
        Counter(step.trace_id for step in run.summary.steps),
        run.summary.timeline.left_out,
    )
    least_ns = rule.threshold("least_difference_fraction") * waits_ns
    told = [one for one in more if max(one.device_ns, one.host_ns) >= least_ns]
    differs = listed([_difference(one) for one in told[: int(rule.threshold("differences"))]])
    yield Advice(
        f"Rank {late.rank} comes last in {late.last_count} of {late.collectives} collectives: every other "
        f"rank waits for it, {format_duration(waits_ns)} per step or more "
        f"({format_fraction(waits_ns / step_ns)} of a step). "
        + (
            f"In a step it takes longer than the median of the others for {differs}."
            if told
            else "No operator takes it longer than the others."
        ),
        {
            "rank": late.rank,
            "last_in_collectives": late.last_count,
            "collectives": late.collectives,
            "matched_by": str(late.evidence),
            "share_of_waiting_fraction": late.awaited_ns / caused_ns,
            "takes_longer_for": [_difference(one) for one in told],
            "waiting_ns_by_rank": [f"{skew.rank}: {skew.waiting_ns}" for skew in skews],
        },
        gain=_as_fast_as_others(run, late.trace_id),
        trace_id=late.trace_id,
        change=(rule.change or "").replace("RANK_LATE", f"rank{late.rank}"),
    )


def _difference(one: RankDifference) -> str:
    times = [
        f"{format_duration(ns)} on the {side}"
        for ns, side in sorted(((one.device_ns, "device"), (one.host_ns, "host")), reverse=True)
        if ns >= 1
    ]
    more = [f"{counted(one.calls, 'call')} more"] if one.calls >= 1 else []
    return f"{one.name} ({', '.join(times + more)})"


def _skews(run: ProfiledRun) -> tuple[RankSkew, ...]:
    """How the ranks arrived; empty unless all ranks of the job were recorded."""
    skews = run.summary.timeline.skews
    world = run.session.scalar("SELECT max(world_size) FROM traces")
    return skews if world is None or world <= len(skews) else ()


def _step_count(run: ProfiledRun, trace_id: int) -> int:
    return sum(step.trace_id == trace_id for step in run.summary.steps)


def _mean_step_ns(run: ProfiledRun) -> float | None:
    steps = run.summary.steps
    return sum(step.duration_ns for step in steps) / len(steps) if steps else None


def _as_fast_as_others(run: ProfiledRun, trace_id: int) -> Gain | None:
    """What a step gets shorter if a rank is no slower than the slowest of the others."""
    waiting_ns = {skew.trace_id: skew.waiting_ns for skew in _skews(run)}
    ranks = () if run.job is None else run.job.ranks
    changes = {
        model.trace.trace_id: model.change().scale_communication(waiting_ns, keep_waiting=False)
        for model in ranks
    }
    late, others = changes.pop(trace_id, None), list(changes.values())
    if late is None or not others:
        return None
    gains = [
        max(0.0, late.apply(host) - max(one.apply(other) for one, other in zip(others, theirs, strict=True)))
        for host, *theirs in zip(late.model.hosts, *(one.model.hosts for one in others), strict=False)
    ]
    return Gain(gains[0], min(gains), max(gains))
