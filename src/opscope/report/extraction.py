"""What is said of calls that can be run alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opscope.analysis.extraction import AloneCall
from opscope.analysis.summary import Summary
from opscope.report import document as doc
from opscope.units import counted, format_duration, format_fraction


def call_list_document(summary: Summary, calls: Sequence[AloneCall], *, top: int | None) -> doc.Document:
    steps = max(1, len(summary.steps))
    device_ns = sum(one.device_ns for one in calls)
    period = " per step" if summary.steps else ""
    rows = doc.table(
        list(enumerate(calls, 1))[:top],
        doc.number("#", lambda row: str(row[0])),
        doc.identifier("Operator", lambda row: row[1].call.name),
        doc.words("Shapes", lambda row: row[1].shapes),
        doc.number(f"Calls{period}", lambda row: f"{len(row[1].operator_ids) / steps:.4g}"),
        doc.number(f"Device{period}", lambda row: format_duration(row[1].device_ns / steps)),
        doc.number("Share", lambda row: format_fraction(row[1].device_ns / device_ns)),
        doc.number(
            f"Avoidable{period}",
            lambda row: None if row[1].avoidable_ns is None else format_duration(row[1].avoidable_ns / steps),
        ),
    )
    command = doc.Code("opscope extract TRACE 1", is_whole=True)
    told = doc.Paragraph(("Write one as a file that runs alone: ", command, "."))
    return doc.Document("Calls that can be run alone", (rows, told))


def call_text(summary: Summary, one: AloneCall, source: str) -> str:
    """The head of the file: what the call is, and what it took."""
    steps = max(1, len(summary.steps))
    devices = {device.name for device in summary.devices if device.name}
    where = f" on {devices.pop()}" if len(devices) == 1 else ""
    period = " per step" if summary.steps else ""
    kernels = "\n".join(f"    {kernel[:100]}" for kernel in one.kernels[:3])
    count = counted(len(one.operator_ids) / steps, "call")
    return (
        f"{one.call.name} of {one.shapes}, as recorded in {Path(source).name}.\n\n"
        f"{count}{period}, {format_duration(one.device_ns / steps)}{where}; it launched\n{kernels}"
    )
