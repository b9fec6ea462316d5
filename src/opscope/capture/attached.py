"""Which torch profiler is attached to this process: ours or anybody's, recording or only warming up.

torch itself tells of one that records, not of one in its warm-up, which stretches the host already. So the
functions of torch.autograd.profiler through which every profiler of torch starts and ends are replaced while
somebody watches, and put back afterwards. One that was in its warm-up before is not seen. Importing this
module does not import torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_END = "_disable_profiler"


class AttachedProfilers:
    """What is attached, for those who watch."""

    def __init__(self) -> None:
        self.is_attached = False  # a profiler is prepared or records
        self.changes = 0  # starts and ends so far; if as it was, nothing was attached in between either
        self._watchers: list[Callable[[], object]] = []
        self._is_own = False
        self._originals: dict[str, Any] = {}

    def watch(self, before_start: Callable[[], object]) -> None:
        """Call a function before every start from now on; torch is imported."""
        if not self._watchers:
            self.is_attached = is_profiler_recording()
            module = _torch_module()
            for name in ("_prepare_profiler", "_enable_profiler", _END):
                if hasattr(module, name):
                    self._originals[name] = getattr(module, name)
                    setattr(module, name, self._noting(self._originals[name], is_start=name != _END))
        self._watchers.append(before_start)

    def unwatch(self, before_start: Callable[[], object]) -> None:
        """Call it no longer; the last one to go leaves torch as it was. Nothing if it does not watch."""
        if before_start in self._watchers:
            self._watchers.remove(before_start)
            if not self._watchers:
                originals, self._originals = self._originals, {}
                for name, original in originals.items():
                    setattr(_torch_module(), name, original)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Inside the block no one is told of starts: they are part of a recording that is watched itself."""
        before, self._is_own = self._is_own, True
        try:
            yield
        finally:
            self._is_own = before

    def _noting(self, original: Callable[..., Any], *, is_start: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_start:
                for before_start in () if self._is_own else tuple(self._watchers):
                    before_start()
                self._note(is_attached=True)
            try:
                return original(*args, **kwargs)
            finally:
                if not is_start:
                    self._note(is_attached=False)

        return call

    def _note(self, *, is_attached: bool) -> None:
        self.is_attached = is_attached
        self.changes += 1


attached_profilers = AttachedProfilers()


def is_profiler_recording() -> bool:
    """Whether a torch profiler records: on this thread, or by a flag of torch.autograd.profiler anywhere."""
    is_flagged = getattr(_torch_module(), "_is_profiler_enabled", False)
    return bool(importlib.import_module("torch.autograd")._profiler_enabled() or is_flagged)


def _torch_module() -> Any:
    return importlib.import_module("torch.autograd.profiler")
