"""One window of Kineto: prepared, started, stopped, exported; or abandoned.

The window is clean: every device is idle when it opens and again when it closes. Kineto keeps device
activities by their time, not by their launch, so without the first wait kernels of the warm-up would be
counted, and without the second the last step's would be cut off. A Recording is used once: torch's profiler
objects warn when they are started twice. Importing this module does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from opscope.capture.export import export_trace
from opscope.capture.trace_names import TraceNames, read_trace_names
from opscope.errors import CaptureError
from opscope.model.sidecar import RecordedSettings
from opscope.workloads.runtime import is_out_of_memory, require_torch, synchronize

__all__ = ["Recording", "available_activities", "require_no_profiler"]


class _State(Enum):
    NEW = "new"
    PREPARED = "prepared"
    STARTED = "started"
    STOPPED = "stopped"


def available_activities() -> tuple[str, ...]:
    """What can be recorded here: `cpu`, and `cuda` where there is a device."""
    return ("cpu", "cuda") if require_torch().cuda.is_available() else ("cpu",)


def require_no_profiler() -> None:
    """Return if no torch profiler is recording in this process.

    To be asked before anything is prepared: preparing a second session crashes some torch versions. A foreign
    profiler that is only in its own warm-up cannot be seen from here.

    Raises:
        CaptureError: One is recording.
    """
    torch = require_torch()
    # The first is this thread's state; the second, a flag of torch.autograd.profiler, is the process's.
    if torch.autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        raise CaptureError(
            "a torch profiler is already recording in this process",
            hint="End it first: only one profiler can record at a time",
        )


class Recording:
    """A single recording.

    Args:
        settings: What to record.
    """

    def __init__(self, settings: RecordedSettings) -> None:
        torch = require_torch()
        known = torch.profiler.ProfilerActivity.__members__
        self._annotate = torch.autograd.profiler.record_function
        self._profile: Any = torch.profiler._KinetoProfile(
            activities=[known[name.upper()] for name in settings.activities],
            record_shapes=settings.record_shapes,
            with_stack=settings.with_stack,
            with_modules=settings.with_modules,
            profile_memory=settings.profile_memory,
            # Without it torch 2.11 warns that a second cycle clears the first; here each has its own object.
            acc_events=True,
        )
        self._state = _State.NEW
        self._step: Any = None
        self._step_start_ns = 0
        self._wall_times_ns: list[int] = []

    @property
    def is_started(self) -> bool:
        """Whether work done now is recorded."""
        return self._state is _State.STARTED

    def prepare(self) -> None:
        """Attach the profiler without recording, so that its start-up cost falls into the warm-up.

        Raises:
            CaptureError: Another profiler is recording, or Kineto refuses.
        """
        require_no_profiler()
        with _kineto_errors("prepared"):
            self._profile.prepare_trace()
        self._state = _State.PREPARED

    def start(self, step: int) -> None:
        """Wait for the devices, start recording, and open a step with that number."""
        if self._state is _State.NEW:
            self.prepare()
        require_no_profiler()
        synchronize()
        with _kineto_errors("started"):
            self._profile.start_trace()
        self._state = _State.STARTED
        self._open_step(step)

    def next_step(self, step: int) -> None:
        """Close the open step and open the one with that number, without waiting for the devices."""
        self._wall_times_ns.append(time.perf_counter_ns() - self._step_start_ns)
        self._close_step()
        self._open_step(step)

    def stop(self, *, last_step_is_whole: bool) -> tuple[int, ...]:
        """Wait for the devices and stop recording; the wall time of each whole step, in nanoseconds."""
        # Inside the last step, so that the step lasts as long as its work.
        synchronize()
        if last_step_is_whole:
            self._wall_times_ns.append(time.perf_counter_ns() - self._step_start_ns)
        self._close_step()
        with _kineto_errors("stopped"):
            self._profile.stop_trace()
        self._state = _State.STOPPED
        return tuple(self._wall_times_ns)

    def export(self, target: Path) -> TraceNames:
        """Write the stopped recording as a Kineto trace and free its memory; the names in it.

        Raises:
            CaptureError: It cannot be written.
        """
        names = export_trace(self._profile.export_chrome_trace, target, read_trace_names)
        self._profile = None
        return names

    def abandon(self) -> None:
        """Stop without keeping anything; what the devices still have to say about failed work is dropped."""
        state, self._state = self._state, _State.STOPPED
        try:
            if state is _State.PREPARED:
                self._profile.start_trace()  # Kineto has no way back from prepared but through started
            if state in {_State.PREPARED, _State.STARTED}:
                self._close_step()
                self._profile.stop_trace()
        except RuntimeError:
            _force_off()
        self._profile = None

    def _open_step(self, step: int) -> None:
        self._step = self._annotate(f"ProfilerStep#{step}")
        self._step.__enter__()
        self._step_start_ns = time.perf_counter_ns()

    def _close_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)


@contextmanager
def _kineto_errors(action: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise CaptureError(
            f"the torch profiler cannot be {action} ({reason})",
            hint="End any other profiler in this process or attached to it",
        ) from error


def _force_off() -> None:
    """Switch the profiler off when torch's own way failed.

    Torch waits for the device first, and a device after an illegal access only raises.
    """
    torch = require_torch()
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
    torch.autograd.profiler._run_on_profiler_stop()
