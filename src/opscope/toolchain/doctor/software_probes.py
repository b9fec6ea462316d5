"""The machine, Python and its packages, folders, NVIDIA's tools, and what extensions are built with.

Nothing is imported to look at it. Compiler and nvcc are tried on a small file each, because versions alone do
not say whether they work together.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import platform
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import Distribution
from pathlib import Path

from opscope.errors import DependencyError
from opscope.model.files import scratch_prefix
from opscope.toolchain.doctor.facts import (
    BuildFacts,
    FolderFacts,
    MachineFacts,
    PackageFacts,
    Pin,
    ProgramFacts,
    PythonFacts,
)
from opscope.toolchain.doctor.surroundings import Surroundings, last_lines
from opscope.toolchain.ncu_command import find_ncu
from opscope.toolchain.nsys import find_nsys
from opscope.toolchain.programs import ProgramExit

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",
    "NSYS_PROFILING_SESSION_ID", "CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT",
    "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "KINETO_USE_DAEMON", "TMPDIR",
)  # fmt: skip
# Programs that hold the profiling interface or the counters of a GPU, by what Linux shows of their names.
_TOOLS = (
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmproftester",
    "nsys",
    "nsys-launcher",
    "ncu",
    "dynolog",
    "nvprof",
)
_CONTAINER_FILES = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
)
_CONTAINER_GROUPS = ("kubepods", "docker", "containerd", "lxc", "libpod")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def probe_machine(surroundings: Surroundings) -> MachineFacts:
    """What the operating system tells."""
    environment = surroundings.environment
    return MachineFacts(
        system=f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        processor=_proc_value(surroundings, "/proc/cpuinfo", "model name"),
        cpu_count=_usable_cpus(),
        memory_bytes=_memory_bytes(surroundings),
        container=_container(surroundings),
        pci_gpu_count=_pci_gpu_count(surroundings),
        variables={name: environment[name] for name in _VARIABLES if name in environment},
        tools_running=tuple(sorted(set(_running(surroundings)))),
    )


def _proc_value(surroundings: Surroundings, path: str, key: str) -> str | None:
    for line in (surroundings.text(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == key:
            return value.strip() or None
    return None


def _usable_cpus() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count()


def _memory_bytes(surroundings: Surroundings) -> int | None:
    words = (_proc_value(surroundings, "/proc/meminfo", "memtotal") or "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _container(surroundings: Surroundings) -> str | None:
    for variable, kind in _CONTAINER_VARIABLES:
        if variable in surroundings.environment:
            return kind
    for path, kind in _CONTAINER_FILES:
        if surroundings.at(path).exists():
            return kind
    groups = surroundings.text("/proc/1/cgroup") or ""
    named = next((name for name in _CONTAINER_GROUPS if name in groups), None)
    return named or surroundings.environment.get("container")


def _pci_gpu_count(surroundings: Surroundings) -> int | None:
    """NVIDIA's display controllers, whether or not a driver serves them; a container shows its host's."""
    bus = surroundings.at("/sys/bus/pci/devices")
    try:
        addresses = [entry.name for entry in bus.iterdir()]
    except OSError:
        return None
    return sum(_is_gpu(surroundings, f"/sys/bus/pci/devices/{address}") for address in addresses)


def _is_gpu(surroundings: Surroundings, device: str) -> bool:
    vendor, kind = (surroundings.text(f"{device}/{name}") or "" for name in ("vendor", "class"))
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY_CLASS)


def _running(surroundings: Surroundings) -> Iterator[str]:
    """Watching tools among the processes this one may see."""
    try:
        entries = [entry.name for entry in surroundings.at("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return
    for entry in entries:
        name = (surroundings.text(f"/proc/{entry}/comm") or "").strip()
        if name in _TOOLS:
            yield name


TRITON_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
_COMPANIONS = ("vllm", "torchvision", "torchaudio", "xformers", "flash-attn")
_SHOWN = (
    "torch", *TRITON_PACKAGES, *_COMPANIONS, "transformers", "numpy", "nvidia-ml-py", "ncu-report",
    "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12",
)  # fmt: skip


def probe_python(surroundings: Surroundings) -> PythonFacts:
    """The interpreter of this process."""
    folder = sysconfig.get_path("include")
    has_headers = folder is not None and (Path(folder) / "Python.h").is_file()
    return PythonFacts(
        version=platform.python_version(),
        implementation=platform.python_implementation(),
        executable=surroundings.python,
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        headers=folder if has_headers else None,
    )


def probe_packages(surroundings: Surroundings) -> PackageFacts:
    """Versions, and what torch and the packages around it require of each other."""
    found = {name: _distribution(surroundings, name) for name in _SHOWN}
    versions = {name: None if one is None else one.version for name, one in found.items()}
    providers = tuple(name for name in TRITON_PACKAGES if versions[name] is not None)
    folder = _torch_folder(surroundings)
    try:
        pins = tuple(_pins(found, versions))
    except ImportError as error:
        return PackageFacts(versions, (), providers, folder, f"package requirements cannot be read ({error})")
    return PackageFacts(versions, pins, providers, folder)


def _distribution(surroundings: Surroundings, name: str) -> Distribution | None:
    path = sys.path if surroundings.package_path is None else list(surroundings.package_path)
    return next(iter(Distribution.discover(name=name, path=path)), None)


def _pins(found: dict[str, Distribution | None], versions: dict[str, str | None]) -> Iterator[Pin]:
    """Requirements of torch on Triton, and of companions on torch and Triton, that apply on this machine."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - 80 ms, only here

    for package in ("torch", *_COMPANIONS):
        distribution = found[package]
        for line in (distribution.requires or []) if distribution is not None else []:
            try:
                one = Requirement(line)
            except InvalidRequirement:
                continue
            name = re.sub(r"[-_.]+", "-", one.name).lower()
            wanted = name in TRITON_PACKAGES or (package != "torch" and name == "torch")
            if not wanted or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
                continue
            installed = versions[name]
            is_met = installed is not None and one.specifier.contains(installed, prereleases=True)
            yield Pin(package, name, str(one.specifier), installed, is_met)


def _torch_folder(surroundings: Surroundings) -> str | None:
    if surroundings.package_path is not None:
        folders = (Path(one) / "torch" for one in surroundings.package_path)
        return next((str(folder) for folder in folders if folder.is_dir()), None)
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # ValueError: a half-loaded module of this name
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None


SHARED_MEMORY = "shared memory"


def probe_folders(surroundings: Surroundings) -> tuple[FolderFacts, ...]:
    """Each folder by its purpose, those first that recording needs."""
    return tuple(_folder(purpose, path) for purpose, path in _folders(surroundings))


def _folders(surroundings: Surroundings) -> Iterator[tuple[str, Path]]:
    environment = surroundings.environment
    temporary = Path(environment.get("TMPDIR") or surroundings.at("/tmp"))
    yield "output", surroundings.folder
    yield "temporary", temporary
    yield "opscope cache", surroundings.cache_folder
    home = Path(environment["HOME"]) if environment.get("HOME") else None
    caches = (
        Path(environment["XDG_CACHE_HOME"]) if environment.get("XDG_CACHE_HOME") else home and home / ".cache"
    )
    # Source: triton/knobs.py, torch/utils/cpp_extension.py, torch/_inductor/runtime/cache_dir_utils.py.
    triton = environment.get("TRITON_CACHE_DIR") or (home and home / ".triton")
    extensions = environment.get("TORCH_EXTENSIONS_DIR") or (caches and caches / "torch_extensions")
    inductor = environment.get("TORCHINDUCTOR_CACHE_DIR") or temporary / f"torchinductor_{_user()}"
    named = (("Triton cache", triton), ("extension cache", extensions), ("compile cache", inductor))
    yield from ((purpose, Path(path)) for purpose, path in named if path is not None)
    shared = surroundings.at("/dev/shm")
    if shared.is_dir():
        yield SHARED_MEMORY, shared


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return "user"


def _folder(purpose: str, path: Path) -> FolderFacts:
    standing = _standing(path)
    failure = _refusal(standing)
    known = FolderFacts(purpose, str(path), standing == path, failure is None, failure=failure)
    try:
        space, number = os.statvfs(standing), standing.stat().st_dev
    except OSError as error:
        return replace(known, failure=failure or f"{standing}: {error.strerror}")
    free, total = (count * space.f_frsize for count in (space.f_bavail, space.f_blocks))
    return replace(known, free_bytes=free, total_bytes=total, file_system=number)


def _standing(path: Path) -> Path:
    """The path, or the nearest above it that is there, whatever it is."""
    return next((one for one in (path, *path.absolute().parents) if os.path.lexists(one)), Path("/"))


def _refusal(folder: Path) -> str | None:
    """Why no file can be made in a folder; None if one could. The file is gone again."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".opscope-doctor-", dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


_VERSION = re.compile(r"(?:version|release)\s+V?(\d+(?:\.\d+)+)", re.IGNORECASE)


def probe_nsys(surroundings: Surroundings) -> ProgramFacts:
    """Nsight Systems, where `opscope nsys` finds it."""
    return describe_program(surroundings, "nsys", _found(find_nsys, surroundings))


def probe_ncu(surroundings: Surroundings) -> ProgramFacts:
    """Nsight Compute, where `opscope ncu` finds it."""
    return describe_program(surroundings, "ncu", _found(find_ncu, surroundings))


def probe_cuobjdump(surroundings: Surroundings) -> ProgramFacts:
    """The disassembler, of a toolkit or of Triton's package."""
    return describe_program(surroundings, "cuobjdump", surroundings.find_cuda_tool("cuobjdump"))


def _found(find: Callable[[str | None], str], surroundings: Surroundings) -> str | None:
    try:
        return find(surroundings.environment.get("PATH", ""))
    except DependencyError:
        return None


def describe_program(
    surroundings: Surroundings, name: str, path: str | None, pattern: re.Pattern[str] = _VERSION
) -> ProgramFacts:
    """Ask a program for its version.

    Args:
        surroundings: Where to run it.
        name: What it is called.
        path: Where it is; None if it was not found.
        pattern: Finds the version in what it prints; the last match counts.
    """
    if path is None:
        return ProgramFacts(name)
    end = surroundings.run(path, "--version")
    versions = pattern.findall(end.out) or pattern.findall(end.err)
    return ProgramFacts(name, path, versions[-1] if versions else None, _failure(end, bool(versions)))


def _failure(end: ProgramExit, has_version: bool) -> str | None:
    if end.succeeded:
        return None if has_version else "prints no version that is known"
    return end.failure or last_lines(end.err or end.out) or f"ended with exit code {end.exit_code}"


_TRY_TIMEOUT_S = 30.0
_DEFAULT_STANDARD = 17
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
    found = surroundings.find_cuda_tool("nvcc", in_packages=False)  # torch does not look there
    nvcc = describe_program(surroundings, "nvcc", found, _RELEASE)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
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
) -> ProgramExit | None:
    if path is None:
        return None
    source = folder / "doctor.cpp"
    source.write_text(_CXX_TRY, encoding="utf-8")
    return surroundings.run(
        path, f"-std=c++{standard}", "-fsyntax-only", str(source), timeout_s=_TRY_TIMEOUT_S
    )


def _try_nvcc(surroundings: Surroundings, path: str | None, folder: Path) -> ProgramExit | None:
    """Preprocess a file: nvcc calls the host compiler, and its headers refuse one that is unknown to them."""
    if path is None:
        return None
    source = folder / "doctor.cu"
    source.write_text(_CUDA_TRY, encoding="utf-8")
    host = surroundings.environment.get("CC")  # torch passes it on
    chosen = ("-ccbin", host.split()[0]) if host else ()
    target = str(folder / "doctor.ii")
    return surroundings.run(path, *chosen, "-E", str(source), "-o", target, timeout_s=_TRY_TIMEOUT_S)


def _message(end: ProgramExit) -> str:
    """Its first line about an error, else its last words."""
    if end.succeeded:
        return ""
    lines = [line.strip() for line in f"{end.err}\n{end.out}".splitlines()]
    told = next((line for line in lines if re.search(r"\berror\b|\bfatal\b|not found", line, re.I)), "")
    return told or end.failure or last_lines(end.err) or f"exit code {end.exit_code}"
