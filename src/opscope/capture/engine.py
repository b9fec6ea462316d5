"""What records a window: torch.profiler's own object, or torch.autograd.profiler under the same calls.

Both drive Kineto and write the same kind of trace. They differ in what they note about themselves (only the
first writes rank and options into the trace) and in control (only the first can be switched off and on while
it records). Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from opscope.capture.torch_log import quiet_torch_log
from opscope.errors import CaptureError, InputError
from opscope.model.sidecar import RecordedSettings
from opscope.workloads.runtime import require_torch

__all__ = ["AUTOGRAD", "ENGINES", "PROFILER", "CaptureEngine", "check_engine", "make_engine"]

PROFILER, AUTOGRAD = "profiler", "autograd"
ENGINES = (PROFILER, AUTOGRAD)


class CaptureEngine(Protocol):
    """One window of Kineto; its methods are called in this order, each once, but for `toggle`."""

    def prepare(self) -> None:
        """Attach without recording."""
        ...

    def start(self) -> None:
        """Record from now on."""
        ...

    def toggle(self, activities: Collection[str], *, is_on: bool) -> None:
        """Switch the recording of some activities off, or on again; never to what it is already."""
        ...

    def stop(self) -> None:
        """Record no longer."""
        ...

    def save(self, path: str) -> None:
        """Write the trace."""
        ...

    def events(self) -> list[Any]:
        """Roots of torch's own tree of what was recorded, once it is stopped."""
        ...


def check_engine(name: str) -> str:
    """The name of an engine, as it is.

    Raises:
        InputError: No engine has this name.
    """
    if name not in ENGINES:
        raise InputError(f"'{name}' is not an engine", hint=f"Use {' or '.join(ENGINES)}")
    return name


def make_engine(settings: RecordedSettings) -> CaptureEngine:
    """The engine that settings name."""
    return _AutogradEngine(settings) if settings.engine == AUTOGRAD else _ProfilerEngine(settings)


class _ProfilerEngine:
    """`torch.profiler`'s object without its schedule."""

    def __init__(self, settings: RecordedSettings) -> None:
        torch = require_torch()
        self._known = torch.profiler.ProfilerActivity.__members__
        self._profile: Any = torch.profiler._KinetoProfile(
            activities=[self._known[name.upper()] for name in settings.activities],
            record_shapes=settings.record_shapes,
            with_stack=settings.with_stack,
            with_modules=settings.with_modules,
            profile_memory=settings.profile_memory,
            # Without it torch 2.11 warns that a second cycle clears the first; here each has its own object.
            acc_events=True,
        )

    def prepare(self) -> None:
        self._profile.prepare_trace()
        inner = getattr(self._profile, "profiler", None)
        if inner is not None:
            # Otherwise every event becomes a Python object when the window closes, which nobody asks for
            # here: 20 times the time of closing it.
            inner.acc_events = False

    def start(self) -> None:
        self._profile.start_trace()

    def toggle(self, activities: Collection[str], *, is_on: bool) -> None:
        with quiet_torch_log():
            self._profile.toggle_collection_dynamic(is_on, [self._known[name.upper()] for name in activities])

    def stop(self) -> None:
        self._profile.stop_trace()

    def save(self, path: str) -> None:
        self._profile.export_chrome_trace(path)

    def events(self) -> list[Any]:
        roots: list[Any] = self._profile.profiler.kineto_results.experimental_event_tree()
        return roots


class _AutogradEngine:
    """`torch.autograd.profiler.profile`, entered in the two halves that torch.profiler enters it in."""

    def __init__(self, settings: RecordedSettings) -> None:
        self._profile: Any = require_torch().autograd.profiler.profile(
            use_cpu="cpu" in settings.activities,
            use_device="cuda" if "cuda" in settings.activities else None,
            use_kineto=True,
            record_shapes=settings.record_shapes,
            with_stack=settings.with_stack,
            with_modules=settings.with_modules,
            profile_memory=settings.profile_memory,
        )

    def prepare(self) -> None:
        self._profile._prepare_trace()

    def start(self) -> None:
        self._profile._start_trace()

    def toggle(self, activities: Collection[str], *, is_on: bool) -> None:
        raise CaptureError("the autograd engine cannot be switched off and on while it records")

    def stop(self) -> None:
        self._profile.__exit__(None, None, None)

    def save(self, path: str) -> None:
        self._profile.export_chrome_trace(path)

    def events(self) -> list[Any]:
        roots: list[Any] = self._profile.kineto_results.experimental_event_tree()
        return roots
