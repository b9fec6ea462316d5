"""Mangled C++ names to the text a Kineto trace shows for them.

Kineto writes what `abi::__cxa_demangle` returns and keeps the mangled name where that fails. The same
function of this machine's C++ runtime is called here, so that the text is equal character by character.
Without such a runtime (Windows) nothing is demangled.

Source: libkineto/src/Demangle.cpp; the Itanium C++ ABI, section 3.4, for `__cxa_demangle`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from functools import cache

from opscope.provenance.packaged import lazy_pattern

# Kineto does not try longer names (older versions of it stopped at 1,024).
_LONGEST_MANGLED_NAME = 8192
_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib", "libc++.1.dylib")
# The longest text of the 58,000 names in libtorch_cuda and libcublasLt has 9,225 characters.
_LONGEST_TEXT = 1 << 26
# Back references, and what can be mistaken for one: literals, array bounds, identifiers after their lengths.
_TOKEN = lazy_pattern(
    r"L[a-z]n?\d+E|A\d*_|(?P<length>\d{1,5})|(?P<kind>[ST])(?P<index>[0-9A-Z]{0,4})_", re.ASCII
)


def demangle(mangled: str) -> str | None:
    """The text Kineto shows for a mangled name; None where it shows the name itself.

    Names that do not begin with `_Z` are not mangled: the runtime would read them as types (`f` is `float`).
    A name of 300 characters can stand for a text that fills the memory; None for one that might.
    """
    return None if _may_explode(mangled) else demangle_all((mangled,))[0]


def demangle_all(mangled: Iterable[str]) -> list[str | None]:
    """The text of each name, in order, as `demangle` has it.

    For names that a compiler wrote: none is refused for the size of its text.
    """
    names, runtime = list(mangled), _runtime()
    if runtime is None:
        return [None] * len(names)
    function, free = runtime
    # One output buffer for many names; the runtime grows it.
    buffer, size, status = None, ctypes.c_size_t(0), ctypes.c_int(0)
    shown: list[str | None] = []
    try:
        for name in names:
            text, result = name.encode("utf-8", "replace"), None
            if text.startswith(b"_Z") and len(text) <= _LONGEST_MANGLED_NAME and b"\0" not in text:
                result = function(text, buffer, ctypes.byref(size), ctypes.byref(status))
            if result is None or status.value != 0:
                shown.append(None)
            else:
                buffer = result
                shown.append(ctypes.string_at(result).decode("utf-8", "replace"))
        return shown
    finally:
        free(buffer)


def _may_explode(mangled: str) -> bool:
    """Whether an upper bound of the text's length is beyond all names seen.

    A back reference stands for a part that was complete before it, so for no more than all text up to where
    its number first occurs. Parts that refer to parts twice each are how a text grows exponentially.
    """
    size = position = 0
    sizes: dict[str, list[int]] = {"S": [], "T": []}
    while size <= _LONGEST_TEXT and (token := _TOKEN.search(mangled, position)):
        size += token.end() - position
        position = token.end()
        if token["length"]:
            position += int(token["length"])
            size += int(token["length"])
        elif token["kind"]:
            known = sizes[token["kind"]]
            index = min(int(token["index"], 36) + 1 if token["index"] else 0, len(mangled))
            known.extend([size] * (index + 1 - len(known)))
            size += known[index]
    return size > _LONGEST_TEXT


@cache
def _runtime() -> tuple[Callable[..., int | None], Callable[[int | None], None]] | None:
    """`__cxa_demangle` and the `free` of its buffers."""
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
            function, free = library.__cxa_demangle, ctypes.CDLL(None).free
        except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library named None
            continue
        function.argtypes = [
            ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int),
        ]  # fmt: skip
        function.restype = ctypes.c_void_p
        free.argtypes, free.restype = [ctypes.c_void_p], None
        return function, free
    return None
