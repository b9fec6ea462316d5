"""Functions that compute in double what they round to float: a literal like `2.0` among floats does that.

Seen in PTX, which optimization has passed: where a float is made double and a double is rounded to float
again, arithmetic in double stands between them, at 1/64 of the float rate on most GPUs. Sums that are kept
in double on purpose are not rounded back, or once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opscope.kernels.ptx import PtxFunction, ptx_functions
from opscope.kernels.symbols import demangled
from opscope.toolchain.nvcc.values import DoubleUse

__all__ = ["double_uses", "has_lines"]

_WIDENED = re.compile(r"^\s*cvt(?:\.\w+)*\.f64\.f32\b", re.MULTILINE)
_ROUNDED = re.compile(r"^\s*cvt(?:\.\w+)*\.f32\.f64\b")
_PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)


def double_uses(ptx: str) -> tuple[DoubleUse, ...]:
    """The functions of a file of PTX, with their lines where the PTX has them."""
    files = dict(_FILE.findall(ptx))
    found = (_double_use(function, files) for function in ptx_functions(ptx))
    return tuple(one for one in found if one is not None)


def has_lines(ptx: str) -> bool:
    """Whether the PTX says which line of the source an instruction is of."""
    return _FILE.search(ptx) is not None


def _double_use(function: PtxFunction, files: dict[str, str]) -> DoubleUse | None:
    if not _WIDENED.search(function.text):
        return None
    places = list(_rounded(function.text, files))
    if not places:
        return None
    known = dict.fromkeys(place for place in places if place is not None)
    return DoubleUse(demangled(function.symbol), len(places), tuple(known))


def _rounded(text: str, files: dict[str, str]) -> Iterator[tuple[str, int] | None]:
    """The place of each rounding."""
    place: tuple[str, int] | None = None
    for line in text.splitlines():
        location = _PLACE.match(line)
        if location is not None:
            file = files.get(location[1])
            place = None if file is None else (file, int(location[2]))
        elif _ROUNDED.match(line):
            yield place
