"""PTX by function, and what `ptxas -v` says of each function it compiled.

Reads what NVIDIA's compilers write: PTX in which a definition begins and ends at the start of a line, reports
of releases 8 to 13, whatever stands between their lines. A number that a release does not print is None,
never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# A definition has a body; a declaration ends before one. Results, if any, come before the name.
_DEFINITION = re.compile(
    r"^(?:\.\w+[ \t]+)*?\.(?P<kind>entry|func)\s+(?:\([^)]*\)\s*)?(?P<symbol>[\w$]+)"
    r"(?P<head>[^{;]*)\{.*?^\}\n?",
    re.MULTILINE | re.DOTALL,
)
_DECLARED = re.compile(r"^(?:\.\w+[ \t]+)*?\.(?:entry|func)\s", re.MULTILINE)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d{1,18}(?:\s*,\s*\d{1,18}){0,2})")
_BLOCKS = re.compile(r"\.minnctapersm\s+(\d{1,18})")


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
    return None if sizes is None else math.prod(map(int, re.findall(r"\d+", sizes[1])))


def _blocks(head: str) -> int | None:
    blocks = _BLOCKS.search(head)
    return None if blocks is None else int(blocks[1])


_LINE = re.compile(r"^ptxas info\s*: (?P<text>.*)$")
# The first line of each module; in front of it stand only messages of others.
_MODULE = re.compile(r"\d+ bytes gmem")
_ENTRY = re.compile(r"Compiling entry function '(?P<symbol>[^']+)' for '(?P<target>[^']+)'")
_FUNCTION = re.compile(r"Function properties for '?(?P<symbol>[^\s']+)'?")
_STACK = re.compile(
    r"^\s+(\d{1,18}) bytes stack frame, (\d{1,18}) bytes spill stores, (\d{1,18}) bytes spill loads",
    re.MULTILINE,
)
_REGISTERS = re.compile(r"^Used (\d{1,18}) registers")
_BARRIERS = re.compile(r"used (\d{1,18}) barriers")
_CUMULATIVE = re.compile(r"(\d{1,18}) bytes cumulative stack size")
_SHARED = re.compile(r"(\d{1,18})(?:\+(\d{1,18}))? bytes smem")
_CONSTANT = re.compile(r"(\d{1,18}) bytes cmem\[(\d{1,18})\]")


@dataclass(frozen=True)
class FunctionUse:
    """What one function uses, compiled for one target.

    Attributes:
        symbol: As the compiler wrote it.
        target: For example `sm_90`; None for a function of a module without kernels.
        is_kernel: It can be launched; else it is a function that kernels call, of which only stack and spills
            are known.
        stack_bytes: Local memory of each thread for the function itself, spills included.
        spill_store_bytes: Written by each thread to local memory because registers did not suffice.
        spill_load_bytes: Read back by each thread.
        registers: Of each thread.
        shared_bytes: Static shared memory of each block; 0 if none is printed.
        cumulative_stack_bytes: Stack with that of the functions it calls; None if not printed.
        barriers: Barriers of a block; None in releases that do not print them.
        constant_bytes: Constant memory by bank, parameters included; empty if not printed.
    """

    symbol: str
    target: str | None
    is_kernel: bool
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    registers: int | None = None
    shared_bytes: int = 0
    cumulative_stack_bytes: int | None = None
    barriers: int | None = None
    constant_bytes: dict[int, int] = field(default_factory=dict)


@dataclass
class _Function:
    """A function whose lines are being read."""

    symbol: str
    target: str | None
    is_kernel: bool
    stack: tuple[int, int, int] | None = None
    used: str | None = None


def parse_ptxas(text: str) -> tuple[FunctionUse, ...]:
    """Every function of which ptxas printed all, in its order; anything else in the text is passed over."""
    return tuple(use for one in _functions(text.splitlines()) if (use := _use(one)) is not None)


def _functions(lines: list[str]) -> Iterator[_Function]:
    for module in _modules(lines):
        found = list(_functions_of_module(module))
        target = next((one.target for one in found if one.target is not None), None)
        for one in found:
            one.target = one.target or target
        yield from found


def _modules(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each module, which is compiled for one target."""
    module: list[str] = []
    target: str | None = None
    for line in lines:
        info = _LINE.match(line)
        entry = None if info is None else _ENTRY.match(info["text"])
        is_first = info is not None and _MODULE.match(info["text"]) is not None
        if is_first or (entry is not None and target not in (None, entry["target"])):
            yield module
            module, target = [], None
        if entry is not None:
            target = entry["target"]
        module.append(line)
    yield module


def _functions_of_module(lines: list[str]) -> Iterator[_Function]:
    """Registers come after the stacks of the kernel's functions in some releases, before them in others."""
    found: dict[str, _Function] = {}
    kernel: _Function | None = None
    described: _Function | None = None
    for line in lines:
        info = _LINE.match(line)
        if info is None:
            stack = _STACK.match(line)
            if stack is not None and described is not None:
                described.stack = (int(stack[1]), int(stack[2]), int(stack[3]))
        elif (entry := _ENTRY.match(info["text"])) is not None:
            kernel = found[entry["symbol"]] = _Function(entry["symbol"], entry["target"], is_kernel=True)
        elif (function := _FUNCTION.match(info["text"])) is not None:
            symbol = function["symbol"]
            described = found.setdefault(symbol, _Function(symbol, None, is_kernel=False))
        elif _REGISTERS.match(info["text"]) and kernel is not None:
            kernel.used = info["text"]
    yield from found.values()


def _use(function: _Function) -> FunctionUse | None:
    if function.stack is None or (function.is_kernel and function.used is None):
        return None
    used = function.used or ""
    shared = _SHARED.search(used)
    return FunctionUse(
        function.symbol,
        function.target,
        function.is_kernel,
        *function.stack,
        registers=_number(_REGISTERS, used),
        shared_bytes=sum(int(part) for part in shared.groups() if part) if shared else 0,
        cumulative_stack_bytes=_number(_CUMULATIVE, used),
        barriers=_number(_BARRIERS, used),
        constant_bytes={int(bank): int(size) for size, bank in _CONSTANT.findall(used)},
    )


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(match[1])
