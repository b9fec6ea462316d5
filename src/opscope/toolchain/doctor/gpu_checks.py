"""Whether programs run and are recorded as they should: Python, torch, GPUs, the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opscope.hardware.architectures import Target, parse_target, runs_binary, runs_ptx
from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.facts import (
    CaptureFacts,
    Facts,
    GpuFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.outcome import (
    ALLOW_COUNTERS,
    DoctorOutcome,
    EnvironmentCheck,
    GpuPresence,
    check,
    device_count,
    gpu_presence,
    gpu_signs,
    install_torch,
    is_amd,
    major_minor,
    newer_driver,
    not_applicable,
    numbered_files,
    numbers,
    ok,
    problem,
    unknown,
    visible_devices,
    warning,
)
from opscope.units import counted

GPU_CHECKS: list[EnvironmentCheck] = []
_USED_BYTES = 1024**3
_BUSY_FRACTION = 0.05
_ASK_KERNEL = "nvidia-smi; dmesg | grep -i -e xid -e nvrm"
_GIVE_TO_CONTAINER = "docker run --gpus all …  # with the NVIDIA Container Toolkit on the host"
# What cuInit may answer, and what mends it. Source: CUDA Driver API, CUresult.
_INIT_REMEDIES = (
    ("STUB_LIBRARY", "remove folders that end in /stubs from LD_LIBRARY_PATH"),
    ("SYSTEM_NOT_READY", "sudo systemctl restart nvidia-fabricmanager"),
    ("SYSTEM_DRIVER_MISMATCH", "reboot: the driver's library is newer than the driver that is loaded"),
    ("COMPAT_NOT_SUPPORTED", "remove the folder of cuda-compat from LD_LIBRARY_PATH"),
    ("OPERATING_SYSTEM", "ls -l /dev/nvidia*  # this user must be able to read and write them"),
    ("UNKNOWN", "sudo nvidia-modprobe -u -c=0  # else reboot"),
    ("DEVICE_UNAVAILABLE", "nvidia-smi  # another process holds the GPU for itself"),
)
_LEAST_TORCH = (2, 4)
_ASK_KERNEL_LOG = "dmesg | grep -i -e xid -e nvrm"
_LEAST_PYTHON = (3, 10)
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_TRACERS = ("nsys", "nsys-launcher", "ncu", "nvprof", "dynolog")
_DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "CUDA_FORCE_PTX_JIT": "every kernel is compiled by the driver",
}
_OFF = ("", "0")


@check(GPU_CHECKS, "python.version", "Python new enough", is_required=True)
def _python_version(facts: Facts) -> DoctorOutcome:
    version = facts.python.version
    if not numbers(version):
        return unknown("the version of Python is not known")
    if numbers(version) < _LEAST_PYTHON:
        return problem(f"Python {version} is older than 3.10", "conda create -n opscope python=3.12")
    return ok(f"Python {version}")


@check(GPU_CHECKS, "torch.installed", "torch installed", is_required=True)
def _torch_installed(facts: Facts) -> DoctorOutcome:
    version = facts.packages.versions.get("torch")
    if version is None and facts.torch is None:
        return problem(
            "torch is not installed; traces made elsewhere can be read",
            install_torch(facts, is_replacement=False),
        )
    return ok(f"torch {version or 'is installed'}")


@check(GPU_CHECKS, "torch.import", "torch can be imported", is_required=True)
def _torch_import(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None:
        return _without_torch(facts)
    if torch.import_error is not None:
        return problem(f"import torch fails: {torch.import_error}", install_torch(facts))
    if torch.version is None:
        return problem(f"import torch hangs: it {torch.stopped}", install_torch(facts))
    return ok(f"imported in {torch.import_s:.1f} s" if torch.import_s is not None else "imported")


def _without_torch(facts: Facts) -> DoctorOutcome:
    if facts.packages.versions.get("torch") is None:
        return not_applicable("torch is not installed")
    return unknown(f"torch was not tried: {facts.failed_probes.get('torch', 'no reason is known')}")


@check(GPU_CHECKS, "torch.version", "torch new enough")
def _torch_version(facts: Facts) -> DoctorOutcome:
    version = _version(facts)
    if not numbers(version):
        return not_applicable("torch is not installed")
    if numbers(version)[:2] < _LEAST_TORCH:
        return warning(
            f"torch {version} is older than 2.4, the oldest that opscope is made for", install_torch(facts)
        )
    return ok(f"torch {version}")


def _version(facts: Facts) -> str | None:
    known = facts.packages.versions.get("torch")
    return (facts.torch.version if facts.torch is not None else None) or known


@check(GPU_CHECKS, "torch.build", "torch is a release build")
def _torch_build(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    if torch.is_debug_build:
        return warning(
            "this torch is a debug build: its host times are not those of a release", install_torch(facts)
        )
    return ok("a release build")


@check(GPU_CHECKS, "gpu.reachable", "GPU usable by programs", is_required=True)
def _gpu_reachable(facts: Facts) -> DoctorOutcome:
    presence = gpu_presence(facts)
    if presence is GpuPresence.PRESENT:
        return ok(_names(facts))
    if presence is GpuPresence.NONE:
        return not_applicable("no sign of an NVIDIA GPU; programs are recorded on the CPU")
    if presence is GpuPresence.HIDDEN:
        return not_applicable("CUDA_VISIBLE_DEVICES hides every GPU; programs are recorded on the CPU")
    signs = "; ".join(sign for _, sign in gpu_signs(facts))
    if presence is GpuPresence.ON_HOST:
        return warning(f"this container was given no GPU of its host ({signs})", _GIVE_TO_CONTAINER)
    return _unreachable(facts, signs)


def _unreachable(facts: Facts, signs: str) -> DoctorOutcome:
    driver, container = facts.driver, facts.machine.container
    if any(one.mig_mode and one.mig_instance_count == 0 for one in facts.devices):
        return problem(
            "the GPU is partitioned (MIG) and has no instance",
            "sudo nvidia-smi mig -cgi 0 -C  # or undo it: sudo nvidia-smi -mig 0",
        )
    if container is not None and not numbered_files(facts):
        return problem(f"{signs}, but this container has no device of it", _GIVE_TO_CONTAINER)
    if "driver" in facts.failed_probes:
        return problem(f"{signs}, but the driver: {facts.failed_probes['driver']}", _ASK_KERNEL)
    if driver.library is None:
        reason = driver.library_failure or "libcuda.so.1 was not loaded"
        remedy = (
            _GIVE_TO_CONTAINER
            if container is not None
            else "sudo apt-get install cuda-drivers && sudo reboot"
        )
        return problem(f"{signs}, but there is no CUDA driver: {reason}", remedy)
    if driver.init_error is not None:
        return problem(
            f"{signs}, but CUDA cannot be initialized: {driver.init_error}", _init_remedy(driver.init_error)
        )
    return problem(f"{signs}, but CUDA shows none", "nvidia-smi  # says what the driver itself sees")


def _init_remedy(error: str) -> str:
    found = (remedy for name, remedy in _INIT_REMEDIES if f"CUDA_ERROR_{name}" in error)
    return next(found, _ASK_KERNEL)


def _names(facts: Facts) -> str:
    """Each kind of GPU with its number."""
    names = [one.name for one in visible_devices(facts)]
    if not names:
        shown = facts.driver.devices or (facts.torch.devices if facts.torch is not None else ())
        names = [one.name for one in shown]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


@check(GPU_CHECKS, "gpu.visible", "GPU not hidden")
def _gpu_visible(facts: Facts) -> DoctorOutcome:
    value = facts.machine.variables.get("CUDA_VISIBLE_DEVICES")
    if gpu_presence(facts) is GpuPresence.HIDDEN:
        return warning(f"CUDA_VISIBLE_DEVICES='{value}' hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    count = device_count(facts)
    if count == 0:
        return not_applicable("there is no GPU that CUDA shows")
    hidden = sum(one.is_visible is False for one in facts.devices)
    if hidden:
        why = f"CUDA_VISIBLE_DEVICES='{value}'" if value is not None else "the environment"
        return ok(f"{why} leaves {count} of {len(facts.devices)} GPUs")
    return ok("every GPU of this machine")


@check(GPU_CHECKS, "driver.launch", "kernel launch by the driver alone")
def _driver_launch(facts: Facts) -> DoctorOutcome:
    driver = facts.driver
    if not driver.devices:
        return not_applicable("there is no GPU that CUDA shows")
    if driver.launched:
        return ok(f"a kernel ran on {driver.devices[0].name}")
    return problem(
        f"no kernel runs on {driver.devices[0].name}: {driver.launch_error or 'no reason is known'}",
        _ASK_KERNEL,
    )


@check(GPU_CHECKS, "driver.runtime", "driver new enough for torch's CUDA")
def _driver_runtime(facts: Facts) -> DoctorOutcome:
    torch, driver = facts.torch, facts.driver
    runtime = major_minor(torch.cuda) if torch is not None else None
    if torch is None or torch.cuda is None or runtime is None:
        return not_applicable("no torch that is built for CUDA")
    served = major_minor(driver.cuda_version)
    if served is None:
        if driver.library is None:
            return not_applicable("no CUDA driver")
        return unknown("the driver does not report which CUDA it supports")
    pair = f"the driver supports CUDA {driver.cuda_version}, torch is built for {torch.cuda}"
    if served >= runtime:
        return ok(pair)
    if served[0] == runtime[0]:
        return warning(
            f"{pair}: an older minor version runs its kernels, but does not compile its PTX",
            newer_driver(torch.cuda),
        )
    return problem(
        f"{pair}: the driver is too old", f"{newer_driver(torch.cuda)}; or: {install_torch(facts)}"
    )


@check(GPU_CHECKS, "torch.gpu", "torch uses the GPU", is_required=True)
def _torch_gpu(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    presence = gpu_presence(facts)
    if presence is not GpuPresence.PRESENT:
        return not_applicable("there is no GPU that CUDA shows")
    if torch.cuda is None and torch.hip is None:
        return problem(
            f"there is a GPU, and torch {torch.version} is built without CUDA", install_torch(facts)
        )
    if torch.cuda_error is not None or not torch.is_available:
        return _not_started(facts, torch)
    count = len(torch.devices)
    kind = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
    return ok(f"torch built for {kind} sees {counted(count, 'GPU')}")


def _not_started(facts: Facts, torch: TorchFacts) -> DoctorOutcome:
    if torch.stopped is not None:
        return problem(f"torch cannot initialize CUDA: it {torch.stopped}", _ASK_KERNEL_LOG)
    too_old = _driver_runtime(facts).remedy
    return problem(
        f"torch cannot initialize CUDA: {torch.cuda_error or 'it sees no GPU'}",
        too_old or 'python -c "import torch; torch.cuda.init()"',
    )


@check(GPU_CHECKS, "torch.architectures", "torch built for this GPU")
def _torch_architectures(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None or not torch.architectures or torch.hip is not None:
        return not_applicable("no torch with kernels for CUDA")
    devices = _distinct(torch.devices or facts.driver.devices or ())
    if not devices:
        return not_applicable("there is no GPU that CUDA shows")
    built = " ".join(torch.architectures)
    bare = [one for one in devices if not _runs_on(one, torch.architectures, "sm_", runs_binary)]
    if not bare:
        return ok(f"built for {built}, which covers {_capabilities(devices)}")
    without = [one for one in bare if not _runs_on(one, torch.architectures, "compute_", runs_ptx)]
    if without:
        return problem(
            f"torch is built for {built}; none of it runs on {_capabilities(without)}", install_torch(facts)
        )
    return warning(
        f"torch is built for {built}; for {_capabilities(bare)} the driver compiles each kernel at its first "
        "launch, which takes minutes in all",
        install_torch(facts),
    )


def _distinct(devices: Iterable[CudaDevice]) -> list[CudaDevice]:
    """One of each name and capability."""
    return list({(one.name, one.compute_capability): one for one in devices}.values())


def _capabilities(devices: Iterable[CudaDevice]) -> str:
    return ", ".join(f"{one.name} (sm_{one.compute_capability.replace('.', '')})" for one in devices)


def _runs_on(
    device: CudaDevice, architectures: Iterable[str], prefix: str, runs: Callable[[Target, Target], bool]
) -> bool:
    """Whether one of the architectures of a kind, `sm_` or `compute_`, runs on a device."""
    gpu = parse_target(device.compute_capability)
    codes = (parse_target(one.removeprefix(prefix)) for one in architectures if one.startswith(prefix))
    return gpu is not None and any(code is not None and runs(code, gpu) for code in codes)


@check(GPU_CHECKS, "torch.libraries", "torch uses its own CUDA libraries")
def _library_shadowing(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None or torch.version is None:
        return not_applicable("torch was not imported")
    if not torch.shadowed:
        return (
            ok("torch uses its own CUDA libraries")
            if torch.libraries
            else not_applicable("this torch loads no CUDA libraries")
        )
    loaded, own = torch.shadowed[0]
    more = f" and {len(torch.shadowed) - 1} more" if len(torch.shadowed) > 1 else ""
    return warning(
        f"LD_LIBRARY_PATH makes torch load {loaded}{more} in place of its own {own}", "unset LD_LIBRARY_PATH"
    )


@check(GPU_CHECKS, "gpu.calculation", "calculation on every GPU", is_required=True)
def _gpu_calculation(facts: Facts) -> DoctorOutcome:
    torch = facts.torch
    if torch is None or not torch.devices:
        return not_applicable("torch sees no GPU")
    failed = [one for one in torch.calculations if one.error is not None]
    if failed:
        one = failed[0]
        return problem(
            f"a calculation on cuda:{one.device} fails: {one.error}", _calculation_remedy(facts, one.error)
        )
    if len(torch.calculations) < len(torch.devices):
        return problem(f"a calculation on the GPU hangs: torch {torch.stopped}", _ASK_KERNEL_LOG)
    if torch.product_error is not None:
        remedy = "unset LD_LIBRARY_PATH" if torch.shadowed else install_torch(facts)
        return problem(f"a matrix product fails: {torch.product_error}", remedy)
    if not torch.has_product:
        return problem(f"a matrix product hangs: torch {torch.stopped}", _ASK_KERNEL_LOG)
    return ok(f"right on {len(torch.devices)} of {len(torch.devices)} GPUs, with a kernel and with cuBLAS")


def _calculation_remedy(facts: Facts, error: str | None) -> str:
    text = (error or "").lower()
    if "no kernel image" in text:
        return install_torch(facts)
    if "out of memory" in text or "busy or unavailable" in text:
        return "nvidia-smi  # shows who uses the GPU; end it, or choose another with CUDA_VISIBLE_DEVICES"
    return _ASK_KERNEL_LOG


@check(GPU_CHECKS, "profiler.records", "profiler records", is_required=True)
def _profiler_records(facts: Facts) -> DoctorOutcome:
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


def _kernels_arrive(facts: Facts, capture: CaptureFacts) -> DoctorOutcome:
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


@check(GPU_CHECKS, "profiler.taken", "no other tool holds CUPTI")
def _profiler_taken(facts: Facts) -> DoctorOutcome:
    variables = [name for name in _INJECTIONS if facts.machine.variables.get(name)]
    if variables:
        first = variables[0]
        return warning(
            f"{first}={facts.machine.variables[first]} injects another tool into every CUDA program, and "
            "CUPTI serves only one",
            f"unset {' '.join(variables)}",
        )
    running = [name for name in facts.machine.tools_running if name in _TRACERS]
    if running:
        return warning(
            f"{', '.join(running)} runs on this machine and may hold CUPTI", "end it while recording"
        )
    return ok("no other profiler found")


@check(GPU_CHECKS, "profiler.settings", "no setting distorts times")
def _profiler_settings(facts: Facts) -> DoctorOutcome:
    active = [name for name in _DISTORTING if facts.machine.variables.get(name, "") not in _OFF]
    if not active:
        return ok("no setting that distorts times")
    reasons = "; ".join(f"{name}={facts.machine.variables[name]}: {_DISTORTING[name]}" for name in active)
    return warning(reasons, f"unset {' '.join(active)}")


@check(GPU_CHECKS, "gpu.mig", "GPU not partitioned")
def _gpu_mig(facts: Facts) -> DoctorOutcome:
    devices = visible_devices(facts)
    if not devices:
        return not_applicable("there is no GPU")
    parted = [one for one in devices if one.mig_mode]
    if not parted:
        return ok("no GPU is partitioned")
    one = parted[0]
    if one.mig_instance_count == 0:
        return problem(f"{_title(one)} is partitioned and has no instance", "sudo nvidia-smi mig -cgi 0 -C")
    return warning(
        f"{_title(one)} is partitioned (MIG): a process sees one instance, and limits are those of a slice",
        "sudo nvidia-smi -mig 0  # for the whole GPU",
    )


def _title(device: GpuFacts) -> str:
    return f"GPU {device.index} ({device.name})"


@check(GPU_CHECKS, "gpu.processes", "GPU idle")
def _gpu_processes(facts: Facts) -> DoctorOutcome:
    devices = visible_devices(facts)
    if not devices:
        return not_applicable("there is no GPU")
    others = [text for one in devices for text in _other_work(one)]
    if others:
        return warning(
            f"the GPU is not idle: {'; '.join(others[:4])}",
            "nvidia-smi  # shows who uses it; choose an idle one with CUDA_VISIBLE_DEVICES",
        )
    if is_amd(facts):
        return not_applicable("other work is known for NVIDIA GPUs only")
    if all(one.processes is None and one.memory_used_bytes is None for one in devices):
        return unknown("which processes use the GPU is not known", "pip install 'opscope[nvml]'")
    return ok("no other process, and little memory in use")


def _other_work(device: GpuFacts) -> Iterator[str]:
    for process in device.processes or ():
        yield f"{process.name or 'process'} (pid {process.pid}) on {_title(device)}"
    used = device.memory_used_bytes
    if not device.processes and used is not None and used >= _USED_BYTES:
        yield f"{used / 1024**3:.1f} GiB of {_title(device)} are in use by a process that is not shown"
    busy = device.utilization_fraction
    if busy is not None and busy >= _BUSY_FRACTION:
        yield f"{_title(device)} was busy for {busy:.0%} of the last moment"


@check(GPU_CHECKS, "gpu.compute_mode", "GPU accepts several processes")
def _gpu_compute_mode(facts: Facts) -> DoctorOutcome:
    devices = [one for one in visible_devices(facts) if one.compute_mode is not None]
    if not devices:
        return not_applicable("no GPU reports its compute mode")
    odd = [one for one in devices if one.compute_mode != "default"]
    if not odd:
        return ok("default: any number of processes")
    one = odd[0]
    reason = f"compute mode of {_title(one)} is '{one.compute_mode}'"
    remedy = f"sudo nvidia-smi -i {one.index} -c DEFAULT"
    if one.compute_mode == "prohibited":
        return problem(f"{reason}: no program may use it", remedy)
    return warning(f"{reason}: a second process, as of ncu or nsys, may be refused", remedy)


@check(GPU_CHECKS, "gpu.persistence", "driver stays loaded")
def _gpu_persistence(facts: Facts) -> DoctorOutcome:
    devices = [one for one in visible_devices(facts) if one.persistence_mode is not None]
    if not devices:
        return not_applicable("no GPU reports whether the driver stays loaded")
    if all(one.persistence_mode for one in devices):
        return ok("the driver stays loaded")
    return warning(
        "persistence mode is off: without a program the driver unloads, so that starts take seconds and "
        "clock settings are lost",
        "sudo nvidia-smi -pm 1",
    )


@check(GPU_CHECKS, "gpu.clocks", "clocks not throttled")
def _gpu_clocks(facts: Facts) -> DoctorOutcome:
    devices = visible_devices(facts)
    if not devices:
        return not_applicable("there is no GPU")
    held = [one for one in devices if one.clock_reasons]
    if held:
        one = held[0]
        return warning(
            f"clocks of {_title(one)} are throttled: {', '.join(one.clock_reasons)}", _clock_remedy(one)
        )
    if is_amd(facts):
        return not_applicable("clocks are known for NVIDIA GPUs only")
    if all(one.sm_clock_mhz is None for one in devices):
        return unknown("the clocks are not reported", "pip install 'opscope[nvml]'")
    return ok("nothing throttles the clocks")


def _clock_remedy(device: GpuFacts) -> str:
    words = " ".join(device.clock_reasons)
    if "setting" in words:
        return f"sudo nvidia-smi -i {device.index} -rac -rgc"
    shown = "TEMPERATURE,POWER" if "thermal" in words else "POWER,CLOCK"
    return f"nvidia-smi -i {device.index} -q -d {shown}  # let it cool, or raise its power limit"
