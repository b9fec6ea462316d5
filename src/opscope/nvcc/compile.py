"""Command lines of nvcc; compiles a file, gathers what is said of it, and finds what costs time.

The output is written beside its place and moved there when all went well, so that a failure leaves nothing
and a file of that name as it was. Intermediate files stand in a folder of their own and go with it.

Source: nvcc 13.0 documentation, "Command Options" and "GPU Compilation".
"""

from __future__ import annotations

import math
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from opscope.errors import DependencyError, InputError
from opscope.hardware.architectures import Target, parse_target
from opscope.hardware.occupancy import StaticOccupancy, static_occupancy
from opscope.model.files import replacing, scratch_prefix
from opscope.model.finding import Finding, Severity
from opscope.provenance.kernel_names.cxx_name import demangle
from opscope.toolchain.programs import run_program
from opscope.visible_text import first_lines


class Request(msgspec.Struct, frozen=True):
    """What to compile, to which file, for which machine code; `ptx` is embedded for later GPUs."""

    source: Path
    output: Path  # a program; an object whose kernels are looked at where `is_program` is false
    is_program: bool
    targets: tuple[Target, ...]
    ptx: Target | None = None
    options: tuple[str, ...] = ()
    dynamic_shared_bytes: int = 0  # that launches ask for, for each block

    def command(self, executable: str, *gathering: str, output: Path | None = None) -> list[str]:
        """The command of nvcc that does it, into another file, gathering more that is said and kept."""
        made = [*code_options(self.targets, self.ptx), *self.options, *gathering]
        return [executable, *made, "-o", str(output or self.output), str(self.source)]


def command_text(command: Sequence[str]) -> str:
    """The command as a person writes it in a shell: by the program's name."""
    return shlex.join([Path(command[0]).name, *command[1:]]).replace("-gencode=", "-gencode ")


NATIVE, ALL, ALL_MAJOR = "native", "all", "all-major"
_PTX_WORD = re.compile(r"compute_(\d+[af]?)", re.IGNORECASE)


def choose_targets(
    words: Iterable[str], known: Sequence[Target], *, native: Callable[[], Sequence[str]]
) -> tuple[Target, ...]:
    """The distinct targets that some words mean, lowest first; `native` is asked only for that word."""
    general = [target for target in known if target.is_general]
    chosen: set[Target] = set()
    for word in words:
        if word == ALL:
            chosen.update(general)
        elif word == ALL_MAJOR:
            chosen.update((general[0], *(target for target in general if target.minor == 0)))
        else:
            chosen.update(_known(one, known) for one in (native() if word == NATIVE else (word,)))
    return tuple(sorted(chosen))


def ptx_target(targets: Iterable[Target]) -> Target:
    """The target whose PTX serves later GPUs: the first of the newest generation, as of nvcc's `all`."""
    general = [target for target in targets if target.is_general]
    if not general:
        names = ", ".join(target.ptx_name for target in targets)
        raise InputError(
            f"PTX of {names} is for no later GPU: the letter means features of one GPU or family",
            hint="Add a target without the letter, such as --arch sm_90a,sm_90, or leave ptx out",
        )
    newest = max(target.major for target in general)
    return min(target for target in general if target.major == newest)


def code_options(targets: Sequence[Target], ptx: Target | None) -> list[str]:
    """The options that build machine code for some targets, and PTX for one or none."""
    if ptx is not None and list(targets) == [ptx]:
        return [f"-arch={ptx.name}"]  # which nvcc documents as both
    options = [f"-gencode=arch={one.ptx_name},code={one.name}" for one in targets]
    return options if ptx is None else [*options, f"-gencode=arch={ptx.ptx_name},code={ptx.ptx_name}"]


def _known(word: str, known: Sequence[Target]) -> Target:
    target = parse_target(word)
    if target is not None and target in known:
        return target
    names = ", ".join(one.name for one in known)
    hint = f"It knows {names}; or native, all, all-major"
    if (ptx := _PTX_WORD.fullmatch(word.strip())) is not None:
        raise InputError(
            f"{word} is PTX, which is compiled when the program starts",
            hint=f"--arch sm_{ptx[1]},ptx has it beside machine code",
        )
    if target is None:
        raise InputError(f"'{word}' is not a target of nvcc", hint=hint)
    raise InputError(f"this nvcc does not build for {target.name}", hint=hint)


_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V([\d.]+))?")
_TARGET = re.compile(r"\bsm_\d+[af]?\b")
_TIMEOUT_S = 60.0


class Nvcc(msgspec.Struct, frozen=True):
    path: str
    release: str  # of the CUDA toolkit, `13.0`
    version: str | None  # `13.0.88`
    targets: tuple[Target, ...]


def read_nvcc(path: str) -> Nvcc:
    release = _RELEASE.search(_answer(path, "--version"))
    # The list has no specific targets and is missing before 11.1; the help has them all.
    listed = _TARGET.findall(_answer(path, "--list-gpu-code") + _answer(path, "--help"))
    targets = {target for word in listed if (target := parse_target(word)) is not None}
    if release is None or not targets:
        raise DependencyError(
            f"{path} does not answer as nvcc does",
            hint="Is it the compiler of a CUDA toolkit, and is the toolkit complete?",
        )
    return Nvcc(path, release[1], release[2], tuple(sorted(targets)))


def _answer(path: str, option: str) -> str:
    """What it prints; empty if it does not know the option."""
    done = run_program([path, option], timeout_s=_TIMEOUT_S)
    if done.failure is not None:
        raise DependencyError(
            f"nvcc {done.failure}", source=path, hint="Install the CUDA toolkit again, or set CUDA_HOME"
        )
    return done.out if done.succeeded else ""


class CompiledKernel(msgspec.Struct, frozen=True):
    name: str  # demangled, with parameters; the symbol where no demangler is
    target: Target
    use: KernelResources
    constant_bytes: int | None  # parameters included; None if ptxas prints none
    bounds: LaunchBounds
    occupancy: StaticOccupancy  # that it can reach

    @property
    def stack_bytes(self) -> int:
        """Local memory of each thread, with that of the functions it calls where it is known."""
        return max(self.use.stack_bytes, self.use.cumulative_stack_bytes or 0)


class Compilation(msgspec.Struct, frozen=True):
    """What came of a request; kernels by target, then in the order of ptxas."""

    request: Request
    nvcc: Nvcc
    kernels: tuple[CompiledKernel, ...]
    said: str = ""  # warnings and remarks, in the compilers' words


# Bounds of kernels in PTX, and what `ptxas -v` said of each kernel it compiled: PTX in which a definition
# begins and ends at the start of a line, reports of releases 8 to 13, whatever stands between their lines. A
# number that a release does not print is None, never 0.

# A definition has a body; a declaration ends before one.
_ENTRY_POINT = re.compile(r"^(?:\.\w+[ \t]+)*?\.entry\s+(?P<symbol>[\w$]+)(?P<head>[^{;]*)\{", re.MULTILINE)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d{1,18}(?:\s*,\s*\d{1,18}){0,2})")
_BLOCKS = re.compile(r"\.minnctapersm\s+(\d{1,18})")


class LaunchBounds(NamedTuple):
    """What a kernel's source says by `__launch_bounds__` or `__block_size__`; None if nothing."""

    max_threads: int | None = None  # threads that a block may have
    min_blocks: int | None = None  # that shall fit on a multiprocessor


_NO_BOUNDS = LaunchBounds()


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
_CUMULATIVE = re.compile(r"(\d{1,18}) bytes cumulative stack size")
_SHARED = re.compile(r"(\d{1,18})(?:\+(\d{1,18}))? bytes smem")
_CONSTANT = re.compile(r"(\d{1,18}) bytes cmem\[(\d{1,18})\]")


class KernelResources(msgspec.Struct, frozen=True):
    symbol: str  # as the compiler wrote it
    target: str  # such as `sm_90`
    stack_bytes: int  # local memory of each thread for the kernel itself, spills included
    spill_store_bytes: int  # written by each thread to local memory because registers did not suffice
    spill_load_bytes: int  # read back by each thread
    registers: int  # of each thread
    shared_bytes: int = 0  # static shared memory of each block; 0 if none is printed
    cumulative_stack_bytes: int | None = None  # with that of the functions it calls; None if not printed
    # Constant memory by bank, parameters included; empty if not printed
    constant_bytes: dict[int, int] = msgspec.field(default_factory=dict)


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
                constant_bytes={int(bank): int(size) for size, bank in _CONSTANT.findall(said)},
            )
            found.append(use)
            stack = None
    return tuple(found)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(match[1])


# What -v makes ptxas and nvlink print, and what nvcc says of every warning.
_REPORT = re.compile(
    r"(?:ptxas|nvlink) info\s*: (?:\d+ bytes gmem|Compiling entry function|Function properties for|"
    r"[Uu]sed \d+ registers|Compile time =|Overriding maximum register limit)|"
    r"\s+\d+ bytes (?:stack frame|cumulative stack)|Remark: The warnings can be suppressed"
)
_NO_MAIN = re.compile(r"undefined reference to \W?main\b|undefined symbol: main$", re.MULTILINE)
_LONGEST_S = 86_400.0  # some kernels take hours to compile
_LINKED = "_dlink."  # what the device linker makes for the whole program: without kernels of its own


def compile_source(nvcc: Nvcc, request: Request, environment: Mapping[str, str]) -> Compilation:
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as name:
        folder, stem = Path(name), request.source.stem
        with replacing(request.output) as output:
            gathering = ["-Xptxas=-v", "--keep", f"--keep-dir={folder}"]
            gathering += [] if request.is_program else ["-c"]
            command = request.command(nvcc.path, *gathering, output=output)
            spoken = {**environment, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
            done = run_program(command, timeout_s=_LONGEST_S, environment=spoken)
            said = done.err + done.out
            if not done.succeeded or not output.exists():
                said = said or f"nvcc {done.failure or f'ended with exit code {done.exit_code}'}"
                raise compile_error(request, said)
        uses = parse_ptxas(said)
        kernels: list[CompiledKernel] = []
        for target in request.targets:
            bounds = launch_bounds(_kept_ptx(folder, stem, target.ptx_name))
            kernels += [
                compiled_kernel(request, use, target, bounds.get(use.symbol, _NO_BOUNDS))
                for use in uses
                if use.target == target.name
            ]
    return Compilation(request, nvcc, tuple(kernels), compilers_words(said))


def compilers_words(text: str) -> str:
    """What was said without the numbers of ptxas; what was said alike for several targets once."""
    lines = (line.rstrip() for line in text.splitlines() if not _REPORT.match(line))
    return "\n\n".join(dict.fromkeys(part.strip("\n") for part in "\n".join(lines).split("\n\n"))).strip("\n")


def compile_error(request: Request, text: str) -> InputError:
    source = request.source.name
    if request.is_program and _NO_MAIN.search(text):
        return InputError(f"{source} has no main, so no program can be made of it", hint="Leave -o out")
    names = ", ".join(target.name for target in request.targets)
    words = first_lines(compilers_words(text).splitlines())
    return InputError("\n".join((f"{source} does not compile for {names}:", words)))


def _kept_ptx(folder: Path, stem: str, name: str) -> str:
    """PTX for a target; the file names none where there is but one."""
    files = [file for file in folder.glob("*.ptx") if _LINKED not in file.name]
    own = {file.name.removeprefix(stem): file for file in files if file.name.startswith(f"{stem}.")}
    found = next((file for rest, file in own.items() if f".{name}." in rest), own.get(".ptx"))
    return "" if found is None else found.read_text("utf-8", errors="replace")


def compiled_kernel(
    request: Request, use: KernelResources, target: Target, bounds: LaunchBounds = _NO_BOUNDS
) -> CompiledKernel:
    """A kernel by what ptxas and its PTX tell."""
    return CompiledKernel(
        name=demangle(use.symbol) or use.symbol,
        target=target,
        use=use,
        constant_bytes=sum(use.constant_bytes.values()) or None,
        bounds=bounds,
        occupancy=static_occupancy(
            target.compute_capability,
            registers=use.registers,
            shared_bytes=use.shared_bytes + request.dynamic_shared_bytes,
            max_threads=bounds.max_threads,
        ),
    )


_MOST_REGISTERS = 255  # Source: CUDA C++ Programming Guide 13.0, Technical Specifications


def findings_of(compilation: Compilation) -> tuple[Finding, ...]:
    """All findings: spills of kernels, then a stack that is no spill."""
    spills, stacks = [], []
    for kernel in compilation.kernels:
        use, target = kernel.use, kernel.target.name
        evidence = {
            "kernel": kernel.name,
            "target": target,
            "registers": kernel.use.registers,
            "stack_bytes": kernel.stack_bytes,
            "spill_store_bytes": use.spill_store_bytes,
            "spill_load_bytes": use.spill_load_bytes,
        }
        if use.spill_store_bytes or use.spill_load_bytes:
            spilled = Finding(
                "nvcc.spills",
                Severity.WARNING,
                f"{kernel.name} spills for {target}: each thread writes {use.spill_store_bytes:,} bytes to "
                f"local memory and reads {use.spill_load_bytes:,} back, because {use.registers} registers "
                "are not enough.",
                f"{_more_registers(kernel)}.",
                evidence=evidence,
            )
            spills.append(spilled)
        elif kernel.stack_bytes:  # arrays that no register can hold
            kept = Finding(
                "nvcc.local_memory",
                Severity.INFO,
                f"{kernel.name} keeps {kernel.stack_bytes} bytes of each thread in local memory for "
                f"{target}.",
                "An array whose index the compiler does not know, or a call that is not inlined; unroll the "
                "loop over it, or hold it in shared memory.",
                evidence=evidence,
            )
            stacks.append(kept)
    return (*spills, *stacks)


def _more_registers(kernel: CompiledKernel) -> str:
    less = "keep fewer values in a thread (smaller tiles, less unrolling)"
    if kernel.use.registers >= _MOST_REGISTERS:
        return f"A thread has no more than {_MOST_REGISTERS}: {less}"
    if kernel.bounds.max_threads is None:
        return f"{less.capitalize()}, or raise -maxrregcount"
    if kernel.bounds.min_blocks is None:
        bounds = f"__launch_bounds__({kernel.bounds.max_threads}"
        return f"{bounds}) makes ptxas save them for more blocks; {bounds}, 1) lets it take more. Or {less}"
    bounds = f"__launch_bounds__({kernel.bounds.max_threads}, {kernel.bounds.min_blocks})"
    return f"{bounds} leaves no more: ask for fewer threads or blocks, or {less}"
