"""What to change: each advice with its gain and the change to try; and the first screen, which names some."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

from opscope.advice.rules import rule_book
from opscope.analysis.step_model import StepBound
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.analysis.watched_steps import busiest_lines
from opscope.hardware.architectures import WARP_SIZE
from opscope.model.finding import Finding, Severity, most_severe_first
from opscope.model.queries import summed
from opscope.report import document as doc
from opscope.report.names import telling_name
from opscope.report.operators import merged_findings
from opscope.report.timeline import line_text, simulated_rank
from opscope.units import counted, format_duration, format_fraction, format_quantity, format_share

_CHANGES, _LINES = 3, 3
_TENTH = 0.1
_FIFTIETH = 0.02
_UNEVEN = 1.25  # times the middle one: the longest step
# Of the time: what the device waits for where it waits less says nothing of the program.
_LEAST_IDLE = 0.05
_KINDS = 3

# Where the meaning is longer than a line.
_CAUSES = {
    IdleCause.SYNCHRONIZATION: "the host waited for the GPU",
    IdleCause.DATA_LOADING: "the host waited for the next batch",
    IdleCause.MEMORY_ALLOCATION: "memory was allocated or freed",
    IdleCause.DEPENDENCY: "kernels waited for others, or for their launch",
    IdleCause.NOTHING_SCHEDULED: "the host had no work for the GPU",
    IdleCause.UNKNOWN: "the trace does not say why",
}

# What leaves the device's own times as they are.
_OF_THE_HOST = frozenset(("recording.device_clock_drift", "recording.stalls"))
_STAGED = "HtoD (Pageable"  # the host first copies such memory aside, where the device can read it


def headline(summary: Summary) -> doc.FactList:
    """At most a dozen lines, what cannot be trusted first; what is unknown is left to the sections."""
    defects = (("Defect", one.message) for one in most_severe_first(summary.defects))
    parts = (_bound, _host, _exposed, _kernel, _ranges, _changes) if summary.is_usable else (_busy, _ranges)
    shown = (line for part in (_step, *parts) for line in part(summary))
    return doc.facts(*defects, *shown, ("Based on", _basis(summary)))


def _step(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    measured, simulated = summary.measured_step, summary.typical_step
    recorded = "" if measured.recorded_ns is None else format_duration(measured.recorded_ns)
    if (time := measured.unrecorded_ns) is not None:
        count = counted(time.samples, "sample")
        if measured.merged > 1:
            count = f"{counted(time.samples, 'cycle')} of {measured.merged} steps"
        text = f" without profiler (median of {count})" + (f", {recorded} recorded" if recorded else "")
        yield "Step", (doc.Strong(format_duration(time.median)), text)
    elif recorded:
        times_ns = sorted(one.duration_ns for one in summary.counted_steps)
        count = counted(len(times_ns), "step")
        if len(times_ns) > 2 and times_ns[-1] > _UNEVEN * times_ns[len(times_ns) // 2]:
            count += f" of {_between((times_ns[0], times_ns[-1]))}"
        told = f"{recorded} recorded ({count})"
        if simulated is None:
            yield "Step", (doc.Strong(recorded), told.removeprefix(recorded))
        else:
            # Marks of steps are the host's.
            if measured.recorded_ns is not None and measured.recorded_ns < simulated.step_interval_ns[0]:
                told += "; the host ran ahead of the GPU"
            between = doc.Strong(_between(simulated.step_interval_ns))
            if len(summary.traces) > 1:
                told += f"; {simulated_rank(summary, simulated)} is simulated"
            yield "Step", (between, f" without profiler (simulated), {told}")
    elif summary.window_ns is not None and not summary.is_whole_process:
        spans_ns = [one.span_ns for one in summary.timeline.in_use]
        whole_ns = max((one.step_ns for one in summary.timeline.host), default=summary.window_ns)
        left_ns, rest = max(0, whole_ns - max(spans_ns, default=whole_ns)), ""
        lead_in_ns = max((one.lead_in_ns for one in summary.timeline.start_ups if one.is_cold), default=0)
        if lead_in_ns > _TENTH * whole_ns:
            rest = f"; almost nothing on the GPU in the first {format_duration(left_ns + lead_in_ns)}"
        elif left_ns > _FIFTIETH * whole_ns:
            rest = f"; the first {format_duration(left_ns)}, without the GPU, are left out below"
        steps = "" if summary.engine_steps else "; no steps marked"
        yield "Recording", (doc.Strong(format_duration(whole_ns)), steps, rest)


def _between(interval_ns: tuple[float, float]) -> str:
    """`7.00–7.12 ms`."""
    low, high = map(format_duration, interval_ns)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return high if low in high.split() else f"{low}–{high}"


def _bound(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """Which side decides the step, and for what the device waits most."""
    if not summary.has_device:
        yield from _without_device(summary)
        return
    step, used = summary.typical_step, summary.counted_timeline.in_use
    spans_ns = [one.span_ns for one in used]
    busy_ns = sum(spans_ns) - sum(one.idle_ns for one in used)
    recorded = busy_ns / sum(spans_ns) if any(spans_ns) else summary.busy_fraction
    fraction = summary.measured_step.busy_fraction
    busy = format_fraction(recorded if fraction is None else fraction)
    if summary.is_whole_process:
        time = format_duration(max(spans_ns, default=0))
        busy = f"{busy} of the {time} from its first to its last work, code loading left out"
    elif fraction is None:
        busy += " recorded"
    # What was simulated of a recording without steps says nothing of it if most lies outside.
    least_ns = 0 if summary.steps else max(spans_ns, default=0)
    is_told = step is not None and step.missing is None and 2 * step.recorded_ns > least_ns
    # Nor if it depends on what the host did before it launched anything.
    is_told = is_told and step is not None and abs(step.device_ns - step.host_ns) > summary.lead_in_ns
    if step is not None and is_told and not summary.is_cold:
        timed = summary.measured_step.unrecorded_ns
        # No side alone takes longer than the step that was timed: what is over is the simulation's error.
        most_ns = math.inf if timed is None else timed.median
        device, host = (format_duration(min(one, most_ns)) for one in (step.device_ns, step.host_ns))
        # Of a rank alone collectives wait for others: a device that only they make slow decides nothing.
        steps = sum(one.trace_id == step.trace_id for one in summary.counted_steps)
        exposed_ns = summary.counted_timeline.exposed_ns[step.trace_id] / max(1, steps)
        is_open = step.bound is StepBound.DEVICE and step.device_ns - exposed_ns < step.host_ns
        if is_open and not summary.timeline.skews:
            of_it = f"{format_duration(exposed_ns)} of it exposed communication"
            yield "GPU busy", f"{busy}; GPU alone {device} ({of_it}), CPU alone {host}"
        else:
            sides = f": GPU alone {device}, CPU alone {host}"
            yield "GPU busy", (busy, "; ", doc.Strong(step.bound.meaning), sides)
    else:
        yield "GPU busy", busy
    causes = summed(cause for one in used for cause in one.idle_by_cause.items())
    if not summary.is_cold and causes.total() >= _LEAST_IDLE * sum(spans_ns) > 0:
        cause, ns = causes.most_common(1)[0]
        reason = _CAUSES.get(cause, cause.meaning)
        staged_ns = sum(one.idle_ns for one in summary.counted_timeline.waits if _STAGED in (one.copy or ""))
        if cause is IdleCause.SYNCHRONIZATION and staged_ns > ns / 2:
            reason = "the host copied pageable memory to the GPU"
        elif summary.lead_in_ns > ns / 2:
            reason = "nothing had been launched yet"
        yield "GPU waits", f"{format_fraction(ns / causes.total())} of idle time: {reason}"


def _without_device(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    most = "".join(f"; most in {one.name}" for one in summary.operators[:1])
    time, window_ns = format_duration(summary.cpu_time_ns), summary.window_ns or 0
    if summary.cpu_time_ns < window_ns:  # else of several threads
        time += f" of {format_duration(window_ns)}"
    of_ranges = f"{time} in NVTX ranges, no CUDA was traced{most}"
    of_apple = any(re.search(r"_mps(_|$)", one.name) for one in summary.operators)
    device = "Apple's GPU was not recorded" if of_apple else "no device recorded"
    yield "CPU", f"{time} in operators, {device}{most}" if summary.is_cuda_traced else of_ranges
    if 0 < _TENTH * window_ns < summary.loader_ns:
        share = format_share(summary.loader_ns, window_ns)
        yield "Data", f"{format_duration(summary.loader_ns)} ({share}) waiting for the DataLoader"


def _busy(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """How busy the device was, where only the host's side of the recording cannot be trusted."""
    if {one.code for one in summary.defects if one.evidence["withholds"]} <= _OF_THE_HOST:
        yield "GPU busy", f"{format_fraction(summary.busy_fraction)} recorded"


def _host(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """Where the program spends the host's time, if that decides how long a step takes."""
    if busiest := busiest_lines(summary.host_lines)[:_LINES]:
        shares = [(f"{format_fraction(one.fraction)} in ", doc.Code(line_text(one.line))) for one in busiest]
        yield "Host time", tuple(doc.joined(shares))


def _exposed(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """Communication that nothing runs beside, from a tenth of the time on, whatever else leads."""
    exposed_ns = summary.counted_timeline.exposed_ns
    spans_ns = summed((one.trace_id, one.own_ns) for one in summary.counted_timeline.in_use if one.own_ns)
    if exposed_ns.total() <= _TENTH * spans_ns.total():
        return
    text = f"communication, {format_share(exposed_ns.total(), spans_ns.total())} of the time"
    if (late := summary.straggler) is not None and late.rank is not None:
        text += f"; others wait for rank {late.rank}, {format_duration(late.lag_ns_per_step)} a step or more"
    elif len(spans_ns) > 1 and None not in summary.ranks:
        most = max(spans_ns, key=lambda one: exposed_ns[one] / spans_ns[one])
        text += f"; most on rank {summary.ranks[most]}, {format_share(exposed_ns[most], spans_ns[most])}"
    yield "Exposed", text


def _kernel(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """A kernel of the program's own that takes more time than any other operator."""
    leading = summary.leading_kernel
    if leading is None or leading.total_ns <= _TENTH * summary.device_time_ns:
        return
    share = format_share(leading.total_ns, summary.device_time_ns)
    where: doc.Text = (
        f"{share} of device time, in no operator" if summary.operators else f"{share} of device time"
    )
    if leading.operator is not None:
        where = (f"{share} of device time, in ", doc.Code(leading.operator))
    told: list[doc.Inline] = [doc.Code(telling_name(leading.name)), ": ", *doc.inlines(where)]
    if leading.line:
        told += ["; ", doc.Code(leading.line, is_whole=True)]
    key = leading.operator, leading.name
    quality = next((one for one in summary.quality if (one.operator, one.kernel.name) == key), None)
    if quality is not None and quality.thread_count and quality.thread_count < WARP_SIZE:
        told.append(f"; blocks of {counted(quality.thread_count, 'thread')}")
    if quality is not None and quality.is_underfilled:
        told.append(f"; {counted(quality.block_count or 0, 'block')} for {quality.sm_count} multiprocessors")
    elif quality is not None and quality.active is not None and 0.0 < quality.active.occupancy < 1.0:
        told.append(f"; {format_fraction(quality.occupancy)} of warps resident ({quality.active.limited_by})")
    yield "Kernel", tuple(told)


def _ranges(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """That no annotation has a name that was asked for."""
    if summary.ranges_by is None or summary.ranges:
        return
    kinds = summary.annotation_kinds
    others = [f" and {counted(len(kinds) - _KINDS, 'other')}"] if len(kinds) > _KINDS else []
    names = doc.joined(map(doc.Code, kinds[:_KINDS]))
    there = ("; there are ", *names, *others) if kinds else ("; the recording has none",)
    yield "By range", ("no annotation fits ", doc.Code(summary.ranges_by, is_whole=True), *there)


def _changes(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    numbers = change_numbers(summary)
    period = "a step" if summary.steps else "in all"
    advice = {one.code: one for one in reversed(summary.advice or ())}
    for chosen, number in islice(numbers.items(), _CHANGES):
        finding = advice[chosen]
        told: list[doc.Inline] = [doc.Strong(gain_text(finding, period)), f": {change_title(finding)}"]
        lines = [finding.evidence.get("line"), *finding.evidence.get("lines", ())][:2]
        for line in [one for one in lines if isinstance(one, str)][:1]:  # of the program, as `file:line`
            told += [" (", doc.Code(line_text(line).partition(" ")[0], is_whole=True), ")"]
        if code := short_edit(finding):
            told += [": ", doc.Code(code, is_whole=True)]
        yield f"Change {number}", tuple(told)
    if others := [one for one in numbers.items() if one[1] > _CHANGES]:
        yield "Also", "; ".join(f"{number}: {change_title(advice[code])}" for code, number in others)
    best = summary.best_set
    if best is not None and len(best.codes) > 1:
        gain = f"−{format_duration(best.estimated_gain_ns_per_step)}"
        yield "Best set", (doc.Strong(gain), f" {period}: {set_text(summary, best.codes)}")
    if not numbers and summary.advice is not None and summary.has_device:
        count = len(summary.advice)
        yield (
            "Changes",
            f"none with an estimated gain; {counted(count, 'remark')} below" if count else "none found",
        )


def _basis(summary: Summary) -> str | None:
    names = Counter(device.name or "an unknown device" for device in summary.devices if summary.has_device)
    has_share = bool(summary.operators) and summary.attributed_fraction is not None
    closed_ns = sum(one.device_ns for one in summary.graphs if one.source is None)
    closed = f"{format_share(closed_ns, summary.device_time_ns)} in CUDA graphs whose operators are unknown"
    left_out = len(summary.steps) - len(summary.counted_steps) if summary.steps else 0
    warnings = sum(one.severity is not Severity.INFO for one in merged_findings(summary))
    known = (
        *(name if count == 1 else f"{count} × {name}" for name, count in names.items()),
        None if summary.torch_release is None else f"PyTorch {summary.torch_release}",
        f"{format_fraction(summary.attributed_fraction)} attributed" if has_share else None,
        closed if closed_ns else None,
        f"without {counted(left_out, 'start-up step')}" if left_out else None,
        counted(warnings, "warning") if warnings else None,
    )
    return ", ".join(filter(None, known))


_SHOWN = 6
_CODES = 3
_OF_A_BLOCK = 2
_LONGEST_CODE = 140
_NOTHING = "Nothing: no rule found anything worth changing in what was recorded."


def advice_blocks(summary: Summary, *, is_full: bool) -> tuple[doc.Block, ...]:
    """One point each unless sections tell them in full."""
    advice = summary.advice or ()
    if not advice:
        return (doc.Meaning(_NOTHING),)
    points = [] if is_full else [*_points(summary, advice[:_SHOWN])]
    if points and len(advice) > _SHOWN:
        points.append(doc.BulletList((f"{len(advice) - _SHOWN} more: --full prints them all.",)))
    told: doc.Text = "No gain could be estimated for these."
    if any(one.is_to_try for one in advice):
        told = "Gains are simulated, each for that change alone."
        step = summary.typical_step
        if step is not None and len(summary.traces) > 1:
            told = f"Gains are simulated for {simulated_rank(summary, step)}, as if others changed alike."
        elif summary.is_of_torch:
            told = (
                "Gains are simulated, each for that change alone. ",
                doc.Code("opscope try SCRIPT", is_whole=True),
                " applies changes to the program and measures them.",
            )
    return doc.blocks(*_joined_points(points), doc.Meaning(told))


def remarks(summary: Summary) -> tuple[doc.Block, ...]:
    """What the first lines have no room for: changes of longer code, and what has no gain to name."""
    found = [
        one for one in summary.advice or () if not one.is_to_try or (one.change and short_edit(one) is None)
    ]
    points = dict.fromkeys(_points(summary, found[:_CODES]))  # code that two have in common stands once
    if len(found) > _CODES:
        points[doc.BulletList((f"{len(found) - _CODES} more: --section change.",))] = None
    return tuple(_joined_points(points))


def _points(summary: Summary, findings: Sequence[Finding]) -> Iterator[doc.Block]:
    numbers = change_numbers(summary)
    for rank, finding in enumerate(findings):
        parts: list[doc.Inline] = []
        if finding.is_to_try and finding.code in numbers:
            number, gain = f"Change {numbers[finding.code]}", _gain(finding, summary, "−")
            parts = [doc.Strong(number), ": ", doc.Strong(gain), ". "]
        parts += [finding.message, f" {finding.suggestion}" if finding.suggestion else ""]
        yield doc.BulletList((tuple(filter(None, parts)),))
        if finding.change and rank < _CODES:
            yield _code(finding.change)


def _code(change: str) -> doc.CodeBlock:
    return doc.CodeBlock(change, "bash" if re.match(r"\s*(opscope|python|ncu|nsys)\s", change) else "python")


def short_edit(finding: Finding) -> str | None:
    """The first of the code's alternatives, whole and on one line; None if that is too long, or cannot be."""
    first = (finding.change or "").strip().partition("\n\n")[0].splitlines()
    lines = [line.partition("   #")[0].rstrip() for line in first]
    lines = [line for line in lines if line and not line.startswith("#")]
    opens = bool(lines) and lines[0].endswith(":")
    edit = " ".join(map(str.strip, lines)) if opens and len(lines) == _OF_A_BLOCK else "; ".join(lines)
    if not edit or len(edit) > _LONGEST_CODE:
        return None
    try:
        ast.parse(edit)
    except SyntaxError:
        return edit if len(lines) == 1 and not opens else None  # a command
    return edit


def _joined_points(points: Iterable[doc.Block]) -> Iterator[doc.Block]:
    for kind, run in groupby(points, type):
        if kind is not doc.BulletList:
            yield from run
        else:
            lists = (one.items for one in run if isinstance(one, doc.BulletList))
            yield doc.BulletList(tuple(chain.from_iterable(lists)))


def advice_sections(summary: Summary) -> tuple[doc.Section, ...]:
    numbers, shown = change_numbers(summary), []
    for one in summary.advice or ():
        title = change_title(one)
        if one.is_to_try and one.code in numbers:
            title = f"Change {numbers[one.code]}: {title}"
        known = doc.facts(
            ("Severity", str(one.severity)),
            ("Estimated gain", _gain(one, summary) if one.estimated_gain_ns_per_step else None),
            ("How it was estimated", one.gain_basis),
            *((_label(key), _value(key, value)) for key, value in one.evidence.items()),
            ("Rule", doc.Code(one.code)),
        )
        told = (
            doc.Paragraph(one.message),
            doc.Paragraph(one.suggestion or ""),
            _code(one.change or ""),
            known,
        )
        shown.append(doc.Section(title, doc.blocks(*told)))
    return tuple(shown)


def change_numbers(summary: Summary) -> dict[str, int]:
    """The number of each change to try, by code, the most promising first.

    One call of torch.compile is one change, whatever for.
    """
    to_try: dict[str, str] = {}
    for one in summary.advice or ():
        if one.is_to_try:
            to_try.setdefault(one.code, one.change or "")
    compiling = [code for code, change in to_try.items() if "torch.compile(" in change]
    # The mode with graphs fuses as well; it stands where the first of them would.
    best = min(compiling, key=lambda code: "reduce-overhead" not in to_try[code], default=None)
    numbered = (best if code in compiling[:1] else code for code in to_try if code not in compiling[1:])
    return {code: number for number, code in enumerate(filter(None, numbered), 1)}


def set_text(summary: Summary, codes: Sequence[str]) -> str:
    """`changes 1 + 3`: a set of changes by their numbers."""
    numbers = change_numbers(summary)
    shown = sorted(numbers[code] for code in codes if code in numbers)
    numbered = " + ".join(map(str, shown))
    return f"change {numbered}" if len(shown) == 1 else f"changes {numbered}"


def change_title(finding: Finding) -> str:
    rule = rule_book().rules.get(finding.code)
    return finding.code if rule is None else rule.title


def gain_text(finding: Finding, period: str, sign: str = "−") -> str:
    """What a change takes off; no number where that is known to no better than a factor of 3."""
    if not finding.is_gain_known:
        return "unknown, try it"
    return f"{sign}{format_duration(finding.estimated_gain_ns_per_step)} {period}"


def _gain(finding: Finding, summary: Summary, sign: str = "") -> str:
    text, interval = gain_text(finding, _period(summary), sign), finding.gain_interval_ns_per_step
    if interval is None or not finding.is_gain_known:
        return text
    low, high = map(format_duration, interval)
    return text if low == high else f"{text} ({low} to {high})"


def _period(summary: Summary) -> str:
    """A recording without steps counts as one."""
    if summary.steps:
        return "per step"
    return "of the recording" if len(summary.traces) < 2 else "per trace"


_SUFFIXES = (("_ns_per_step", " per step"), ("_ns", " time"), ("_fraction", " share"))


def _label(key: str) -> str:
    """`device_ns` as Device time, `device_fraction` as Device share."""
    for suffix, words in _SUFFIXES:
        if key.endswith(suffix):
            key = key.removesuffix(suffix)
            key += "" if "share" in key else words
            break
    words = key.replace("_", " ")
    return words[:1].upper() + words[1:]


def _value(key: str, value: Any) -> doc.Text:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int | float):
        return format_quantity(key, value)
    if isinstance(value, list | tuple):
        return doc.Code(", ".join(map(str, value)))
    return doc.Code(str(value))
