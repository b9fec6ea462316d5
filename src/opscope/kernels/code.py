"""The code that compilers make of an implementation, for people to read: PTX, machine code, Triton's forms.

The function is called, and what that call launches is looked up: Triton's and inductor's launching methods
are wrapped while it runs (Triton 3.2 to 3.9, torch 2.4 to 2.13), and kernels of CUDA extensions are found in
the libraries this process has loaded. Importing this module imports no torch.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from opscope.errors import DependencyError, InputError, MeasurementError
from opscope.hardware.toolkit import find_cuda_tool
from opscope.kernels.ptx import ptx_functions, ptx_preamble
from opscope.provenance.demangle import demangle
from opscope.provenance.kernel_names.cxx_name import parse
from opscope.text_enum import TextEnum
from opscope.workloads.runtime import require_torch

_JIT = ("triton.runtime.jit", "JITFunction")
_INDUCTOR = ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner")
_FORMS = ("ttir", "ttgir", "llir", "ptx", "cubin")
_COPIES = ("Memcpy", "Memset")
_NAME_SCOPE = re.compile(r"(?:\w+|\(anonymous namespace\))::")


@dataclass(frozen=True)
class TritonKernel:
    """A Triton kernel that was launched."""

    name: str  # of its function, which is the kernel's name in a profile
    source: str | None  # Python text of the function; None if it was generated
    forms: Mapping[str, str | bytes]  # what it was compiled to: `ttir`, `ttgir`, `llir`, `ptx`, `cubin`


@dataclass(frozen=True)
class ObservedLaunches:
    """What one call launched, in order."""

    triton: tuple[TritonKernel, ...]  # hand-written and torch.compile's, by their first launch
    kernels: tuple[str, ...]  # names of all kernels as a profile shows them; empty without a GPU


def observe(fn: Callable[..., object], inputs: Sequence[Any]) -> ObservedLaunches:
    """What a call launches that is not the first: compiled and autotuned before."""
    fn(*inputs)
    kernels: tuple[str, ...] = ()
    with _recorded(*_JIT) as jit, _recorded(*_INDUCTOR) as inductor:
        if require_torch().cuda.is_available():
            kernels = _profiled(fn, inputs)
        else:
            fn(*inputs)
    written = {id(kernel): _written(function, kernel) for function, kernel in jit if hasattr(kernel, "asm")}
    generated = {id(tuner): _generated(tuner) for tuner, _ in inductor}
    return ObservedLaunches((*written.values(), *filter(None, generated.values())), kernels)


def observe_compilation(fn: Callable[..., object], inputs: Sequence[Any]) -> list[str]:
    """The code that torch.compile generates for a call, one text per graph; none if it compiles nothing.

    Everything torch.compile has compiled in this process is forgotten, and compiled again at its next call.
    """
    if "torch._dynamo" not in sys.modules:  # Then nothing has been compiled, and importing it takes seconds.
        return []
    run_and_get_code = importlib.import_module("torch._inductor.utils").run_and_get_code
    _, graphs = run_and_get_code(fn, *inputs)
    return list(graphs)


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

    with ExitStack() as restore:
        restore.callback(setattr, owner, "run", original)
        owner.run = run
        yield calls


def _profiled(fn: Callable[..., object], inputs: Sequence[Any]) -> tuple[str, ...]:
    torch = require_torch()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:  # else torch 2.11 warns
        fn(*inputs)
        torch.cuda.synchronize()
    on_device = [one for one in profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    on_device.sort(key=lambda one: one.time_range.start)
    names = dict.fromkeys(one.name for one in on_device)
    return tuple(name for name in names if not name.startswith(_COPIES))


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


class CodeKind(TextEnum):
    """What to show of an implementation."""

    PTX = "ptx"  # NVIDIA's virtual instruction set
    SASS = "sass"  # the GPU's own instructions
    # Source and intermediate forms of Triton kernels, or the code that torch.compile writes
    TRITON = "triton"


class CodeText(NamedTuple):
    """One text: what it is, in which language (for highlighting), and itself."""

    title: str
    language: str
    text: str


def generated_code(kind: str, fn: Callable[..., object], inputs: Sequence[Any]) -> list[CodeText]:
    """The code of each kernel that a call of `fn` launches, in order of their launches.

    A kernel whose code cannot be had, such as one of PyTorch's own, has a text that says so.

    Args:
        kind: A CodeKind, or its value.
        fn: Called several times with `inputs`. For `CodeKind.TRITON`, all that torch.compile has compiled in
            this process is forgotten, and compiled again at its next call.
        inputs: Its arguments.

    Raises:
        InputError: There is no such kind of code.
        DependencyError: cuobjdump is missing.
        MeasurementError: The call makes no code of that kind; the text says what it launches.
    """
    try:
        wanted = CodeKind(kind)
    except ValueError:
        kinds = ", ".join(str(one) for one in CodeKind)
        raise InputError(f"'{kind}' is not a kind of generated code", hint=f"Choose one of {kinds}") from None
    if wanted is CodeKind.TRITON:
        return _triton_code(fn, inputs)
    return _kernel_code(wanted, observe(fn, inputs))


def _triton_code(fn: Callable[..., object], inputs: Sequence[Any]) -> list[CodeText]:
    texts = []
    for kernel in observe(fn, inputs).triton:
        if kernel.source is not None:
            texts.append(CodeText(f"{kernel.name}: source", "python", kernel.source))
            for form, title in (("ttir", "Triton IR"), ("ttgir", "Triton GPU IR")):
                if isinstance(text := kernel.forms.get(form), str):
                    texts.append(CodeText(f"{kernel.name}: {title}", "mlir", text))
    graphs = observe_compilation(fn, inputs)
    texts += [
        CodeText(f"torch.compile: graph {number} of {len(graphs)}", "python", graph)
        for number, graph in enumerate(graphs, 1)
    ]
    if not texts:
        raise MeasurementError(
            "this call launches no compiled Triton kernel, and torch.compile writes nothing for it",
            hint="A Triton kernel in the interpreter is not compiled; other kernels have ptx and sass",
        )
    return texts


def _kernel_code(kind: CodeKind, launches: ObservedLaunches) -> list[CodeText]:
    texts = []
    for kernel in launches.triton:
        ptx, cubin = kernel.forms.get("ptx"), kernel.forms.get("cubin")
        if kind is CodeKind.PTX and isinstance(ptx, str):
            texts.append(CodeText(f"{kernel.name} (Triton)", "ptx", ptx))
        elif kind is CodeKind.SASS and isinstance(cubin, bytes):
            texts.append(CodeText(f"{kernel.name} (Triton)", "sass", cubin_sass(cubin)))
    from_triton = {kernel.name for kernel in launches.triton}
    others = [name for name in launches.kernels if name not in from_triton]
    found = _library_code(kind, others) if others else {}
    missing = f"no extension's library holds its {kind}; those of PyTorch and NVIDIA are not searched"
    if not texts and not others:
        raise MeasurementError(f"there is no {kind} to show: this call launches no kernel on a GPU")
    if not texts and not found:
        launched = ", ".join(map(_short_name, others))
        raise MeasurementError(
            f"there is no {kind} to show of what this call launches ({launched}): {missing}"
        )
    for name in others:
        language = str(kind) if name in found else "text"
        texts.append(CodeText(_short_name(name), language, found.get(name, missing)))
    return texts


def _library_code(kind: CodeKind, names: Sequence[str]) -> dict[str, str]:
    """Code of kernels in this process's libraries, by name; names that none of them holds are missing."""
    dump = library_ptx if kind is CodeKind.PTX else library_sass
    code: dict[str, str] = {}
    for library in kernel_libraries():
        symbols = library_symbols(library)
        wanted = {symbols[name]: name for name in names if name in symbols and name not in code}
        if wanted:
            code |= {wanted[symbol]: text for symbol, text in dump(library, list(wanted)).items()}
    return code


def _short_name(name: str) -> str:
    """A demangled name without return type, scopes and parameters: `softmax_kernel<float, 4, 512, 16>`."""
    cxx = parse(_NAME_SCOPE.sub("", name))
    arguments = f"<{', '.join(cxx.template_arguments)}>" if cxx.template_arguments else ""
    return name if cxx.function is None else cxx.function + arguments


# PTX and machine code of kernels in this process's libraries and in cubins, as cuobjdump prints them.
#
# PyTorch's and NVIDIA's own libraries are left out: dumping gigabytes takes minutes, for kernels that nobody
# here has written.

_MAPS = Path("/proc/self/maps")
# Packages with device code of their own, the system's folders, and libraries of the driver, CUDA and torch.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/(?:torch|nvidia|triton|cupy|jax\w*)/|^/(?:usr/)?lib"
    r"|/lib(?:torch|c10|nccl|nvidia-|cu[a-z]+)"
)
_FUNCTION = re.compile(r"^\s*Function\s*:?\s+(\S+?):?\s*$", re.MULTILINE)
# `/*0010*/  S2R R2, SR_TID.X ;  /* 0x... */`: without the encoding, and without lines of encoding alone.
_ENCODING = re.compile(r"\s*/\* 0x[0-9a-f]{16} \*/")
_NO_DEVICE_CODE = "does not contain device code"  # an answer, although an error of cuobjdump
_FATBIN = "\nFatbin "  # begins the next image of a file with several


def kernel_libraries(maps: Path = _MAPS) -> list[Path]:
    """Libraries with device code that this process has loaded, without those of torch and NVIDIA.

    Args:
        maps: What the system says of this process's mappings.
    """
    from opscope.provenance.binaries.library import mapped_libraries  # noqa: PLC0415 - seldom needed

    return [path for path in mapped_libraries(maps) if not _FOREIGN.search(str(path))]


def library_symbols(library: Path) -> dict[str, str]:
    """Names of a library's kernels, as a profile shows them, and their symbols."""
    text = _cuobjdump("-res-usage", str(library))
    return {demangle(symbol) or symbol: symbol for symbol in _FUNCTION.findall(text)}


def library_sass(library: Path, symbols: Collection[str]) -> dict[str, str]:
    """Machine code of some kernels, by symbol; of the first architecture that has it."""
    return split_sass(_cuobjdump("-sass", "-fun", ",".join(symbols), str(library)))


def library_ptx(library: Path, symbols: Collection[str]) -> dict[str, str]:
    """PTX of some kernels, by symbol; kernels whose PTX is not in the library are missing."""
    found: dict[str, str] = {}
    for module in re.split(r"^Fatbin ptx code:$", _cuobjdump("-ptx", str(library)), flags=re.MULTILINE):
        preamble = ptx_preamble(module)
        for function in ptx_functions(module) if preamble else ():
            if function.is_kernel and function.symbol in symbols:
                found.setdefault(function.symbol, f"{preamble}{function.text}")
    return found


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
    starts = list(_FUNCTION.finditer(text))
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
