"""Command lines of nvcc; compiles a file, gathers what is said of it, finds what costs time, and runs it.

The output is written beside its place and moved there when all went well, so that a failure leaves nothing
and a file of that name as it was. Intermediate files stand in a folder of their own and go with it.

Source: nvcc 13.0 documentation, "Command Options" and "GPU Compilation".
"""

from __future__ import annotations

import io
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from opscope.errors import DependencyError, InputError
from opscope.hardware.architectures import Target, parse_target, runs_binary, runs_ptx
from opscope.hardware.occupancy import BLOCK_SIZES, StaticOccupancy, static_occupancy
from opscope.kernels.code import FunctionUse, PtxFunction, parse_ptxas, ptx_functions
from opscope.model.files import replacing, scratch_prefix
from opscope.model.finding import Finding, Severity
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.demangle import demangle
from opscope.text_enum import TextEnum
from opscope.toolchain.programs import run_attached, run_program


class BuildProduct(TextEnum):
    PROGRAM = "program"
    OBJECT = "object"
    SHARED = "shared"
    FATBIN = "fatbin"
    CUBIN = "cubin"
    NOTHING = "nothing"  # the kernels are compiled, and looked at


# The options that make it, and the suffix of its name.
_PRODUCTS: dict[BuildProduct, tuple[tuple[str, ...], str]] = {
    BuildProduct.PROGRAM: ((), ""),
    BuildProduct.OBJECT: (("-c",), ".o"),
    BuildProduct.SHARED: (("-shared", "-Xcompiler=-fPIC"), ".so"),
    BuildProduct.FATBIN: (("-fatbin",), ".fatbin"),
    BuildProduct.CUBIN: (("-cubin",), ".cubin"),
    BuildProduct.NOTHING: (("-fatbin",), ".fatbin"),
}
# Options of nvcc that would contradict what is done here.
_OWN = re.compile(
    r"-o|-c|--?(?:arch|gpu-architecture|code|gpu-code|gencode|generate-code|output-file|odir|output-directory|"
    r"compile|shared|fatbin|cubin|ptx|lib|dlink|device-link|link|device-c|device-w|dc|dw|run|keep|keep-dir|"
    r"save-temps|dryrun|E|M|MM|preprocess)"
)


@dataclass(frozen=True)
class Request:
    """What to compile, to which file, for which machine code; `ptx` is embedded for later GPUs."""

    source: Path
    output: Path
    product: BuildProduct
    targets: tuple[Target, ...]
    ptx: Target | None = None
    options: tuple[str, ...] = ()
    # What occupancy assumes: threads of blocks, and shared memory that launches ask for, for each block.
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    dynamic_shared_bytes: int = 0

    def command(self, executable: str, output: Path, gathering: Sequence[str] = ()) -> list[str]:
        """The command of nvcc that does it, into another file, gathering more that is said and kept."""
        made = [*_PRODUCTS[self.product][0], *code_options(self.targets, self.ptx), *self.options, *gathering]
        return [executable, *made, "-o", str(output), str(self.source)]


def default_name(source: Path, product: BuildProduct) -> str:
    return source.stem + _PRODUCTS[product][1]


def refuse_options(options: Sequence[str]) -> None:
    """Raise an InputError if an option contradicts what is done here."""
    for name in (option.partition("=")[0] for option in options):
        if _OWN.fullmatch(name):
            raise InputError(
                f"--nvcc-option does not take {name}",
                hint="--arch chooses the targets, --emit what is made, -o names it, --show ptx prints PTX, "
                "--run runs the program; run nvcc itself for the rest",
            )


def command_text(command: Sequence[str]) -> str:
    """The command as a person writes it in a shell: by the program's name."""
    return shlex.join([Path(command[0]).name, *command[1:]]).replace("-gencode=", "-gencode ")


NATIVE, ALL, ALL_MAJOR = "native", "all", "all-major"
_PTX_WORD = re.compile(r"compute_(\d+[af]?)", re.IGNORECASE)
Explanation = Callable[["Target"], "str | None"]


def choose_targets(
    words: Iterable[str],
    known: Sequence[Target],
    *,
    native: Callable[[], Sequence[str]],
    explain: Explanation = lambda target: None,
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
            chosen.update(_known(one, known, explain) for one in (native() if word == NATIVE else (word,)))
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


def runs_on(targets: Iterable[Target], ptx: Target | None, compute_capability: str) -> bool:
    """Whether the code runs on a GPU, as machine code or from PTX."""
    gpu = parse_target(compute_capability)
    if gpu is None:
        return False
    return (ptx is not None and runs_ptx(ptx, gpu)) or any(runs_binary(one, gpu) for one in targets)


def _known(word: str, known: Sequence[Target], explain: Explanation) -> Target:
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
    sentence = explain(target)
    reason = "" if sentence is None else f": {sentence}"
    raise InputError(f"this nvcc does not build for {target.name}{reason}", hint=hint)


_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V([\d.]+))?")
_TARGET = re.compile(r"\bsm_\d+[af]?\b")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Nvcc:
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


@dataclass(frozen=True)
class CompiledKernel:
    name: str  # demangled, with parameters; the symbol where no demangler is
    target: Target
    use: FunctionUse
    constant_bytes: int | None  # parameters included; None if neither ptxas nor the machine code tells
    max_threads: int | None  # of a block and
    min_blocks: int | None  # on a multiprocessor, by `__launch_bounds__`
    occupancy: StaticOccupancy  # that it can reach

    @property
    def registers(self) -> int:
        return self.use.registers or 0

    @property
    def stack_bytes(self) -> int:
        """Local memory of each thread, with that of the functions it calls where it is known."""
        return max(self.use.stack_bytes, self.use.cumulative_stack_bytes or 0)


@dataclass(frozen=True)
class Compilation:
    """What came of a request; kernels and the functions they call by target, then in the order of ptxas."""

    request: Request
    nvcc: Nvcc
    kernels: tuple[CompiledKernel, ...]
    functions: tuple[FunctionUse, ...] = ()  # that keep their own stack
    said: str = ""  # warnings and remarks, in the compilers' words
    ptx: Mapping[str, str] = field(default_factory=dict)  # by target name, `compute_90`


# What -v makes ptxas and nvlink print, and what nvcc says of every warning.
_REPORT = re.compile(
    r"(?:ptxas|nvlink) info\s*: (?:\d+ bytes gmem|Compiling entry function|Function properties for|"
    r"[Uu]sed \d+ registers|Compile time =|Overriding maximum register limit)|"
    r"\s+\d+ bytes (?:stack frame|cumulative stack)|Remark: The warnings can be suppressed"
)
_NO_MAIN = re.compile(r"undefined reference to \W?main\b|undefined symbol: main$", re.MULTILINE)
_MOST_LINES = 30
_CONSTANT = re.compile(r"\.nv\.constant(\d{1,18})\.(.+)")
_LONGEST_S = 86_400.0  # some kernels take hours to compile
_LINKED = "_dlink."  # what the device linker makes for the whole program: without kernels of its own


def compile_source(nvcc: Nvcc, request: Request, environment: Mapping[str, str]) -> Compilation:
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as name:
        folder, stem = Path(name), request.source.stem
        with replacing(request.output) as output:
            command = request.command(nvcc.path, output, ["-Xptxas=-v", "--keep", f"--keep-dir={folder}"])
            spoken = {**environment, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
            done = run_program(command, timeout_s=_LONGEST_S, environment=spoken)
            said = done.err + done.out
            if not done.succeeded or not output.exists():
                said = said or f"nvcc {done.failure or f'ended with exit code {done.exit_code}'}"
                raise compile_error(request, said)
        uses = parse_ptxas(said)
        kernels: list[CompiledKernel] = []
        functions: list[FunctionUse] = []
        wanted = [*request.targets, *([request.ptx] if request.ptx else [])]
        kept = {one.ptx_name: _kept(folder, stem, ".ptx", one.ptx_name) for one in wanted}
        ptx = {
            name: text.decode("utf-8", errors="replace") for name, text in kept.items() if text is not None
        }
        for target in request.targets:
            own = [use for use in uses if use.target == target.name]
            asked = {one.symbol: one for one in ptx_functions(ptx.get(target.ptx_name, ""))}
            is_cubin = request.product is BuildProduct.CUBIN
            names = (target.name, target.ptx_name)
            cubin = request.output.read_bytes() if is_cubin else _kept(folder, stem, ".cubin", *names)
            constants = constant_bytes(cubin or b"")
            kernels += [
                compiled_kernel(request, use, target, asked.get(use.symbol), constants)
                for use in own
                if use.is_kernel
            ]
            functions += [use for use in own if not use.is_kernel]
    return Compilation(request, nvcc, tuple(kernels), tuple(functions), compilers_words(said), ptx)


def compilers_words(text: str) -> str:
    """What was said without the numbers of ptxas; what was said alike for several targets once."""
    lines = (line.rstrip() for line in text.splitlines() if not _REPORT.match(line))
    return "\n\n".join(dict.fromkeys(part.strip("\n") for part in "\n".join(lines).split("\n\n"))).strip("\n")


def compile_error(request: Request, text: str) -> InputError:
    source = request.source.name
    if request.product is BuildProduct.PROGRAM and _NO_MAIN.search(text):
        return InputError(
            f"{source} has no main, so no program can be made of it",
            hint="--emit object makes an object to link, --emit shared a library, --emit nothing looks at "
            "the kernels alone",
        )
    names = ", ".join(target.name for target in request.targets)
    lines = compilers_words(text).splitlines()
    left_out = len(lines) - _MOST_LINES
    shown = [*lines[:_MOST_LINES], f"… and {left_out} more lines"] if left_out > 0 else lines
    return InputError("\n".join((f"{source} does not compile for {names}:", *shown)))


def _kept(folder: Path, stem: str, suffix: str, *names: str) -> bytes | None:
    """The intermediate file of the first of some targets, or the one that names none."""
    files = [file for file in folder.iterdir() if file.suffix == suffix and _LINKED not in file.name]
    own = {file.name.removeprefix(stem): file for file in files if file.name.startswith(f"{stem}.")}
    matches = (file for name in names for rest, file in own.items() if f".{name}." in rest)
    found = next(matches, own.get(suffix))
    return None if found is None else found.read_bytes()


def compiled_kernel(
    request: Request,
    use: FunctionUse,
    target: Target,
    asked: PtxFunction | None = None,
    constants: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> CompiledKernel:
    """A kernel by what ptxas, its PTX and its machine code (constant memory, by symbol and bank) tell."""
    banks = use.constant_bytes or constants.get(use.symbol)
    max_threads = None if asked is None else asked.max_threads
    return CompiledKernel(
        name=demangle(use.symbol) or use.symbol,
        target=target,
        use=use,
        constant_bytes=None if banks is None else sum(banks.values()),
        max_threads=max_threads,
        min_blocks=None if asked is None else asked.min_blocks,
        occupancy=static_occupancy(
            target.compute_capability,
            request.block_sizes,
            registers=use.registers or 0,
            shared_bytes=use.shared_bytes + request.dynamic_shared_bytes,
            max_threads=max_threads,
        ),
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


def run_compiled(
    program: Path, arguments: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None
) -> int:
    """Run to the end and return the exit code; 128 and its number where a signal ended it."""
    run = run_attached(
        [str(program.resolve()), *arguments], "the program", program, environment=environment, stdout=stdout
    )
    if run.was_interrupted:
        raise KeyboardInterrupt
    return run.shell_code


_MOST_REGISTERS = 255  # Source: CUDA C++ Programming Guide 13.0, Technical Specifications


def findings_of(compilation: Compilation) -> tuple[Finding, ...]:
    """All findings: spills of kernels and of functions, then a stack that is no spill."""
    spills, functions, stacks = [], [], []
    for kernel in compilation.kernels:
        use, target = kernel.use, kernel.target.name
        evidence = {
            "kernel": kernel.name,
            "target": target,
            "registers": kernel.registers,
            "stack_bytes": kernel.stack_bytes,
            "spill_store_bytes": use.spill_store_bytes,
            "spill_load_bytes": use.spill_load_bytes,
        }
        if use.spill_store_bytes or use.spill_load_bytes:
            spilled = Finding(
                "nvcc.spills",
                Severity.WARNING,
                f"{kernel.name} spills for {target}: each thread writes {use.spill_store_bytes:,} bytes to "
                f"local memory and reads {use.spill_load_bytes:,} back, because {kernel.registers} registers "
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
    for function in compilation.functions:
        if function.spill_store_bytes:
            name = demangle(function.symbol) or function.symbol
            spilled = Finding(
                "nvcc.function_spills",
                Severity.INFO,
                f"{name}, which kernels call, keeps {function.spill_store_bytes} bytes "
                f"of registers in local memory for {function.target}.",
                "A call keeps its caller's registers there; __forceinline__ saves it, unless the "
                "function recurs.",
                evidence={
                    "function": name,
                    "target": function.target,
                    "spill_store_bytes": function.spill_store_bytes,
                    "spill_load_bytes": function.spill_load_bytes,
                },
            )
            functions.append(spilled)
    return (*spills, *functions, *stacks)


def _more_registers(kernel: CompiledKernel) -> str:
    less = "keep fewer values in a thread (smaller tiles, less unrolling)"
    if kernel.registers >= _MOST_REGISTERS:
        return f"A thread has no more than {_MOST_REGISTERS}: {less}"
    if kernel.max_threads is None:
        return f"{less.capitalize()}, or raise -maxrregcount"
    if kernel.min_blocks is None:
        bounds = f"__launch_bounds__({kernel.max_threads}"
        return f"{bounds}) makes ptxas save them for more blocks; {bounds}, 1) lets it take more. Or {less}"
    bounds = f"__launch_bounds__({kernel.max_threads}, {kernel.min_blocks})"
    return f"{bounds} leaves no more: ask for fewer threads or blocks, or {less}"
