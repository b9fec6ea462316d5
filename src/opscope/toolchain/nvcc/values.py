"""What a compilation is asked for, and what it tells: kernels by target, messages, code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opscope.kernels.ptx import FunctionUse
from opscope.toolchain.nvcc.command import Product
from opscope.toolchain.nvcc.compiler import Nvcc
from opscope.toolchain.nvcc.messages import Message
from opscope.toolchain.nvcc.targets import Target

__all__ = ["Compilation", "CompiledKernel", "DoubleUse", "Request"]


@dataclass(frozen=True)
class Request:
    """What to compile, and to what.

    Attributes:
        output: File to be written.
        targets: Of machine code, one or more.
        ptx: Target whose PTX is embedded for later GPUs.
        options: Further options of nvcc.
    """

    source: Path
    output: Path
    product: Product
    targets: tuple[Target, ...]
    ptx: Target | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one target.

    Attributes:
        name: Demangled, with parameters; the symbol where no demangler is.
        use: Registers, stack, spills and memory, by ptxas.
        constant_bytes: Constant memory of the kernel, parameters included; None if neither ptxas nor the
            machine code tells.
        max_threads: Threads a block may have by `__launch_bounds__`; None if the source does not say.
        min_blocks: Blocks the source wants on a multiprocessor; None if it does not say.
    """

    name: str
    target: Target
    use: FunctionUse
    constant_bytes: int | None
    max_threads: int | None
    min_blocks: int | None

    @property
    def registers(self) -> int:
        """Of each thread."""
        return self.use.registers or 0

    @property
    def stack_bytes(self) -> int:
        """Local memory of each thread, with that of the functions it calls where it is known."""
        return max(self.use.stack_bytes, self.use.cumulative_stack_bytes or 0)


@dataclass(frozen=True)
class DoubleUse:
    """A function that computes in double what it then rounds to float.

    Attributes:
        name: Of the function, demangled.
        conversions: Roundings from double to float in its PTX.
        places: File and line of each, in order; empty if they are not known.
    """

    name: str
    conversions: int
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Compilation:
    """What came of a request.

    Attributes:
        kernels: By target, then in the order of ptxas.
        functions: Functions that kernels call and that keep their own stack, likewise.
        messages: Warnings and remarks, each once.
        doubles: Functions that compute in double what they round to float.
        ptx: PTX by target name, `compute_90`.
    """

    request: Request
    nvcc: Nvcc
    kernels: tuple[CompiledKernel, ...]
    functions: tuple[FunctionUse, ...] = ()
    messages: tuple[Message, ...] = ()
    doubles: tuple[DoubleUse, ...] = ()
    ptx: Mapping[str, str] = field(default_factory=dict)
