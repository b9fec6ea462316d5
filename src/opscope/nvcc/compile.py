"""Compiles a file, gathers what nvcc and ptxas say of it, and runs what came of it.

The output is written beside its place and moved there when all went well, so that a failure leaves nothing
and a file of that name as it was. Intermediate files stand in a folder of their own and go with it.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from opscope.errors import DependencyError, InputError, OpscopeError
from opscope.hardware.architectures import Target
from opscope.kernels.ptx import FunctionUse, PtxFunction, parse_ptxas, ptx_functions
from opscope.model.files import replacing, scratch_prefix
from opscope.nvcc.command import BuildProduct, Nvcc, code_options, nvcc_command
from opscope.nvcc.messages import Level, Message, error_text, parse_messages
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.demangle import demangle
from opscope.toolchain.programs import ProgramExit, run_attached, run_program


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
    product: BuildProduct
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


_WIDENED = re.compile(r"^\s*cvt(?:\.\w+)*\.f64\.f32\b", re.MULTILINE)
_ROUNDED = re.compile(r"^\s*cvt(?:\.\w+)*\.f32\.f64\b")
_PLACE = re.compile(r"^\s*\.loc\s+(\d{1,18})\s+(\d{1,18})\s")
_FILE = re.compile(r'^\s*\.file\s+(\d{1,18})\s+"([^"]*)"', re.MULTILINE)


def double_uses(ptx: str) -> tuple[DoubleUse, ...]:
    """The functions of a file of PTX, with their lines where the PTX has them."""
    files = dict(_FILE.findall(ptx))
    found = (_double_use(function, files) for function in ptx_functions(ptx))
    return tuple(one for one in found if one is not None)


def has_lines(ptx: str) -> bool:
    """Whether the PTX says which line of the source an instruction is of."""
    return _FILE.search(ptx) is not None


def _double_use(function: PtxFunction, files: dict[str, str]) -> DoubleUse | None:
    if not _WIDENED.search(function.text):
        return None
    places = list(_rounded(function.text, files))
    if not places:
        return None
    known = dict.fromkeys(place for place in places if place is not None)
    return DoubleUse(demangle(function.symbol) or function.symbol, len(places), tuple(known))


def _rounded(text: str, files: dict[str, str]) -> Iterator[tuple[str, int] | None]:
    """The place of each rounding."""
    place: tuple[str, int] | None = None
    for line in text.splitlines():
        location = _PLACE.match(line)
        if location is not None:
            file = files.get(location[1])
            place = None if file is None else (file, int(location[2]))
        elif _ROUNDED.match(line):
            yield place


_NO_MAIN = re.compile(r"undefined reference to \W?main\b|undefined symbol: main$", re.MULTILINE)
_HOST_MISSING = re.compile(
    r"Failed to preprocess host compiler properties|Cannot find (?:the )?compiler|"
    r"^(?:sh: (?:\d+: )?)?(?:\S*/)?(?:gcc|g\+\+|cc|c\+\+|clang\+*)[-.\d]*: (?:No such file|.*not found)",
    re.MULTILINE,
)
_HOST_UNSUPPORTED = re.compile(
    r"unsupported (?:GNU|clang|ICC|Intel|PGI|Microsoft)[^!]*version|unsupported compiler"
)
_HOST_CHOICE = "--nvcc-option=-ccbin=PATH"
# What the compilers say, and what helps.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"uses too much shared data",
        "A block has 48 KiB of static shared memory; for more declare `extern __shared__`, give the bytes at "
        "the launch and raise cudaFuncAttributeMaxDynamicSharedMemorySize",
    ),
    (
        r"Unresolved extern function|nvlink error\s*: Undefined reference",
        "A device function of another file needs --nvcc-option=-rdc=true, and its file compiled with it",
    ),
    (
        r"not supported on \.target|requires \.target|[Ff]eature .* not supported",
        "The code needs a newer GPU or features of one: --arch sm_90a has those of Hopper alone",
    ),
    (r"no instance of overloaded function \"atomicAdd\"", "atomicAdd of double needs --arch sm_60 or newer"),
    (r"experimental flag '--expt-relaxed-constexpr'", "--nvcc-option=--expt-relaxed-constexpr"),
    (r"extended-lambda|extended lambda", "--nvcc-option=--extended-lambda"),
    (
        r"requires at least C\+\+(\d{1,18})|requires C\+\+(\d{1,18})",
        "--nvcc-option=-std=c++17 or c++20 chooses the language",
    ),
    (r"torch/extension\.h: No such file", "A PyTorch extension: torch.utils.cpp_extension.load compiles it"),
)


def compile_error(request: Request, messages: Sequence[Message], output: str) -> OpscopeError:
    """The error of a compilation that failed.

    Args:
        request: What was compiled.
        messages: What was said.
        output: All of it, for what is not understood.
    """
    said = error_text(messages, output)
    source = request.source.name
    if _HOST_UNSUPPORTED.search(output):
        remedy = f"Choose an older one with {_HOST_CHOICE}, or try --nvcc-option=-allow-unsupported-compiler"
        return DependencyError(_told("the host compiler does not fit this nvcc", said, remedy))
    if _HOST_MISSING.search(output):
        remedy = (
            "Install one (apt install g++, dnf install gcc-c++, conda install gxx), or name yours with "
            f"{_HOST_CHOICE}"
        )
        return DependencyError(_told("nvcc finds no host compiler", said, remedy))
    if request.product is BuildProduct.PROGRAM and _NO_MAIN.search(output):
        return InputError(
            f"{source} has no main, so no program can be made of it",
            hint="--emit object makes an object to link, --emit shared a library, --emit nothing looks at "
            "the kernels alone",
        )
    names = ", ".join(target.name for target in request.targets)
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, output)), "")
    return InputError(_told(f"{source} does not compile for {names}", said, remedy))


def _told(what: str, said: str, remedy: str) -> str:
    """What happened, the compiler's words in lines of their own, what to do."""
    return "\n".join(filter(None, (f"{what}:", said, remedy)))


_LINKED = "_dlink."  # what the device linker makes for the whole program: without kernels of its own


def kept_ptx(folder: Path, stem: str, target: Target) -> str | None:
    """PTX that was compiled for a target; None if there is none."""
    file = _kept(folder, stem, ".ptx", (target.ptx_name,))
    return None if file is None else file.read_text(encoding="utf-8", errors="replace")


def kept_cubin(folder: Path, stem: str, target: Target) -> bytes | None:
    """The machine code of a target; None if there is none."""
    file = _kept(folder, stem, ".cubin", (target.name, target.ptx_name))
    return None if file is None else file.read_bytes()


def _kept(folder: Path, stem: str, suffix: str, names: Sequence[str]) -> Path | None:
    files = [file for file in folder.iterdir() if file.suffix == suffix and _LINKED not in file.name]
    own = [file for file in files if file.name.startswith(f"{stem}.")]
    for name in names:
        for file in own:
            if re.search(rf"\.{name}\.", file.name[len(stem) :]):
                return file
    unnamed = [file for file in own if file.name == stem + suffix]
    return unnamed[0] if unnamed else None


_CONSTANT = re.compile(r"\.nv\.constant(\d{1,18})\.(.+)")
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
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as name:
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
        text = self._compile()
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

    def _compile(self) -> str:
        """Run nvcc and return all it said."""
        gathering = [_REPORT, "--keep", f"--keep-dir={self.folder}"]
        with replacing(self.request.output) as output:
            done = self._run(request_command(self.nvcc, self.request, output, gathering))
            text = done.err + done.out
            if not done.succeeded or not output.exists():
                text = text or f"nvcc {done.failure or f'ended with exit code {done.exit_code}'}"
                raise compile_error(self.request, self._said(text), text)
        return text

    def _run(self, command: Sequence[str]) -> ProgramExit:
        return run_program(command, timeout_s=_LONGEST_S, environment=self.environment)

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
        if self.request.product is BuildProduct.CUBIN:
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
        name=demangle(use.symbol) or use.symbol,
        target=target,
        use=use,
        constant_bytes=None if banks is None else sum(banks.values()),
        max_threads=asked.max_threads,
        min_blocks=asked.min_blocks,
    )


def constant_bytes(cubin: bytes) -> dict[str, dict[int, int]]:
    """Constant memory by bank, by the kernel's symbol; empty if the content is no cubin.

    ptxas prints none for the newest targets, but section `.nv.constantB.KERNEL` is the kernel's part of bank
    B: its parameters and constants the compiler made. Source: CUDA Binary Utilities 13.0, "cuobjdump".
    """
    found: dict[str, dict[int, int]] = {}
    with suppress(InputError):
        for name, section in ElfFile(io.BytesIO(cubin), "cubin").sections.items():
            match = _CONSTANT.fullmatch(name)
            if match is not None:
                found.setdefault(match[2], {})[int(match[1])] = section.size_bytes
    return found


_SIGNALED = 128  # what shells add to the number of the signal that ended a program


def run_compiled(
    program: Path, arguments: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None
) -> int:
    """Run to the end and return the exit code; 128 and its number where a signal ended it.

    Args:
        program: The file.
        arguments: Its own.
        environment: Its own.
        stdout: File descriptor that takes its standard output; this process's own if None.

    Raises:
        CaptureError: It cannot be started.
    """
    code, was_interrupted = run_attached(
        [str(program.resolve()), *arguments], "the program", program, environment=environment, stdout=stdout
    )
    if was_interrupted:
        raise KeyboardInterrupt
    return _SIGNALED - code if code < 0 else code
