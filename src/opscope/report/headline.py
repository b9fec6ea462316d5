"""The first screen of a report: the step, what holds it up, what to change, and what all that rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.model.finding import Severity, most_severe_first
from opscope.report.advice import change_numbers, change_title, gain_text, set_text, short_edit
from opscope.report.document import Code, FactList, Inline, Strong, Text, facts, joined
from opscope.report.names import telling_name
from opscope.report.operators import merged_findings
from opscope.report.timeline import idle_causes
from opscope.units import counted, format_duration, format_fraction, format_share

_CHANGES = 3
_TENTH = 0.1
_KINDS = 3

# Shorter than their meaning, so that each is one line.
_CAUSES = {
    IdleCause.HOST_LAUNCH: "the GPU ran out of queued kernels",
    IdleCause.SYNCHRONIZATION: "the host waited for the GPU",
    IdleCause.DATA_LOADING: "the host waited for the next batch",
    IdleCause.MEMORY_ALLOCATION: "device memory was allocated or freed",
    IdleCause.PROFILER_OVERHEAD: "the profiler itself was busy",
    IdleCause.DEPENDENCY: "kernels waited for one another",
    IdleCause.NOTHING_SCHEDULED: "the host had no work for the GPU",
    IdleCause.UNKNOWN: "the trace does not tell why",
}


def headline(summary: Summary) -> FactList:
    """At most a dozen lines, what cannot be trusted first; what is unknown is left to the sections."""
    defects = (("Defect", one.message) for one in most_severe_first(summary.defects))
    parts = (_bound, _exposed, _kernel, _ranges, _changes) if summary.is_usable else (_ranges,)
    shown = (line for part in (_step, *parts, _basis) for line in part(summary))
    return facts(*defects, *shown)


def _step(summary: Summary) -> Iterator[tuple[str, Text]]:
    measured, simulated = summary.measured_step, summary.typical_step
    recorded = "" if measured.recorded_ns is None else format_duration(measured.recorded_ns)
    if measured.unrecorded_ns is not None:
        time = measured.unrecorded_ns
        count = counted(time.samples, "sample")
        text = f" without profiler (median of {count})" + (f", {recorded} recorded" if recorded else "")
        yield "Step", (Strong(format_duration(time.median)), text)
    elif recorded:
        steps = summary.counted_steps
        told = f"{recorded} recorded ({counted(len(steps), 'step')})"
        if simulated is None:
            yield "Step", (Strong(recorded), told.removeprefix(recorded))
        else:
            # Marks of steps are the host's.
            if measured.recorded_ns is not None and measured.recorded_ns < simulated.step_interval_ns[0]:
                told += "; the host ran ahead of the GPU"
            yield (
                "Step",
                (Strong(_between(simulated.step_interval_ns)), f" without profiler (simulated), {told}"),
            )
    elif summary.window_ns is not None:
        yield "Recording", (Strong(format_duration(summary.window_ns)), "; no steps in it")


def _between(interval_ns: tuple[float, float]) -> str:
    """`7.00–7.12 ms`."""
    low, high = map(format_duration, interval_ns)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return high if low in high.split() else f"{low}–{high}"


def _bound(summary: Summary) -> Iterator[tuple[str, Text]]:
    """Which side decides the step, and for what the device waits most."""
    if not summary.has_device:
        used = summary.operators[:1]
        most = "".join(f"; most in {one.name}" for one in used)
        time = format_duration(summary.cpu_time_ns)
        if summary.is_cuda_traced:
            yield "CPU", f"{time} in operators, no device{most}"
        else:
            yield "CPU", f"{time} in NVTX ranges, no CUDA was traced{most}"
        return
    fraction = summary.measured_step.busy_fraction
    busy = format_fraction(summary.busy_fraction if fraction is None else fraction)
    busy += " recorded" if fraction is None else ""
    step = summary.typical_step
    if step is not None:
        device, host = format_duration(step.device_ns), format_duration(step.host_ns)
        sides = f"GPU alone {device}, CPU alone {host}"
        yield "GPU busy", (busy, "; ", Strong(step.bound.meaning), f": {sides}")
    else:
        yield "GPU busy", busy
    if causes := idle_causes(summary):
        cause, ns = causes.most_common(1)[0]
        yield "GPU waits", f"{format_fraction(ns / causes.total())} of idle time: {_CAUSES[cause]}"


def _exposed(summary: Summary) -> Iterator[tuple[str, Text]]:
    """Communication that nothing runs beside, from a tenth of the time on, whatever else leads."""
    used = [one for one in summary.timeline.in_use if one.span_ns]
    exposed_ns = sum(one.exposed_communication_ns for one in used)
    span_ns = sum(one.span_ns for one in used)
    if exposed_ns <= _TENTH * span_ns:
        return
    text = f"communication, {format_share(exposed_ns, span_ns)} of the time"
    if len(used) > 1:
        most = max(used, key=lambda one: one.exposed_communication_ns / one.span_ns)
        rank = summary.ranks[most.trace_id]
        where = f"device {most.device}" if rank is None else f"rank {rank}"
        text += f"; most on {where}, {format_share(most.exposed_communication_ns, most.span_ns)}"
    yield "Exposed", text


def _kernel(summary: Summary) -> Iterator[tuple[str, Text]]:
    """A kernel that no operator launched and that takes more time than any operator."""
    leading = summary.leading_kernel
    if leading is None or leading.total_ns <= _TENTH * summary.device_time_ns:
        return
    share = format_share(leading.total_ns, summary.device_time_ns)
    where = f"{share} of device time, in no operator" if summary.operators else f"{share} of device time"
    told: list[Inline] = [Code(telling_name(leading.name)), f": {where}"]
    if launched := leading.line or leading.call:
        told += ["; ", Code(launched, is_whole=True)]
    of_it = (one for one in summary.quality if one.operator is None and one.kernel.name == leading.name)
    quality = next(of_it, None)
    if quality is not None and quality.is_underfilled:
        told.append(f"; {counted(quality.block_count or 0, 'block')} for {quality.sm_count} multiprocessors")
    elif quality is not None and (quality.occupancy or 1.0) < 1.0:
        limiters = " and ".join(map(str, quality.limiters)).replace("_", " ")
        told.append(f"; {format_fraction(quality.occupancy)} of warps resident ({limiters})")
    yield "Kernel", tuple(told)


def _ranges(summary: Summary) -> Iterator[tuple[str, Text]]:
    """That no annotation has a name that was asked for."""
    if summary.ranges_by is None or summary.ranges:
        return
    kinds = summary.annotation_kinds
    others = [f" and {counted(len(kinds) - _KINDS, 'other')}"] if len(kinds) > _KINDS else []
    names = joined(map(Code, kinds[:_KINDS]))
    there = ("; there are ", *names, *others) if kinds else ("; the recording has none",)
    yield "By range", ("no annotation fits ", Code(summary.ranges_by, is_whole=True), *there)


def _changes(summary: Summary) -> Iterator[tuple[str, Text]]:
    numbers = change_numbers(summary)
    period = "a step" if summary.steps else "in all"
    advice = {one.code: one for one in reversed(summary.advice or ())}
    for chosen, number in islice(numbers.items(), _CHANGES):
        finding = advice[chosen]
        gain, code = gain_text(finding, period), short_edit(finding)
        written: tuple[Inline, ...] = (": ", Code(code, is_whole=True)) if code else ()
        yield f"Change {number}", (Strong(gain), f": {change_title(finding)}", *written)
    others = [
        f"{number}: {change_title(advice[code])}" for code, number in numbers.items() if number > _CHANGES
    ]
    if others:
        yield "Also", "; ".join(others)
    best = summary.best_set
    if best is not None and len(numbers) > 1:
        gain = f"−{format_duration(best.estimated_gain_ns_per_step)}"
        yield "Best set", (Strong(gain), f" {period}: {set_text(summary, best.codes)}")
    if not numbers and summary.advice is not None and summary.has_device:
        count = len(summary.advice)
        yield (
            "Changes",
            f"none with an estimated gain; {counted(count, 'remark')} below" if count else "none found",
        )


def _basis(summary: Summary) -> Iterator[tuple[str, Text]]:
    known = []
    if summary.has_device:
        names = Counter(device.name or "an unknown device" for device in summary.devices)
        known += [name if count == 1 else f"{count} × {name}" for name, count in names.items()]
    if summary.torch_release is not None:
        known.append(f"PyTorch {summary.torch_release}")
    if summary.operators and summary.attributed_fraction is not None:
        known.append(f"{format_fraction(summary.attributed_fraction)} attributed")
    closed_ns = sum(one.device_ns for one in summary.graphs if one.source is None)
    if closed_ns:
        share = format_share(closed_ns, summary.device_time_ns)
        known.append(f"{share} in CUDA graphs whose operators are unknown")
    left_out = len(summary.steps) - len(summary.counted_steps) if summary.steps else 0
    if left_out:
        known.append(f"without {counted(left_out, 'start-up step')}")
    warnings = sum(one.severity is not Severity.INFO for one in merged_findings(summary))
    if warnings:
        known.append(counted(warnings, "warning"))
    if known:
        yield "Based on", ", ".join(known)
