"""What C++ and CUDA extensions are built with: compiler, nvcc, toolkit folder, ninja.

Compiler and nvcc are tried on a small file each, because versions alone do not say whether they work
together.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opscope.toolchain.doctor.facts import BuildFacts, ProgramFacts
from opscope.toolchain.doctor.probes.surroundings import Surroundings, last_lines
from opscope.toolchain.doctor.probes.tools import describe_program
from opscope.toolchain.programs import ProgramEnd

__all__ = ["probe_build"]

_TRY_TIMEOUT_S = 30.0
_DEFAULT_STANDARD = 17
_NVCC_PLACES = ("/usr/local/cuda/bin/nvcc", "/usr/local/cuda-*/bin/nvcc")
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)")
_COMPILER_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_STANDARD_FLAG = re.compile(r"append\('-std=c\+\+(\d\d)'\)")
_CXX_TRY = "#include <type_traits>\n#include <string>\nstatic_assert(std::is_same_v<int, int>);\n"
_CUDA_TRY = "#include <cuda_runtime.h>\n"


@dataclass(frozen=True)
class _CudaHome:
    path: Path | None
    named_by: str | None


def probe_build(surroundings: Surroundings, torch_folder: str | None) -> BuildFacts:
    """The programs, and whether they do their work.

    Args:
        surroundings: Where to look.
        torch_folder: The installed torch, whose extensions are meant; None if there is none.
    """
    home = _cuda_home(surroundings)
    standard = _cxx_standard(torch_folder)
    compiler, kind = _compiler(surroundings)
    nvcc = describe_program(surroundings, "nvcc", _nvcc(surroundings, home), _RELEASE)
    with tempfile.TemporaryDirectory(prefix="opscope-doctor-") as folder:
        compiles = _try_compiler(surroundings, compiler.path, standard, Path(folder))
        starts = _try_nvcc(surroundings, nvcc.path, Path(folder))
    beside = Path(surroundings.python).with_name("ninja")
    return BuildFacts(
        nvcc=nvcc,
        compiler=compiler,
        ninja=describe_program(surroundings, "ninja", surroundings.find("ninja"), _COMPILER_VERSION),
        cuda_home=None if home.path is None else str(home.path),
        cuda_home_from=home.named_by,
        has_cuda_headers=None if home.path is None else (home.path / "include" / "cuda_runtime.h").is_file(),
        toolkits=_toolkits(surroundings),
        nvcc_starts=None if starts is None else starts.succeeded,
        nvcc_message="" if starts is None else _message(starts),
        compiler_kind=kind,
        cxx_standard=standard,
        compiles=None if compiles is None else compiles.succeeded,
        compiler_message="" if compiles is None else _message(compiles),
        ninja_beside_python=str(beside) if beside.is_file() else None,
    )


def _cuda_home(surroundings: Surroundings) -> _CudaHome:
    """The toolkit's folder by the rule of torch.

    Source: torch/utils/cpp_extension.py, _find_cuda_home: CUDA_HOME, CUDA_PATH, the folder above the one nvcc
    is found in, /usr/local/cuda.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        value = surroundings.environment.get(variable)
        if value:
            return _CudaHome(Path(value), variable)
    nvcc = surroundings.find("nvcc")
    if nvcc is not None:
        return _CudaHome(Path(nvcc).parent.parent, f"nvcc on PATH ({nvcc})")
    usual = surroundings.at("/usr/local/cuda")
    return _CudaHome(usual, str(usual)) if usual.exists() else _CudaHome(None, None)


def _toolkits(surroundings: Surroundings) -> tuple[str, ...]:
    """Folders under /usr/local that hold a toolkit's headers; `cuda`, the chosen one, before `cuda-13.0`."""
    headers = surroundings.at("/usr/local").glob("cuda*/include/cuda_runtime.h")
    folders = sorted(
        (one.parent.parent for one in headers), key=lambda one: _version_key(one.name), reverse=True
    )
    return tuple(map(str, folders))


def _version_key(name: str) -> tuple[float, ...]:
    numbers = tuple(float(one) for one in re.findall(r"\d+", name))
    return numbers or (float("inf"),)


def _nvcc(surroundings: Surroundings, home: _CudaHome) -> str | None:
    """The nvcc of that folder, else any that opscope itself would use."""
    in_home = None if home.path is None else surroundings.find_in(str(home.path / "bin"), "nvcc")
    return in_home or surroundings.find("nvcc", _NVCC_PLACES)


def _compiler(surroundings: Surroundings) -> tuple[ProgramFacts, str | None]:
    """The C++ compiler that torch takes: $CXX, else c++; and its kind."""
    name = (surroundings.environment.get("CXX") or "c++").split()[0]
    path = surroundings.find(name)
    if path is None:
        return ProgramFacts(name), None
    end = surroundings.run(path, "--version")
    first = next(iter(end.out.splitlines()), "")
    versions = _COMPILER_VERSION.findall(first)
    is_clang = "clang" in first
    # Behind its version clang tells its package's, before it GCC does.
    version = versions[0 if is_clang else -1] if versions else None
    failure = None if version else end.failure or last_lines(end.err) or "prints no version that is known"
    kind = "clang" if is_clang else "gcc" if re.search(r"\bGCC\b|\bg\+\+|\bgcc\b|\bc\+\+", first) else None
    return ProgramFacts(name, path, version, failure), kind


def _cxx_standard(torch_folder: str | None) -> int:
    """The C++ standard that torch compiles extensions with, as its own source says."""
    if torch_folder is None:
        return _DEFAULT_STANDARD
    try:
        source = (Path(torch_folder) / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return _DEFAULT_STANDARD
    found = _STANDARD_FLAG.search(source)
    return int(found.group(1)) if found else _DEFAULT_STANDARD


def _try_compiler(
    surroundings: Surroundings, path: str | None, standard: int, folder: Path
) -> ProgramEnd | None:
    if path is None:
        return None
    source = folder / "doctor.cpp"
    source.write_text(_CXX_TRY, encoding="utf-8")
    return surroundings.run(
        path, f"-std=c++{standard}", "-fsyntax-only", str(source), timeout_s=_TRY_TIMEOUT_S
    )


def _try_nvcc(surroundings: Surroundings, path: str | None, folder: Path) -> ProgramEnd | None:
    """Preprocess a file: nvcc calls the host compiler, and its headers refuse one that is unknown to them."""
    if path is None:
        return None
    source = folder / "doctor.cu"
    source.write_text(_CUDA_TRY, encoding="utf-8")
    host = surroundings.environment.get("CC")  # torch passes it on
    chosen = ("-ccbin", host.split()[0]) if host else ()
    target = str(folder / "doctor.ii")
    return surroundings.run(path, *chosen, "-E", str(source), "-o", target, timeout_s=_TRY_TIMEOUT_S)


def _message(end: ProgramEnd) -> str:
    """Its first line about an error, else its last words."""
    if end.succeeded:
        return ""
    lines = [line.strip() for line in f"{end.err}\n{end.out}".splitlines()]
    told = next((line for line in lines if re.search(r"\berror\b|\bfatal\b|not found", line, re.I)), "")
    return told or end.failure or last_lines(end.err) or f"exit code {end.exit_code}"
