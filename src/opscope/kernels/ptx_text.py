"""PTX by function: its text, what it asks of a launch, and where it stands.

Reads what NVIDIA's compilers write, where a definition begins and ends at the start of a line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["PtxFunction", "ptx_functions", "ptx_preamble"]

# A definition has a body; a declaration ends before one. Results, if any, come before the name.
_DEFINITION = re.compile(
    r"^(?:\.\w+[ \t]+)*?\.(?P<kind>entry|func)\s+(?:\([^)]*\)\s*)?(?P<symbol>[\w$]+)"
    r"(?P<head>[^{;]*)\{.*?^\}\n?",
    re.MULTILINE | re.DOTALL,
)
_DECLARED = re.compile(r"^(?:\.\w+[ \t]+)*?\.(?:entry|func)\s", re.MULTILINE)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+([\d, ]+)")
_BLOCKS = re.compile(r"\.minnctapersm\s+(\d+)")


@dataclass(frozen=True)
class PtxFunction:
    """One function.

    Attributes:
        symbol: As the compiler wrote it.
        is_kernel: It can be launched.
        text: Its definition.
        first_line: Line of the file it begins in, from 1.
        max_threads: Threads a block may have, by `__launch_bounds__` or `__block_size__`; None if not said.
        min_blocks: Blocks that shall fit on a multiprocessor, by `__launch_bounds__`; None if not said.
    """

    symbol: str
    is_kernel: bool
    text: str
    first_line: int
    max_threads: int | None = None
    min_blocks: int | None = None


def ptx_functions(text: str) -> tuple[PtxFunction, ...]:
    """The functions a file of PTX defines, in its order."""
    return tuple(
        PtxFunction(
            match["symbol"],
            match["kind"] == "entry",
            match[0],
            text.count("\n", 0, match.start()) + 1,
            _threads(match["head"]),
            _blocks(match["head"]),
        )
        for match in _DEFINITION.finditer(text)
    )


def ptx_preamble(text: str) -> str:
    """What stands before the first function, from the version on; empty if this is no PTX."""
    version, first = text.find(".version"), _DECLARED.search(text)
    return "" if version < 0 or first is None else text[version : first.start()]


def _threads(head: str) -> int | None:
    sizes = _THREADS.search(head)
    return None if sizes is None else math.prod(int(size) for size in sizes[1].split(",") if size.strip())


def _blocks(head: str) -> int | None:
    blocks = _BLOCKS.search(head)
    return None if blocks is None else int(blocks[1])
