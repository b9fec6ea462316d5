"""Summary → Document: what reports say, in which order and under which numbers.

The section numbers are part of the report's contract (`### 4.1` is the first operator). Every figure comes
from the Summary; a value no one has found is said to be unknown, never left out. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from opscope._version import __version__
from opscope.analysis.efficiency import Roofline
from opscope.analysis.summary import DeviceTime, StepTotal, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, LaunchGeometry, OperatorTotal
from opscope.model.environment import Environment
from opscope.model.finding import Finding
from opscope.model.measurement import Latency
from opscope.model.schema import Attribution
from opscope.provenance.categories import category_title
from opscope.report.advice import advice_blocks, advice_notes, advice_sections
from opscope.report.document import (
    BarList,
    Block,
    Code,
    Column,
    Document,
    FactList,
    FindingList,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    numeric,
)
from opscope.report.efficiency import (
    call_records,
    coverage_record,
    efficiency_blocks,
    has_efficiency,
    limits_record,
    partition_records,
    program_record,
    roofline_record,
    timeline_record,
)
from opscope.report.improvement_section import improvement_record
from opscope.report.json_encoding import from_json_text
from opscope.report.launch_account import account_records
from opscope.report.operators import (
    merged_findings,
    operator_section,
    operator_table,
    rank_fraction,
    rank_ns,
    ranked_findings,
    ranked_operators,
    ranking_paragraph,
    top_operators,
)
from opscope.report.program import program_sections, recording_hint
from opscope.report.provenance import (
    accuracy_blocks,
    accuracy_overview,
    accuracy_record,
    decoded_record,
    function_record,
    kernel_source_record,
    location_record,
)
from opscope.report.timeline import has_timeline, time_blocks
from opscope.units import NS_PER_S, format_bytes, format_count, format_duration, format_fraction, ns_to_ms

__all__ = [
    "ANALYSIS_SCHEMA_VERSION",
    "analysis_document",
    "analysis_report",
    "config_facts",
    "configuration_report",
    "device_table",
    "environment_facts",
    "finding_record",
    "kernel_record",
    "operator_record",
    "overview_blocks",
    "overview_document",
    "overview_facts",
    "shape_records",
    "trace_facts",
]


_STEP_ROWS = 12


def config_facts(config: Mapping[str, Any]) -> FactList:
    """The settings of a configuration, in their order."""
    return FactList(tuple((_label(key), _value(value)) for key, value in config.items()))


def trace_facts(summary: Summary) -> FactList:
    """Which traces, ranks and devices the report is about."""
    facts: list[tuple[str, Text]] = [("Trace", Code(source)) for source in summary.traces]
    ranks = [str(rank) for rank in summary.ranks if rank is not None]
    if ranks:
        facts.append(("Ranks", ", ".join(ranks)))
    facts.append(("Devices", _device_names(summary)))
    return FactList(tuple(facts))


def _device_names(summary: Summary) -> Text:
    counts: dict[str, int] = {}
    for device in summary.devices:
        name = device.name or "a device the trace does not describe"
        capability = f" (compute capability {device.compute_capability})" if device.compute_capability else ""
        counts[name + capability] = counts.get(name + capability, 0) + 1
    names = [name if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    return ", ".join(names) or "none used"


def environment_facts(environment: Environment) -> FactList:
    """Versions and hardware of the machine it was recorded on."""
    facts: list[tuple[str, Text]] = [
        (label, str(value))
        for label, value in (
            ("Python", environment.python),
            ("PyTorch", environment.torch),
            ("PyTorch revision", environment.torch_git_version),
            ("CUDA runtime", environment.cuda_runtime),
            ("CUDA driver", environment.cuda_driver),
            ("cuDNN", environment.cudnn),
            ("Triton", environment.triton),
            ("Transformers", environment.transformers),
            ("CPU", environment.cpu),
            ("opscope", environment.opscope),
        )
        if value
    ]
    for gpu in environment.gpu:
        facts.append(
            (
                "GPU",
                f"{gpu.name}: compute capability {gpu.compute_capability}, {gpu.sm_count} multiprocessors, "
                f"{format_bytes(gpu.memory_bytes)}",
            )
        )
    return FactList(tuple(facts))


def _label(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _value(value: Any) -> Text:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_count(value) if isinstance(value, int) else str(value)


def overview_blocks(summary: Summary, benchmark: Latency | None, batch_size: int | None) -> tuple[Block, ...]:
    """Totals, devices and steps."""
    blocks: list[Block] = [overview_facts(summary, benchmark, batch_size)]
    if summary.devices:
        blocks.append(device_table(summary))
    if summary.steps:
        blocks.append(_step_table(summary))
    return tuple(blocks)


def overview_facts(
    summary: Summary, benchmark: Latency | None = None, batch_size: int | None = None
) -> FactList:
    """The totals of a recording, and its latency without the profiler where measured."""
    facts: list[tuple[str, Text]] = []
    if summary.has_device:
        attributed = format_fraction(summary.attributed_fraction)
        facts += [
            (
                "Device time",
                f"{format_duration(summary.device_time_ns)} in {summary.activity_count:,} activities",
            ),
            ("Attributed to operators", f"{format_duration(summary.attributed_ns)} ({attributed})"),
            ("Device busy", f"{format_fraction(summary.busy_fraction)} of the span of its activities"),
            ("Kernel launches", format_count(summary.kernel_launches)),
        ]
    else:
        facts.append(("Device time", Strong("none: ranked by CPU time")))
    facts += [
        ("CPU time in operators", format_duration(summary.cpu_time_ns)),
        ("Operator calls", f"{summary.operator_calls:,}, of {summary.operator_names:,} operators"),
    ]
    if summary.steps:
        facts.append(("Steps", _steps_text(summary)))
    if benchmark is not None:
        facts += _benchmark_facts(benchmark, batch_size)
    return FactList(tuple(facts))


def _steps_text(summary: Summary) -> str:
    durations = [step.duration_ns for step in summary.steps]
    mean = format_duration(sum(durations) / len(durations))
    text = f"{len(durations)}, {mean} each on average while recorded"
    if summary.has_device:
        device_ns = sum(step.device_ns for step in summary.steps) / len(durations)
        text += f", {format_duration(device_ns)} of device time each"
    return text


def _benchmark_facts(benchmark: Latency, batch_size: int | None) -> list[tuple[str, Text]]:
    low, high = format_duration(benchmark.p5_ns), format_duration(benchmark.p95_ns)
    facts: list[tuple[str, Text]] = [
        (
            "Latency without the profiler",
            f"median {format_duration(benchmark.median_ns)} [5 %: {low}, 95 %: {high}], "
            f"{len(benchmark.samples_ns)} samples by {benchmark.clock}",
        )
    ]
    if batch_size and benchmark.median_ns:
        facts.append(("Throughput", f"{batch_size / benchmark.median_ns * NS_PER_S:,.1f} sequences/s"))
    return facts


def device_table(summary: Summary) -> Table:
    """Span, busy and idle time of each device."""
    with_rank = any(device.rank is not None for device in summary.devices)
    rows = tuple(
        (
            *((_value(device.rank),) if with_rank else ()),
            f"{device.device}",
            device.name or "unknown",
            format_count(device.activity_count),
            format_duration(device.span_ns),
            format_duration(device.busy_ns),
            format_duration(device.idle_ns),
            format_fraction(device.busy_ns / device.span_ns if device.span_ns else None),
        )
        for device in summary.devices
    )
    rank = (numeric("Rank"),) if with_rank else ()
    columns = (
        numeric("Device"),
        Column("Name"),
        *map(numeric, ("Activities", "Span", "Busy", "Idle", "Busy share")),
    )
    return Table((*rank, *columns), rows)


def _step_table(summary: Summary) -> Table:
    shown = summary.steps[:_STEP_ROWS]
    titles = ("Step", "Duration", "Device time", "Kernels") if summary.has_device else ("Step", "Duration")
    rows = tuple(
        (
            f"{step.step}",
            format_duration(step.duration_ns),
            format_duration(step.device_ns),
            format_count(step.kernel_count),
        )[: len(titles)]
        for step in shown
    )
    caption = (
        f"The first {len(shown)} of {len(summary.steps)} steps." if len(shown) < len(summary.steps) else None
    )
    return Table(tuple(map(numeric, titles)), rows, caption)


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


ANALYSIS_SCHEMA_VERSION = 1


def analysis_document(summary: Summary, *, top: int | None = 10) -> dict[str, Any]:
    """The Summary as JSON values: the `top` operators (every one for None), everything else complete."""
    operators = summary.operators if top is None else ranked_operators(summary)[:top]
    return {
        "schema_version": ANALYSIS_SCHEMA_VERSION,
        "opscope_version": __version__,
        "trace": summary.traces[0] if summary.traces else None,
        "traces": list(summary.traces),
        "ranks": list(summary.ranks),
        "torch_version": summary.torch_version,
        "torch_version_grade": summary.torch_version_grade,
        "torch_version_reason": summary.torch_version_reason,
        "summary": _totals(summary),
        "unattributed": dict(summary.unattributed_ns),
        "ranked_by": "self_device_ns" if summary.has_device else "self_cpu_ns",
        "top_operators": [operator_record(summary, operator) for operator in operators],
        "categories": [_category(category) for category in summary.categories],
        "kernels": [
            kernel_record(kernel, summary.efficiency.kernels.get((None, kernel.name)))
            for kernel in summary.kernels
        ],
        "steps": [_step(step) for step in summary.steps],
        "limits": limits_record(summary.efficiency.limits),
        "cost_coverage": coverage_record(summary.efficiency),
        "calls": call_records(summary.efficiency, top),
        "time_partition": partition_records(summary.timeline),
        "timeline": timeline_record(summary.timeline),
        "program": program_record(summary.program, top),
        "accuracy": accuracy_record(summary.accuracy),
        "findings": [finding_record(finding) for finding in ranked_findings(summary)],
    }


def finding_record(finding: Finding) -> dict[str, Any]:
    """A finding with all its fields."""
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        "suggestion": finding.suggestion,
        "trace_id": finding.trace_id,
        "evidence": dict(finding.evidence),
        "estimated_gain_ms_per_step": None
        if finding.estimated_gain_ns_per_step is None
        else ns_to_ms(finding.estimated_gain_ns_per_step),
        "gain_basis": finding.gain_basis,
        "change": finding.change,
    }


def shape_records(operator: OperatorTotal) -> list[dict[str, Any]]:
    """The operator's input shapes with their calls, most frequent first."""
    return [{"shapes": from_json_text(shapes), "calls": calls} for shapes, calls in operator.input_shapes]


def _totals(summary: Summary) -> dict[str, Any]:
    return {
        "device_time_ns": summary.device_time_ns,
        "attributed_ns": summary.attributed_ns,
        "attributed_fraction": summary.attributed_fraction,
        "busy_fraction": summary.busy_fraction,
        "cpu_time_ns": summary.cpu_time_ns,
        "window_ns": summary.window_ns,
        "kernel_launches": summary.kernel_launches,
        "activities": summary.activity_count,
        "operators": summary.operator_calls,
        "operator_names": summary.operator_names,
        "steps": len(summary.steps),
        "devices": [_device(device) for device in summary.devices],
    }


def _device(device: DeviceTime) -> dict[str, Any]:
    return {
        "trace_id": device.trace_id,
        "rank": device.rank,
        "device": device.device,
        "name": device.name,
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
        "span_ns": device.span_ns,
        "busy_ns": device.busy_ns,
        "idle_ns": device.idle_ns,
        "activities": device.activity_count,
    }


def operator_record(summary: Summary, operator: OperatorTotal) -> dict[str, Any]:
    """One operator, with its native function, source and kernels."""
    return {
        "name": operator.name,
        "overload": operator.overload,
        "category": operator.category,
        "calls": operator.calls,
        "self_device_ns": operator.self_device_ns,
        "total_device_ns": operator.total_device_ns,
        "self_device_fraction": operator.self_device_fraction,
        "total_device_fraction": operator.total_device_fraction,
        "self_cpu_ns": operator.self_cpu_ns,
        "total_cpu_ns": operator.total_cpu_ns,
        "rank_fraction": rank_fraction(summary, operator),
        "kernel_launches": operator.kernel_launches,
        "input_shapes": shape_records(operator),
        "native_function": function_record(operator),
        "source": location_record(operator.source),
        **roofline_record(summary.efficiency.operators.get(operator.name)),
        "improvement": improvement_record(summary.improvements.get(operator.name)),
        "called_operators": [
            {"name": name, "calls": calls, "total_device_ns": total_ns}
            for name, calls, total_ns in operator.called_operators
        ],
        "kernels": [
            {
                **kernel_record(kernel, summary.efficiency.kernels.get((operator.name, kernel.name))),
                "parallelism": account_records(summary, operator.name, kernel.name),
            }
            for kernel in operator.kernels
        ],
    }


def _category(category: CategoryTotal) -> dict[str, Any]:
    return {
        "category": category.category,
        "device_ns": category.device_ns,
        "cpu_ns": category.cpu_ns,
        "fraction": category.fraction,
        "calls": category.calls,
    }


def kernel_record(kernel: KernelTotal, roofline: Roofline | None = None) -> dict[str, Any]:
    """One kernel, with what its name states, where its code lies and how far it is from the limit."""
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "calls": kernel.calls,
        "total_ns": kernel.total_ns,
        "min_ns": kernel.min_ns,
        "max_ns": kernel.max_ns,
        "fraction": kernel.fraction,
        "size_bytes": kernel.size_bytes,
        "decoded": decoded_record(kernel.facts),
        "source": kernel_source_record(kernel.facts),
        **roofline_record(roofline),
        "launches": [_geometry(geometry) for geometry in kernel.geometries],
    }


def _geometry(geometry: LaunchGeometry) -> dict[str, Any]:
    return {
        "grid": None if geometry.grid is None else list(geometry.grid),
        "block": None if geometry.block is None else list(geometry.block),
        "registers_per_thread": geometry.registers_per_thread,
        "shared_memory_bytes": geometry.shared_memory_bytes,
        "occupancy_estimate": geometry.occupancy_estimate,
        "calls": geometry.calls,
        "total_ns": geometry.total_ns,
    }


def _step(step: StepTotal) -> dict[str, Any]:
    return {
        "trace_id": step.trace_id,
        "step": step.step,
        "duration_ns": step.duration_ns,
        "device_ns": step.device_ns,
        "kernel_count": step.kernel_count,
    }
