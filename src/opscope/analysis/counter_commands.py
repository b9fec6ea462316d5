"""What to profile with ncu: the kernels that matter, and the command that tells what a recording cannot.

The kernels are chosen by a recording of the program or a first quick profile. ncu profiles one window of the
launches that its filter matches, so the window is chosen that covers most of the chosen kernels' time.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from opscope.analysis.counters import Kind, extent, recorded_name
from opscope.errors import CaptureError, InputError
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.kernel_names import decode
from opscope.text_enum import TextEnum
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
    functor = (decoded.functor or "").rpartition("::")[2] or _telling_argument(decoded.template_arguments)
    return decoded.function.rpartition("::")[2], functor


def _telling_argument(arguments: Sequence[str]) -> str | None:
    """A template argument that names what a generic kernel runs, `cutlass_80_simt_sgemm_64x64_8x5_nn`."""
    return next((one for one in arguments if len(one) >= _TELLING and re.fullmatch(r"\w+", one)), None)


def suggest_command(
    kernel_name: str,
    launch_index: int = 0,
    *,
    topics: Iterable[str] = TOPICS,
    compute_capability: str | None = None,
    program: Sequence[str] = ("python", "script.py"),
) -> str:
    """The command as one line for a shell.

    Args:
        kernel_name: As recorded.
        launch_index: Which of the launches its filter matches, from 0.
        topics: Keys of `toolchain.ncu_report.TOPICS`; all by default.
        compute_capability: Of the device, as `"9.0"`.
        program: The command to profile.
    """
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


def plan_by_recording(session: Session, *, kernels: int, limit: int) -> CollectionPlan:
    """The longest-running kernels of a recording of the same program.

    A recording begins somewhere in the program, so launches are counted as if the program began with a step
    like the first recorded one; none is passed over unless the limit leaves no choice.

    Raises:
        InputError: It holds no kernels.
    """
    launches = [
        Launch(name, extent(sizes[0:3]), extent(sizes[3:6]), sizes[6])
        for name, *sizes in session.query(sql(__package__, "step_launches"))
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


def plan_by_profile(report: NcuReport, *, kernels: int, limit: int) -> CollectionPlan:
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


class Prefer(TextEnum):
    """Which of several equally good windows: the first, or the last, when a program has warmed up."""

    FIRST = "first"
    LAST = "last"


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


def best_window(
    launches: Sequence[Launch], names: Iterable[str], limit: int, prefer: Prefer = Prefer.LAST
) -> Window | None:
    """The window of at most `limit` launches that covers most time of the named kernels; None without any.

    Of windows that cover as much, the shortest, and of those the preferred.

    Args:
        launches: What the filter matches, in order; kernels not named may be among them.
        names: The kernels that matter.
        limit: Launches of a window, at least 1.
        prefer: Which of those equally good.
    """
    wanted = frozenset(names)
    worth: Counter[Kind] = Counter()
    for launch in launches:
        worth[launch.kind] += launch.duration_ns if launch.name in wanted else 0
    windows = _windows(launches, worth, limit)
    later = 1 if prefer is Prefer.LAST else -1
    return max(
        windows, key=lambda one: (one.covered_ns, one.start - one.end, later * one.start), default=None
    )


def _windows(launches: Sequence[Launch], worth: Counter[Kind], limit: int) -> Iterator[Window]:
    """For every end the window that starts as late as it can without covering less."""
    held: Counter[Kind] = Counter()
    start = covered_ns = 0
    for end, launch in enumerate(launches, 1):
        held[launch.kind] += 1
        if held[launch.kind] == 1:
            covered_ns += worth[launch.kind]
        while end - start > limit or (
            end - start > 1 and (held[launches[start].kind] > 1 or worth[launches[start].kind] == 0)
        ):
            dropped = launches[start].kind
            held[dropped] -= 1
            if held[dropped] == 0:
                covered_ns -= worth[dropped]
            start += 1
        yield Window(start, end, covered_ns)
