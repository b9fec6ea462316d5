"""Recording single functions: `profile_call` repeats one, `profiled` records the calls a program makes.

Importing this module does not import torch.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from opscope.capture.cycle import Cycle
from opscope.capture.cycle_writer import with_unrecorded
from opscope.capture.profiler import OUT_OF_MEMORY_HINT, CaptureOptions, Profiler
from opscope.capture.step_clock import StepClock, time_calls
from opscope.errors import CaptureError, InputError
from opscope.model.sidecar import UnrecordedStep
from opscope.workloads.runtime import is_out_of_memory, require_torch

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")


def profile_call(
    fn: Callable[..., R],
    *args: object,
    output_dir: str | os.PathLike[str] | None = None,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 1,
    active: int = 1,
    unrecorded: int = 10,
    **options: Unpack[CaptureOptions],
) -> tuple[R, Cycle]:
    """Time calls of a function, then call it `wait + warmup + active` times and record the last `active`.

    Args:
        fn: Called with `args`; keywords belong to the recording, so bind them with `functools.partial`.
        *args: Its arguments.
        output_dir: As in `Profiler`.
        name: As in `Profiler`.
        wait: Calls without the profiler.
        warmup: Calls with the profiler attached but not recording.
        active: Recorded calls, one step each.
        unrecorded: Samples to take of the time of a call before a profiler is attached, back to back: so many
            calls and a few to warm up; 0 makes none.
        **options: As in `Profiler`.

    Returns:
        The result of the last call, and the recorded cycle.

    Raises:
        InputError: The schedule makes no sense, or a file is in the way.
        CaptureError: As in `Profiler`.
    """
    profiler = Profiler(output_dir, name=name, wait=wait, warmup=warmup, active=active, **options)
    profiler.check_output()
    profiler.note_graphs()
    try:
        profiler.unrecorded_steps += time_calls(lambda: fn(*args), unrecorded)
    except Exception as error:
        profiler.forget_graphs()
        if not is_out_of_memory(error):
            raise
        raise CaptureError("out of memory before anything was recorded", hint=OUT_OF_MEMORY_HINT) from error
    with profiler:
        for _ in range(profiler.total_steps):
            result = fn(*args)
            profiler.step()
    return result, profiler.cycles[0]


class ProfiledFunction(Generic[P, R]):
    """A function some of whose calls are recorded; made by `profiled`.

    Calls that are not recorded are timed until there are enough of them, without waiting for the device.
    """

    def __init__(
        self, fn: Callable[P, R], skip: int, count: int, make_profiler: Callable[[int], Profiler]
    ) -> None:
        functools.update_wrapper(self, fn)
        self._cycles: list[Cycle] = []
        self._fn = fn
        self._recorded_calls = range(skip, skip + count)
        self._make_profiler = make_profiler
        self._call_count = 0
        self._is_inside = False
        self._clock = StepClock()
        self._unrecorded: tuple[UnrecordedStep, ...] = ()
        self._is_timing = False

    @property
    def cycles(self) -> list[Cycle]:
        """One per recorded call so far; the calls timed so far are in their sidecars."""
        if self._clock.is_ready():
            self._keep_timed()
        return self._cycles

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result; recorded if this call's turn has come.

        A call within a call is part of it and has no turn of its own.
        """
        is_over = self._call_count >= self._recorded_calls.stop
        if self._is_inside or (is_over and not self._is_timing):
            return self._fn(*args, **kwargs)
        if not self._call_count:
            require_torch()
            self._is_timing = True
            self._clock.start()
            # For a program that ends, or leaves off calling, before enough calls are timed.
            atexit.register(self._stop)
        call, self._call_count = self._call_count, self._call_count + 1
        self._is_inside = True
        try:
            if call not in self._recorded_calls:
                return self._clock.call(call, lambda: self._fn(*args, **kwargs))
            with self._make_profiler(call) as profiler:
                result = self._fn(*args, **kwargs)
        finally:
            self._is_inside = False
            is_over = self._call_count >= self._recorded_calls.stop
            if is_over and self._clock.is_full and self._clock.is_ready():
                self._stop()
        self._cycles.extend(profiler.cycles)
        return result

    def _stop(self) -> None:
        self._is_timing = False
        self._clock.stop()
        atexit.unregister(self._stop)
        self._keep_timed()

    def _keep_timed(self) -> None:
        """Add what was timed to the sidecars of the cycles that are still there."""
        self._unrecorded += self._clock.read()
        self._cycles[:] = [with_unrecorded(cycle, self._unrecorded) for cycle in self._cycles]


def profiled(
    output_dir: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    warmup: int = 0,
    active: int = 1,
    **options: Unpack[CaptureOptions],
) -> Callable[[Callable[P, R]], ProfiledFunction[P, R]]:
    """A decorator that records calls of a function, each as a cycle of one step.

        @profiled("out", warmup=2)
        def generate(prompt): ...

    The first `warmup` calls run without the profiler, the next `active` are recorded as `<name>_call<n>.json`
    (n counts all calls from 0), and later ones run without it again.

    Args:
        output_dir: As in `Profiler`.
        name: Of the trace files; the function's name if None.
        warmup: Calls that run unrecorded first.
        active: Calls to record.
        **options: As in `Profiler`.

    Raises:
        InputError: The counts make no sense.
    """
    if warmup < 0 or active < 1:
        raise InputError(
            f"warmup={warmup}, active={active} records no call", hint="Need warmup >= 0 and active >= 1"
        )

    def decorate(fn: Callable[P, R]) -> ProfiledFunction[P, R]:
        stem = name or getattr(fn, "__name__", "call").strip("<>")

        def make_profiler(call: int) -> Profiler:
            return Profiler(output_dir, name=f"{stem}_call{call}", warmup=0, active=1, **options)

        return ProfiledFunction(fn, warmup, active, make_profiler)

    return decorate
