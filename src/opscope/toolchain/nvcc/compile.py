"""Compiles a file and gathers what nvcc and ptxas say of it.

The output is written beside its place and moved there when all went well, so that a failure leaves nothing
and a file of that name as it was. Intermediate files stand in a folder of their own and go with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from opscope.errors import InputError, OpscopeError
from opscope.kernels.ptx import FunctionUse, PtxFunction, parse_ptxas, ptx_functions
from opscope.kernels.symbols import demangled
from opscope.toolchain.nvcc.command import Product, nvcc_command
from opscope.toolchain.nvcc.compiler import Nvcc
from opscope.toolchain.nvcc.cubin import constant_bytes
from opscope.toolchain.nvcc.double_precision import double_uses, has_lines
from opscope.toolchain.nvcc.failure import compile_error
from opscope.toolchain.nvcc.intermediates import kept_cubin, kept_ptx
from opscope.toolchain.nvcc.messages import Level, Message, parse_messages
from opscope.toolchain.nvcc.targets import Target, code_options
from opscope.toolchain.nvcc.values import Compilation, CompiledKernel, DoubleUse, Request
from opscope.toolchain.programs import ProgramEnd, run_program

__all__ = ["compile_source", "request_command"]

_REPORT = "-Xptxas=-v"
_LONGEST_S = 86_400.0  # some kernels take hours to compile
_NOTHING_ASKED = PtxFunction("", is_kernel=True, text="", first_line=0)


def compile_source(nvcc: Nvcc, request: Request, environment: Mapping[str, str]) -> Compilation:
    """Compile, and write the output.

    Args:
        nvcc: The compiler.
        request: What to compile.
        environment: Of the compiler's processes; its messages are asked for in English.

    Raises:
        InputError: The file does not compile, with the compiler's words, or the output cannot be written.
        DependencyError: The host compiler is missing or does not fit.
    """
    with tempfile.TemporaryDirectory(prefix="opscope-nvcc-") as name:
        return _Workplace(
            nvcc, request, {**environment, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}, Path(name)
        ).run()


def request_command(nvcc: Nvcc, request: Request, output: Path, gathering: Sequence[str] = ()) -> list[str]:
    """The command that does what is asked for.

    Args:
        nvcc: The compiler.
        request: What to compile.
        output: To be written instead of the request's.
        gathering: Options that change nothing but what is said and kept.
    """
    return nvcc_command(
        nvcc.path,
        request.source,
        output,
        product=request.product,
        code=code_options(request.targets, request.ptx),
        options=[*request.options, *gathering],
    )


class _Workplace:
    """One compilation and the folder of its intermediate files."""

    def __init__(self, nvcc: Nvcc, request: Request, environment: Mapping[str, str], folder: Path) -> None:
        self.nvcc = nvcc
        self.request = request
        self.environment = environment
        self.folder = folder

    def run(self) -> Compilation:
        text = self._compile_to(self.request.output)
        kernels, functions = self._functions(parse_ptxas(text))
        ptx = self._ptx()
        return Compilation(
            request=self.request,
            nvcc=self.nvcc,
            kernels=kernels,
            functions=functions,
            messages=tuple(one for one in self._said(text) if one.level is not Level.ERROR),
            doubles=self._doubles(ptx),
            ptx=ptx,
        )

    def _compile_to(self, output: Path) -> str:
        partial = output.with_name(f".{output.stem}.{os.getpid()}.partial{output.suffix}")
        try:
            text = self._compile(partial)
            partial.replace(output)
        except OSError as error:
            raise InputError(
                f"the file cannot be written ({error.strerror or error})", source=output
            ) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return text

    def _compile(self, output: Path) -> str:
        """Run nvcc and return all it said."""
        gathering = [_REPORT, "--keep", f"--keep-dir={self.folder}"]
        done = self._run(request_command(self.nvcc, self.request, output, gathering))
        text = done.err + done.out
        if not done.succeeded or not output.exists():
            raise self._failure(text or f"nvcc {done.failure or f'ended with exit code {done.exit_code}'}")
        return text

    def _run(self, command: Sequence[str]) -> ProgramEnd:
        return run_program(command, timeout_s=_LONGEST_S, environment=self.environment)

    def _failure(self, text: str) -> OpscopeError:
        return compile_error(self.request, self._said(text), text)

    def _said(self, text: str) -> tuple[Message, ...]:
        return tuple(map(_with_ptx_line, parse_messages(text)))

    def _functions(
        self, uses: Sequence[FunctionUse]
    ) -> tuple[tuple[CompiledKernel, ...], tuple[FunctionUse, ...]]:
        kernels: list[CompiledKernel] = []
        functions: list[FunctionUse] = []
        for target in self.request.targets:
            own = [use for use in uses if use.target == target.name]
            bounds = {one.symbol: one for one in ptx_functions(self._kept_ptx(target) or "")}
            constants = constant_bytes(self._cubin(target))
            kernels += [_kernel(use, target, bounds, constants) for use in own if use.is_kernel]
            functions += [use for use in own if not use.is_kernel]
        return tuple(kernels), tuple(functions)

    @property
    def _stem(self) -> str:
        return self.request.source.stem

    def _kept_ptx(self, target: Target) -> str | None:
        return kept_ptx(self.folder, self._stem, target)

    def _cubin(self, target: Target) -> bytes:
        if self.request.product is Product.CUBIN:
            return self.request.output.read_bytes()
        return kept_cubin(self.folder, self._stem, target) or b""

    def _ptx(self) -> dict[str, str]:
        wanted = [*self.request.targets, *([self.request.ptx] if self.request.ptx else [])]
        found = {target.ptx_name: self._kept_ptx(target) for target in wanted}
        return {name: text for name, text in found.items() if text is not None}

    def _doubles(self, ptx: Mapping[str, str]) -> tuple[DoubleUse, ...]:
        """By the PTX of the newest target; compiled again for its lines, if there is something to find."""
        if not ptx:
            return ()
        name, text = list(ptx.items())[-1]
        found = double_uses(text)
        if not found or has_lines(text):
            return found
        output = self.folder / "lines.ptx"
        options = [*self.request.options, "-lineinfo", f"-arch={name}", "-o", str(output)]
        done = self._run([self.nvcc.path, "-ptx", *options, str(self.request.source)])
        if not done.succeeded or not output.exists():
            return found
        return double_uses(output.read_text(encoding="utf-8", errors="replace")) or found


def _with_ptx_line(message: Message) -> Message:
    """With the line of PTX that ptxas means: its file is gone when the reader looks."""
    file = None if message.file is None else Path(message.file)
    if file is None or file.suffix != ".ptx" or message.line is None or not file.exists():
        return message
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[message.line - 1 :]
    quoted = [f"    {line.strip()}" for line in lines[:1]]
    return replace(message, file=file.name, context=(*message.context, *quoted))


def _kernel(
    use: FunctionUse,
    target: Target,
    bounds: Mapping[str, PtxFunction],
    constants: Mapping[str, Mapping[int, int]],
) -> CompiledKernel:
    asked = bounds.get(use.symbol, _NOTHING_ASKED)
    banks = use.constant_bytes or constants.get(use.symbol)
    return CompiledKernel(
        name=demangled(use.symbol),
        target=target,
        use=use,
        constant_bytes=None if banks is None else sum(banks.values()),
        max_threads=asked.max_threads,
        min_blocks=asked.min_blocks,
    )
