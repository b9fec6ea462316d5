"""The public functions: each wires the layers below into one step a user thinks of.

Imports nothing heavy at its top, so that the command line starts quickly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from opscope.capture.calls import ProfiledFunction
from opscope.capture.calls import profile_call as _profile_call
from opscope.capture.calls import profiled as _profiled
from opscope.capture.cycle import Cycle, CycleHandler
from opscope.capture.handlers import export_chrome_trace, tensorboard_trace
from opscope.capture.profiler import CaptureOptions, Profiler
from opscope.data import example_trace
from opscope.errors import CaptureError
from opscope.model.session import Session, is_session_file
from opscope.provenance.origins import recorded_origins

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Profile",
    "example_trace",
    "export_chrome_trace",
    "load",
    "open_session",
    "print_table",
    "profile",
    "profile_call",
    "profiled",
    "tensorboard_trace",
]

P = ParamSpec("P")
R = TypeVar("R")
Source = str | os.PathLike[str]


def load(
    source: Source | Sequence[Source], *, memory_limit: str | None = None, threads: int | None = None
) -> Session:
    """A Session of a saved `.opscope` file, or of one or several traces.

    Args:
        source: A trace, a folder of rank files, an fsspec address (`s3://`, `gs://`, `https://`,
            `memory://`), a saved Session, or several traces that belong together.
        memory_limit: What the process should stay under, e.g. `"1GB"`; the tables then live in a
            temporary file.
        threads: Worker threads; all cores if None.

    Raises:
        InputError: The source cannot be read; the message names the file and byte offset.
        DependencyError: The address needs a package that is not installed; the message has the install line.
    """
    sources = [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if len(sources) == 1 and is_session_file(sources[0]):
        return Session.open(sources[0])
    from opscope.ingest.reader import load as load_traces  # noqa: PLC0415 - sessions open without numpy

    return load_traces(sources, memory_limit=memory_limit, threads=threads)


def open_session(path: Source) -> Session:
    """The Session saved in a file, read-only.

    Raises:
        InputError: No such file, not a Session, or written by a newer opscope.
    """
    return Session.open(path)


class Profile(Profiler):
    """A `Profiler` whose cycles are Sessions too. Made by `profile`; see `Profiler` for everything else."""

    _session_of: tuple[Cycle, Session] | None = None

    @property
    def session(self) -> Session:
        """The Session of the last finished cycle, loaded when first asked for.

        Raises:
            CaptureError: No cycle has finished yet.
        """
        if not self.cycles:
            raise CaptureError(
                "no cycle has finished yet", hint="Call step() through one whole schedule first"
            )
        cycle = self.cycles[-1]
        if self._session_of is None or self._session_of[0] is not cycle:
            self._session_of = (cycle, load(cycle.trace_path))
        return self._session_of[1]


def profile(
    output_dir: Source | None = None,
    *,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    **options: Unpack[CaptureOptions],
) -> Profile:
    """Record the steps of the program in its `with` block: `with opscope.profile("out") as p: … p.step()`.

    Leaves, per cycle, an ordinary Kineto trace and a small sidecar in `output_dir`; `p.cycles` names them and
    `p.session` is the last one's Session. Arguments are those of `Profiler`.

    Raises:
        InputError: The schedule or the name makes no sense.
    """
    options.setdefault("find_origins", recorded_origins)
    return Profile(output_dir, name=name, wait=wait, warmup=warmup, active=active, repeat=repeat, **options)


def profile_call(
    fn: Callable[..., R],
    *args: object,
    output_dir: Source | None = None,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 1,
    active: int = 1,
    **options: Unpack[CaptureOptions],
) -> tuple[R, Session]:
    """Call a function `wait + warmup + active` times and record the last `active` calls, one step each.

    Returns:
        The result of the last call, and the Session of the recording.

    Raises:
        InputError: The schedule makes no sense, or a file is in the way.
        CaptureError: A profiler is running, or the function ran out of memory.
    """
    options.setdefault("find_origins", recorded_origins)
    result, cycle = _profile_call(
        fn, *args, output_dir=output_dir, name=name, wait=wait, warmup=warmup, active=active, **options
    )
    return result, load(cycle.trace_path)


def profiled(
    output_dir: Source | None = None,
    *,
    name: str | None = None,
    warmup: int = 0,
    active: int = 1,
    **options: Unpack[CaptureOptions],
) -> Callable[[Callable[P, R]], ProfiledFunction[P, R]]:
    """A decorator that records calls of a function, each as a cycle of one step; see `ProfiledFunction`."""
    options.setdefault("find_origins", recorded_origins)
    return _profiled(output_dir, name=name, warmup=warmup, active=active, **options)


def print_table(top: int = 10, file: Any = None) -> CycleHandler:
    """A handler for `on_cycle` that prints each cycle's top operators.

    Args:
        top: Operators to print.
        file: Where to; standard output if None.
    """

    def handle(cycle: Cycle, /) -> None:
        from rich.console import Console  # noqa: PLC0415 - needed only to print

        from opscope.analysis.summary import summarize  # noqa: PLC0415
        from opscope.report.compose import overview_document  # noqa: PLC0415
        from opscope.report.terminal import render_terminal  # noqa: PLC0415

        with load(cycle.trace_path) as session:
            Console(file=file).print(render_terminal(overview_document(summarize(session), top=top)))

    return handle
