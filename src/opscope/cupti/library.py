"""Finds CUPTI, compiles the recorder's C sources against it, and keeps the library for later runs.

CUPTI comes with the CUDA toolkit, as a wheel of its own (PyTorch's CUDA builds bring it), and inside
Triton's. One of a newer CUDA than the driver supports does not start. A library is kept under a key of all it
is made from; it appears whole or not at all. CUDA loads it where the environment names it. Nothing is linked
to CUPTI: the library loads it in the program, where PyTorch may have it loaded already.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from opscope.errors import CaptureError, DependencyError, InputError
from opscope.ingest.source import natural_order
from opscope.model.files import replacing
from opscope.toolchain.programs import run_program
from opscope.visible_text import first_lines

_API_VERSION = re.compile(r"^\s*#\s*define\s+CUPTI_API_VERSION\s+(\d+)", re.MULTILINE)
# `libcupti.so.13`, `libcupti.so.11.8`: the name programs link to. Not the file it leads to
# (libcupti.so.2025.1.1).
_LIBRARY = re.compile(r"libcupti\.so\.(\d{1,2})(\.\d{1,2})?")
_OLDEST_API_VERSION = 18  # CUDA 11.8
_SYSTEM_ROOTS = ("/usr/local/cuda", "/opt/cuda", "/usr")
_USUAL_TOOLKITS = "/usr/local"  # as cuda-13.0
_INSTALL = (
    "It comes with the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), or: "
    "pip install nvidia-cuda-cupti nvidia-cuda-runtime (for a driver of CUDA 12: "
    "nvidia-cuda-cupti-cu12 nvidia-cuda-runtime-cu12)"
)


@dataclass(frozen=True)
class Cupti:
    includes: tuple[Path, ...]  # with `cupti_activity.h` and `cuda.h`
    library: Path  # `libcupti.so.N`
    api_version: int  # CUPTI_API_VERSION of the headers

    @property
    def cuda_major(self) -> int:
        """Major version of CUDA it belongs to.

        Source: cupti_version.h: MMmmpp since CUDA 13, a number of its own before, 18 to 28 for 11.8 to 12.9;
        18 is also that of 12.0, so the library's name decides there.
        """
        if self.api_version >= 130_000:
            return self.api_version // 10_000
        match = _LIBRARY.fullmatch(self.library.name)
        return int(match[1]) if match else 12


def find_cupti(toolkits: Iterable[Path], packages: Iterable[Path], driver_version: int | None) -> Cupti:
    """The first CUPTI of these toolkits and folders of Python packages that the driver can serve."""
    found = list(installed_cupti(toolkits, packages))
    for one in found:
        if driver_version is None or one.cuda_major <= driver_version // 1000:
            return one
    if found:
        newest = ", ".join(f"{one.library} (CUDA {one.cuda_major})" for one in found)
        raise DependencyError(
            f"CUPTI is installed for a newer CUDA than the driver supports "
            f"({driver_version and driver_version // 1000}): {newest}",
            hint="Update the driver, or install the older CUPTI: pip install nvidia-cuda-cupti-cu12 "
            "nvidia-cuda-runtime-cu12",
        )
    raise DependencyError("CUPTI, CUDA's profiling interface, was not found", hint=_INSTALL)


def installed_cupti(toolkits: Iterable[Path] = (), packages: Iterable[Path] = ()) -> Iterator[Cupti]:
    """Every usable CUPTI of these places and the usual folders, each once."""
    machine, seen = platform.machine(), set[Path]()
    targets = [f"{machine}-linux", *(["sbsa-linux"] if machine == "aarch64" else [])]
    for root in _roots(toolkits, packages):
        parts = [root, *(root / "targets" / name for name in targets)]
        includes = [part / "include" for part in parts]
        include = _folder_with("cupti_activity.h", [*includes, root / "extras" / "CUPTI" / "include"])
        if include is None:
            continue
        # Of wheels for CUDA 12 the runtime's, which has this header, stands beside.
        cuda = _folder_with("cuda.h", [include, *includes, root.parent / "cuda_runtime" / "include"])
        folders = [root / "lib64", *(part / "lib" for part in parts), root / "lib" / f"{machine}-linux-gnu"]
        library = _library([*folders, root / "extras" / "CUPTI" / "lib64", root / "lib" / "cupti"])
        found = None
        with suppress(OSError):
            text = (include / "cupti_version.h").read_text(encoding="utf-8", errors="replace")
            found = _API_VERSION.search(text)
        version = int(found[1]) if found else 0
        if cuda is None or library is None or version < _OLDEST_API_VERSION or library.resolve() in seen:
            continue
        seen.add(library.resolve())
        yield Cupti(tuple(dict.fromkeys((include, cuda))), library, version)


def _roots(toolkits: Iterable[Path], packages: Iterable[Path]) -> Iterator[Path]:
    """Folders that CUPTI may be installed in: toolkits, the wanted one first; wheels, Triton's among them."""
    yield from toolkits
    yield from map(Path, _SYSTEM_ROOTS[:2])
    yield from sorted(Path(_USUAL_TOOLKITS).glob("cuda-*"), key=natural_order, reverse=True)
    yield Path(_SYSTEM_ROOTS[2])
    for folder in packages:
        yield from sorted((folder / "nvidia").glob("cu[0-9]*"), key=natural_order, reverse=True)
        yield from (folder / "nvidia" / "cuda_cupti", folder / "triton" / "backends" / "nvidia")


def _folder_with(header: str, folders: Iterable[Path]) -> Path | None:
    return next((folder for folder in folders if (folder / header).is_file()), None)


def _library(folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        if found := [path for path in folder.glob("libcupti.so.*") if _LIBRARY.fullmatch(path.name)]:
            return max(found, key=natural_order)
    return None


LIBRARY_NAME = "libopscope_trace.so"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILERS = ("cc", "gcc", "clang")
_LIMIT_S = 120.0


def native_folder() -> Path:
    return Path(str(resources.files("opscope.cupti") / "native"))


def find_compiler(configured: str | None, search_path: str | None) -> tuple[str, ...]:
    """The C compiler: the one that is configured as in the variable CC, else the system's."""
    wanted = shlex.split(configured or "")
    for name in wanted[:1] or _COMPILERS:
        if (found := shutil.which(name, path=search_path)) is not None:
            return (found, *wanted[1:])
    named = f" '{wanted[0]}' (of the variable CC)" if wanted else ""
    raise DependencyError(
        f"the C compiler{named} that builds the recorder was not found",
        hint="Install one (apt install gcc, dnf install gcc, conda install gcc) or set CC to yours",
    )


def build_library(cupti: Cupti, compiler: tuple[str, ...], folder: Path) -> Path:
    """The recorder for a CUPTI, compiled unless the folder has it; an OSError if it cannot be written."""
    sources = sorted(path for path in native_folder().rglob("*") if path.suffix in {".c", ".h"})
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts = (cupti.api_version, *cupti.includes, *compiler, *_FLAGS, os.uname().machine)
    digest.update("\0".join(map(str, facts)).encode("utf-8", "surrogateescape"))
    target = folder / f"cupti{cupti.api_version}-{digest.hexdigest()[:16]}" / LIBRARY_NAME
    if target.is_file():
        return target
    # The folder of this package comes first: its builtin_types.h stands for the runtime's.
    flags = [*_FLAGS, *(f"-I{include}" for include in (native_folder() / "include", *cupti.includes))]
    code = [str(path) for path in sources if path.suffix == ".c"]
    with replacing(target, failures=()) as partial:
        end = run_program([*compiler, *flags, *code, "-o", str(partial), "-ldl"], timeout_s=_LIMIT_S)
        if not end.succeeded:
            words = end.err.strip() or end.out.strip() or end.failure or "it says nothing"
            raise CaptureError(
                f"the recorder does not compile ({' '.join(compiler)}, CUPTI {cupti.api_version}):\n"
                f"{first_lines(words.splitlines())}",
                hint="Another compiler can be named by the variable CC, another CUDA toolkit by CUDA_HOME",
            )
        partial.chmod(0o755)
    return target


INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"


def check_program(name: str, search_path: str | None) -> None:
    """Raise an InputError unless there is such a program: a path, or a name to be searched for."""
    if shutil.which(name, path=search_path) is not None:
        return
    path = Path(name)
    if path.is_dir():
        raise InputError("a folder is not a program", source=name)
    if path.is_file() and os.sep not in name:
        raise InputError(f"there is no program '{name}' on PATH", hint=f"A file of this folder is ./{name}")
    if path.is_file():
        raise InputError("the file may not be executed", source=name, hint=f"chmod +x {name}")
    raise InputError(f"there is no program '{name}'", hint="opscope trace -- ./program ARGS")


def trace_environment(
    environment: Mapping[str, str],
    *,
    library: Path,
    cupti: Path,
    folder: Path,
    with_unified_memory: bool,
    most_bytes: int | None = None,
) -> dict[str, str]:
    if other := environment.get(INJECTION_VARIABLE):
        raise CaptureError(
            f"another tool records CUDA programs here ({INJECTION_VARIABLE} is {other})",
            hint=f"CUDA takes one such library: end the other tool, or unset {INJECTION_VARIABLE}",
        )
    return {
        **environment,
        INJECTION_VARIABLE: str(library.absolute()),
        "OPSCOPE_TRACE_FOLDER": str(folder.absolute()),
        "OPSCOPE_TRACE_CUPTI": str(cupti.absolute()),
        "OPSCOPE_TRACE_UNIFIED": "1" if with_unified_memory else "0",
        **({} if most_bytes is None else {"OPSCOPE_TRACE_MOST_BYTES": str(max(1, most_bytes))}),
    }
