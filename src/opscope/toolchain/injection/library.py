"""Compiles the recorder's C sources against a CUPTI, and keeps the library for later runs.

A library is kept under a key of all it is made from; it appears whole or not at all. Nothing is linked to
CUPTI: the library loads it in the program, where PyTorch may have it loaded already.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from opscope.errors import CaptureError, DependencyError
from opscope.toolchain.injection.cupti import Cupti
from opscope.toolchain.programs import run_program

__all__ = ["LIBRARY_NAME", "build_library", "find_compiler", "native_folder"]

LIBRARY_NAME = "libopscope_trace.so"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILERS = ("cc", "gcc", "clang")
_LIMIT_S = 120.0
_SHOWN_LINES = 15


def native_folder() -> Path:
    """The folder of the C sources."""
    return Path(str(resources.files("opscope.toolchain.injection") / "native"))


def find_compiler(configured: str | None, search_path: str | None) -> tuple[str, ...]:
    """The C compiler: the one that is configured, else the system's.

    Args:
        configured: A command as in the variable CC; may have arguments.
        search_path: Folders as in the variable PATH; the process's own where it is None.

    Raises:
        DependencyError: There is none.
    """
    wanted = shlex.split(configured or "")
    for name in wanted[:1] or _COMPILERS:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return (found, *wanted[1:])
    named = f" '{wanted[0]}' (of the variable CC)" if wanted else ""
    raise DependencyError(
        f"the C compiler{named} that builds the recorder was not found",
        hint="Install one (apt install gcc, dnf install gcc, conda install gcc) or set CC to yours",
    )


def build_library(cupti: Cupti, compiler: tuple[str, ...], folder: Path) -> Path:
    """The recorder for a CUPTI, compiled unless the folder has it.

    Args:
        cupti: What to compile against.
        compiler: Command of the C compiler.
        folder: Where libraries are kept.

    Raises:
        CaptureError: It does not compile; with the compiler's message.
        OSError: The folder cannot be written.
    """
    target = folder / _key(cupti, compiler) / LIBRARY_NAME
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{LIBRARY_NAME}.", dir=target.parent)
    os.close(descriptor)
    try:
        _compile(cupti, compiler, Path(partial))
        Path(partial).chmod(0o755)
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _sources() -> list[Path]:
    return sorted(path for path in native_folder().rglob("*") if path.suffix in {".c", ".h"})


def _key(cupti: Cupti, compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts = (cupti.api_version, *cupti.includes, *compiler, *_FLAGS, os.uname().machine)
    digest.update("\0".join(map(str, facts)).encode("utf-8", "surrogateescape"))
    return f"cupti{cupti.api_version}-{digest.hexdigest()[:16]}"


def _compile(cupti: Cupti, compiler: tuple[str, ...], output: Path) -> None:
    # The folder of this package comes first: its builtin_types.h stands for the runtime's.
    includes = [native_folder() / "include", *cupti.includes]
    sources = [str(path) for path in _sources() if path.suffix == ".c"]
    flags = [f"-I{folder}" for folder in includes]
    end = run_program([*compiler, *_FLAGS, *flags, *sources, "-o", str(output), "-ldl"], timeout_s=_LIMIT_S)
    if end.succeeded:
        return
    words = (end.err.strip() or end.out.strip() or end.failure or "it says nothing").splitlines()
    shown = "\n".join(words[:_SHOWN_LINES])
    raise CaptureError(
        f"the recorder does not compile ({' '.join(compiler)}, CUPTI {cupti.api_version}):\n{shown}",
        hint="Another compiler can be named by the variable CC, another CUDA toolkit by CUDA_HOME",
    )
