"""Names that machines write, in fewer characters: what tells one from another stays, template arguments go.

An operator's name is never shortened. Of a kernel stays the functor of a generic kernel, else the function;
of a matrix product the tile. Pure text: what a name says is the decoder's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from opscope.model.queries import grouped

_ELLIPSIS = "…"
_OPERATOR = re.compile(r"\w+(?:::\w+)+(?:\.\w+)?(?: \*)?")
_BETWEEN = re.compile(r"[^A-Za-z0-9]")
_CUTLASS_TILE = re.compile(r"^cutlass_\w*?_(\d+x\d+(?:_\d+x\d+)?)_")
INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # in the path of a module
_TITLE = re.compile(r"\w+<… (\w+) …>")


def is_operator_name(name: str) -> bool:
    """`aten::add.Tensor`."""
    # What is longer is no name of PyTorch's.
    return len(name) <= 64 and _OPERATOR.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _forms(name: str) -> tuple[str, ...]:
    if (title := _TITLE.fullmatch(name)) is not None:
        return (name, title[1])
    from opscope.provenance.kernel_names.decoder import decode  # noqa: PLC0415 - most tables hold no kernel

    # A stranger's file may hold names of any length.
    decoded = decode(name) if len(name) <= 4096 else None
    if decoded is None or decoded.function is None:
        return (name,)
    short, functor = decoded.title, (decoded.functor or "").rpartition("::")[2]
    if functor:
        return (name, short, functor)
    return tuple(dict.fromkeys((name, short, *_around_the_tile(short, decoded.tile))))


def _around_the_tile(function: str, tile: str | None) -> tuple[str, ...]:
    """`sm80_xmma_gemm…128x64x8`: the family and the tile of a matrix product."""
    written = _CUTLASS_TILE.search(function)
    tile = written[1] if written else tile
    if tile is None or tile not in function:
        return ()
    place = function.index(tile)
    head = "_".join(function[:place].split("_")[:3])
    return (f"{head[:20]}{_ELLIPSIS}{tile}",) if len(head) + len(tile) < place else ()


def telling_name(name: str) -> str:
    """The name without what tells least: `vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`."""
    forms = _forms(name)
    return name if is_operator_name(name) else forms[min(1, len(forms) - 1)]


def least_width(names: Sequence[str]) -> int:
    """Columns that these names need to be told apart."""
    shortest = (name if is_operator_name(name) else min(_forms(name), key=len) for name in names)
    # A column keeps so much for the telling part.
    widths = [len(name) if is_operator_name(name) else min(len(name), 36) for name in shortest]
    return max(widths, default=0)


def fitting_names(names: Sequence[str], width: int) -> list[str]:
    """Each name in at most `width` characters, operators in full; different ones stay different.

    The longest form that fits is taken. Where two names would read the same, the place where they part is
    shown as well, or they are numbered.
    """
    short = {}
    for name in names:
        is_whole = len(name) <= width or is_operator_name(name)
        fitting = [name] if is_whole else [one for one in _forms(name) if len(one) <= width]
        short[name] = fitting[0] if fitting else shorten_middle(_forms(name)[-1], width)
    for text, group in grouped((text, name) for name, text in short.items()).items():
        if len(group) > 1:
            # The common form with the word of each name in which they part; else with a number.
            # All begin alike up to there: the extremes in sort order tell.
            pairs = enumerate(zip(min(group), max(group), strict=False))
            place = next((at for at, (one, other) in pairs if one != other), len(min(group)))
            marks = {}
            for name in group:
                start = max((match.end() for match in _BETWEEN.finditer(name, 0, place)), default=0)
                end = _BETWEEN.search(name, place)
                marks[name] = f"…{name[start : end.start() if end else None]}"
            if len(set(marks.values())) < len(group) or max(map(len, marks.values())) > width // 2:
                marks = {name: f" ({number})" for number, name in enumerate(group, 1)}
            kept = shorten_middle(text.rstrip(_ELLIPSIS), width - max(map(len, marks.values())))
            short.update({name: f"{kept}{mark}" for name, mark in marks.items()})
    return [short[name] for name in names]


def shorten_middle(text: str, width: int) -> str:
    """The text in at most `width` characters, its middle replaced by an ellipsis."""
    if len(text) <= width:
        return text
    if width <= 1:
        return _ELLIPSIS[:width]
    kept = width - 1
    head = (kept + 1) // 2
    return text[:head] + _ELLIPSIS + text[len(text) - (kept - head) :]
