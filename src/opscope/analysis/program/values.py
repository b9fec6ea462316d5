"""Device time by module and by source line: the values that reports and advice read."""

from __future__ import annotations

import msgspec

from opscope.text_enum import TextEnum


class LineKind(TextEnum):
    """What the line number of a LineTotal is.

    Torch's recorder names a function by its first line; only opscope's own recordings and the oldest traces
    say from which line of it a call was made.
    """

    EXECUTED = "executed"
    """The line that made the calls."""
    FUNCTION = "function"
    """The first line of the function; what runs inside is not told apart."""
    RUNNING = "running"
    """Where the function stood when recording began, which is not where the work was called from."""


class ModuleTotal(msgspec.Struct, frozen=True):
    """One nn.Module instance by its place in the program.

    A module that several others call has a place in each. A module called inside its own call keeps its
    place. Ranks are summed by path.
    """

    # Names from the outermost module down, joined by dots; the recorder's names (`BertLayer_3`) where
    # attribute names are unknown
    path: str
    class_name: str  # its class
    depth: int  # modules above it
    calls: int  # recorded forward calls, those of a recomputation included
    self_device_ns: int  # device time launched in it and in none of its submodules, forward and backward
    total_device_ns: int  # with its submodules
    forward_ns: int  # the part of `total_device_ns` (else of `total_cpu_ns`) launched in its forward calls
    # The part launched by backward operators of its forward operators, recomputation included
    backward_ns: int
    kernel_launches: int  # kernels of `total_device_ns`
    self_cpu_ns: int = 0  # where no device was recorded, its operators' own CPU time; else 0
    total_cpu_ns: int = 0  # with its submodules


class LineTotal(msgspec.Struct, frozen=True):
    """One line of the user's program, with the device time launched under it as the innermost such line.

    A library (site-packages, torch, the standard library) is not the user's program. Backward time is charged
    to the line of the forward operator it differentiates; what the backward pass launches for no forward
    operator (gradient accumulation) to the line that called it.
    """

    file: str  # as the recorder names it
    line: int  # see `kind`
    function: str  # the function it is in
    calls: int | None  # recorded calls of the function; None in the oldest format, which has none
    self_device_ns: int  # device time, forward and backward
    forward_ns: int  # the part that no backward operator launched
    backward_ns: int  # the rest
    kernel_launches: int  # kernels of `self_device_ns`
    kind: LineKind = LineKind.FUNCTION  # what `line` is


class ProgramTotals(msgspec.Struct, frozen=True):
    """By module and by line; empty where neither modules nor stacks were recorded.

    `module_ns` and `line_ns` are the device time that could be charged to any module or line, the sum of
    their self times; the rest of all device time has none.
    """

    # Every recorded module, as a tree: each before its submodules, the one with more time first
    modules: tuple[ModuleTotal, ...] = ()
    lines: tuple[LineTotal, ...] = ()  # lines under which something was launched, most device time first
    module_ns: int = 0  # device time with a module; where no device was recorded, the operators' own CPU time
    line_ns: int = 0  # device time with a line
    has_modules: bool = False  # whether calls of modules were recorded
    has_stacks: bool = False  # whether Python stacks were recorded
