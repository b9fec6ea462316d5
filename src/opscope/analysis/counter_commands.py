"""What to profile with ncu: the kernels that matter, and the command that tells what a recording cannot.

The kernels are chosen by a recording of the program or a first quick profile. ncu profiles one window of the
launches that its filter matches, so the window is chosen that covers most of the chosen kernels' time.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from opscope.analysis.counters import Kind, extent, recorded_name
from opscope.errors import CaptureError, InputError
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.kernel_names.decoder import decode
from opscope.toolchain.ncu_command import (
    Collection,
    KernelFilter,
    filter_of_functions,
    filter_of_mangled_names,
    options_of,
)
from opscope.toolchain.ncu_report import TOPICS, Extent, NcuReport, metrics_to_collect

# Element types, numbers and flags are shorter.
_TELLING = 16


def kernel_filter(names: Iterable[str]) -> KernelFilter:
    """The filter of ncu for kernels as a recording names them.

    It matches by function and functor, so kernels that differ in types alone pass too.
    """
    return filter_of_functions(map(_function, names))


def _function(name: str) -> tuple[str, str | None]:
    decoded = decode(name)
    if decoded.function is None:
        return name, None
    functor = (decoded.functor or "").rpartition("::")[2]
    # Else an argument that names what a generic kernel runs, `cutlass_80_simt_sgemm_64x64_8x5_nn`.
    telling = (
        one for one in decoded.template_arguments if len(one) >= _TELLING and re.fullmatch(r"\w+", one)
    )
    functor = functor or next(telling, "")
    return decoded.function.rpartition("::")[2], functor or None


def suggest_command(
    kernel_name: str,
    launch_index: int = 0,
    *,
    topics: Iterable[str] = TOPICS,
    compute_capability: str | None = None,
    program: Sequence[str] = ("python", "script.py"),
) -> str:
    """The command for one launch of those that its filter matches, as one line for a shell."""
    quantities = [quantity for topic in topics for quantity in TOPICS[topic]]
    collection = Collection(
        kernel_filter([kernel_name]),
        launch_index,
        1,
        metrics=metrics_to_collect(compute_capability, quantities),
    )
    what = options_of(collection)
    return shlex.join(["ncu", "--clock-control", "none", *what, "--export", "counters", *program])


class CollectionPlan(msgspec.Struct, frozen=True):
    """Launches to profile."""

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
    launches = [
        Launch(name, extent(sizes[0:3]), extent(sizes[3:6]), sizes[6])
        for name, *sizes in session.query(sql(__package__, "step_launches"))
    ]
    names = longest_kernels(launches, kernels)
    matches = kernel_filter(names)
    covered = {name for name in {launch.name for launch in launches} if matches.covers(name)}
    matching = [launch for launch in launches if launch.name in covered]
    window = best_window(matching, names, limit)
    if window is None:
        raise InputError("the recording holds no kernels", hint="Record the GPU's activities too")
    if window.end <= limit:
        window = Window(0, window.end, window.covered_ns)
    return _plan(matches, window, launches, names)


def plan_by_profile(report: NcuReport, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a profile of the same program that holds every launch's time."""
    launches = [
        Launch(kernel.mangled_name, kernel.grid, kernel.block, kernel.duration_ns)
        for kernel in report.kernels
        if kernel.duration_ns is not None
    ]
    names = longest_kernels(launches, kernels)
    matching = [launch for launch in launches if launch.name in names]
    window = best_window(matching[::-1], names, limit)  # the last ones, for the program has warmed up
    if window is None:
        raise CaptureError("the first profile holds no kernel times")
    window = Window(len(matching) - window.end, len(matching) - window.start, window.covered_ns)
    shown = {kernel.mangled_name: recorded_name(kernel) for kernel in report.kernels}
    plan = _plan(filter_of_mangled_names(names), window, launches, names)
    return replace(plan, names=tuple(shown[name] for name in names))


def _plan(
    matches: KernelFilter, window: Window, launches: Sequence[Launch], names: tuple[str, ...]
) -> CollectionPlan:
    total_ns = sum(launch.duration_ns for launch in launches)
    covered = window.covered_ns / total_ns if total_ns else 0.0
    return CollectionPlan(matches, window.start, window.end - window.start, covered, names)


class Launch(msgspec.Struct, frozen=True):
    """One launch of a sequence: how it is named, its geometry, its time."""

    name: str
    grid: Extent | None
    block: Extent | None
    duration_ns: int

    @property
    def kind(self) -> Kind:
        """Launches alike in this do alike work."""
        return self.name, self.grid, self.block


class Window(msgspec.Struct, frozen=True):
    """Launches `start` up to `end` of a sequence; `covered_ns` is the time of all launches of their kinds."""

    start: int
    end: int
    covered_ns: int


def longest_kernels(launches: Iterable[Launch], count: int) -> tuple[str, ...]:
    """Names of the kernels that take most time in all, the longest first."""
    by_name: Counter[str] = Counter()
    for launch in launches:
        by_name[launch.name] += launch.duration_ns
    return tuple(name for name, _ in by_name.most_common(count))


def best_window(launches: Sequence[Launch], names: Iterable[str], limit: int) -> Window | None:
    """The first of the shortest windows that cover most time of the named kernels; None without any."""
    wanted = frozenset(names)
    worth: Counter[Kind] = Counter()
    for launch in launches:
        if launch.name in wanted:
            worth[launch.kind] += launch.duration_ns

    def window(start: int) -> Window:
        firsts: dict[Kind, int] = {}
        for index, launch in enumerate(launches[start : start + limit], start):
            if launch.kind in worth:
                firsts.setdefault(launch.kind, index)
        return Window(start, max(firsts.values()) + 1, sum(worth[kind] for kind in firsts))

    starts = (index for index, launch in enumerate(launches) if launch.name in wanted)
    return max(map(window, starts), key=lambda one: (one.covered_ns, one.start - one.end), default=None)
