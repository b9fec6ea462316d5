"""Names of kernels as people read them: symbols of nvcc demangled, and shortened.

The C++ runtime's own demangler is called, as PyTorch's profiler does, so that the names equal those in a
profile. Without such a runtime names stay as they are. For symbols that a compiler wrote on this machine.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

__all__ = ["demangled", "short_name"]

_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1")
_SCOPE = re.compile(r"(?:\w+|\(anonymous namespace\))::")


def demangled(symbol: str) -> str:
    """The name a profile shows for a symbol; the symbol itself if it is not one of C++."""
    runtime = _runtime()
    if runtime is None or not symbol.startswith("_Z"):
        return symbol
    demangle, free = runtime
    status = ctypes.c_int()
    address = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return symbol
    try:
        return ctypes.string_at(address).decode("utf-8", "replace")
    finally:
        free(address)


def short_name(name: str) -> str:
    """A demangled name without return type, scopes and parameters: `softmax_kernel<float, 4, 512, 16>`."""
    text = _SCOPE.sub("", name)
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == " " and depth == 0:
            start = position + 1
        elif character == "(" and depth == 0:
            return text[start:position]
    return text[start:]


@cache
def _runtime() -> tuple[Any, Any] | None:
    for library in _RUNTIMES:
        try:
            demangle = ctypes.CDLL(library).__cxa_demangle
            free = ctypes.CDLL(None).free
        except (OSError, AttributeError):
            continue
        demangle.restype = ctypes.c_void_p
        demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        free.restype, free.argtypes = None, [ctypes.c_void_p]
        return demangle, free
    return None
