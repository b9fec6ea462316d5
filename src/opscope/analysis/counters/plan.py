"""What to profile of a program: the kernels that matter, by a recording of it or a first quick profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opscope.analysis.counters.command import kernel_filter
from opscope.analysis.counters.join import extent, recorded_name
from opscope.analysis.queries import sql
from opscope.errors import CaptureError, InputError
from opscope.model.session import Session
from opscope.toolchain.ncu.command import KernelFilter, filter_of_mangled_names
from opscope.toolchain.ncu.report import NcuReport
from opscope.toolchain.ncu.selection import Launch, Prefer, Window, best_window, longest_kernels

__all__ = ["Plan", "plan_by_profile", "plan_by_recording"]


@dataclass(frozen=True)
class Plan:
    """Launches to profile.

    Attributes:
        kernels: The filter.
        launch_skip: Matching launches to pass over.
        launch_count: Matching launches to profile.
        covered_fraction: Share of all kernel time that launches of the kinds profiled take.
        names: The kernels, most time first, as recordings name them.
    """

    kernels: KernelFilter
    launch_skip: int
    launch_count: int
    covered_fraction: float
    names: tuple[str, ...]


def plan_by_recording(session: Session, *, kernels: int, limit: int) -> Plan:
    """The longest-running kernels of a recording of the same program.

    A recording begins somewhere in the program, so launches are counted as if the program began with a step
    like the first recorded one; none is passed over unless the limit leaves no choice.

    Args:
        session: The recording.
        kernels: How many kernels.
        limit: Launches to profile at most.

    Raises:
        InputError: It holds no kernels.
    """
    launches = [
        Launch(name, extent(sizes[0:3]), extent(sizes[3:6]), sizes[6])
        for name, *sizes in session.query(sql("step_launches"))
    ]
    names = longest_kernels(launches, kernels)
    matches = kernel_filter(names)
    covered = {name for name in {launch.name for launch in launches} if matches.covers(name)}
    matching = [launch for launch in launches if launch.name in covered]
    window = best_window(matching, names, limit, Prefer.FIRST)
    if window is None:
        raise InputError("the recording holds no kernels", hint="Record the GPU's activities too")
    if window.end <= limit:
        window = Window(0, window.end, window.covered_ns)
    return _plan(matches, window, launches, names)


def plan_by_profile(report: NcuReport, *, kernels: int, limit: int) -> Plan:
    """The longest-running kernels of a profile of the same program that holds every launch's time.

    Raises:
        CaptureError: It holds no times.
    """
    launches = [
        Launch(kernel.mangled_name, kernel.grid, kernel.block, kernel.duration_ns)
        for kernel in report.kernels
        if kernel.duration_ns is not None
    ]
    names = longest_kernels(launches, kernels)
    window = best_window([launch for launch in launches if launch.name in names], names, limit)
    if window is None:
        raise CaptureError("the first profile holds no kernel times")
    shown = {kernel.mangled_name: recorded_name(kernel) for kernel in report.kernels}
    plan = _plan(filter_of_mangled_names(names), window, launches, names)
    return Plan(
        plan.kernels,
        plan.launch_skip,
        plan.launch_count,
        plan.covered_fraction,
        tuple(shown[name] for name in names),
    )


def _plan(matches: KernelFilter, window: Window, launches: Sequence[Launch], names: tuple[str, ...]) -> Plan:
    total_ns = sum(launch.duration_ns for launch in launches)
    covered = window.covered_ns / total_ns if total_ns else 0.0
    return Plan(matches, window.start, window.end - window.start, covered, names)
