"""The code that compilers make of an implementation, for people to read: PTX, machine code, Triton's forms.

The function is called, and the Triton kernels that it launches are looked up: Triton's and inductor's
launching methods are wrapped while it runs (Triton 3.2 to 3.9, torch 2.4 to 2.13). Importing this module
imports no torch.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from opscope.errors import DependencyError, MeasurementError
from opscope.hardware.driver import find_cuda_tool
from opscope.text_enum import TextEnum
from opscope.workloads.runtime import require_torch

_JIT = ("triton.runtime.jit", "JITFunction")
_INDUCTOR = ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner")
_FORMS = ("ttir", "ttgir", "llir", "ptx", "cubin")


class CodeKind(TextEnum):
    PTX = "ptx"  # NVIDIA's virtual instruction set
    SASS = "sass"  # the GPU's own instructions
    # Source and intermediate forms of Triton kernels, or the code that torch.compile writes
    TRITON = "triton"


class CodeText(NamedTuple):
    """One text: what it is, in which language (for highlighting), and itself."""

    title: str
    language: str
    text: str


class TritonKernel(NamedTuple):
    name: str  # of its function, which is the kernel's name in a profile
    source: str | None  # Python text of the function; None if it was generated
    forms: Mapping[str, str | bytes]  # what it was compiled to: `ttir`, `ttgir`, `llir`, `ptx`, `cubin`


def generated_code(kind: CodeKind, fn: Callable[..., object], inputs: Sequence[Any]) -> list[CodeText]:
    """The code of each Triton kernel that a call of `fn` launches, in order of their launches.

    Called several times with `inputs`. For `CodeKind.TRITON` all that torch.compile has compiled in this
    process is forgotten, and compiled again at its next call.
    """
    texts = []
    for kernel in triton_kernels(fn, inputs):
        ptx, cubin = kernel.forms.get("ptx"), kernel.forms.get("cubin")
        if kind is CodeKind.PTX and isinstance(ptx, str):
            texts.append(CodeText(f"{kernel.name} (Triton)", "ptx", ptx))
        elif kind is CodeKind.SASS and isinstance(cubin, bytes):
            texts.append(CodeText(f"{kernel.name} (Triton)", "sass", cubin_sass(cubin)))
        elif kind is CodeKind.TRITON and kernel.source is not None:
            texts.append(CodeText(f"{kernel.name}: source", "python", kernel.source))
            for form, title in (("ttir", "Triton IR"), ("ttgir", "Triton GPU IR")):
                if isinstance(text := kernel.forms.get(form), str):
                    texts.append(CodeText(f"{kernel.name}: {title}", "mlir", text))
    # Unless it is there, nothing has been compiled, and importing it takes seconds.
    if kind is CodeKind.TRITON and "torch._dynamo" in sys.modules:
        _, graphs = importlib.import_module("torch._inductor.utils").run_and_get_code(fn, *inputs)
        for number, graph in enumerate(graphs, 1):
            texts.append(CodeText(f"torch.compile: graph {number} of {len(graphs)}", "python", graph))
    if not texts:
        raise MeasurementError(
            f"there is no {kind} code to show: this call launches no compiled Triton kernel",
            hint="A kernel in Triton's interpreter is not compiled; for one in CUDA C++ there is "
            "opscope nvcc FILE.cu --show",
        )
    return texts


def triton_kernels(fn: Callable[..., object], inputs: Sequence[Any]) -> list[TritonKernel]:
    """What a call launches that is not the first: compiled and autotuned before; torch.compile's last."""
    fn(*inputs)
    with _recorded(*_JIT) as jit, _recorded(*_INDUCTOR) as inductor:
        fn(*inputs)
    written = {id(kernel): _written(function, kernel) for function, kernel in jit if hasattr(kernel, "asm")}
    generated = {id(tuner): _generated(tuner) for tuner, _ in inductor}
    return [*written.values(), *filter(None, generated.values())]


@contextmanager
def _recorded(module: str, class_name: str) -> Iterator[list[tuple[Any, Any]]]:
    """A list that `run` of a class appends to inside the block: the object it is called on, its result."""
    calls: list[tuple[Any, Any]] = []
    owner = getattr(sys.modules.get(module), class_name, None)
    original = getattr(owner, "run", None)
    if owner is None or original is None:
        yield calls
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        calls.append((self, result))
        return result

    owner.run = run
    try:
        yield calls
    finally:
        owner.run = original


def _written(function: Any, kernel: Any) -> TritonKernel:
    """A kernel that the program launched itself."""
    python = getattr(function, "fn", None)
    name = str(getattr(python, "__name__", None) or getattr(kernel, "name", "kernel"))
    return TritonKernel(name, getattr(function, "src", None), _forms(kernel.asm))


def _generated(tuner: Any) -> TritonKernel | None:
    """A kernel of torch.compile; None if its compiled forms are neither in memory nor in Triton's cache."""
    launchers = getattr(tuner, "launchers", None)
    if not launchers:
        return None
    launcher = launchers[0]
    binary = getattr(launcher, "bin", None) or getattr(launcher, "__globals__", {}).get("bin")
    asm = getattr(binary, "asm", None)
    # Static launchers keep the cubin only.
    forms = _cached_forms(getattr(launcher, "cache_hash", None)) if asm is None else _forms(asm)
    function = getattr(getattr(tuner, "fn", None), "__name__", "kernel")
    name = (getattr(tuner, "inductor_meta", None) or {}).get("kernel_name", function)
    return TritonKernel(name, None, forms) if forms else None


def _forms(asm: Mapping[str, Any]) -> dict[str, str | bytes]:
    return {form: asm[form] for form in _FORMS if form in asm}


def _cached_forms(key: str | None) -> dict[str, str | bytes]:
    """What Triton's cache keeps of a kernel: a folder named by its hash, with a file for each form."""
    forms: dict[str, str | bytes] = {}
    for folder in _cache_folders() if key else []:
        for path in sorted((folder / str(key)).glob("*.*")):
            form = path.suffix[1:]
            if form in _FORMS:
                forms.setdefault(form, path.read_bytes() if form == "cubin" else path.read_text("utf-8"))
    return forms


def _cache_folders() -> Iterator[Path]:
    """Where Triton kernels of torch.compile may be kept. torch/_inductor/runtime/cache_dir_utils.py."""
    if os.environ.get("TRITON_CACHE_DIR"):
        yield Path(os.environ["TRITON_CACHE_DIR"])
    torch = require_torch()
    for module in ("torch._inductor.runtime.cache_dir_utils", "torch._inductor.runtime.runtime_utils"):
        cache_dir = getattr(sys.modules.get(module), "cache_dir", None)
        if cache_dir is not None:
            yield Path(cache_dir()) / "triton" / str(torch.cuda.current_device())
            yield Path(cache_dir()) / "triton" / "0"
    yield Path.home() / ".triton" / "cache"


_SASS_FUNCTION = re.compile(r"^\s*Function\s*:?\s+(\S+?):?\s*$", re.MULTILINE)
# `/*0010*/  S2R R2, SR_TID.X ;  /* 0x... */`: without the encoding, and without lines of encoding alone.
_ENCODING = re.compile(r"\s*/\* 0x[0-9a-f]{16} \*/")
_NO_DEVICE_CODE = "does not contain device code"  # an answer, although an error of cuobjdump
_FATBIN = "\nFatbin "  # begins the next image of a file with several


def file_sass(file: Path, target: str) -> dict[str, str]:
    """Machine code for one target in a program, library, object or cubin: text by symbol."""
    return split_sass(_cuobjdump("-sass", "-arch", target, str(file)))


def cubin_sass(cubin: bytes) -> str:
    """Machine code of all kernels of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return "\n".join(split_sass(_cuobjdump("-sass", file.name)).values())


def split_sass(text: str) -> dict[str, str]:
    """Machine code by symbol, of what cuobjdump prints."""
    found: dict[str, str] = {}
    starts = list(_SASS_FUNCTION.finditer(text))
    for start, following in zip_longest(starts, starts[1:]):
        body = text[start.end() : len(text) if following is None else following.start()]
        image, _, _ = body.partition(_FATBIN)
        lines = (_ENCODING.sub("", line).rstrip() for line in image.splitlines())
        found.setdefault(
            start[1], "\n".join(line for line in lines if line.strip() and line.strip() != "." * 10)
        )
    return found


def _cuobjdump(*arguments: str) -> str:
    program = find_cuda_tool("cuobjdump")
    if program is None:
        raise DependencyError(
            "cuobjdump, which prints machine code, was not found",
            hint="It comes with the CUDA toolkit, and with Triton: pip install triton",
        )
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 and _NO_DEVICE_CODE not in done.stderr + done.stdout:
        message = (done.stderr or done.stdout).strip()
        raise MeasurementError(f"cuobjdump failed: {message}", source=arguments[-1])
    return done.stdout


# PTX by function, and what `ptxas -v` says of each function it compiled.
#
# Reads what NVIDIA's compilers write: PTX in which a definition begins and ends at the start of a line,
# reports of releases 8 to 13, whatever stands between their lines. A number that a release does not print is
# None, never 0.

# A definition has a body; a declaration ends before one. Results, if any, come before the name.
_DEFINITION = re.compile(
    r"^(?:\.\w+[ \t]+)*?\.(?P<kind>entry|func)\s+(?:\([^)]*\)\s*)?(?P<symbol>[\w$]+)"
    r"(?P<head>[^{;]*)\{.*?^\}\n?",
    re.MULTILINE | re.DOTALL,
)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d{1,18}(?:\s*,\s*\d{1,18}){0,2})")
_BLOCKS = re.compile(r"\.minnctapersm\s+(\d{1,18})")


@dataclass(frozen=True)
class PtxFunction:
    symbol: str  # as the compiler wrote it
    is_kernel: bool  # it can be launched
    text: str  # its definition
    # Threads a block may have, by `__launch_bounds__` or `__block_size__`; None if not said
    max_threads: int | None = None
    min_blocks: int | None = (
        None  # that shall fit on a multiprocessor, by `__launch_bounds__`; None if not said
    )


def ptx_functions(text: str) -> tuple[PtxFunction, ...]:
    found = []
    for match in _DEFINITION.finditer(text):
        threads = _THREADS.search(match["head"])
        most = None if threads is None else math.prod(map(int, re.findall(r"\d+", threads[1])))
        blocks = _number(_BLOCKS, match["head"])
        found.append(PtxFunction(match["symbol"], match["kind"] == "entry", match[0], most, blocks))
    return tuple(found)


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
    symbol: str  # as the compiler wrote it
    target: str | None  # such as `sm_90`; None for a function of a module without kernels
    is_kernel: bool  # else kernels call it, and only its stack and spills are known
    stack_bytes: int  # local memory of each thread for the function itself, spills included
    spill_store_bytes: int  # written by each thread to local memory because registers did not suffice
    spill_load_bytes: int  # read back by each thread
    registers: int | None = None  # of each thread
    shared_bytes: int = 0  # static shared memory of each block; 0 if none is printed
    cumulative_stack_bytes: int | None = None  # with that of the functions it calls; None if not printed
    barriers: int | None = None  # of a block; None in releases that do not print them
    # Constant memory by bank, parameters included; empty if not printed
    constant_bytes: dict[int, int] = field(default_factory=dict)


@dataclass
class _Function:
    """A function whose lines are being read."""

    is_kernel: bool
    stack: tuple[int, int, int] | None = None
    used: str | None = None


def parse_ptxas(text: str) -> tuple[FunctionUse, ...]:
    """Every function of which ptxas printed all, in its order; anything else in the text is passed over.

    Registers come after the stacks of the kernel's functions in some releases, before them in others.
    """
    found: list[FunctionUse] = []
    functions: dict[str, _Function] = {}  # of the module at hand, which is compiled for one target
    target: str | None = None
    kernel = described = _Function(is_kernel=False)
    for line in text.splitlines():
        info = _LINE.match(line)
        said = "" if info is None else info["text"]
        entry = _ENTRY.match(said)
        if _MODULE.match(said) or (entry is not None and target not in (None, entry["target"])):
            found += _uses(functions, target)
            functions, target = {}, None
        if entry is not None:
            target = entry["target"]
            kernel = functions[entry["symbol"]] = _Function(is_kernel=True)
        elif (function := _FUNCTION.match(said)) is not None:
            described = functions.setdefault(function["symbol"], _Function(is_kernel=False))
        elif info is None and (stack := _STACK.match(line)) is not None:
            described.stack = (int(stack[1]), int(stack[2]), int(stack[3]))
        elif _REGISTERS.match(said):
            kernel.used = said
    return (*found, *_uses(functions, target))


def _uses(functions: dict[str, _Function], target: str | None) -> Iterator[FunctionUse]:
    for symbol, function in functions.items():
        if function.stack is None or (function.is_kernel and function.used is None):
            continue
        used = function.used or ""
        shared = _SHARED.search(used)
        yield FunctionUse(
            symbol,
            target,
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
