"""Switching inductor's provenance tracking on and off. Imports torch's compiler only when started.

What it tracked is kept on torch's own objects and read when a recording ends (`live_objects`).
"""

from __future__ import annotations

import importlib
from typing import Any

from opscope.errors import DependencyError
from opscope.workloads.runtime import require_torch

__all__ = ["CompileTracking"]

_LEVEL = "provenance_tracking_level"
_NORMAL = 1


class CompileTracking:
    """Provenance tracking of everything compiled between `start` and `stop`."""

    def __init__(self) -> None:
        self._config: Any = None
        self._previous = 0

    def start(self) -> None:
        """Switch it on, unless the program has done so.

        Raises:
            DependencyError: This torch has none, or it is not installed.
        """
        version = require_torch().__version__
        trace = importlib.import_module("torch._inductor.config").trace
        if not hasattr(trace, _LEVEL):
            raise DependencyError(
                f"torch {version} cannot track where compiled kernels come from",
                hint="Record without track_compile, or use torch 2.11 or newer",
            )
        self._config, self._previous = trace, getattr(trace, _LEVEL)
        if self._previous == 0:
            setattr(trace, _LEVEL, _NORMAL)

    def stop(self) -> None:
        """Put the setting back; nothing if it was not started."""
        config, self._config = self._config, None
        if config is not None:
            setattr(config, _LEVEL, self._previous)
