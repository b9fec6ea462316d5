"""The CUDA C++ kernels: their sources, and the extension that torch builds of them for the GPU at hand.

`load_cuda_kernels` needs what any CUDA extension of PyTorch needs: nvcc, a C++ compiler and ninja. That nvcc
is missing is told with the line that installs it, before anything is compiled; what torch and the compilers
say is passed on. Like torch's own builder, and unlike the rest of the library, this module reads the
environment (CXX, PATH, TORCH_EXTENSIONS_DIR).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from opscope.errors import DependencyError, MeasurementError
from opscope.visible_text import first_lines
from opscope.workloads.runtime import require_torch

EXTENSION = "opscope_kernels"
# No --use_fast_math: it would flush denormals and take approximate exp, tanh, division and square root, and
# kernels that wait for memory have nothing to win by that. -lineinfo lets profilers name source lines.
NVCC_FLAGS = ("-O3", "-lineinfo")

_FOLDER = Path(__file__).parent / "cuda"
_FIRST_ERROR = re.compile(
    r"\berror\b|\bfatal\b|undefined reference|cannot find -l|not found|No such file", re.IGNORECASE
)
_PREFIX = re.compile(r"\AError building extension '[^']*': ")
_NINJA_FAILURE = "FAILED: "  # followed by a line that is the command
_NINJA_LINE = re.compile(r"^(\[\d+/\d+\] |FAILED: |ninja: (?!error)|\s*$)")

_lock = Lock()
_loaded: Any = None  # or the MeasurementError that building them ended with


def cuda_sources() -> tuple[Path, ...]:
    return tuple(sorted(_FOLDER.glob("*.cu")))


def load_cuda_kernels() -> Any:
    """`torch.ops.opscope_kernels`: the operators, built at the first call and kept in files for later ones.

    A MeasurementError, with the compiler's message, if they do not compile.
    """
    global _loaded  # noqa: PLW0603 -- torch can register a library of operators once per process
    with _lock:
        if _loaded is None:
            torch = require_torch()
            check_build_tools(torch)
            try:
                _build(torch)
                _loaded = getattr(torch.ops, EXTENSION)
            except MeasurementError as error:
                _loaded = error  # Compiling the same sources again takes as long and ends the same way.
        if isinstance(_loaded, MeasurementError):
            raise _loaded
        return _loaded


def check_build_tools(torch: Any) -> None:
    """An error unless this machine has what a CUDA extension needs; of other tools torch says it itself."""
    if torch.version.cuda is None:
        raise DependencyError(
            f"PyTorch {torch.__version__} is built without CUDA",
            hint="Install a CUDA build of it: https://pytorch.org/get-started/locally",
        )
    if not torch.cuda.is_available():
        raise MeasurementError(
            "the CUDA kernels need a CUDA device, and PyTorch finds none",
            hint="Check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES",
        )
    cpp_extension = _cpp_extension()
    if cpp_extension.CUDA_HOME is None or shutil.which("nvcc", path=f"{cpp_extension.CUDA_HOME}/bin") is None:
        where = "" if cpp_extension.CUDA_HOME is None else f" in {cpp_extension.CUDA_HOME}/bin"
        raise DependencyError(
            f"nvcc, the CUDA compiler, was not found{where}",
            hint=f"Install the CUDA toolkit {torch.version.cuda}, from "
            "https://developer.nvidia.com/cuda-downloads or by "
            f"conda install -c nvidia cuda-toolkit={torch.version.cuda}, and set CUDA_HOME to its folder",
        )


def compiler_message(output: str) -> str:
    """What ninja or a compiler said, from its first error on, without the command lines; at most 30 lines."""
    lines = [
        line.rstrip()
        for before, line in pairwise(["", *_PREFIX.sub("", output).splitlines()])
        if not (before.startswith(_NINJA_FAILURE) or _NINJA_LINE.match(line))
    ]
    first = next((number for number, line in enumerate(lines) if _FIRST_ERROR.search(line)), 0)
    return first_lines(lines[first:])


def _build(torch: Any) -> None:
    cpp_extension = _cpp_extension()
    # For this process's GPUs; torch adds none of its own beside them. TORCH_CUDA_ARCH_LIST is for extensions
    # that are handed on; images set it, and without PTX. PTX is embedded beside the machine code, so that it
    # can be shown.
    capabilities = sorted(set(map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))))
    flags = list(NVCC_FLAGS) + [
        f"-gencode=arch=compute_{major}{minor},code={kind}_{major}{minor}"
        for major, minor in capabilities
        for kind in ("sm", "compute")
    ]
    # The name changes with whatever changes the library. torch's cache does not tell its own versions apart.
    content = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.*")):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    settings = [torch.__version__, str(cpp_extension.CUDA_HOME), os.environ.get("CXX", ""), *flags]
    content.update("\0".join(settings).encode())
    name = f"{EXTENSION}_{content.hexdigest()[:12]}"
    # Where torch keeps extensions: the same folders as in torch/utils/cpp_extension.py.
    release = f"py{sys.version_info.major}{sys.version_info.minor}_cu{torch.version.cuda.replace('.', '')}"
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    folder = Path(chosen or Path(cpp_extension.get_default_build_root()) / release) / name
    try:
        with _locked(folder), _python_tools_on_path():
            cpp_extension.load(
                name=name,
                sources=[str(_FOLDER / "bindings.cpp"), *map(str, cuda_sources())],
                extra_cflags=["-O2"],
                extra_cuda_cflags=flags,
                build_directory=str(folder),
                is_python_module=False,
                verbose=False,
            )
    except (RuntimeError, OSError, ValueError) as error:
        raise MeasurementError(
            f"the CUDA kernels could not be built in {folder}:\n{compiler_message(str(error))}"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time builds in a folder.

    torch's own lock is a file that a killed build leaves behind, and every later build would wait for it. The
    system frees this lock with the process that held it; who has it may remove the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "opscope.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        yield


@contextmanager
def _python_tools_on_path() -> Iterator[None]:
    """PATH ends with this Python's folder: pip's ninja is there, even if the environment is not active."""
    path = os.environ.get("PATH")
    os.environ["PATH"] = os.pathsep.join([*filter(None, [path]), str(Path(sys.executable).parent)])
    try:
        yield
    finally:
        del os.environ["PATH"]
        os.environ |= {} if path is None else {"PATH": path}


def _cpp_extension() -> Any:
    return importlib.import_module("torch.utils.cpp_extension")
