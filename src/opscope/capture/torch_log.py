"""Keeping torch's C++ log silent for a moment. Importing this module does not import torch.

Torch logs the same line for every switch of a recording, of which a program may make thousands; what it says
is a finding of the trace instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opscope.workloads.runtime import require_torch

__all__ = ["quiet_torch_log"]

# Source: pytorch, c10/util/Logging.cpp: lines below this level are not written; error is 2.
_LEVEL = "FLAGS_caffe2_log_level"
_ERROR = 2


@contextmanager
def quiet_torch_log() -> Iterator[None]:
    """Inside the block torch logs errors only; a torch built with another logger goes on as it does."""
    level = _log_level()
    if level is None or level.value >= _ERROR:
        yield
        return
    previous, level.value = level.value, _ERROR
    try:
        yield
    finally:
        level.value = previous


@cache
def _log_level() -> ctypes.c_int | None:
    try:
        # Looked up in everything that torch's extension module was linked with.
        return ctypes.c_int.in_dll(ctypes.CDLL(require_torch()._C.__file__), _LEVEL)
    except (OSError, ValueError, AttributeError):
        return None
