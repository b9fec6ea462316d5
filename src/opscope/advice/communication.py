"""Advice on communication: what nothing hides, and the rank for which the others wait.

A collective lasts from the first rank's arrival to its end, so the rank that comes last has the shortest
kernel: lateness shows in durations alone, and clocks of different ranks need not agree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from opscope.advice.profiled_run import Advice, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.collectives import RankDifference
from opscope.analysis.timeline.values import RankSkew
from opscope.model.finding import OPEN, Applicability
from opscope.model.queries import sql, summed
from opscope.operators.collective_costs import collective_rates
from opscope.units import counted, format_byte_rate, format_bytes, format_duration, format_fraction

_FAST = float("inf")
_DDP = re.compile(r"DistributedDataParallel|distributed\W+(ddp\W+)?reducer")


@finds
def exposed_communication(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    waiting_ns = {skew.trace_id: skew.waiting_ns for skew in _skews(run)}
    exposed_ns = sum(
        max(0, ns - waiting_ns.get(trace_id, 0)) for trace_id, ns in run.summary.timeline.exposed_ns.items()
    )
    whole_ns = sum(one.own_ns for one in run.summary.timeline.in_use)
    if not whole_ns or exposed_ns < rule.threshold("least_fraction") * whole_ns:
        return
    per_step_ns = exposed_ns / run.step_count
    is_known = bool(waiting_ns)
    note = "waiting for other ranks not counted" if is_known else "which may be waiting for other ranks"
    slow = next(
        (
            rate
            for rate in collective_rates(run.session)
            if rate.size_bytes >= rule.threshold("telling_bytes")
            and (rate.mean_bus_bytes_per_s or _FAST) < rule.threshold("least_bus_bytes_per_s")
        ),
        None,
    )
    kernels = [one for one in run.summary.kernels if "ccl" in one.name]
    by_kernel = summed(("AllReduce" in one.name, one.total_ns) for one in kernels)
    uneven = [] if is_known or slow else run.session.query(sql(__package__, "uneven_collectives"))
    is_uneven = 2 * sum(excess_ns for *_, excess_ns in uneven) > by_kernel.total()
    if slow is not None:
        note += (
            f"; {slow.name} of {format_bytes(slow.size_bytes)} reaches "
            f"{format_byte_rate(slow.mean_bus_bytes_per_s)} of bus bandwidth: more waiting "
            "than transfer"
        )
    elif is_uneven:
        kernel, median_ns, longest_ns, _ = uneven[0]
        note += (
            f"; {kernel.partition('(')[0]} of one size takes {format_duration(median_ns)} in the median, "
            f"{format_duration(longest_ns)} at most: more waiting than transfer"
        )
    count = sum(one.calls for one in kernels)
    is_split = rule.threshold("many") * run.step_count <= count
    is_split &= by_kernel.total() < rule.threshold("short_ns") * count
    sums_gradients = 2 * by_kernel[True] > by_kernel.total() and any(map(_DDP.search, run.names))
    suggestion = None if sums_gradients else "Overlap it with computation, or exchange fewer bytes."
    if slow is not None or is_uneven:
        suggestion = "Find what makes ranks late: record the others too, and compare what they do before it."
    elif is_split:
        suggestion = "Exchange many small tensors as a few large ones: flatten them into buckets of some MB."
        note += f"; {run.times(count, 'kernel')}"
    yield Advice(
        f"Communication is exposed for {format_duration(per_step_ns)} of the device's "
        f"{format_duration(whole_ns / run.step_count)} {run.period} "
        f"({format_fraction(exposed_ns / whole_ns)}), {note}.",
        {
            "exposed_ns_per_step": per_step_ns,
            "exposed_fraction": exposed_ns / whole_ns,
            "communication_ns": sum(partition.communication_ns for partition in run.summary.timeline.in_use),
            "waiting_ns": sum(waiting_ns.values()) if is_known else None,
            "bus_bytes_per_s": None if slow is None else slow.mean_bus_bytes_per_s,
        },
        basis="not estimated: what computation could run beside it is unknown"
        if is_known
        else "not estimated: with the other ranks unrecorded, transfer and waiting cannot be told apart",
        applicability=OPEN if is_known else Applicability(),
        suggestion=suggestion,
        # The rule's code is of gradients that are summed up.
        change=None if sums_gradients and not is_split else "",
    )


@finds
def straggler_rank(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    late = run.summary.straggler
    if late is None:
        return
    skews = _skews(run)
    skew = next(one for one in skews if one.trace_id == late.trace_id)
    waiting = max((one for one in skews if one is not skew), key=lambda one: one.waiting_ns)
    differs = listed([_told(one) for one in late.differences[: int(rule.threshold("differences"))]])
    sources = dict(run.session.query("SELECT trace_id, source FROM traces"))
    files = shlex.join(sources[one] or f"rank{one}.json.gz" for one in (waiting.trace_id, late.trace_id))
    share = format_fraction(
        late.lag_ns_per_step * len(run.summary.steps) / sum(step.duration_ns for step in run.summary.steps)
    )
    yield Advice(
        f"Rank {late.rank} comes last in {skew.last_count} of {skew.collectives} collectives: every other "
        f"rank waits for it, {format_duration(late.lag_ns_per_step)} per recorded step or more "
        f"({share} of it). "
        + (
            f"Per step it spends more time than the median rank in {differs}."
            if differs
            else "No operator takes longer on it than on the others."
        ),
        {
            "rank": late.rank,
            "last_in_collectives": skew.last_count,
            "collectives": skew.collectives,
            "awaited_ns": skew.awaited_ns,
            "matched_by": str(skew.evidence),
            "share_of_waiting_fraction": late.awaited_fraction,
            "takes_longer_for": [_told(one) for one in late.differences],
            "waiting_by_rank": [f"rank {one.rank} {format_duration(one.waiting_ns)}" for one in skews],
        },
        applicability=OPEN,
        trace_id=late.trace_id,
        change=(rule.change or "").replace("REFERENCE LATE", files),
    )


def _told(one: RankDifference) -> str:
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
    world = run.session.scalar("SELECT max(world_size) FROM traces") if skews else None
    return skews if world is None or world <= len(skews) else ()
