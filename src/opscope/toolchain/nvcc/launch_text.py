"""Launches whose size the source writes as numbers too small for a GPU: `add<<<1, 1>>>(…)`.

Only literal sizes are judged; what is computed when the program runs is for a trace to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["WrittenLaunch", "small_launches"]

WARP_THREADS = 32
_BLANKED = re.compile(r"//(?:\\\n|[^\n])*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_LAUNCH = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>\s*)?<<<(?P<sizes>[^;]*?)>>>")
_NUMBER = re.compile(r"(?:dim3\s*[({])?\s*(\d+)[uU]?[lL]*\s*[)}]?")


@dataclass(frozen=True)
class WrittenLaunch:
    """One launch in the source; a size that is no number there is None."""

    kernel: str
    line: int
    blocks: int | None
    threads: int | None

    @property
    def text(self) -> str:
        """As it is written: `add<<<1, …>>>`."""
        sizes = ("…" if size is None else str(size) for size in (self.blocks, self.threads))
        return f"{self.kernel}<<<{', '.join(sizes)}>>>"


def small_launches(source: str) -> tuple[WrittenLaunch, ...]:
    """Launches of one block, or of blocks of less than a warp, in the order of the source."""
    launches = dict.fromkeys(_launches(_BLANKED.sub(_blank, source)))
    return tuple(
        one for one in launches if one.blocks == 1 or (one.threads is not None and one.threads < WARP_THREADS)
    )


def _launches(text: str) -> Iterator[WrittenLaunch]:
    for match in _LAUNCH.finditer(text):
        sizes = _split(match["sizes"])
        if len(sizes) >= 2:
            line = text.count("\n", 0, match.start()) + 1
            yield WrittenLaunch(match["name"], line, _number(sizes[0]), _number(sizes[1]))


def _split(text: str) -> list[str]:
    """At the commas outside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else int(match[1])


def _blank(match: re.Match[str]) -> str:
    """Comments and strings keep their lines."""
    return "\n" * match[0].count("\n") or " "
