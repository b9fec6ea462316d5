"""Python and the packages that belong to one another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opscope.toolchain.doctor.facts import CaptureFacts, Facts, FolderFacts, Pin, ProgramFacts
from opscope.toolchain.doctor.outcome import (
    ALLOW_COUNTERS,
    GpuPresence,
    Outcome,
    gpu_presence,
    install_torch,
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

__all__ = [
    "cache_folders",
    "companion_versions",
    "compiler",
    "counter_access",
    "counter_monitor",
    "cuda_home",
    "cuobjdump_tool",
    "free_space",
    "ncu_tool",
    "ninja",
    "nsys_tool",
    "nvcc",
    "nvcc_host_compiler",
    "nvcc_version",
    "output_folder",
    "probes_answered",
    "profiler_records",
    "profiler_settings",
    "profiler_taken",
    "python_headers",
    "python_version",
    "shared_memory",
    "temporary_folder",
    "triton_single",
    "triton_version",
    "vllm_torch",
]


_LEAST_PYTHON = (3, 10)


def python_version(facts: Facts) -> Outcome:
    """Python too old."""
    version = facts.python.version
    if not numbers(version):
        return unknown("the version of Python is not known")
    if numbers(version) < _LEAST_PYTHON:
        return problem(f"Python {version} is older than 3.10", "conda create -n opscope python=3.12")
    return ok(f"Python {version}")


def python_headers(facts: Facts) -> Outcome:
    """Python.h missing: extensions and Triton's launcher are compiled against it."""
    if facts.python.headers is not None:
        return ok(f"Python.h is in {facts.python.headers}")
    short = ".".join(map(str, numbers(facts.python.version)[:2])) or "3"
    return warning(
        "Python.h is missing: neither extensions nor Triton kernels can be built",
        f"sudo apt-get install python{short}-dev",
    )


def triton_version(facts: Facts) -> Outcome:
    """Triton not the one torch pins."""
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


def triton_single(facts: Facts) -> Outcome:
    """More than one package that provides the module triton."""
    packages = facts.packages.triton_packages
    if not packages:
        return not_applicable("Triton is not installed")
    if len(packages) == 1:
        return ok(f"{packages[0]} {facts.packages.versions.get(packages[0])}")
    return warning(
        f"{' and '.join(packages)} overwrite each other's files",
        f"pip uninstall -y {' '.join(packages)} && pip install --force-reinstall {packages[0]}",
    )


def companion_versions(facts: Facts) -> Outcome:
    """torchvision, torchaudio, xformers or flash-attn made for another torch."""
    return _fits(facts, "torch's companions", exclude="vllm", mends_companion=True)


def vllm_torch(facts: Facts) -> Outcome:
    """The torch that is installed not the one vLLM pins."""
    if facts.packages.versions.get("vllm") is None:
        return not_applicable("vLLM is not installed")
    return _fits(facts, "vLLM", only="vllm")


def _fits(
    facts: Facts,
    what: str,
    *,
    only: str | None = None,
    exclude: str | None = None,
    mends_companion: bool = False,
) -> Outcome:
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


_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_TRACERS = ("nsys", "nsys-launcher", "ncu", "nvprof", "dynolog")
_MONITORS = ("nv-hostengine", "dcgm-exporter", "dcgmproftester")
_DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "CUDA_FORCE_PTX_JIT": "every kernel is compiled by the driver",
}
_OFF = ("", "0")


def profiler_records(facts: Facts) -> Outcome:
    """A recording by torch's profiler in which kernels arrive."""
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    capture = torch.capture
    if capture is None:
        return problem(f"nothing could be recorded: torch {torch.stopped or 'gave no answer'}")
    if capture.error is not None:
        return problem(f"recording fails: {capture.error}", _capture_remedy(facts, capture))
    if not torch.devices:
        if not capture.operator_count:
            return problem("the recording has no operators", install_torch(facts))
        return ok(f"{capture.operator_count} operators recorded on the CPU")
    return _kernels_arrive(facts, capture)


def _kernels_arrive(facts: Facts, capture: CaptureFacts) -> Outcome:
    count = f"{capture.kernels_recorded} of {capture.kernels_launched} kernels"
    said = f" ({capture.messages})" if capture.messages else ""
    if capture.kernels_recorded == 0:
        return problem(
            f"CUPTI delivers no kernels: {count} were recorded{said}", _capture_remedy(facts, capture)
        )
    if capture.kernels_recorded < capture.kernels_launched:
        return warning(f"recordings miss kernels: {count} arrived{said}", _capture_remedy(facts, capture))
    return ok(f"{count} and {capture.operator_count} operators recorded")


def _capture_remedy(facts: Facts, capture: CaptureFacts) -> str:
    taken = [name for name in _INJECTIONS if facts.machine.variables.get(name)]
    if taken:
        return f"unset {' '.join(taken)}"
    if "PRIVILEGES" in capture.messages.upper():
        return ALLOW_COUNTERS
    if capture.activities and not {"CUDA", "XPU"} & set(capture.activities):
        return install_torch(facts)
    return "end other profilers (nsys, ncu, dynolog) on this machine; else update the driver"


def profiler_taken(facts: Facts) -> Outcome:
    """Another tool inside the process or beside it: CUPTI serves one at a time."""
    variables = [name for name in _INJECTIONS if facts.machine.variables.get(name)]
    if variables:
        first = variables[0]
        return warning(
            f"{first}={facts.machine.variables[first]} puts another tool into every CUDA program, and CUPTI "
            "serves one",
            f"unset {' '.join(variables)}",
        )
    running = [name for name in facts.machine.tools_running if name in _TRACERS]
    if running:
        return warning(
            f"{', '.join(running)} runs on this machine and may hold CUPTI", "end it while recording"
        )
    return ok("no other profiler in sight")


def profiler_settings(facts: Facts) -> Outcome:
    """Settings under which times are not those of the program as it usually runs."""
    active = [name for name in _DISTORTING if facts.machine.variables.get(name, "") not in _OFF]
    if not active:
        return ok("no setting that distorts times")
    reasons = "; ".join(f"{name}={facts.machine.variables[name]}: {_DISTORTING[name]}" for name in active)
    return warning(reasons, f"unset {' '.join(active)}")


def counter_access(facts: Facts) -> Outcome:
    """Whether this user may read hardware counters."""
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


def counter_monitor(facts: Facts) -> Outcome:
    """Monitoring that samples hardware counters."""
    running = [name for name in facts.machine.tools_running if name in _MONITORS]
    if not running:
        return ok("no monitor of counters in sight")
    if facts.counters.is_readable:
        return ok(f"{', '.join(running)} runs, and counters can be read")
    return warning(f"{', '.join(running)} runs and may hold the counters", "dcgmi profread --pause")


def nsys_tool(facts: Facts) -> Outcome:
    """Nsight Systems missing."""
    return _tool(
        facts,
        facts.nsys,
        "nsys is missing: opscope trace records CUDA programs without it, opscope stats gives its reports",
        "sudo apt-get install nsight-systems-cli  # or from developer.nvidia.com/nsight-systems",
    )


def ncu_tool(facts: Facts) -> Outcome:
    """Nsight Compute missing."""
    return _tool(
        facts,
        facts.ncu,
        "ncu is missing: hardware counters cannot be read; opscope analyze tells what a trace can",
        "sudo apt-get install nsight-compute  # or from developer.nvidia.com/nsight-compute",
    )


def cuobjdump_tool(facts: Facts) -> Outcome:
    """No program that takes compiled kernels apart."""
    found = facts.cuobjdump
    if found.path is None:
        return warning("cuobjdump is missing: machine code of kernels cannot be shown", "pip install triton")
    return _found(found)


def _tool(facts: Facts, found: ProgramFacts, without: str, remedy: str) -> Outcome:
    if found.path is not None:
        return _found(found)
    without_gpu = (GpuPresence.NONE, GpuPresence.HIDDEN, GpuPresence.ON_HOST)
    if gpu_presence(facts) in without_gpu or is_amd(facts):
        return not_applicable(f"{found.name} is not installed; there is no GPU to use it on")
    return warning(without, remedy)


def _found(found: ProgramFacts) -> Outcome:
    if found.failure is not None:
        return warning(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"{found.name} {found.version}")


_LAST_GCC = re.compile(r"gcc versions later than (\d+)")
_LESS_CLANG = re.compile(r"clang version must be less than (\d+)")
_NVCC_INSTALL = "sudo apt-get install cuda-nvcc-{}  # or conda install -c nvidia cuda-nvcc={}"


def compiler(facts: Facts) -> Outcome:
    """No C++ compiler, or one too old for torch's headers."""
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


def nvcc(facts: Facts) -> Outcome:
    """No nvcc."""
    found = facts.build.nvcc
    if found.path is None:
        wanted = _torch_cuda(facts)
        if wanted is None:
            return not_applicable("nvcc is not installed, and torch is not built for CUDA")
        return warning("nvcc is missing: CUDA extensions cannot be built", _extension_checks_install(wanted))
    if found.failure is not None:
        return problem(f"{found.path} does not answer: {found.failure}", f"{found.path} --version")
    return ok(f"nvcc {found.version} ({found.path})")


def nvcc_version(facts: Facts) -> Outcome:
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
            _extension_checks_install(wanted),
        )
    if ours != theirs:
        return ok(f"nvcc {found} and torch's CUDA {wanted} differ in the minor version only")
    return ok(f"nvcc {found} and torch's CUDA {wanted}")


def nvcc_host_compiler(facts: Facts) -> Outcome:
    """A compiler that nvcc does not take."""
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


def cuda_home(facts: Facts) -> Outcome:
    """A toolkit folder that torch takes for CUDA's and that is none."""
    build = facts.build
    if _torch_cuda(facts) is None:
        return not_applicable("torch is not built for CUDA")
    if build.cuda_home is None:
        return not_applicable("there is no CUDA toolkit")
    named = f"{build.cuda_home} (by {build.cuda_home_from})"
    remedy = (
        f"export CUDA_HOME={build.toolkits[0]}"
        if build.toolkits
        else _extension_checks_install(_torch_cuda(facts) or "")
    )
    if build.nvcc.path is not None and not build.nvcc.path.startswith(f"{build.cuda_home}/"):
        return problem(f"torch takes {named} for the CUDA toolkit, which has no nvcc", remedy)
    if build.has_cuda_headers is False:
        return warning(f"torch takes {named} for the CUDA toolkit, which has no cuda_runtime.h", remedy)
    return ok(f"torch finds the CUDA toolkit in {named}")


def ninja(facts: Facts) -> Outcome:
    """No ninja, which torch builds extensions with."""
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


def _torch_cuda(facts: Facts) -> str | None:
    return facts.torch.cuda if facts.torch is not None else None


def _extension_checks_install(cuda: str) -> str:
    version = major_minor(cuda)
    if version is None:
        return "install the CUDA toolkit: developer.nvidia.com/cuda-downloads"
    return _NVCC_INSTALL.format("-".join(map(str, version)), ".".join(map(str, version)))


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


def output_folder(facts: Facts) -> Outcome:
    """A working folder that no trace can be written to."""
    return _writable(facts, "output", "choose another: cd FOLDER, or --output FOLDER")


def temporary_folder(facts: Facts) -> Outcome:
    """No place for temporary files."""
    return _writable(facts, "temporary", "export TMPDIR=FOLDER")


def cache_folders(facts: Facts) -> Outcome:
    """Caches that cannot be written: all is compiled and indexed again each time."""
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


def free_space(facts: Facts) -> Outcome:
    """Little room for traces and compiled code."""
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
        return problem(f"hardly any room: {reason}", remedy)
    return warning(f"little room: {reason}", remedy)


def shared_memory(facts: Facts) -> Outcome:
    """Little shared memory, through which data loader workers hand over batches."""
    found = next((one for one in facts.folders if one.purpose == SHARED_MEMORY), None)
    if found is None or found.total_bytes is None:
        return not_applicable("there is no /dev/shm")
    if found.total_bytes >= _LITTLE_SHARED_BYTES:
        return ok(_size(found.total_bytes))
    return warning(
        f"/dev/shm has {_size(found.total_bytes)}: workers of a DataLoader may crash",
        "docker run --shm-size=8g …  # or --ipc=host",
    )


def probes_answered(facts: Facts) -> Outcome:
    """Probes that failed: what they would have found is missing above."""
    if not facts.failed_probes:
        return ok("every probe answered")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in facts.failed_probes.items())
    return unknown(f"not found out: {reasons}")


def _writable(facts: Facts, purpose: str, remedy: str) -> Outcome:
    found = next((one for one in facts.folders if one.purpose == purpose), None)
    if found is None or found.is_writable is None:
        return unknown("the folder was not looked at")
    if not found.is_writable:
        return problem(f"no file can be made: {found.failure or found.path}", remedy)
    return ok(found.path)


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
