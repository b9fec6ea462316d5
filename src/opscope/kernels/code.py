"""Bounds of kernels in PTX, and what `ptxas -v` says of each kernel it compiled.

Reads what NVIDIA's compilers write: PTX in which a definition begins and ends at the start of a line, reports
of releases 8 to 13, whatever stands between their lines. A number that a release does not print is None,
never 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

# A definition has a body; a declaration ends before one.
_ENTRY_POINT = re.compile(r"^(?:\.\w+[ \t]+)*?\.entry\s+(?P<symbol>[\w$]+)(?P<head>[^{;]*)\{", re.MULTILINE)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d{1,18}(?:\s*,\s*\d{1,18}){0,2})")
_BLOCKS = re.compile(r"\.minnctapersm\s+(\d{1,18})")


class LaunchBounds(NamedTuple):
    """What a kernel's source says by `__launch_bounds__` or `__block_size__`; None if nothing."""

    max_threads: int | None = None  # threads that a block may have
    min_blocks: int | None = None  # that shall fit on a multiprocessor


def launch_bounds(ptx: str) -> dict[str, LaunchBounds]:
    """The bounds of each kernel of a PTX file, by its symbol."""
    found = {}
    for match in _ENTRY_POINT.finditer(ptx):
        threads = _THREADS.search(match["head"])
        most = None if threads is None else math.prod(map(int, re.findall(r"\d+", threads[1])))
        found[match["symbol"]] = LaunchBounds(most, _number(_BLOCKS, match["head"]))
    return found


_LINE = re.compile(r"^ptxas info\s*: (?P<text>.*)$")
_ENTRY = re.compile(r"Compiling entry function '(?P<symbol>[^']+)' for '(?P<target>[^']+)'")
_FUNCTION = re.compile(r"Function properties for '?(?P<symbol>[^\s']+)'?")
_STACK = re.compile(
    r"^\s+(\d{1,18}) bytes stack frame, (\d{1,18}) bytes spill stores, (\d{1,18}) bytes spill loads"
)
_REGISTERS = re.compile(r"^Used (\d{1,18}) registers")
_BARRIERS = re.compile(r"used (\d{1,18}) barriers")
_CUMULATIVE = re.compile(r"(\d{1,18}) bytes cumulative stack size")
_SHARED = re.compile(r"(\d{1,18})(?:\+(\d{1,18}))? bytes smem")
_CONSTANT = re.compile(r"(\d{1,18}) bytes cmem\[(\d{1,18})\]")


@dataclass(frozen=True)
class KernelResources:
    symbol: str  # as the compiler wrote it
    target: str  # such as `sm_90`
    stack_bytes: int  # local memory of each thread for the kernel itself, spills included
    spill_store_bytes: int  # written by each thread to local memory because registers did not suffice
    spill_load_bytes: int  # read back by each thread
    registers: int  # of each thread
    shared_bytes: int = 0  # static shared memory of each block; 0 if none is printed
    cumulative_stack_bytes: int | None = None  # with that of the functions it calls; None if not printed
    barriers: int | None = None  # of a block; None in releases that do not print them
    # Constant memory by bank, parameters included; empty if not printed
    constant_bytes: dict[int, int] = field(default_factory=dict)


def parse_ptxas(text: str) -> tuple[KernelResources, ...]:
    """Every kernel of which ptxas printed all, in its order; anything else in the text is passed over.

    Between a kernel's stack and its registers some releases print the stacks of functions that it calls.
    """
    found: list[KernelResources] = []
    symbol = target = described = ""
    stack: re.Match[str] | None = None  # of the kernel that is read
    for line in text.splitlines():
        info = _LINE.match(line)
        said = "" if info is None else info["text"]
        if (entry := _ENTRY.match(said)) is not None:
            symbol, target = entry.groups()
            described, stack = "", None
        elif (function := _FUNCTION.match(said)) is not None:
            described = function["symbol"]
        elif info is None and described == symbol:
            stack = _STACK.match(line) or stack
        elif stack is not None and (registers := _REGISTERS.match(said)) is not None:
            shared = _SHARED.search(said)
            use = KernelResources(
                symbol,
                target,
                int(stack[1]),
                int(stack[2]),
                int(stack[3]),
                registers=int(registers[1]),
                shared_bytes=sum(int(part) for part in shared.groups() if part) if shared else 0,
                cumulative_stack_bytes=_number(_CUMULATIVE, said),
                barriers=_number(_BARRIERS, said),
                constant_bytes={int(bank): int(size) for size, bank in _CONSTANT.findall(said)},
            )
            found.append(use)
            stack = None
    return tuple(found)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(match[1])
