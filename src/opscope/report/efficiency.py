"""How far from the limit: what the device can do, what each call reached of it, and what stands in its way.

A fraction always says which limit it refers to, measured or of the data sheet. Calls whose cost is unknown
are named with the reason, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from opscope.analysis.efficiency import (
    Bound,
    CallEfficiency,
    CostCoverage,
    Efficiency,
    Roofline,
    TensorCoreUse,
)
from opscope.analysis.program.values import ProgramTotals
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleGap, Timeline, TimePartition
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.model.schema import Attribution
from opscope.report.document import Block, Code, Column, Paragraph, Strong, Table, Text, numeric
from opscope.report.json_encoding import from_json_text
from opscope.units import (
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_flop_count,
    format_flop_rate,
    format_fraction,
)

__all__ = [
    "NO_ROOFLINE",
    "call_records",
    "coverage_record",
    "efficiency_blocks",
    "has_efficiency",
    "limit_cells",
    "limit_titles",
    "limits_record",
    "operator_limit_facts",
    "partition_records",
    "program_record",
    "roofline_record",
    "timeline_record",
]


_UNKNOWN = "–"
_UNCOSTED_ROWS = 5
_SHOWN_SHAPES = 4
_ELSEWHERE = " *"
_TENSOR = "tensor"
_KNOWN = 0.9995  # from here on "all of its time"
_EVIDENCE = {LimitEvidence.MEASURED: "measured", LimitEvidence.DATASHEET: "data sheet"}


def has_efficiency(summary: Summary) -> bool:
    """Whether anything is known of the cost of what ran on a device."""
    return summary.has_device and summary.efficiency.coverage.bytes_fraction is not None


def limit_titles(summary: Summary) -> tuple[str, ...]:
    """Headings of `limit_cells`; none where no limit of the device is known."""
    return ("Of limit", "Bound") if has_efficiency(summary) and summary.efficiency.limits is not None else ()


def limit_cells(summary: Summary, operator: str) -> tuple[Text, ...]:
    """Share of the limit that an operator reached and what binds, for the table of operators."""
    roofline = summary.efficiency.operators.get(operator)
    if roofline is None:
        return tuple(_UNKNOWN for _ in limit_titles(summary))
    return (format_fraction(roofline.fraction), str(roofline.bound or _UNKNOWN))[: len(limit_titles(summary))]


def efficiency_blocks(summary: Summary, top: int | None) -> tuple[Block, ...]:
    """Limits, coverage, and the calls that lose most time to the limit."""
    efficiency = summary.efficiency
    blocks: list[Block] = [Paragraph(_limits_text(summary)), Paragraph(_coverage_text(efficiency))]
    if efficiency.limits is not None:
        far = sorted((call for call in efficiency.calls if call.gap_ns), key=lambda call: -(call.gap_ns or 0))
        if far:
            blocks.append(_call_table(far[:top], summary.device_time_ns))
    if efficiency.coverage.uncosted:
        blocks.append(_uncosted_table(efficiency.coverage, summary.device_time_ns))
    return tuple(blocks)


def operator_limit_facts(summary: Summary, operator: str) -> list[tuple[str, Text]]:
    """What one operator reached, and why it was not more; unknown is said."""
    roofline = summary.efficiency.operators.get(operator)
    if roofline is None or not roofline.costed_ns:
        return [("Distance from the limit", "unknown: the cost of its calls is not known")]
    facts: list[tuple[str, Text]] = [("Work", _work_text(roofline))]
    facts.append(("Achieved", _achieved_text(roofline)))
    if roofline.fraction is not None:
        facts.append(("Distance from the limit", _distance_text(summary.efficiency, roofline)))
    if roofline.bound is not None:
        facts.append(("Bound", f"{roofline.bound}: {roofline.bound.meaning}{_shares(roofline)}"))
    if roofline.tensor_cores is not None and roofline.tensor_cores is not TensorCoreUse.NOT_APPLICABLE:
        facts.append(("Tensor cores", f"{roofline.tensor_cores}: {roofline.tensor_cores.meaning}"))
    return facts


def _limits_text(summary: Summary) -> Text:
    limits, reason = summary.efficiency.limits, summary.limits_reason
    because = f" ({reason})" if reason else ""
    if limits is None:
        return f"What the device can do is not known{because}, so calls are not held against it."
    shown: list[tuple[str, Limit, Callable[[float], str]]] = []
    if limits.memory is not None:
        shown.append(("memory", limits.memory, format_byte_rate))
    shown += [(str(data_type), limit, format_flop_rate) for data_type, limit in _main_peaks(limits)]
    kinds = {limit.evidence for _, limit, _ in shown}
    if len(kinds) == 1:
        whose = f"the {_EVIDENCE[kinds.pop()]} limits of {limits.name}"
        parts = [f"{name} {form(limit.per_s)}" for name, limit, form in shown]
    else:
        whose = str(limits.name)
        parts = [f"{name} {_limit_text(limit, form)}" for name, limit, form in shown]
    return f"Held against {whose}: {', '.join(parts) or 'no known limit'}{because}."


_SHOWN_PEAKS = (DataType.FP32, DataType.TF32, DataType.BF16, DataType.FP16)


def _main_peaks(limits: DeviceLimits) -> Iterator[tuple[DataType, Limit]]:
    for data_type in _SHOWN_PEAKS:
        limit = limits.peaks.get(data_type)
        if limit is not None:
            yield data_type, limit


def _limit_text(limit: Limit, form: Callable[[float], str]) -> str:
    return f"{form(limit.per_s)} ({_EVIDENCE[limit.evidence]})"


def _coverage_text(efficiency: Efficiency) -> str:
    coverage = efficiency.coverage
    return (
        f"Least bytes are known for {format_fraction(coverage.bytes_fraction)} of device time, "
        f"floating-point operations (or that there are none) for {format_fraction(coverage.flop_fraction)}."
    )


def _call_table(calls: list[CallEfficiency], device_time_ns: int) -> Table:
    titles = ("Calls", "Device time", "Bound", "Achieved", "Of limit", "Beyond it")
    rows = tuple(
        (
            Code(call.operator) if call.attribution is None else (Code(call.operator), _ELSEWHERE),
            _arguments(call),
            format_count(call.calls),
            format_duration(call.roofline.device_ns),
            str(call.roofline.bound or _UNKNOWN),
            _main_rate(call.roofline),
            format_fraction(call.roofline.fraction),
            f"{format_duration(call.gap_ns)}, {format_fraction((call.gap_ns or 0) / device_time_ns)}",
        )
        for call in calls
    )
    caption = "The calls that take most time beyond what the limits allow, by arguments."
    reasons = list(dict.fromkeys(call.attribution for call in calls if call.attribution is not None))
    if reasons:
        caption += f" *: {', or '.join(Attribution(reason).meaning for reason in reasons)}."
    columns = (Column("Operator"), Column("Shapes"), *map(numeric, titles))
    return Table(columns, rows, caption)


def _arguments(call: CallEfficiency) -> str:
    """Its shapes; else what one call moves, which tells copies of unrecorded tensors apart."""
    if call.shapes is None and call.cost.min_bytes is not None:
        return f"{format_bytes(call.cost.min_bytes)} moved"
    return _shapes(call.shapes)


def _shapes(recorded: str | None) -> str:
    """`8×128×768, 768×768`: the shapes of the first tensors among the arguments."""
    shapes = None if recorded is None else from_json_text(recorded)
    if not isinstance(shapes, list):
        return recorded or _UNKNOWN
    runs = [
        (shape, sum(1 for _ in same))
        for shape, same in groupby(_shape(one) for one in shapes if one not in ([], ""))
    ]
    texts = [_run(shape, count) for shape, count in runs]
    more = [] if len(texts) <= _SHOWN_SHAPES else [f"{sum(count for _, count in runs[_SHOWN_SHAPES:])} more"]
    return ", ".join([*texts[:_SHOWN_SHAPES], *more]) or _UNKNOWN


def _shape(shape: Any) -> str:
    if not isinstance(shape, list):
        return str(shape)
    if shape and isinstance(shape[0], list):
        return f"{len(shape)} {_TENSOR}{'' if len(shape) == 1 else 's'}"
    return "×".join(map(str, shape))


def _run(shape: str, count: int) -> str:
    """`2 of 16×256`, `2 lists of 4 tensors`."""
    if count == 1:
        return shape
    return f"{count} {'lists ' if _TENSOR in shape else ''}of {shape}"


def _main_rate(roofline: Roofline) -> str:
    if roofline.bound is Bound.COMPUTE:
        return format_flop_rate(roofline.achieved_flop_per_s)
    return format_byte_rate(roofline.achieved_bytes_per_s)


def _uncosted_table(coverage: CostCoverage, device_time_ns: int) -> Table:
    rows = tuple(
        (
            name,
            format_duration(ns),
            format_fraction(ns / device_time_ns if device_time_ns else None),
            why,
        )
        for name, ns, why in _by_reason(coverage.uncosted)[:_UNCOSTED_ROWS]
    )
    columns = (Column("Cost unknown"), numeric("Device time"), numeric("Share"), Column("Why"))
    return Table(columns, rows)


def _by_reason(uncosted: tuple[tuple[str, int, str], ...]) -> list[tuple[Text, int, str]]:
    """One row for each reason, most time first: it names the first operator, and how many more there are."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, ns, why in uncosted:
        # The name stands beside it already.
        groups.setdefault(why.removeprefix(f"{name} is ").replace(name, "it"), []).append((name, ns))
    rows: list[tuple[Text, int, str]] = []
    for why, members in groups.items():
        first = Code(members[0][0])
        named: Text = first if len(members) == 1 else (first, f" and {len(members) - 1:,} more")
        rows.append((named, sum(ns for _, ns in members), why))
    return sorted(rows, key=lambda row: -row[1])


def _work_text(roofline: Roofline) -> str:
    parts = [f"{format_bytes(roofline.min_bytes)} at least"] if roofline.min_bytes is not None else []
    if roofline.flop_count is not None:
        parts.append(format_flop_count(roofline.flop_count) if roofline.flop_count else "no FLOP")
    if roofline.arithmetic_intensity:
        parts.append(f"{roofline.arithmetic_intensity:,.3g} FLOP/byte")
    share = roofline.costed_ns / roofline.device_ns if roofline.device_ns else 1.0
    known = "" if share >= _KNOWN else f" (known for {format_fraction(share)} of its time)"
    return ", ".join(parts) + known


def _achieved_text(roofline: Roofline) -> str:
    parts = [format_byte_rate(roofline.achieved_bytes_per_s)]
    if roofline.flop_count:
        parts.append(format_flop_rate(roofline.achieved_flop_per_s))
    return ", ".join(parts)


def _distance_text(efficiency: Efficiency, roofline: Roofline) -> Text:
    limit = _binding_limit(efficiency.limits, roofline)
    return (
        Strong(format_fraction(roofline.fraction)),
        f" of the attainable: the same work needs {format_duration(roofline.attainable_ns)} "
        f"at the limits{'' if limit is None else f' ({limit})'}",
    )


def _binding_limit(limits: DeviceLimits | None, roofline: Roofline) -> str | None:
    if limits is None:
        return None
    peak = None if roofline.data_type is None else limits.peaks.get(roofline.data_type)
    if roofline.bound is Bound.COMPUTE and peak is not None:
        return f"{roofline.data_type} {_limit_text(peak, format_flop_rate)}"
    return None if limits.memory is None else f"memory {_limit_text(limits.memory, format_byte_rate)}"


def _shares(roofline: Roofline) -> str:
    whole = sum(roofline.bound_ns.values())
    parts = sorted(roofline.bound_ns.items(), key=lambda item: -item[1])
    if len(parts) < 2 or not whole:
        return ""
    return f" ({', '.join(f'{bound} {format_fraction(ns / whole)}' for bound, ns in parts)} of its time)"


def roofline_record(roofline: Roofline | None) -> dict[str, Any]:
    """The roofline fields of an operator or kernel; every key is there, null where unknown."""
    if roofline is None:
        return dict(NO_ROOFLINE)
    return {
        "flop_count": roofline.flop_count,
        "min_bytes": roofline.min_bytes,
        "arithmetic_intensity": roofline.arithmetic_intensity,
        "achieved_flop_per_s": roofline.achieved_flop_per_s,
        "achieved_bytes_per_s": roofline.achieved_bytes_per_s,
        "attainable_ns": roofline.attainable_ns,
        "roofline_fraction": roofline.fraction,
        "bound": roofline.bound,
        "bound_ns": {str(bound): ns for bound, ns in roofline.bound_ns.items()},
        "costed_ns": roofline.costed_ns,
        "held_ns": roofline.held_ns,
        "cache_resident_ns": roofline.cache_resident_ns,
        "excess_ns": roofline.excess_ns,
        "data_type": roofline.data_type,
        "tensor_cores": roofline.tensor_cores,
    }


NO_ROOFLINE: dict[str, Any] = {
    "flop_count": None,
    "min_bytes": None,
    "arithmetic_intensity": None,
    "achieved_flop_per_s": None,
    "achieved_bytes_per_s": None,
    "attainable_ns": None,
    "roofline_fraction": None,
    "bound": None,
    "bound_ns": {},
    "costed_ns": 0,
    "held_ns": 0,
    "cache_resident_ns": 0,
    "excess_ns": 0,
    "data_type": None,
    "tensor_cores": None,
}


def call_records(efficiency: Efficiency, top: int | None) -> list[dict[str, Any]]:
    """The distinct calls with the most device time, with their cost and what it is known by."""
    return [_call(call) for call in efficiency.calls[:top]]


def _call(call: CallEfficiency) -> dict[str, Any]:
    cost = call.cost
    return {
        "call_id": call.call_id,
        "operator": call.operator,
        "overload": call.overload,
        "shapes": None if call.shapes is None else from_json_text(call.shapes),
        "types": None if call.types is None else from_json_text(call.types),
        "calls": call.calls,
        "device_ns": call.roofline.device_ns,
        "gap_ns": call.gap_ns,
        "kernels": list(call.kernels),
        "read_bytes": cost.read_bytes,
        "written_bytes": cost.written_bytes,
        "cost_evidence": cost.evidence,
        "flop_source": cost.flop_source,
        "unknown_because": cost.reason,
        **roofline_record(call.roofline),
    }


def coverage_record(efficiency: Efficiency) -> dict[str, Any]:
    """The share of all device time whose bytes and operations are known, and what is not."""
    coverage = efficiency.coverage
    return {
        "bytes_fraction": coverage.bytes_fraction,
        "flop_fraction": coverage.flop_fraction,
        "uncosted": [
            {"name": name, "device_ns": ns, "reason": reason} for name, ns, reason in coverage.uncosted
        ],
    }


def limits_record(limits: DeviceLimits | None) -> dict[str, Any] | None:
    """The limits that fractions refer to, each with how it is known; None where none are."""
    if limits is None:
        return None
    return {
        "device": limits.name,
        "memory_bytes_per_s": _limit(limits.memory),
        "l2_bytes_per_s": _limit(limits.l2),
        "peaks_flop_per_s": {str(data_type): _limit(limit) for data_type, limit in limits.peaks.items()},
        "launch_ns": limits.launch_ns,
    }


def _limit(limit: Limit | None) -> dict[str, Any] | None:
    return None if limit is None else {"value": limit.per_s, "evidence": limit.evidence, "how": limit.how}


def partition_records(timeline: Timeline) -> list[dict[str, Any]]:
    """The partition of each device's span: every nanosecond in one part, of idle time in one cause."""
    return [_partition(one) for one in timeline.partitions]


def _partition(one: TimePartition) -> dict[str, Any]:
    return {
        "trace_id": one.trace_id,
        "rank": one.rank,
        "device": one.device,
        "span_ns": one.span_ns,
        "compute_ns": one.compute_ns,
        "exposed_copy_ns": one.exposed_copy_ns,
        "exposed_communication_ns": one.exposed_communication_ns,
        "idle_ns": one.idle_ns,
        "idle_by_cause": {str(cause): ns for cause, ns in one.idle_by_cause.items()},
        "copy_ns": one.copy_ns,
        "communication_ns": one.communication_ns,
        "longest_gaps": [_gap(gap) for gap in one.longest_gaps],
    }


def _gap(gap: IdleGap) -> dict[str, Any]:
    return {
        "start_ns": gap.start_ns,
        "duration_ns": gap.duration_ns,
        "cause": gap.cause,
        "step": gap.step,
        "host": gap.host,
        "line": gap.line,
    }


def timeline_record(timeline: Timeline) -> dict[str, Any]:
    """Waits, launches, queue and steps."""
    return {
        "waits": [
            {
                "name": wait.name,
                "operator": wait.operator,
                "line": wait.line,
                "calls": wait.calls,
                "host_ns": wait.host_ns,
                "idle_ns": wait.idle_ns,
                "copy": wait.copy,
                "size_bytes": wait.size_bytes,
            }
            for wait in timeline.waits
        ],
        "launch_latency": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "launches": one.launches,
                "median_ns": one.median_ns,
                "p95_ns": one.p95_ns,
                "negative_count": one.negative_count,
            }
            for one in timeline.latencies
        ],
        "queue_depth": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "mean": one.mean,
                "maximum": one.maximum,
                "empty_fraction": one.empty_fraction,
            }
            for one in timeline.queues
        ],
        "over_time": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "start_ns": one.start_ns,
                "interval_ns": one.interval_ns,
                "queue_depth": list(one.mean),
                "launch_latency_ns": list(one.latency_ns),
            }
            for one in timeline.series
        ],
        "steps": [
            {
                "trace_id": one.trace_id,
                "count": one.count,
                "mean_ns": one.mean_ns,
                "median_ns": one.median_ns,
                "min_ns": one.min_ns,
                "max_ns": one.max_ns,
                "outliers": list(one.outliers),
            }
            for one in timeline.steps
        ],
        "host": [
            {
                "trace_id": one.trace_id,
                "steps": one.steps,
                "step_ns": one.step_ns,
                "device_busy_ns": one.device_busy_ns,
                "launch_path_ns": one.launch_path_ns,
                "launches": one.launches,
                "recorder_ns": one.recorder_ns,
                "recorder_basis": one.recorder_basis,
            }
            for one in timeline.host
        ],
    }


def program_record(program: ProgramTotals, top: int | None) -> dict[str, Any]:
    """Device time by module and by source line."""
    return {
        "module_ns": program.module_ns,
        "line_ns": program.line_ns,
        "modules": [
            {
                "path": one.path,
                "class_name": one.class_name,
                "depth": one.depth,
                "calls": one.calls,
                "self_device_ns": one.self_device_ns,
                "total_device_ns": one.total_device_ns,
                "forward_ns": one.forward_ns,
                "backward_ns": one.backward_ns,
                "kernel_launches": one.kernel_launches,
            }
            for one in program.modules
        ],
        "lines": [
            {
                "file": one.file,
                "line": one.line,
                "kind": str(one.kind),
                "function": one.function,
                "calls": one.calls,
                "self_device_ns": one.self_device_ns,
                "forward_ns": one.forward_ns,
                "backward_ns": one.backward_ns,
                "kernel_launches": one.kernel_launches,
            }
            for one in program.lines[:top]
        ],
    }
