"""What is said of calls that can be run alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opscope.analysis.summary import Summary
from opscope.errors import OpscopeError
from opscope.extraction.alone_calls import AloneCall, Extracted, StepGain
from opscope.extraction.call_file import CallFile
from opscope.model.benchmark import BenchmarkRow, Status, Verdict
from opscope.report import document as doc
from opscope.report.benchmark import ratio_text
from opscope.units import counted, format_duration, format_fraction


def call_list_document(
    summary: Summary, calls: Sequence[AloneCall], rows: Sequence[Extracted]
) -> doc.Document:
    """Of all calls those that are listed; at the end why some cannot be written."""
    steps = max(1, len(summary.steps))
    device_ns = sum(one.device_ns for one in calls if not one.then)  # else counted twice
    period = " per step" if summary.steps else ""
    table = doc.table(
        rows,
        doc.number("#", "rank"),
        doc.identifier("Operator", "call.name"),
        doc.identifier("Shapes", "call.shapes"),
        doc.number(f"Calls{period}", lambda row: f"{row.call.times / steps:.4g}"),
        doc.number(f"Device{period}", "call.device_ns", lambda ns: format_duration(ns / steps)),
        doc.number("Share", lambda row: format_fraction(row.call.device_ns / device_ns), spare=1),
        doc.number(f"Avoidable{period}", "call.avoidable_ns", lambda ns: format_duration(ns / steps)),
        doc.number("Start", lambda row: row.file.start if isinstance(row.file, CallFile) else "none"),
    )
    unwritten = [f"{row.rank}: {row.file.message}." for row in rows if isinstance(row.file, OpscopeError)]
    command = doc.Code("opscope extract TRACE 1", is_whole=True)
    told = doc.Paragraph(("Write one as a file that runs alone: ", command, "."))
    return doc.Document(
        "Calls that can be run alone", doc.blocks(table, doc.BulletList(tuple(unwritten)), told)
    )


def readme(document: doc.Document, source: str) -> doc.Document:
    """Of a folder of files: the list they are of, and what to do with them."""
    name, command = Path(source).name, doc.Code("opscope bench .", is_whole=True)
    told = doc.Paragraph((f"From {name}; files are named by number and operator. Time all: ", command, "."))
    return doc.Document(document.title, (told, *document.blocks[:-1]))


def call_text(summary: Summary, one: AloneCall, source: str) -> str:
    """The head of the file: what the call is, and what it took."""
    steps, period = max(1, len(summary.steps)), " per step" if summary.steps else ""
    devices = {device.name for device in summary.devices if device.name}
    where = f" on {devices.pop()}" if len(devices) == 1 else ""
    kernels = "".join(f"\n    {kernel[:100]}" for kernel in one.kernels[:3])
    return (
        f"{one.name} of {one.shapes}, as recorded in {Path(source).name}.\n\n"
        f"{counted(one.times / steps, 'call')}{period}, {format_duration(one.device_ns / steps)}{where}; "
        f"it launched{kernels}"
    )


def gain_section(row: BenchmarkRow, gain: StepGain | None, source: str) -> doc.Section:
    """What the program of a recording would gain by a version of its call that was measured here."""
    name = Path(source).name
    if row.status is not Status.OK or row.ratio is None:
        told = f"mine has no time to put in the place of the recorded calls: {row.reason or row.status}."
    elif gain is None:
        told = f"The steps of {name} cannot be simulated: mine is {ratio_text(row.ratio, row.verdict)} here."
    else:
        saved_ns = (gain.gain.ns, gain.gain.low_ns, gain.gain.high_ns)
        signs = ("" if round(ns) == 0 else "−" if ns > 0 else "+" for ns in saved_ns)
        ns, low, high = (
            f"{sign}{format_duration(abs(ns))}" for sign, ns in zip(signs, saved_ns, strict=True)
        )
        told = (
            f"mine is {ratio_text(row.ratio, row.verdict or Verdict.SAME)} here = {ns} ({low} to {high}) of "
            f"{format_duration(gain.step_ns)} per step, in place of {counted(gain.calls, 'call')} of "
            f"{gain.operator}: simulated by the steps of {name}, each call's time on the host as recorded."
        )
    return doc.Section("In the program", (doc.Paragraph(told),))
