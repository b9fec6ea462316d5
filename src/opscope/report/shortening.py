"""Names shortened for display. Exports keep them in full."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

__all__ = ["shorten_distinctly", "shorten_middle"]

_ELLIPSIS = "…"
# Characters kept before the place where two names part, so that it can be recognized.
_CONTEXT = 6


def shorten_middle(text: str, width: int) -> str:
    """The text in at most `width` characters, its middle replaced by an ellipsis."""
    if len(text) <= width:
        return text
    if width <= 1:
        return _ELLIPSIS[:width]
    kept = width - 1
    head = (kept + 1) // 2
    return text[:head] + _ELLIPSIS + text[len(text) - (kept - head) :]


def shorten_distinctly(names: Sequence[str], width: int) -> list[str]:
    """Each name in at most `width` characters; different names that would read the same show where they part.

    Kernel names often differ in a tile size in their middle alone.
    """
    short = {name: shorten_middle(name, width) for name in names}
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        alike[text].append(name)
    for group in alike.values():
        if len(group) > 1:
            short.update({name: _shorten_around(name, _common_length(group), width) for name in group})
    return [short[name] for name in names]


def _shorten_around(name: str, parting: int, width: int) -> str:
    head = width // 3
    rest = width - head - 2
    start = max(head, min(parting - _CONTEXT, len(name) - rest))
    end = start + rest
    return name[:head] + _ELLIPSIS + name[start:end] + (_ELLIPSIS if end < len(name) else "")


def _common_length(names: Sequence[str]) -> int:
    """Characters that all names start with. Comparing the extremes in sort order is enough."""
    first, last = min(names), max(names)
    pairs = zip(first, last, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), len(first))
