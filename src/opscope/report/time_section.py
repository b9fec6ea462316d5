"""Where the GPU waits: each device's span by what it did, idle time by cause, and the host calls behind it.

The parts of a span sum to it exactly; a cause that the trace does not tell is shown as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import HostTime, IdleCause, IdleGap, StepStatistics, TimePartition
from opscope.report.document import Block, Code, Column, FactList, Table, Text, numeric
from opscope.units import format_count, format_duration, format_fraction

__all__ = ["has_timeline", "time_blocks", "time_facts"]

_GAP_ROWS = 5
_WAIT_ROWS = 5
_UNKNOWN = "–"


def has_timeline(summary: Summary) -> bool:
    """Whether any device's span is known."""
    return bool(summary.timeline.partitions)


def time_facts(summary: Summary) -> list[tuple[str, Text]]:
    """Idle time by cause, of all devices together."""
    idle_ns: dict[IdleCause, int] = {}
    for partition in summary.timeline.partitions:
        for cause, ns in partition.idle_by_cause.items():
            idle_ns[cause] = idle_ns.get(cause, 0) + ns
    span_ns = sum(partition.span_ns for partition in summary.timeline.partitions)
    if not span_ns:
        return []
    causes = sorted(((ns, cause) for cause, ns in idle_ns.items() if ns), key=lambda item: -item[0])
    parts = [f"{_words(cause)} {format_fraction(ns / span_ns)}" for ns, cause in causes]
    return [("Idle, of the span", ", ".join(parts) or "none")]


def time_blocks(summary: Summary) -> tuple[Block, ...]:
    """Partitions, causes, waits, gaps, queue and steps."""
    timeline = summary.timeline
    blocks: list[Block] = [_partition_table(timeline.partitions)]
    causes = _cause_table(timeline.partitions)
    if causes is not None:
        blocks.append(causes)
    if timeline.waits:
        blocks.append(_wait_table(summary))
    gaps = sorted(
        (gap for partition in timeline.partitions for gap in partition.longest_gaps),
        key=lambda gap: -gap.duration_ns,
    )
    if gaps:
        blocks.append(_gap_table(gaps[:_GAP_ROWS]))
    facts = _facts(summary)
    return (*blocks, FactList(tuple(facts))) if facts else tuple(blocks)


def _partition_table(partitions: tuple[TimePartition, ...]) -> Table:
    with_rank = any(one.rank is not None for one in partitions)
    rows = tuple(
        (
            *((_UNKNOWN if one.rank is None else str(one.rank),) if with_rank else ()),
            str(one.device),
            format_duration(one.span_ns),
            *(
                f"{format_duration(ns)}, {format_fraction(ns / one.span_ns if one.span_ns else None)}"
                for ns in (
                    one.compute_ns,
                    one.exposed_copy_ns,
                    one.exposed_communication_ns,
                    one.idle_ns,
                )
            ),
        )
        for one in partitions
    )
    titles = ("Device", "Span", "Compute", "Exposed copy", "Exposed communication", "Idle")
    rank = (numeric("Rank"),) if with_rank else ()
    return Table((*rank, *map(numeric, titles)), rows)


def _cause_table(partitions: tuple[TimePartition, ...]) -> Table | None:
    totals_ns = {
        cause: sum(partition.idle_by_cause.get(cause, 0) for partition in partitions) for cause in IdleCause
    }
    idle_ns = sum(totals_ns.values())
    if not idle_ns:
        return None
    rows = tuple(
        (_words(cause), format_duration(ns), format_fraction(ns / idle_ns), cause.meaning)
        for cause, ns in sorted(totals_ns.items(), key=lambda item: -item[1])
        if ns
    )
    return Table((Column("Idle because of"), numeric("Time"), numeric("Of idle"), Column("Meaning")), rows)


def _wait_table(summary: Summary) -> Table:
    waits = summary.timeline.waits[:_WAIT_ROWS]
    rows = tuple(
        (
            Code(wait.name),
            Code(wait.operator or _UNKNOWN),
            Code(wait.line or _UNKNOWN),
            format_count(wait.calls),
            format_duration(wait.host_ns),
            format_duration(wait.idle_ns),
        )
        for wait in waits
    )
    titles = ("Calls", "Host waited", "Device idle after")
    caption = "Calls by which the host waits for the device."
    columns = (Column("Call"), Column("Operator"), Column("Line"), *map(numeric, titles))
    return Table(columns, rows, caption)


def _gap_table(gaps: list[IdleGap]) -> Table:
    rows = tuple(
        (
            format_duration(gap.duration_ns),
            _words(gap.cause),
            _UNKNOWN if gap.step is None else str(gap.step),
            Code(gap.host or _UNKNOWN),
            Code(gap.line or _UNKNOWN),
        )
        for gap in gaps
    )
    columns = (
        numeric("Longest gaps"),
        Column("Cause"),
        numeric("Step"),
        Column("Host was in"),
        Column("Line"),
    )
    return Table(columns, rows)


def _facts(summary: Summary) -> list[tuple[str, Text]]:
    timeline = summary.timeline
    facts: list[tuple[str, Text]] = []
    for latency in timeline.latencies:
        text = f"median {format_duration(latency.median_ns)}, 95 % {format_duration(latency.p95_ns)}"
        if latency.negative_count:
            text += f"; {latency.negative_count:,} kernels begin before their launch, so clocks disagree"
        facts.append((f"Launch latency{_of(summary, latency.trace_id, latency.device)}", text))
    for queue in timeline.queues:
        text = (
            f"{queue.mean:.1f} launched and unfinished on average, {queue.maximum:,} at most, "
            f"none for {format_fraction(queue.empty_fraction)} of the span"
        )
        facts.append((f"Queue{_of(summary, queue.trace_id, queue.device)}", text))
    for series in timeline.series:
        where = _of(summary, series.trace_id, series.device)
        if any(series.mean):
            facts.append((f"Queue over time{where}", f"{_bars(series.mean)} up to {max(series.mean):.1f}"))
        waited = [ns or 0.0 for ns in series.latency_ns]
        if any(waited):
            text = f"{_bars(waited)} up to {format_duration(max(waited))}"
            facts.append((f"Launch latency over time{where}", text))
    facts += [(f"Steps{_of(summary, one.trace_id)}", _steps_text(one)) for one in timeline.steps]
    facts += [(f"Host{_of(summary, one.trace_id)}", _host_text(one)) for one in timeline.host]
    return facts


_LEVELS = " ▁▂▃▄▅▆▇█"


def _bars(values: Sequence[float]) -> str:
    """One character per value, by height; below zero counts as nothing."""
    top = max(values)
    return "".join(_LEVELS[max(0, math.ceil(value / top * (len(_LEVELS) - 1)))] for value in values)


def _steps_text(steps: StepStatistics) -> str:
    text = (
        f"{steps.count}, median {format_duration(steps.median_ns)} "
        f"({format_duration(steps.min_ns)} to {format_duration(steps.max_ns)})"
    )
    if steps.outliers:
        text += f"; outliers: {', '.join(map(str, steps.outliers))}"
    return text


def _host_text(host: HostTime) -> str:
    text = (
        f"{format_duration(host.launch_path_ns)} of host work a step for {host.launches:,.0f} launches, "
        f"while the device is busy for {format_duration(host.device_busy_ns)}"
    )
    if host.recorder_ns is not None:
        text += f"; about {format_duration(host.recorder_ns)} of it is the recorder's"
    return text


def _of(summary: Summary, trace_id: int, device: int | None = None) -> str:
    """Which trace and device a fact is of, where there are several."""
    rank = summary.ranks[trace_id] if trace_id < len(summary.ranks) else None
    parts = []
    if len(summary.traces) > 1:
        parts.append(f"trace {trace_id}" if rank is None else f"rank {rank}")
    if device is not None and len({one.device for one in summary.timeline.partitions}) > 1:
        parts.append(f"device {device}")
    return f" of {', '.join(parts)}" if parts else ""


def _words(cause: IdleCause) -> str:
    return str(cause).replace("_", " ")
