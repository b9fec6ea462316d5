"""How far from the limit: what the device can do, what each call reached of it, and what stands in its way.

A fraction always says which limit it refers to, measured or of the datasheet. Calls whose cost is unknown
are named with the reason, never left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby

from opscope.analysis.roofline import Bound, CallEfficiency, Roofline
from opscope.analysis.summary import Summary
from opscope.analysis.tensor_cores import TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.hardware.limits import Limit
from opscope.model.schema import Attribution
from opscope.report import document as doc
from opscope.report.json_encoding import from_json_text
from opscope.units import (
    UNKNOWN,
    counted,
    format_byte_rate,
    format_bytes,
    format_duration,
    format_flop_count,
    format_flop_rate,
    format_fraction,
    format_share,
)


def shape_texts(recorded: str | None) -> list[str] | None:
    """`8×128×768` for each tensor among recorded arguments; None where they are not recorded as a list."""
    shapes = None if recorded is None else from_json_text(recorded)
    if not isinstance(shapes, list):
        return None
    texts = []
    for one in shapes:
        if isinstance(one, list) and one and isinstance(one[0], list):
            texts.append(counted(len(one), _TENSOR))
        elif one not in ([], ""):
            texts.append("×".join(map(str, one)) if isinstance(one, list) else str(one))
    return texts


def limit_fields(summary: Summary) -> tuple[doc.Field, ...]:
    """Share of the limit that an operator reached and what binds; none where no limit is known."""
    if not has_efficiency(summary) or summary.efficiency.limits is None:
        return ()
    rooflines, none = summary.efficiency.operators, Roofline(0, 0)
    return (
        doc.number("Of limit", lambda operator: format_fraction(rooflines.get(operator.name, none).fraction)),
        doc.number("Bound", lambda operator: rooflines.get(operator.name, none).bound, str, spare=1),
    )


_UNCOSTED_ROWS = 5
_SHOWN_SHAPES = 4
_TENSOR = "tensor"
_KNOWN = 0.9995  # from here on "all of its time"


def has_efficiency(summary: Summary) -> bool:
    return summary.has_device and summary.efficiency.coverage.bytes_fraction is not None


def efficiency_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    """Limits, coverage, and the calls that lose most time to the limit; nothing where no cost is known."""
    if not has_efficiency(summary):
        return ()
    efficiency, device_time_ns = summary.efficiency, summary.device_time_ns
    coverage, calls = efficiency.coverage, () if efficiency.limits is None else efficiency.calls
    far = sorted((call for call in calls if call.gap_ns), key=lambda call: -(call.gap_ns or 0))
    # One row for each reason, most time first: it names the first operator, and how many more there are.
    reasons: dict[str, list[tuple[str, int]]] = {}
    for name, ns, why in coverage.uncosted:
        # The name stands beside it already.
        reasons.setdefault(why.removeprefix(f"{name} is ").replace(name, "it"), []).append((name, ns))
    uncosted: list[tuple[doc.Text, int, str]] = []
    for why, members in reasons.items():
        first = doc.Code(members[0][0])
        named: doc.Text = first if len(members) == 1 else (first, f" and {len(members) - 1:,} more")
        uncosted.append((named, sum(ns for _, ns in members), why))
    uncosted.sort(key=lambda row: -row[1])
    return doc.blocks(
        doc.Paragraph(_limits_text(summary)),
        doc.Paragraph(
            f"Minimum bytes are known for {format_fraction(coverage.bytes_fraction)} "
            f"of device time, FLOP counts (zero included) for {format_fraction(coverage.flop_fraction)}."
        ),
        _call_table(far[:top], device_time_ns),
        doc.table(
            uncosted[:_UNCOSTED_ROWS],
            doc.words("Cost unknown", lambda row: row[0]),
            doc.number("Device time", lambda row: format_duration(row[1])),
            doc.number("Share", lambda row: format_share(row[1], device_time_ns)),
            doc.words("Why", lambda row: row[2]),
        ),
        _lost(summary),
    )


def _lost(summary: Summary) -> doc.Meaning | None:
    """How much of the device time the limits would allow to save."""
    lost: Counter[str] = Counter()
    for one in summary.efficiency.calls:
        lost[one.operator] += one.gap_ns or 0  # type: ignore[assignment]  # a float
    if not lost.total():
        return None
    (name, most_ns), gap_ns = lost.most_common(1)[0], lost.total()
    return doc.Meaning(
        (
            f"At these limits the same calls would take {format_duration(gap_ns)} less, "
            f"{format_share(gap_ns, summary.device_time_ns)} of device time; ",
            doc.Code(name),
            f" accounts for {format_share(most_ns, gap_ns)} of that.",
        )
    )


def operator_limit_facts(summary: Summary, operator: str) -> list[tuple[str, doc.Text]]:
    """What one operator reached, and why it was not more; unknown is said."""
    roofline = summary.efficiency.operators.get(operator)
    if roofline is None or not roofline.costed_ns:
        return [("Distance from the limit", "unknown: the cost of its calls is not known")]
    work = [f"{format_bytes(roofline.min_bytes)} at least"] if roofline.min_bytes is not None else []
    if roofline.flop_count is not None:
        work.append(format_flop_count(roofline.flop_count) if roofline.flop_count else "no FLOP")
    if roofline.arithmetic_intensity:
        work.append(f"{roofline.arithmetic_intensity:,.3g} FLOP/byte")
    share = roofline.costed_ns / roofline.device_ns if roofline.device_ns else 1.0
    known = "" if share >= _KNOWN else f" (known for {format_fraction(share)} of its time)"
    achieved = format_byte_rate(roofline.achieved_bytes_per_s)
    if roofline.flop_count:
        achieved += f", {format_flop_rate(roofline.achieved_flop_per_s)}"
    facts: list[tuple[str, doc.Text]] = [("Work", ", ".join(work) + known), ("Achieved", achieved)]
    if roofline.fraction is not None:
        limits, held = summary.efficiency.limits, ""
        peak = limits and roofline.data_type and limits.peaks.get(roofline.data_type)
        if roofline.bound is Bound.COMPUTE and peak:
            held = f" ({roofline.data_type} {_limit_text(peak, format_flop_rate)})"
        elif limits is not None and limits.memory is not None:
            held = f" (memory {_limit_text(limits.memory, format_byte_rate)})"
        needed = format_duration(roofline.attainable_ns)
        reached = (
            doc.Strong(format_fraction(roofline.fraction)),
            f" of the attainable: the same work needs {needed} at the limits{held}",
        )
        facts.append(("Distance from the limit", reached))
    if roofline.bound is not None:
        whole = sum(roofline.bound_ns.values())
        parts = sorted(roofline.bound_ns.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{bound} {format_share(ns, whole)}" for bound, ns in parts)
        of_time = f" ({shares} of its time)" if len(parts) > 1 and whole else ""
        facts.append(("Bound", f"{roofline.bound}: {roofline.bound.meaning}{of_time}"))
    if roofline.tensor_cores is not None and roofline.tensor_cores is not TensorCoreUse.NOT_APPLICABLE:
        facts.append(("Tensor cores", f"{roofline.tensor_cores}: {roofline.tensor_cores.meaning}"))
    return facts


_SHOWN_PEAKS = (DataType.FP32, DataType.TF32, DataType.BF16, DataType.FP16)


def _limits_text(summary: Summary) -> doc.Text:
    limits, reason = summary.efficiency.limits, summary.limits_reason
    because = f" ({reason})" if reason else ""
    if limits is None:
        return f"The peaks of this GPU are not known{because}: no call is compared with them."
    shown: list[tuple[str, Limit, Callable[[float], str]]] = []
    if limits.memory is not None:
        shown.append(("memory", limits.memory, format_byte_rate))
    # Of common types, and of those that calls are held against.
    held = {call.roofline.data_type for call in summary.efficiency.calls}
    for data_type in dict.fromkeys((*_SHOWN_PEAKS, *(one for one in DataType if one in held))):
        if limit := limits.peaks.get(data_type):
            shown.append((str(data_type), limit, format_flop_rate))
    kinds = {limit.evidence for _, limit, _ in shown}
    if len(kinds) == 1:
        whose = f"the {kinds.pop()} peaks of {limits.name}"
        parts = [f"{name} {form(limit.per_s)}" for name, limit, form in shown]
    else:
        whose = str(limits.name)
        parts = [f"{name} {_limit_text(limit, form)}" for name, limit, form in shown]
    return f"Compared with {whose}: {', '.join(parts) or 'no known limit'}{because}."


def _limit_text(limit: Limit, form: Callable[[float], str]) -> str:
    return f"{form(limit.per_s)} ({limit.evidence})"


def _call_table(calls: list[CallEfficiency], device_time_ns: int) -> doc.Table:
    caption = "Largest avoidable time, by call and shapes."
    reasons = list(dict.fromkeys(call.attribution for call in calls if call.attribution is not None))
    if reasons:
        caption += f" *: {', or '.join(Attribution(reason).meaning for reason in reasons)}."
    return doc.table(
        calls,
        doc.identifier(
            "Operator",
            lambda call: call.operator if call.attribution is None else (doc.Code(call.operator), " *"),
        ),
        doc.words("Shapes", call_arguments),
        doc.number("Calls", "calls", spare=2),
        doc.number("Device time", "roofline.device_ns"),
        doc.number("Bound", "roofline.bound", str, spare=1),
        doc.number(
            "Achieved",
            lambda call: (
                format_flop_rate(call.roofline.achieved_flop_per_s)
                if call.roofline.bound is Bound.COMPUTE
                else format_byte_rate(call.roofline.achieved_bytes_per_s)
            ),
            spare=3,
        ),
        doc.number("Of limit", "roofline.fraction"),
        doc.number(
            "Avoidable",
            lambda call: (
                f"{format_duration(call.gap_ns)}, {format_fraction((call.gap_ns or 0) / device_time_ns)}"
            ),
        ),
        caption=caption,
    )


def call_arguments(call: CallEfficiency) -> str:
    """`8×128×768, 2 of 768×768`: its shapes; else what one call moves.

    That tells copies of unrecorded tensors apart.
    """
    if call.shapes is None and call.cost.min_bytes is not None:
        return f"{format_bytes(call.cost.min_bytes)} moved"
    shapes = shape_texts(call.shapes)
    if shapes is None:
        return call.shapes or UNKNOWN
    runs = [(shape, sum(1 for _ in same)) for shape, same in groupby(shapes)]
    more = sum(count for _, count in runs[_SHOWN_SHAPES:])
    texts = [
        shape if count == 1 else f"{count} {'lists ' if _TENSOR in shape else ''}of {shape}"
        for shape, count in runs[:_SHOWN_SHAPES]
    ]
    return ", ".join([*texts, *([f"{more} more"] if more else [])]) or UNKNOWN
