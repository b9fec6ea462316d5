"""Where the GPU waits: each device's span by what it did, idle time by cause, and the host calls behind it.

The parts of a span sum to it exactly; a cause that the trace does not tell is shown as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import (
    HostTime,
    IdleCause,
    IdleGap,
    LaunchLatency,
    QueueDepth,
    StepStatistics,
    Timeline,
    TimePartition,
)
from opscope.report.document import Block, Code, Column, FactList, Table, Text, numeric
from opscope.units import format_count, format_duration, format_fraction

__all__ = ["has_timeline", "time_blocks"]


_GAP_ROWS = 5
_WAIT_ROWS = 5
_UNKNOWN = "–"


def has_timeline(summary: Summary) -> bool:
    """Whether any device's span is known."""
    return bool(summary.timeline.partitions)


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
    blocks += _launch_tables(summary) if len(timeline.partitions) > 1 else []
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
            Code(wait.name) if wait.copy is None else (Code(wait.name), f", {wait.copy}"),
            _name(wait.operator),
            _name(wait.line),
            format_count(wait.calls),
            format_duration(wait.host_ns),
            format_duration(wait.idle_ns),
        )
        for wait in waits
    )
    titles = ("Calls", "Host waited", "Device idle after")
    caption = "Calls by which the host waits for the device."
    columns = (Column("Call"), Column("Operator"), Column("Line"), *map(numeric, titles))
    return _without_unknown(Table(columns, rows, caption))


def _gap_table(gaps: list[IdleGap]) -> Table:
    rows = tuple(
        (
            format_duration(gap.duration_ns),
            _words(gap.cause),
            _UNKNOWN if gap.step is None else str(gap.step),
            _name(gap.host),
            _name(gap.line),
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
    return _without_unknown(Table(columns, rows))


def _name(name: str | None) -> Text:
    return _UNKNOWN if name is None else Code(name)


def _without_unknown(table: Table) -> Table:
    """The table without columns of which nothing is known: lines and steps that no one recorded."""
    kept = [index for index in range(len(table.columns)) if any(row[index] != _UNKNOWN for row in table.rows)]
    return Table(
        tuple(table.columns[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in table.rows),
        table.caption,
    )


def _launch_tables(summary: Summary) -> list[Block]:
    """Launches, queue and host of several devices, one a row, so that they compare."""
    timeline = summary.timeline
    latencies = {(one.trace_id, one.device): one for one in timeline.latencies}
    queues = {(one.trace_id, one.device): one for one in timeline.queues}
    steps = {one.trace_id: one for one in timeline.steps}
    host = {one.trace_id: one for one in timeline.host}
    rows: list[tuple[Text, ...]] = []
    for one in timeline.partitions:
        key = (one.trace_id, one.device)
        rows.append(
            (
                _of(summary, *key).removeprefix(" of "),
                *_latency_cells(latencies.get(key)),
                *_queue_cells(queues.get(key)),
                _UNKNOWN if one.trace_id not in steps else format_duration(steps[one.trace_id].median_ns),
                *_host_cells(host.get(one.trace_id)),
            )
        )
    titles = (
        "Launch latency", "95 %", "Queue mean", "Most", "None queued",
        "Median step", "Host work", "Launches", "Recorder's part",
    )  # fmt: skip
    caption = "Launches, their queue, and what the host needs for them"
    caption += " per step." if steps else "."
    table = Table((Column("Of"), *map(numeric, titles)), tuple(rows), caption)
    return [_without_unknown(table), *_series_table(summary)]


def _latency_cells(latency: LaunchLatency | None) -> tuple[str, str]:
    if latency is None:
        return _UNKNOWN, _UNKNOWN
    return format_duration(latency.median_ns), format_duration(latency.p95_ns)


def _queue_cells(queue: QueueDepth | None) -> tuple[str, str, str]:
    if queue is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    return f"{queue.mean:.1f}", f"{queue.maximum:,}", format_fraction(queue.empty_fraction)


def _host_cells(host: HostTime | None) -> tuple[str, str, str]:
    if host is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    recorder = _UNKNOWN if host.recorder_ns is None else format_duration(host.recorder_ns)
    return format_duration(host.launch_path_ns), f"{host.launches:,.0f}", recorder


def _series_table(summary: Summary) -> list[Block]:
    rows = tuple(
        (
            _of(summary, series.trace_id, series.device).removeprefix(" of "),
            _bars(series.mean),
            f"{max(series.mean):.1f}",
        )
        for series in summary.timeline.series
        if any(series.mean)
    )
    return [Table((Column("Of"), Column("Queue over time"), numeric("Up to")), rows)] if rows else []


def _facts(summary: Summary) -> list[tuple[str, Text]]:
    """What is told in words: of one device everything; of several, what the tables leave out."""
    timeline = summary.timeline
    facts = _device_facts(timeline) if len(timeline.partitions) == 1 else _exceptions(summary)
    if len(timeline.partitions) == 1:
        facts += [("Steps", _steps_text(one)) for one in timeline.steps]
        facts += [("Host", _host_text(one, has_steps=bool(timeline.steps))) for one in timeline.host]
    return facts


def _device_facts(timeline: Timeline) -> list[tuple[str, Text]]:
    facts: list[tuple[str, Text]] = []
    for latency in timeline.latencies:
        text = f"median {format_duration(latency.median_ns)}, 95 % {format_duration(latency.p95_ns)}"
        facts.append(("Launch latency", f"{text}{_disagreement(latency)}"))
    for queue in timeline.queues:
        text = (
            f"{queue.mean:.1f} launched and unfinished on average, {queue.maximum:,} at most, "
            f"none for {format_fraction(queue.empty_fraction)} of the span"
        )
        facts.append(("Queue", text))
    for series in timeline.series:
        if any(series.mean):
            facts.append(("Queue over time", f"{_bars(series.mean)} up to {max(series.mean):.1f}"))
        waited = [ns or 0.0 for ns in series.latency_ns]
        if any(one > 0 for one in waited):
            text = f"{_bars(waited)} up to {format_duration(max(waited))}"
            facts.append(("Launch latency over time", text))
    return facts


def _exceptions(summary: Summary) -> list[tuple[str, Text]]:
    timeline = summary.timeline
    facts: list[tuple[str, Text]] = [
        (f"Clocks{_of(summary, one.trace_id, one.device)}", _disagreement(one).removeprefix("; "))
        for one in timeline.latencies
        if one.negative_count
    ]
    facts += [
        (f"Outlier steps{_of(summary, one.trace_id)}", ", ".join(map(str, one.outliers)))
        for one in timeline.steps
        if one.outliers
    ]
    return facts


def _disagreement(latency: LaunchLatency) -> str:
    count = latency.negative_count
    if not count:
        return ""
    kernels = (
        "1 kernel begins before its launch" if count == 1 else f"{count:,} kernels begin before their launch"
    )
    return f"; {kernels}, so clocks disagree"


_LEVELS = " ▁▂▃▄▅▆▇█"


def _bars(values: Sequence[float]) -> str:
    """One character per value, by height; below zero counts as nothing."""
    top = max(values)
    if top <= 0:
        return _LEVELS[0] * len(values)
    return "".join(_LEVELS[max(0, math.ceil(value / top * (len(_LEVELS) - 1)))] for value in values)


def _steps_text(steps: StepStatistics) -> str:
    if steps.count == 1:
        return f"1, of {format_duration(steps.median_ns)}"
    text = (
        f"{steps.count}, median {format_duration(steps.median_ns)} "
        f"({format_duration(steps.min_ns)} to {format_duration(steps.max_ns)})"
    )
    if steps.outliers:
        text += f"; outliers: {', '.join(map(str, steps.outliers))}"
    return text


def _host_text(host: HostTime, *, has_steps: bool) -> str:
    """A recording without steps counts as one."""
    text = (
        f"{format_duration(host.launch_path_ns)} of host work {'a step' if has_steps else 'in all'} for "
        f"{host.launches:,.0f} {'launch' if host.launches == 1 else 'launches'}, "
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
