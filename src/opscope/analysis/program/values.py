"""Device time by module and by source line: the values that reports and advice read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LineTotal", "ModuleTotal", "ProgramTotals"]


@dataclass(frozen=True)
class ModuleTotal:
    """One nn.Module instance by its place in the program.

    Attributes:
        path: Names from the outermost module down, joined by dots; the recorder's names (`BertLayer_3`) where
            attribute names are unknown.
        class_name: Its class.
        depth: Modules above it.
        calls: Recorded forward calls.
        self_device_ns: Device time launched in it and in none of its submodules, forward and backward.
        total_device_ns: With its submodules.
        forward_ns: The part of `total_device_ns` launched in its forward calls.
        backward_ns: The part launched by backward operators of its forward operators.
        kernel_launches: Kernels of `total_device_ns`.
    """

    path: str
    class_name: str
    depth: int
    calls: int
    self_device_ns: int
    total_device_ns: int
    forward_ns: int
    backward_ns: int
    kernel_launches: int


@dataclass(frozen=True)
class LineTotal:
    """One line of the user's program, with the device time launched under it as the innermost such line.

    A library (site-packages, torch, the standard library) is not the user's program. Backward time is charged
    to the line of the forward operator it differentiates.
    """

    file: str
    line: int
    function: str
    calls: int
    self_device_ns: int
    forward_ns: int
    backward_ns: int
    kernel_launches: int


@dataclass(frozen=True)
class ProgramTotals:
    """By module and by line; empty where neither modules nor stacks were recorded.

    `module_ns` and `line_ns` are the device time that could be charged to any module or line; the rest of all
    device time has none.
    """

    modules: tuple[ModuleTotal, ...] = ()
    lines: tuple[LineTotal, ...] = ()
    module_ns: int = 0
    line_ns: int = 0
