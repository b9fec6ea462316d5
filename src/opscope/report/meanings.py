"""What the sections of a report on a recording come to: the sentence that each of them ends in.

Nothing is computed here that a section does not show: a sentence says which of its figures matter, and what
for.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from operator import attrgetter, itemgetter

from opscope.analysis.step_model import StepBound
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.provenance.categories import category_title
from opscope.report.document import Code, Inline, Meaning
from opscope.units import counted, format_duration, format_fraction, format_share

_MOST = 0.8
_SHORT_NS = 10_000  # a launch costs the host about as much
_REMEDIES = {
    IdleCause.HOST_LAUNCH: "launch fewer kernels",
    IdleCause.SYNCHRONIZATION: "remove the calls that make the host wait",
    IdleCause.DATA_LOADING: "load batches ahead, in other processes",
    IdleCause.MEMORY_ALLOCATION: "keep device memory instead of freeing it",
    IdleCause.PROFILER_OVERHEAD: "the program itself does not wait there",
    IdleCause.DEPENDENCY: "these kernels wait for one another, not for the host",
    IdleCause.NOTHING_SCHEDULED: "see what the host did during the longest gaps",
    IdleCause.UNKNOWN: "record the host side too to learn the cause",
}


def overview_meaning(summary: Summary) -> Meaning:
    """Which side decides how long a step takes."""
    step = summary.typical_step
    if not (summary.is_usable and summary.has_device):
        return Meaning(
            "The recording is not sound: nothing is concluded about the GPU."
            if not summary.is_usable
            else "No device activity was recorded: every time here is CPU time."
            if summary.is_cuda_traced
            else "No CUDA was traced: every time here is the host's, of NVTX ranges."
        )
    if step is None:
        return Meaning(f"The GPU was busy for {format_fraction(summary.busy_fraction)} of the recording.")
    device, host = format_duration(step.device_ns), format_duration(step.host_ns)
    whole = "a step" if summary.steps else "the recording" if len(summary.traces) < 2 else "each trace"
    if step.bound is StepBound.TURNS:
        return Meaning(
            f"CPU and GPU wait for each other: {whole} needs {host} of the CPU and {device} of the GPU. "
            "Fewer waits, and less work of the CPU between steps, shorten it."
        )
    if step.bound is StepBound.BALANCE:
        return Meaning(
            f"Balanced: {whole} needs {host} of the CPU and {device} of the GPU. "
            "Only what saves both shortens it much."
        )
    if step.bound is StepBound.HOST:
        return Meaning(
            f"CPU-bound: {whole} needs {host} of the CPU and {device} of the GPU. Fewer or cheaper launches "
            "shorten it; faster kernels alone do not."
        )
    return Meaning(
        f"GPU-bound: {whole} needs {device} of the GPU and {host} of the CPU. "
        "Faster or fewer kernels shorten it."
    )


def devices_meaning(summary: Summary) -> Meaning:
    shares = [one.busy_ns / one.span_ns for one in summary.devices if one.span_ns]
    low, high = map(format_fraction, (min(shares, default=0.0), max(shares, default=0.0)))
    if low == high:
        return Meaning(f"All devices are busy for the same share of the time, {low}.")
    return Meaning(f"The least busy device works for {low} of the time, the busiest for {high}.")


def operators_meaning(summary: Summary) -> Meaning:
    """How few operators make up most of the time; shares are of all of it, as in the table."""
    what = "device time" if summary.has_device else "CPU time"
    own_ns = attrgetter("self_device_ns" if summary.has_device else "self_cpu_ns")
    times = [(own_ns(one), one.name) for one in summary.operators]
    whole_ns = summary.device_time_ns if summary.has_device else summary.cpu_time_ns
    sums = list(accumulate(ns for ns, _ in times if ns))
    if not sums:
        return Meaning(f"No operator has {what} of its own.")
    count = next((index for index, ns in enumerate(sums, 1) if ns >= _MOST * whole_ns), len(sums))
    name, share = Code(times[0][1]), format_share(sums[0], whole_ns)
    if sums[0] >= _MOST * whole_ns:
        return Meaning((name, f" alone takes {share} of {what}: start there."))
    if count == 1:
        return Meaning((name, f" alone takes {share} of {what}."))
    most, whole = format_share(sums[count - 1], whole_ns), counted(len(times), "operator")
    return Meaning((f"The top {count} of {whole} take {most} of {what}, ", name, f" alone {share}."))


def categories_meaning(summary: Summary) -> Meaning | None:
    fractions: dict[str, float] = {}  # with an operator and without
    for one in summary.categories:
        title = category_title(one.category)
        fractions[title] = fractions.get(title, 0.0) + one.fraction
    shown = sorted(filter(itemgetter(1), fractions.items()), key=itemgetter(1), reverse=True)[:2]
    if not shown:
        return None
    what = "device time" if summary.has_device else "CPU time"
    first, *others = ((title, format_fraction(share)) for title, share in shown)
    most = f"Most {what} goes to {first[0]} ({first[1]})"
    return Meaning(f"{most}, then {others[0][0]} ({others[0][1]})." if others else f"{most}.")


def kernels_meaning(summary: Summary) -> Meaning | None:
    """Whether kernels are long enough to be worth a launch."""
    kernels = [one for one in summary.kernels if one.kind == "kernel"]
    launches = sum(one.calls for one in kernels)
    if not launches:
        return None
    mean_ns = sum(one.total_ns for one in kernels) / launches
    short = sum(one.calls for one in kernels if one.total_ns < _SHORT_NS * one.calls)
    text = (
        f"A kernel runs for {format_duration(mean_ns)} on average; {format_share(short, launches)} of "
        f"launches are of kernels shorter than {format_duration(_SHORT_NS)}"
    )
    if short > launches / 2:
        return Meaning(f"{text}: fusing them saves launches.")
    return Meaning(f"{text}.")


def efficiency_meaning(summary: Summary) -> Meaning | None:
    """How much of the device time the limits would allow to save."""
    calls = [one for one in summary.efficiency.calls if one.gap_ns]
    gap_ns = sum(one.gap_ns or 0 for one in calls)
    if not gap_ns:
        return None
    lost: dict[str, float] = {}
    for one in calls:
        lost[one.operator] = lost.get(one.operator, 0.0) + (one.gap_ns or 0.0)
    name, most_ns = max(lost.items(), key=lambda item: item[1])
    parts: tuple[Inline, ...] = (
        f"At these limits the same calls would take {format_duration(gap_ns)} less, "
        f"{format_share(gap_ns, summary.device_time_ns)} of device time; ",
        Code(name),
        f" accounts for {format_share(most_ns, gap_ns)} of that.",
    )
    return Meaning(parts)


def waits_meaning(summary: Summary) -> Meaning | None:
    """How much waiting there is, and what to do about most of it."""
    causes: Counter[IdleCause] = Counter()
    for partition in summary.timeline.in_use:
        causes.update(partition.idle_by_cause)
    span_ns = sum(one.span_ns for one in summary.timeline.in_use)
    if not span_ns:
        return None
    if not causes.total():
        return Meaning("The GPU never waits.")
    cause, ns = causes.most_common(1)[0]
    remedy, step = _REMEDIES[cause], summary.typical_step
    if cause is IdleCause.HOST_LAUNCH and step is not None and step.host_ns <= step.device_ns:
        remedy = (
            "that may be the profiler's doing, for without it the host alone needs less time than the GPU"
        )
    elif cause is IdleCause.HOST_LAUNCH:
        # One diagnosis: what the first change is about, and a graph only where the step can be captured.
        changes = [one for one in summary.advice or () if one.is_to_try]
        if changes and changes[0].code == "advice.host_work":
            remedy = "most of that is what change 1 is about"
        elif any(one.code == "advice.launch_bound" for one in changes):
            remedy = "launch fewer kernels, or replay them as a CUDA graph"
    idle = f"{format_duration(causes.total())} ({format_share(causes.total(), span_ns)})"
    return Meaning(
        f"The GPU waits for {idle}, {format_share(ns, causes.total())} of it because {cause.meaning}: "
        f"{remedy}."
    )


def ranges_meaning(summary: Summary) -> Meaning | None:
    if not summary.device_time_ns:
        return None
    most = max(summary.ranges, key=lambda one: one.device_ns)
    each = f"{format_duration(most.device_ns / most.calls)} each"
    if most.device_ns_per_token is not None:
        each = f"{format_duration(most.device_ns_per_token)} a token"
    share = format_fraction(most.device_fraction)
    return Meaning((Code(most.name), f" takes {share} of device time, {each}."))


def graphs_meaning(summary: Summary) -> Meaning:
    """How much of what graphs run is known by operators."""
    whole_ns = sum(one.device_ns for one in summary.graphs)
    known_ns = sum(one.device_ns for one in summary.graphs if one.source is not None)
    return Meaning(
        f"Replays of CUDA graphs take {format_share(whole_ns, summary.device_time_ns)} of device time; "
        f"the operators of {format_share(known_ns, whole_ns)} of that are known."
    )


def collectives_meaning(summary: Summary) -> Meaning | None:
    """Whether ranks wait for one another or for data."""
    totals = summary.collectives.totals
    wait_ns = sum(one.wait_ns or 0 for one in totals)
    moved_ns = sum((one.transfer_ns or 0) * one.ranks for one in totals)
    if not wait_ns + moved_ns:
        return None
    last = Counter[int]()
    for one in totals:
        if one.last_rank is not None:
            last[one.last_rank] += one.last_count
    share = format_share(wait_ns, wait_ns + moved_ns)
    if wait_ns > moved_ns and last:
        rank = last.most_common(1)[0][0]
        return Meaning(
            f"{share} of the time in collectives is waiting for the last rank, most often rank {rank}."
        )
    return Meaning(f"{share} of the time in collectives is waiting; the rest moves data.")


def modules_meaning(summary: Summary) -> Meaning | None:
    what = "self_device_ns" if summary.has_device else "self_cpu_ns"
    own: Counter[str] = Counter()
    for one in summary.program.modules:
        own[one.class_name] += getattr(one, what)
    if not own.total():
        return None
    name, ns = own.most_common(1)[0]
    share = format_share(ns, summary.device_time_ns if summary.has_device else summary.cpu_time_ns)
    time = "device time" if summary.has_device else "CPU time"
    return Meaning((Code(name), f" modules take the most self time: {share} of {time}."))


def lines_meaning(summary: Summary) -> Meaning:
    first = summary.program.lines[0]
    share = format_share(first.self_device_ns, summary.device_time_ns)
    return Meaning((Code(f"{first.file}:{first.line}"), f" launches the most: {share} of device time."))


def unattributed_meaning(summary: Summary) -> Meaning | None:
    if not summary.unattributed_ns:
        return None
    return Meaning(
        f"Figures of operators cover the other {format_fraction(summary.attributed_fraction)} of device time."
    )


def accuracy_meaning(summary: Summary) -> Meaning | None:
    accuracy = summary.accuracy
    if accuracy is None or accuracy.aten_operator_file_fraction is None:
        return None
    return Meaning(
        f"Times are exact; the source file is known for "
        f"{format_fraction(accuracy.aten_operator_file_fraction)} of the time of PyTorch's operators."
    )


def advice_meaning(summary: Summary) -> Meaning | None:
    if not any(one.is_to_try for one in summary.advice or ()):
        return Meaning("No gain could be estimated for these.") if summary.advice else None
    if not summary.is_of_torch:
        return Meaning("Gains are simulated, each for that change alone.")
    return Meaning(
        (
            "Gains are simulated, each for that change alone. ",
            Code("opscope try SCRIPT", is_whole=True),
            " applies changes to the program and measures them.",
        )
    )
