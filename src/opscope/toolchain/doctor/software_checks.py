"""What belongs to one another or helps: packages, NVIDIA's tools, compilers, room on the disks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opscope.toolchain.doctor.facts import (
    Facts,
    FolderFacts,
    Pin,
    ProgramFacts,
)
from opscope.toolchain.doctor.outcome import (
    ALLOW_COUNTERS,
    DoctorOutcome,
    EnvironmentCheck,
    GpuPresence,
    check,
    gpu_presence,
    is_amd,
    major_minor,
    not_applicable,
    numbers,
    ok,
    problem,
    unknown,
    warning,
)
from opscope.toolchain.doctor.software_probes import SHARED_MEMORY

SOFTWARE_CHECKS: list[EnvironmentCheck] = []
_MONITORS = ("nv-hostengine", "dcgm-exporter", "dcgmproftester")
_LAST_GCC = re.compile(r"gcc versions later than (\d+)")
_LESS_CLANG = re.compile(r"clang version must be less than (\d+)")
_NVCC_INSTALL = "sudo apt-get install cuda-nvcc-{}  # or conda install -c nvidia cuda-nvcc={}"
_MIB = 1024**2
_GIB = 1024**3
# A trace of a training step is tens of megabytes, of a long recording a few gigabytes.
_LITTLE_BYTES = 2 * _GIB
_TOO_LITTLE_BYTES = 100 * _MIB
_LITTLE_SHARED_BYTES = _GIB
_VARIABLES = {
    "opscope cache": "XDG_CACHE_HOME",
    "Triton cache": "TRITON_CACHE_DIR",
    "extension cache": "TORCH_EXTENSIONS_DIR",
    "compile cache": "TORCHINDUCTOR_CACHE_DIR",
}


@check(SOFTWARE_CHECKS, "triton.version", "Triton is the one torch pins")
def _triton_version(facts: Facts) -> DoctorOutcome:
    if facts.packages.failure is not None:
        return unknown(facts.packages.failure, "pip install packaging")
    if facts.packages.versions.get("torch") is None:
        return not_applicable("torch is not installed")
    pins = [one for one in facts.packages.pins if one.package == "torch"]
    if not pins:
        return not_applicable("this torch asks for no Triton")
    unmet = [one for one in pins if not one.is_met]
    if not unmet:
        return ok(_met(pins))
    if all(one.installed is None for one in unmet) and gpu_presence(facts) is not GpuPresence.PRESENT:
        return not_applicable(f"{_wish(unmet[0])} is not installed; there is no GPU to use it on")
    return warning(_unmet(unmet) + "; torch.compile may fail", _install(unmet))


def _wish(pin: Pin) -> str:
    return f"{pin.requires}{pin.specifier}"


def _met(pins: Sequence[Pin]) -> str:
    return "; ".join(f"{one.package} asks for {_wish(one)}: {one.installed}" for one in pins)


def _unmet(pins: Sequence[Pin]) -> str:
    return "; ".join(
        f"{one.package} asks for {_wish(one)}, and {one.installed or 'none'} is installed" for one in pins
    )


def _install(pins: Sequence[Pin]) -> str:
    return "pip install " + " ".join(f"'{_wish(one)}'" for one in pins)


@check(SOFTWARE_CHECKS, "triton.single", "one package provides Triton")
def _triton_single(facts: Facts) -> DoctorOutcome:
    packages = facts.packages.triton_packages
    if not packages:
        return not_applicable("Triton is not installed")
    if len(packages) == 1:
        return ok(f"{packages[0]} {facts.packages.versions.get(packages[0])}")
    return warning(
        f"{' and '.join(packages)} overwrite each other's files",
        f"pip uninstall -y {' '.join(packages)} && pip install --force-reinstall {packages[0]}",
    )


@check(SOFTWARE_CHECKS, "packages.companions", "torch's companions fit it")
def _companion_versions(facts: Facts) -> DoctorOutcome:
    return _fits(facts, "torch's companions", exclude="vllm", mends_companion=True)


def _fits(
    facts: Facts,
    what: str,
    *,
    only: str | None = None,
    exclude: str | None = None,
    mends_companion: bool = False,
) -> DoctorOutcome:
    """Whether packages compiled against torch meet the torch that is there."""
    if facts.packages.failure is not None:
        return unknown(facts.packages.failure, "pip install packaging")
    pins = [
        one
        for one in facts.packages.pins
        if one.package not in ("torch", exclude) and only in (None, one.package)
    ]
    if not pins:
        return not_applicable(f"{what} ask for no version of torch")
    unmet = [one for one in pins if not one.is_met]
    if not unmet:
        return ok(_met(pins))
    names = " ".join(dict.fromkeys(one.package for one in unmet))
    remedy = f"pip install --upgrade torch {names}" if mends_companion else _install(unmet)
    return problem(_unmet(unmet), remedy)


@check(SOFTWARE_CHECKS, "vllm.torch", "torch is the one vLLM pins")
def _vllm_torch(facts: Facts) -> DoctorOutcome:
    if facts.packages.versions.get("vllm") is None:
        return not_applicable("vLLM is not installed")
    return _fits(facts, "vLLM", only="vllm")


@check(SOFTWARE_CHECKS, "tools.ncu", "ncu installed")
def _ncu_tool(facts: Facts) -> DoctorOutcome:
    return _tool(
        facts,
        facts.ncu,
        "ncu is missing: hardware counters cannot be read; opscope analyze tells what a trace can",
        "sudo apt-get install nsight-compute  # or from developer.nvidia.com/nsight-compute",
    )


def _tool(facts: Facts, found: ProgramFacts, without: str, remedy: str) -> DoctorOutcome:
    if found.path is not None:
        return _found(found)
    without_gpu = (GpuPresence.NONE, GpuPresence.HIDDEN, GpuPresence.ON_HOST)
    if gpu_presence(facts) in without_gpu or is_amd(facts):
        return not_applicable(f"{found.name} is not installed; there is no GPU to use it on")
    return warning(without, remedy)


def _found(found: ProgramFacts) -> DoctorOutcome:
    if found.failure is not None:
        return warning(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"{found.name} {found.version}")


@check(SOFTWARE_CHECKS, "counters.access", "hardware counters can be read")
def _counter_access(facts: Facts) -> DoctorOutcome:
    counters = facts.counters
    if gpu_presence(facts) is not GpuPresence.PRESENT or is_amd(facts):
        return not_applicable("there is no GPU of NVIDIA that CUDA shows")
    if counters.is_readable:
        return ok("ncu read a counter")
    if counters.is_readable is None:
        return unknown(f"not tried: {counters.failure}; {_setting(facts)}")
    if counters.is_denied:
        return problem(f"the driver does not let this user read counters ({_setting(facts)})", ALLOW_COUNTERS)
    if counters.is_taken:
        return problem("another tool holds the hardware counters", "dcgmi profread --pause")
    return problem(f"ncu reads no counter: {counters.failure}", "use an ncu as new as the driver, or newer")


def _setting(facts: Facts) -> str:
    """What the driver's setting says, which is not what a test says."""
    driver = facts.driver
    if driver.admin_only_counters is None:
        return "the driver's setting is not shown"
    if not driver.admin_only_counters:
        return "the driver's setting allows it to everyone"
    who = {True: "is one", False: "is none", None: "may be one"}[driver.is_admin]
    return f"the driver's setting allows it to administrators, and this process {who}"


@check(SOFTWARE_CHECKS, "counters.monitor", "no monitor holds the counters")
def _counter_monitor(facts: Facts) -> DoctorOutcome:
    running = [name for name in facts.machine.tools_running if name in _MONITORS]
    if not running:
        return ok("no monitor of counters found")
    if facts.counters.is_readable:
        return ok(f"{', '.join(running)} runs, and counters can be read")
    return warning(f"{', '.join(running)} runs and may hold the counters", "dcgmi profread --pause")


@check(SOFTWARE_CHECKS, "tools.nsys", "nsys installed")
def _nsys_tool(facts: Facts) -> DoctorOutcome:
    return _tool(
        facts,
        facts.nsys,
        "nsys is missing: opscope trace records CUDA programs without it, opscope stats gives its reports",
        "sudo apt-get install nsight-systems-cli  # or from developer.nvidia.com/nsight-systems",
    )


@check(SOFTWARE_CHECKS, "tools.cuobjdump", "cuobjdump installed")
def _cuobjdump_tool(facts: Facts) -> DoctorOutcome:
    found = facts.cuobjdump
    if found.path is None:
        return warning("cuobjdump is missing: machine code of kernels cannot be shown", "pip install triton")
    return _found(found)


@check(SOFTWARE_CHECKS, "build.compiler", "C++ compiler for extensions")
def _compiler(facts: Facts) -> DoctorOutcome:
    build = facts.build
    if build.compiler.path is None:
        return warning(
            f"there is no C++ compiler ({build.compiler.name}): neither extensions, nor torch.compile, nor "
            "opscope trace can build what they need",
            "sudo apt-get install g++",
        )
    title = f"{build.compiler_kind or build.compiler.name} {build.compiler.version or '(version not known)'}"
    if build.compiles is False:
        remedy = "sudo apt-get install g++-13 && export CC=gcc-13 CXX=g++-13"
        return problem(f"{title} does not compile C++{build.cxx_standard}: {build.compiler_message}", remedy)
    if build.compiles is None:
        return unknown(f"{title} was not tried")
    return ok(f"{title} compiles C++{build.cxx_standard}")


@check(SOFTWARE_CHECKS, "build.python_headers", "Python's headers")
def _python_headers(facts: Facts) -> DoctorOutcome:
    if facts.python.headers is not None:
        return ok(f"Python.h is in {facts.python.headers}")
    short = ".".join(map(str, numbers(facts.python.version)[:2])) or "3"
    return warning(
        "Python.h is missing: neither extensions nor Triton kernels can be built",
        f"sudo apt-get install python{short}-dev",
    )


@check(SOFTWARE_CHECKS, "build.ninja", "ninja for extensions")
def _ninja(facts: Facts) -> DoctorOutcome:
    found, beside = facts.build.ninja, facts.build.ninja_beside_python
    if found.path is not None and found.failure is None:
        return ok(f"ninja {found.version}")
    if found.path is not None:
        return warning(
            f"{found.path} does not answer: {found.failure}", "pip install --force-reinstall ninja"
        )
    if beside is not None:
        folder = beside.rpartition("/")[0]
        return warning(f"ninja is installed ({beside}), but not on PATH", f"export PATH={folder}:$PATH")
    return warning("ninja is missing: torch.utils.cpp_extension.load cannot build", "pip install ninja")


@check(SOFTWARE_CHECKS, "build.nvcc", "nvcc installed")
def _nvcc(facts: Facts) -> DoctorOutcome:
    found = facts.build.nvcc
    if found.path is None:
        wanted = _torch_cuda(facts)
        if wanted is None:
            return not_applicable("nvcc is not installed, and torch is not built for CUDA")
        return warning("nvcc is missing: CUDA extensions cannot be built", _install_nvcc(wanted))
    if found.failure is not None:
        return problem(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"nvcc {found.version} ({found.path})")


def _torch_cuda(facts: Facts) -> str | None:
    return facts.torch.cuda if facts.torch is not None else None


def _install_nvcc(cuda: str) -> str:
    version = major_minor(cuda)
    if version is None:
        return "install the CUDA toolkit: developer.nvidia.com/cuda-downloads"
    return _NVCC_INSTALL.format("-".join(map(str, version)), ".".join(map(str, version)))


@check(SOFTWARE_CHECKS, "build.nvcc_version", "nvcc fits torch's CUDA")
def _nvcc_version(facts: Facts) -> DoctorOutcome:
    """An nvcc of another CUDA than torch's.

    Source: torch/utils/cpp_extension.py, _check_cuda_version: another major version is an error, another
    minor one a warning that says it is most likely no problem.
    """
    wanted, found = _torch_cuda(facts), facts.build.nvcc.version
    ours, theirs = major_minor(found), major_minor(wanted)
    if wanted is None or theirs is None:
        return not_applicable("torch is not built for CUDA")
    if ours is None:
        return not_applicable("there is no nvcc")
    if ours[0] != theirs[0]:
        age = "newer" if ours > theirs else "older"
        return problem(
            f"nvcc {found} is {age} than the CUDA {wanted} of torch, which refuses to build with it",
            _install_nvcc(wanted),
        )
    if ours != theirs:
        return ok(f"nvcc {found} and torch's CUDA {wanted} differ in the minor version only")
    return ok(f"nvcc {found} and torch's CUDA {wanted}")


@check(SOFTWARE_CHECKS, "build.nvcc_host", "nvcc takes the compiler")
def _nvcc_host_compiler(facts: Facts) -> DoctorOutcome:
    build = facts.build
    if build.nvcc.path is None:
        return not_applicable("there is no nvcc")
    if build.nvcc_starts is None:
        return unknown("nvcc was not tried")
    if build.nvcc_starts:
        return ok("nvcc works with the host compiler")
    return problem(f"nvcc does not work with the host compiler: {build.nvcc_message}", _host_remedy(facts))


def _host_remedy(facts: Facts) -> str:
    message = facts.build.nvcc_message
    gcc, clang = _LAST_GCC.search(message), _LESS_CLANG.search(message)
    if gcc is not None:
        return (
            f"sudo apt-get install g++-{gcc.group(1)} && export CC=gcc-{gcc.group(1)} CXX=g++-{gcc.group(1)}"
        )
    if clang is not None:
        version = int(clang.group(1)) - 1
        return f"sudo apt-get install clang-{version} && export CC=clang-{version} CXX=clang++-{version}"
    return "sudo apt-get install g++" if facts.build.compiler.path is None else "unset CC NVCC_CCBIN"


@check(SOFTWARE_CHECKS, "build.cuda_home", "torch finds the CUDA toolkit")
def _cuda_home(facts: Facts) -> DoctorOutcome:
    build = facts.build
    if _torch_cuda(facts) is None:
        return not_applicable("torch is not built for CUDA")
    if build.cuda_home is None:
        return not_applicable("there is no CUDA toolkit")
    named = f"{build.cuda_home} (by {build.cuda_home_from})"
    remedy = (
        f"export CUDA_HOME={build.toolkits[0]}" if build.toolkits else _install_nvcc(_torch_cuda(facts) or "")
    )
    if build.nvcc.path is not None and not build.nvcc.path.startswith(f"{build.cuda_home}/"):
        return problem(f"torch takes {named} for the CUDA toolkit, which has no nvcc", remedy)
    if build.has_cuda_headers is False:
        return warning(f"torch takes {named} for the CUDA toolkit, which has no cuda_runtime.h", remedy)
    return ok(f"torch finds the CUDA toolkit in {named}")


@check(SOFTWARE_CHECKS, "folders.output", "working folder writable")
def _output_folder(facts: Facts) -> DoctorOutcome:
    return _writable(facts, "output", "choose another: cd FOLDER, or --output FOLDER")


def _writable(facts: Facts, purpose: str, remedy: str) -> DoctorOutcome:
    found = next((one for one in facts.folders if one.purpose == purpose), None)
    if found is None or found.is_writable is None:
        return unknown("the folder was not looked at")
    if not found.is_writable:
        return problem(f"no file can be made: {found.failure or found.path}", remedy)
    return ok(found.path)


@check(SOFTWARE_CHECKS, "folders.temporary", "temporary folder writable", is_required=True)
def _temporary_folder(facts: Facts) -> DoctorOutcome:
    return _writable(facts, "temporary", "export TMPDIR=FOLDER")


@check(SOFTWARE_CHECKS, "folders.caches", "caches writable")
def _cache_folders(facts: Facts) -> DoctorOutcome:
    caches = [one for one in facts.folders if one.purpose in _VARIABLES]
    if not caches:
        return unknown("the folders were not looked at")
    refused = [one for one in caches if one.is_writable is False]
    if not refused:
        return ok("all caches can be written")
    names = ", ".join(f"{one.purpose} ({one.failure or one.path})" for one in refused)
    return warning(
        f"not writable: {names}",
        "export " + " ".join(f"{_VARIABLES[one.purpose]}=FOLDER" for one in refused),
    )


@check(SOFTWARE_CHECKS, "folders.space", "space on the disks")
def _free_space(facts: Facts) -> DoctorOutcome:
    known = [one for one in facts.folders if one.free_bytes is not None and one.purpose != SHARED_MEMORY]
    if not known:
        return unknown("the free space is not known")
    little = [one for one in known if (one.free_bytes or 0) < _LITTLE_BYTES]
    if not little:
        least = min(known, key=lambda one: one.free_bytes or 0)
        return ok(f"{_size(least.free_bytes)} or more")
    reason = "; ".join(f"{_size(one.free_bytes)} for {one.purpose} ({one.path})" for one in _by_place(little))
    remedy = f"df -h {' '.join(one.path for one in _by_place(little))}  # make room, or choose another disk"
    too_little = [one for one in little if (one.free_bytes or 0) < _TOO_LITTLE_BYTES]
    if any(one.purpose in ("output", "temporary") for one in too_little):
        return problem(f"almost no space: {reason}", remedy)
    return warning(f"little space: {reason}", remedy)


def _by_place(folders: Iterable[FolderFacts]) -> list[FolderFacts]:
    """The first folder of each file system."""
    by_system: dict[object, FolderFacts] = {}
    for one in folders:
        by_system.setdefault(one.path if one.file_system is None else one.file_system, one)
    return list(by_system.values())


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "–"
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.0f} MiB"


@check(SOFTWARE_CHECKS, "folders.shared_memory", "space in shared memory")
def _shared_memory(facts: Facts) -> DoctorOutcome:
    found = next((one for one in facts.folders if one.purpose == SHARED_MEMORY), None)
    if found is None or found.total_bytes is None:
        return not_applicable("there is no /dev/shm")
    if found.total_bytes >= _LITTLE_SHARED_BYTES:
        return ok(_size(found.total_bytes))
    return warning(
        f"/dev/shm has {_size(found.total_bytes)}: workers of a DataLoader may crash",
        "docker run --shm-size=8g …  # or --ipc=host",
    )


@check(SOFTWARE_CHECKS, "doctor.probes", "all answered")
def _probes_answered(facts: Facts) -> DoctorOutcome:
    if not facts.failed_probes:
        return ok("every probe answered")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in facts.failed_probes.items())
    return unknown(f"no answer: {reasons}")
