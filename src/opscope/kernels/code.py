"""The code that compilers make of an implementation, for people to read: PTX, machine code, Triton's forms.

The function is called, and the Triton kernels that it launches are looked up: Triton's and inductor's
launching methods are wrapped while it runs (Triton 3.2 to 3.9, torch 2.4 to 2.13). Importing this module
imports no torch.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


_FUNCTION = re.compile(r"^\s*Function\s*:?\s+(\S+?):?\s*$", re.MULTILINE)
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
