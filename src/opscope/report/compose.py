"""Summary → Document: what reports say, in which order and under which numbers.

The section numbers are part of the report's contract (`### 4.1` is the first operator). Every figure comes
from the Summary; a value no one has found is said to be unknown, never left out. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from opscope.analysis.summary import Summary
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.model.schema import Attribution
from opscope.provenance.categories import category_title
from opscope.report.advice_section import advice_blocks, advice_notes, advice_sections
from opscope.report.document import (
    BarList,
    Block,
    Code,
    Column,
    Document,
    FindingList,
    Paragraph,
    Section,
    Strong,
    Table,
    numeric,
)
from opscope.report.efficiency_section import efficiency_blocks, has_efficiency
from opscope.report.operator_section import operator_section, operator_table, ranking_paragraph
from opscope.report.overview import (
    config_facts,
    device_table,
    environment_facts,
    overview_blocks,
    overview_facts,
    trace_facts,
)
from opscope.report.program_section import program_sections, recording_hint
from opscope.report.provenance_section import accuracy_blocks, accuracy_overview
from opscope.report.selection import merged_findings, rank_ns, top_operators
from opscope.report.time_section import has_timeline, time_blocks
from opscope.units import format_count, format_duration, format_fraction

__all__ = ["analysis_report", "configuration_report", "overview_document"]


def analysis_report(summary: Summary, *, top: int | None = 10, title: str = "Operator report") -> Document:
    """The full report on any trace, of its `top` operators and kernels (every one for None)."""
    configuration = Section("Configuration", (trace_facts(summary),), number="1")
    return Document(title, sections=(configuration, *_body(summary, top, benchmark=None, batch_size=None)))


def configuration_report(
    summary: Summary,
    config: Mapping[str, Any],
    environment: Environment | None,
    benchmark: Latency | None,
    *,
    top: int = 10,
) -> Document:
    """The full report on one configuration of a sweep.

    Args:
        summary: Of the configuration's trace.
        config: As in the stats file: workload, batch_size, seq_len, dtype, device, ….
        environment: What it ran on; None if no one recorded it.
        benchmark: Latency without the profiler; None if skipped.
        top: Operators in detail.
    """
    sizes = f"batch size {config.get('batch_size')}, sequence length {config.get('seq_len')}"
    blocks: list[Block] = [config_facts(config)]
    if environment is not None:
        blocks += [Paragraph(Strong("Environment")), environment_facts(environment)]
    configuration = Section("Configuration", tuple(blocks), number="1")
    body = _body(summary, top, benchmark=benchmark, batch_size=config.get("batch_size"))
    return Document(f"Kernel analysis: {config.get('workload')}, {sizes}", sections=(configuration, *body))


def overview_document(summary: Summary, *, top: int | None = 10, title: str = "") -> Document:
    """The short form for a terminal: totals and ranked tables, no details per operator; all rows for None."""
    sections = [
        *([Section("Devices", (device_table(summary),))] if len(summary.devices) > 1 else []),
        Section("Top operators", (operator_table(summary, top_operators(summary, top)),)),
        Section("Categories", (_category_bars(summary),)),
    ]
    if summary.kernels:
        sections.append(Section("Kernels", _kernel_blocks(summary, top)))
    if has_efficiency(summary):
        sections.append(Section("How far from the limit", efficiency_blocks(summary, top)))
    if has_timeline(summary):
        sections.append(Section("Where the GPU waits", time_blocks(summary)))
    sections.extend(program_sections(summary, top))
    if summary.unattributed_ns:
        sections.append(Section("Unattributed time", (_unattributed_table(summary),)))
    if summary.accuracy is not None and summary.has_device:
        sections.append(Section("How exact this is", accuracy_overview(summary)))
    findings = merged_findings(summary)
    if findings:
        sections.append(Section("Findings", (FindingList(findings),)))
    if summary.advice is not None and summary.has_device:
        sections.append(Section("What to change", advice_blocks(summary)))
    return Document(title or _source_title(summary), (overview_facts(summary),), tuple(sections))


def _body(
    summary: Summary, top: int | None, *, benchmark: Latency | None, batch_size: int | None
) -> tuple[Section, ...]:
    operators = top_operators(summary, top)
    detailed = [operator for operator in operators if rank_ns(summary, operator) > 0]
    details = tuple(operator_section(summary, operator) for operator in detailed)
    sections = [
        Section("Overview", overview_blocks(summary, benchmark, batch_size)),
        Section("Categories", (_category_bars(summary),)),
        Section(
            f"Top {len(detailed)} operators in detail" if detailed else "Top operators in detail",
            (ranking_paragraph(summary), operator_table(summary, operators)),
            details,
        ),
        *_limit_sections(summary, top),
        Section("Kernels", _kernel_blocks(summary, None if top is None else max(top, 10))),
        Section("Unattributed time", _unattributed_blocks(summary)),
        Section("Findings", (_finding_block(summary),)),
        *_accuracy_sections(summary),
    ]
    return tuple(_numbered(section, number) for number, section in enumerate(sections, 2))


def _numbered(section: Section, number: int) -> Section:
    below = (replace(one, number=f"{number}.{rank}") for rank, one in enumerate(section.sections, 1))
    return replace(section, number=str(number), sections=tuple(below))


def _limit_sections(summary: Summary, top: int | None) -> Iterator[Section]:
    """Distance from the limit, waiting and advice: what needs a device."""
    if has_efficiency(summary):
        yield Section("How far from the limit", efficiency_blocks(summary, top))
    hint = recording_hint(summary)
    if has_timeline(summary):
        yield Section("Where the GPU waits", (*time_blocks(summary), *([hint] if hint else [])))
    yield from program_sections(summary, top)
    if summary.advice is not None and summary.has_device:
        yield Section("What to change", advice_notes(summary), advice_sections(summary))


def _accuracy_sections(summary: Summary) -> tuple[Section, ...]:
    if summary.accuracy is None or not summary.has_device:
        return ()
    return (Section("How exact this is", accuracy_blocks(summary)),)


def _category_bars(summary: Summary) -> BarList:
    titles = ("Device time", "Share", "CPU time", "Calls")
    # Without a device the share is of CPU time.
    order = (0, 1, 2, 3) if summary.has_device else (2, 1, 3)
    rows = []
    for category in summary.categories:
        cells = (
            format_duration(category.device_ns),
            format_fraction(category.fraction),
            format_duration(category.cpu_ns),
            format_count(category.calls),
        )
        rows.append(
            (category_title(category.category), category.fraction, tuple(cells[index] for index in order))
        )
    return BarList((Column("Category"), *(numeric(titles[index]) for index in order)), tuple(rows))


def _kernel_blocks(summary: Summary, top: int | None) -> tuple[Block, ...]:
    if not summary.kernels:
        return (Paragraph("No device activity was recorded."),)
    shown = summary.kernels[:top]
    rows = tuple(
        (
            Code(kernel.name),
            kernel.kind,
            format_count(kernel.calls),
            format_duration(kernel.total_ns),
            format_fraction(kernel.fraction),
            format_duration(kernel.total_ns / kernel.calls),
        )
        for kernel in shown
    )
    columns = (Column("Name"), Column("Kind"), *map(numeric, ("Calls", "Time", "Share", "Mean")))
    rest = summary.kernels[len(shown) :]
    blocks: list[Block] = [Table(columns, rows)]
    if rest:
        total = format_duration(sum(kernel.total_ns for kernel in rest))
        blocks.append(Paragraph(f"{len(rest):,} more names take {total}."))
    return tuple(blocks)


def _unattributed_blocks(summary: Summary) -> tuple[Block, ...]:
    if not summary.has_device:
        return (Paragraph("No device activity was recorded, so there is nothing to attribute."),)
    blocks: list[Block] = []
    if summary.unattributed_ns:
        blocks.append(_unattributed_table(summary))
    else:
        blocks.append(Paragraph("Every nanosecond of device time belongs to an operator."))
    blocks.append(_conservation(summary))
    return tuple(blocks)


def _unattributed_table(summary: Summary) -> Table:
    rows = tuple(
        (
            Code(reason),
            f"{duration_ns:,} ns",
            format_fraction(duration_ns / summary.device_time_ns if summary.device_time_ns else None),
            Attribution(reason).meaning,
        )
        for reason, duration_ns in sorted(summary.unattributed_ns.items(), key=lambda item: -item[1])
    )
    return Table((Column("Reason"), numeric("Time"), numeric("Share"), Column("Meaning")), rows)


def _conservation(summary: Summary) -> Paragraph:
    self_ns = sum(operator.self_device_ns for operator in summary.operators)
    unattributed_ns = sum(summary.unattributed_ns.values())
    difference_ns = summary.device_time_ns - self_ns - unattributed_ns
    text = (
        f"Σ self device time of operators {self_ns:,} ns + Σ unattributed {unattributed_ns:,} ns = "
        f"device time {summary.device_time_ns:,} ns"
    )
    if difference_ns == 0:
        return Paragraph(f"{text}, to the nanosecond.")
    return Paragraph(
        (f"{text} ", Strong(f"fails by {difference_ns:,} ns."), " The figures above are not reliable.")
    )


def _finding_block(summary: Summary) -> Block:
    findings = merged_findings(summary)
    return FindingList(findings) if findings else Paragraph("None.")


def _source_title(summary: Summary) -> str:
    if len(summary.traces) == 1:
        return summary.traces[0]
    return f"{len(summary.traces)} traces" if summary.traces else "no trace"
