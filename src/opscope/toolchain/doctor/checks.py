"""The checks in the order of a report, and what they say of a machine together."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from opscope.model.notebook import Shown
from opscope.text_enum import TextEnum
from opscope.toolchain.doctor.machine import ExaminedMachine, Torch
from opscope.units import counted


class CheckVerdict(TextEnum):
    """How something stands.

    PROBLEM: what is there does not work. WARNING: it works, but something optional is missing or results may
    be off. UNKNOWN: it could not be found out. NOT_APPLICABLE: there is nothing here it could be said of.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


class DoctorOutcome(NamedTuple):
    """A verdict with its reason, and what mends it: a command, or words where there is none."""

    verdict: CheckVerdict
    reason: str
    remedy: str | None = None


ok = partial(DoctorOutcome, CheckVerdict.OK)
warning = partial(DoctorOutcome, CheckVerdict.WARNING)
problem = partial(DoctorOutcome, CheckVerdict.PROBLEM)
unknown = partial(DoctorOutcome, CheckVerdict.UNKNOWN)
not_applicable = partial(DoctorOutcome, CheckVerdict.NOT_APPLICABLE)

Answer = Callable[[ExaminedMachine], DoctorOutcome]


class EnvironmentCheck(NamedTuple):
    """One question about a machine; a problem of a required one means that nothing can be profiled."""

    code: str
    question: str
    answer: Answer
    is_required: bool


class CheckResult(NamedTuple):
    check: EnvironmentCheck
    outcome: DoctorOutcome


@dataclass(frozen=True)
class Diagnosis(Shown):
    """What all checks say of a machine."""

    facts: dict[str, Any]  # what was found out for them, by the name of the machine's property
    results: tuple[CheckResult, ...]  # in the order of CHECKS

    @property
    def can_profile(self) -> bool:
        """Whether programs can be profiled here: no required check found a problem."""
        return not any(
            one.check.is_required and one.outcome.verdict is CheckVerdict.PROBLEM for one in self.results
        )

    @property
    def verdict(self) -> CheckVerdict:
        """PROBLEM if programs cannot be profiled, WARNING if anything else stands badly, OK otherwise."""
        if not self.can_profile:
            return CheckVerdict.PROBLEM
        found = {one.outcome.verdict for one in self.results}
        is_bad = not found.isdisjoint({CheckVerdict.PROBLEM, CheckVerdict.WARNING})
        return CheckVerdict.WARNING if is_bad else CheckVerdict.OK


CHECKS: list[EnvironmentCheck] = []


def check(code: str, question: str, *, is_required: bool = False) -> Callable[[Answer], Answer]:
    """Makes a function the next check."""

    def add(answer: Answer) -> Answer:
        CHECKS.append(EnvironmentCheck(code, question, answer, is_required))
        return answer

    return add


def diagnose(machine: ExaminedMachine) -> Diagnosis:
    """The outcome of every check. What may hang is a program that the machine ends at a time limit."""
    results = []
    for one in CHECKS:
        try:
            outcome = one.answer(machine)
        except Exception as error:  # noqa: BLE001 - a check's own defect must not hide the others
            outcome = unknown(f"the check itself failed: {type(error).__name__}: {error}")
        results.append(CheckResult(one, outcome))
    # These are shown, and judged by no check.
    for name in ("machine", "packages", "nvcc", "nsys", "cuobjdump"):
        with suppress(Exception):
            getattr(machine, name)
    facts = {name: found for name, found in vars(machine).items() if name not in _GIVEN}
    return Diagnosis(facts, tuple(results))


_GIVEN = ("environment", "python", "root")


_ASK_KERNEL_LOG = "dmesg | grep -i -e xid -e nvrm"
_GIVE_TO_CONTAINER = "docker run --gpus all …  # with the NVIDIA Container Toolkit on the host"
_ALLOW_COUNTERS = (
    "run it as root (in a container with --cap-add SYS_ADMIN), or: "
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf, then reload the driver or reboot"
)
# What cuInit may answer, and what mends it. Source: CUDA Driver API, CUresult.
_INIT_REMEDIES = {
    "CUDA_ERROR_STUB_LIBRARY": "remove folders that end in /stubs from LD_LIBRARY_PATH",
    "CUDA_ERROR_SYSTEM_NOT_READY": "sudo systemctl restart nvidia-fabricmanager",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "reboot: the driver's library is newer than the driver that is loaded"
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED": "remove the folder of cuda-compat from LD_LIBRARY_PATH",
    "CUDA_ERROR_OPERATING_SYSTEM": "ls -l /dev/nvidia*  # this user must be able to read and write them",
    "CUDA_ERROR_UNKNOWN": "sudo nvidia-modprobe -u -c=0  # else reboot",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "nvidia-smi  # another process holds the GPU for itself",
}
_INSTALL_TORCH = "pip install torch"
_REINSTALL_TORCH = "pip install --force-reinstall torch  # the build for this driver: https://pytorch.org/get-started/locally"
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "CUDA_FORCE_PTX_JIT": "every kernel is compiled by the driver",
}
_NO_TORCH = not_applicable("torch was not imported")
_NO_GPU = not_applicable("there is no GPU that CUDA shows")


def _imported(machine: ExaminedMachine) -> Torch | None:
    torch = machine.torch
    return torch if torch is not None and torch.version is not None else None


def _is_amd(machine: ExaminedMachine) -> bool:
    torch = machine.torch
    return torch is not None and torch.hip is not None and not machine.driver.devices


@check("torch.import", "torch can be imported", is_required=True)
def _torch_import(machine: ExaminedMachine) -> DoctorOutcome:
    torch = machine.torch
    if torch is None:
        return problem("torch is not installed; traces made elsewhere can be read", _INSTALL_TORCH)
    if torch.import_error is not None:
        return problem(f"import torch fails: {torch.import_error}", _REINSTALL_TORCH)
    if torch.version is None:
        return problem(f"import torch hangs: it {torch.stopped}", _REINSTALL_TORCH)
    return ok(f"imported in {torch.import_s:.1f} s" if torch.import_s is not None else "imported")


def _hides_all(value: str | None) -> bool:
    """Whether a CUDA_VISIBLE_DEVICES names no device.

    Source: CUDA Programming Guide, CUDA environment variables: devices up to the first invalid one are shown.
    """
    first = (value or "").split(",")[0].strip()
    return value is not None and not (first.isdigit() or first.upper().startswith(("GPU-", "MIG-")))


@check("gpu.reachable", "GPU usable by programs", is_required=True)
def _gpu_reachable(machine: ExaminedMachine) -> DoctorOutcome:
    driver, container = machine.driver, machine.machine.container
    if machine.devices:
        names = [one.device.name for one in machine.devices]
        return ok(", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)))
    files = [f"/dev/{name} exists" for name in driver.device_files if re.fullmatch(r"nvidia\d+|dxg", name)]
    # In a container these two tell of its host.
    loaded = [f"NVIDIA's driver {driver.version} is loaded"] if driver.version is not None else []
    if (count := machine.machine.pci_gpu_count) and not files:
        loaded.append(f"the PCI bus has {counted(count, 'GPU')} of NVIDIA")
    if not files and not loaded:
        return not_applicable("no sign of an NVIDIA GPU; programs are recorded on the CPU")
    value = machine.machine.variables.get("CUDA_VISIBLE_DEVICES")
    if _hides_all(value):
        return warning(f"CUDA_VISIBLE_DEVICES='{value}' hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    signs = "; ".join(files[:1] + loaded)
    if container is not None and not files:
        return warning(f"this container was given no GPU of its host ({signs})", _GIVE_TO_CONTAINER)
    if driver.library is None:
        reason = driver.library_failure or "libcuda.so.1 was not loaded"
        install = "sudo apt-get install cuda-drivers && sudo reboot"
        remedy = install if container is None else _GIVE_TO_CONTAINER
        return problem(f"{signs}, but there is no CUDA driver: {reason}", remedy)
    if driver.init_error is not None:
        remedies = (remedy for name, remedy in _INIT_REMEDIES.items() if name in driver.init_error)
        return problem(
            f"{signs}, but CUDA cannot be initialized: {driver.init_error}",
            next(remedies, f"nvidia-smi; {_ASK_KERNEL_LOG}"),
        )
    return problem(f"{signs}, but CUDA shows none", "nvidia-smi  # says what the driver itself sees")


@check("torch.gpu", "torch uses the GPU", is_required=True)
def _torch_gpu(machine: ExaminedMachine) -> DoctorOutcome:
    torch = _imported(machine)
    if torch is None:
        return _NO_TORCH
    if not machine.devices:
        return _NO_GPU
    if torch.cuda is None and torch.hip is None:
        return problem(f"there is a GPU, and torch {torch.version} is built without CUDA", _REINSTALL_TORCH)
    if torch.cuda_error is None and torch.is_available:
        kind = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
        return ok(f"torch built for {kind} sees {counted(len(torch.devices), 'GPU')}")
    if torch.stopped is not None:
        return problem(f"torch cannot initialize CUDA: it {torch.stopped}", _ASK_KERNEL_LOG)
    return problem(
        f"torch cannot initialize CUDA: {torch.cuda_error or 'it sees no GPU'}",
        f"update NVIDIA's driver; or: {_REINSTALL_TORCH}",
    )


@check("gpu.calculation", "calculation on every GPU", is_required=True)
def _gpu_calculation(machine: ExaminedMachine) -> DoctorOutcome:
    torch = machine.torch
    if torch is None or not torch.devices:
        return not_applicable("torch sees no GPU")
    if torch.calculation_error:
        text = torch.calculation_error.lower()
        remedy = _ASK_KERNEL_LOG
        if "matrix product" in text and machine.machine.variables.get("LD_LIBRARY_PATH"):
            remedy = "unset LD_LIBRARY_PATH  # torch brings its own libraries"
        elif "matrix product" in text or "no kernel image" in text:
            remedy = _REINSTALL_TORCH
        elif "out of memory" in text or "busy or unavailable" in text:
            remedy = (
                "nvidia-smi  # shows who uses the GPU; end it, or choose another with CUDA_VISIBLE_DEVICES"
            )
        return problem(torch.calculation_error, remedy)
    if not torch.has_calculated:
        return problem(f"a calculation on the GPU hangs: torch {torch.stopped}", _ASK_KERNEL_LOG)
    return ok(f"right on {len(torch.devices)} of {len(torch.devices)} GPUs, with a kernel and with cuBLAS")


@check("profiler.records", "profiler records", is_required=True)
def _profiler_records(machine: ExaminedMachine) -> DoctorOutcome:
    torch = _imported(machine)
    if torch is None:
        return _NO_TORCH
    capture = torch.capture
    if capture is None:
        return problem(f"nothing could be recorded: torch {torch.stopped or 'gave no answer'}")
    taken = [name for name in _INJECTIONS if machine.machine.variables.get(name)]
    if taken:
        remedy = f"unset {' '.join(taken)}"
    elif "PRIVILEGES" in capture.messages.upper():
        remedy = _ALLOW_COUNTERS
    elif capture.activities and not {"CUDA", "XPU"} & set(capture.activities):
        remedy = _REINSTALL_TORCH
    else:
        remedy = "end other profilers (nsys, ncu, dynolog) on this machine; else update the driver"
    if capture.error is not None:
        return problem(f"recording fails: {capture.error}", remedy)
    if not torch.devices:
        if not capture.operator_count:
            return problem("the recording has no operators", _REINSTALL_TORCH)
        return ok(f"{capture.operator_count} operators recorded on the CPU")
    count = f"{capture.kernels_recorded} of {capture.kernels_launched} kernels"
    said = f" ({capture.messages})" if capture.messages else ""
    if capture.kernels_recorded == 0:
        return problem(f"CUPTI delivers no kernels: {count} were recorded{said}", remedy)
    if capture.kernels_recorded < capture.kernels_launched:
        return warning(f"recordings miss kernels: {count} arrived{said}", remedy)
    return ok(f"{count} and {capture.operator_count} operators recorded")


@check("profiler.settings", "no setting distorts times")
def _profiler_settings(machine: ExaminedMachine) -> DoctorOutcome:
    variables = machine.machine.variables
    active = [name for name in _DISTORTING if variables.get(name, "") not in ("", "0")]
    if not active:
        return ok("no setting that distorts times")
    reasons = "; ".join(f"{name}={variables[name]}: {_DISTORTING[name]}" for name in active)
    return warning(reasons, f"unset {' '.join(active)}")


@check("gpu.processes", "GPU idle")
def _gpu_processes(machine: ExaminedMachine) -> DoctorOutcome:
    if not machine.devices:
        return not_applicable("there is no GPU")
    others = []
    for one in machine.devices:
        title = f"GPU {one.device.index} ({one.device.name})"
        others += [f"{process} on {title}" for process in one.processes or ()]
        used, busy = one.memory_used_bytes or 0, one.utilization_fraction or 0
        if not one.processes and used >= 1024**3:
            others.append(f"{used / 1024**3:.1f} GiB of {title} are in use by a process that is not shown")
        if busy >= 0.05:
            others.append(f"{title} was busy for {busy:.0%} of the last moment")
    if others:
        return warning(
            f"the GPU is not idle: {'; '.join(others[:4])}",
            "nvidia-smi  # shows who uses it; choose an idle one with CUDA_VISIBLE_DEVICES",
        )
    if _is_amd(machine):
        return not_applicable("other work is known for NVIDIA GPUs only")
    if all(one.processes is None for one in machine.devices):
        return unknown("which processes use the GPU is not known", "nvidia-smi -q  # says what it knows")
    return ok("no other process, and little memory in use")


@check("counters.access", "hardware counters can be read")
def _counter_access(machine: ExaminedMachine) -> DoctorOutcome:
    if not machine.devices or _is_amd(machine):
        return not_applicable("there is no GPU of NVIDIA that CUDA shows")
    counters = machine.counters
    if counters.is_readable:
        return ok("ncu read a counter")
    if machine.ncu.path is None:
        return warning(
            "ncu is missing: hardware counters cannot be read; opscope analyze shows what a trace holds",
            "sudo apt-get install nsight-compute  # or from developer.nvidia.com/nsight-compute",
        )
    failure = counters.failure or ""
    if counters.is_readable is None:
        return unknown(f"not tried: {failure}")
    if "ERR_NVGPUCTRPERM" in failure:
        return problem("the driver does not let this user read counters", _ALLOW_COUNTERS)
    if "driver resource was unavailable" in failure:
        return problem("another tool holds the hardware counters", "dcgmi profread --pause")
    return problem(f"ncu reads no counter: {failure}", "use an ncu as new as the driver, or newer")
