"""What hardware counters are to be read: of which kernels, by which command of ncu, for which open questions.

The kernels are chosen by a recording of the program or a first quick profile. ncu profiles one window of the
launches that its filter matches, so the window is chosen that covers most of the chosen kernels' time. Of an
operator the topics are those a kernel engineer asks about: a statement is made only where the recording
proves it; everything else is left to counters, with the command that reads them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

from opscope.analysis.counters import Kind, Launch, read_launches, recorded_name
from opscope.analysis.launch_quality import LaunchQuality
from opscope.analysis.roofline import Bound, Efficiency, Roofline
from opscope.analysis.totals import KernelTotal, OperatorTotal
from opscope.errors import CaptureError, InputError
from opscope.model.queries import sql, summed
from opscope.model.session import Session
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import TextEnum
from opscope.toolchain.ncu_command import (
    KernelFilter,
    filter_of_functions,
    filter_of_mangled_names,
)
from opscope.toolchain.ncu_report import NcuReport


def kernel_filter(names: Iterable[str]) -> KernelFilter:
    """The filter of ncu for kernels as recordings name them; those that differ in types alone pass too."""
    return filter_of_functions(map(_function, names))


def _function(name: str) -> tuple[str, str | None]:
    decoded = decode(name)
    if decoded.function is None:
        return name, None
    functor = (decoded.functor or "").rpartition("::")[2]
    # Else an argument that names what a generic kernel runs, `cutlass_80_simt_sgemm_64x64_8x5_nn`.
    # Element types, numbers and flags are shorter.
    telling = (one for one in decoded.template_arguments if len(one) >= 16 and re.fullmatch(r"\w+", one))
    functor = functor or next(telling, "")
    return decoded.function.rpartition("::")[2], functor or None


class CollectionPlan(msgspec.Struct, frozen=True):
    kernels: KernelFilter
    launch_skip: int  # matching launches to pass over
    launch_count: int
    covered_fraction: float  # of all kernel time, by launches of the kinds profiled
    names: tuple[str, ...]  # most time first, as recordings name them


def plan_by_recording(session: Session, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a recording of the same program.

    A recording begins somewhere in the program, so launches are counted as if the program began with a step
    like the first recorded one; none is passed over unless the limit leaves no choice.
    """
    launches = read_launches(session, sql(__package__, "step_launches"))
    names = _longest(launches, kernels)
    matches = kernel_filter(names)
    covered = {name for name in {launch.kind[0] for launch in launches} if matches.covers(name)}
    window = best_window([launch for launch in launches if launch.kind[0] in covered], names, limit)
    if window is None:
        raise InputError("the recording holds no kernels", hint="Record the GPU's activities too")
    start, end, covered_ns = window
    start = start if end > limit else 0
    return CollectionPlan(matches, start, end - start, _share(covered_ns, launches), names)


def plan_by_profile(report: NcuReport, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a profile of the same program that holds every launch's time."""
    launches = [
        Launch((kernel.mangled_name, kernel.grid, kernel.block), kernel.duration_ns)
        for kernel in report.kernels
        if kernel.duration_ns is not None
    ]
    names = _longest(launches, kernels)
    matching = [launch for launch in launches if launch.kind[0] in names]
    window = best_window(matching[::-1], names, limit)  # the last ones, for the program has warmed up
    if window is None:
        raise CaptureError("the first profile holds no kernel times")
    start, end, covered_ns = window
    shown = {kernel.mangled_name: recorded_name(kernel) for kernel in report.kernels}
    return CollectionPlan(
        filter_of_mangled_names(names),
        len(matching) - end,
        end - start,
        _share(covered_ns, launches),
        tuple(shown[name] for name in names),
    )


def _share(covered_ns: int, launches: Sequence[Launch]) -> float:
    return covered_ns / (sum(launch.duration_ns for launch in launches) or 1)


def _longest(launches: Iterable[Launch], count: int) -> tuple[str, ...]:
    by_name = summed((launch.kind[0], launch.duration_ns) for launch in launches)
    return tuple(name for name, _ in by_name.most_common(count))


def best_window(launches: Sequence[Launch], names: Iterable[str], limit: int) -> tuple[int, int, int] | None:
    """Start, end and worth of the shortest window of most time of the named kernels; None without any."""
    worth = summed((launch.kind, launch.duration_ns) for launch in launches if launch.kind[0] in names)
    best = None
    for start, first in enumerate(launches):
        if first.kind in worth:
            firsts: dict[Kind, int] = {}
            for index, launch in enumerate(launches[start : start + limit], start):
                if launch.kind in worth:
                    firsts.setdefault(launch.kind, index)
            found = start, max(firsts.values()) + 1, sum(worth[kind] for kind in firsts)
            if best is None or (found[2], start - found[1]) > (best[2], best[0] - best[1]):
                best = found
    return best


class Topic(TextEnum):
    """What can be improved; also the order of a report."""

    LAUNCHES = "launches"
    OCCUPANCY = "occupancy"
    COALESCING = "coalescing"
    BANK_CONFLICTS = "bank conflicts"
    DIVERGENCE = "divergence"
    FUSION = "fusion"


class Improvement(msgspec.Struct, frozen=True):
    """One topic: what is known of it, or None; `needs_counters` where only they can tell the rest."""

    topic: Topic
    known: str | None
    needs_counters: bool


class OperatorImprovement(msgspec.Struct, frozen=True):
    """All topics for the kernel an operator spends most time in, and the command for the open ones."""

    kernel: str
    topics: tuple[Improvement, ...]
    command: str


def find_improvements(
    operators: Iterable[OperatorTotal], quality: Sequence[LaunchQuality], efficiency: Efficiency
) -> dict[str, OperatorImprovement]:
    """By operator name, for those that launched kernels. `quality` comes by device time."""
    longest = [
        (one, kernel)
        for one in operators
        if (kernel := next((each for each in one.kernels if each.kind == "kernel"), None)) is not None
    ]
    first = {(one.operator, one.kernel.name): one for one in reversed(quality)}
    found = {}
    for operator, kernel in longest:
        key = (operator.name, kernel.name)
        topics = tuple(_topics(operator, kernel, first.get(key), efficiency.operators.get(operator.name)))
        pattern = shlex.quote(kernel_filter([kernel.name]).pattern)
        found[operator.name] = OperatorImprovement(
            kernel.name, topics, f"opscope ncu --kernel {pattern} -- python script.py"
        )
    return found


def _topics(
    operator: OperatorTotal, kernel: KernelTotal, launch: LaunchQuality | None, roofline: Roofline | None
) -> Iterable[Improvement]:
    # Median duration of cudaLaunchKernel in recordings of PyTorch 2.11 on an H200 host (4.0 to 4.6 µs):
    # shorter kernels cannot keep the device busy alone.
    short = [one for one in operator.kernels if one.kind == "kernel" and one.total_ns < 4_000 * one.calls]
    calls, total_ns = sum(one.calls for one in short), sum(one.total_ns for one in short)
    launches = None
    # A smaller share of the operator's device time is noise in its report.
    if calls and total_ns >= 0.2 * operator.self_device_ns:
        launches = (
            f"{calls:,} run {total_ns / calls / 1e3:.2f} µs on average, no longer than a launch costs the "
            "host"
        )
    yield Improvement(Topic.LAUNCHES, launches, needs_counters=False)
    yield Improvement(Topic.OCCUPANCY, _occupancy(launch), needs_counters=True)
    # Only proof that accesses are coalesced; what is only likely is left to counters.
    width = None if kernel.facts is None else kernel.facts.fields.get("vector_width")
    is_memory_bound = roofline is not None and roofline.bound is Bound.MEMORY
    fraction = (roofline.fraction if roofline is not None else None) or 0.0
    coalesced = None
    # Above this share of the memory limit scattered accesses are excluded: a warp that used half of each
    # 32-byte sector could not reach more than half of it.
    if is_memory_bound and fraction >= 0.75:
        coalesced = (
            f"accesses are coalesced: least bytes alone flow at {100 * fraction:.0f} % of the memory limit"
        )
    elif isinstance(width, int) and width > 1:
        coalesced = f"each thread loads {width} neighboring elements at once, by the kernel's name"
    yield Improvement(Topic.COALESCING, coalesced, needs_counters=coalesced is None)
    unshared = launch is not None and launch.geometry.shared_memory_bytes == 0
    conflicts = "none: the kernel uses no shared memory" if unshared else None
    yield Improvement(Topic.BANK_CONFLICTS, conflicts, needs_counters=not unshared)
    divergence = None
    if launch is not None and launch.partial_warp_loss:
        divergence = (
            f"blocks of {launch.thread_count} threads leave {100 * launch.partial_warp_loss:.0f} % of their "
            "warps' lanes unused"
        )
    yield Improvement(Topic.DIVERGENCE, divergence, needs_counters=True)
    fusion = None
    if operator.kernel_launches > operator.calls > 0 and len(operator.kernels) > 1:
        fusion = (
            f"{operator.kernel_launches / operator.calls:.1f} kernels per call pass their results through "
            "device memory"
        )
    elif operator.category in frozenset(("elementwise", "activation")):
        fusion = "pointwise: fused into the operator before or after, its own reads and writes would go away"
    elif operator.category in frozenset(("normalization", "reduction")) and is_memory_bound:
        fusion = "a pointwise neighbor fused into it would cost it no further bytes"
    yield Improvement(Topic.FUSION, fusion, needs_counters=False)


def _occupancy(launch: LaunchQuality | None) -> str | None:
    if launch is None or launch.active is None or launch.occupancy is None:
        return None
    held = launch.active
    text = (
        f"{100 * launch.occupancy:.0f} % of the warps a multiprocessor holds ({held.warps_per_sm} of "
        f"{held.max_warps_per_sm}), limited by {held.limited_by}"
    )
    if launch.idle_sm_count:
        return f"{text}; {launch.block_count:,} blocks leave {launch.idle_sm_count} of {launch.sm_count} idle"
    if launch.waves is not None:
        text += f"; {launch.waves.count:.2f} waves, {100 * launch.waves.tail_loss:.0f} % of their slots empty"
    return text
