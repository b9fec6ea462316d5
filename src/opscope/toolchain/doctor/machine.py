"""One machine as one process sees it, and what checks ask it for in common.

Nothing here judges. None is not known; an empty text or tuple is known to be nothing; `failure` says in words
why a value is missing.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from opscope.hardware.devices import cpu_name
from opscope.hardware.driver import CudaDevice, find_cuda_tool
from opscope.toolchain.doctor import child
from opscope.toolchain.programs import ProgramExit, run_program, signal_name

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",
    "NSYS_PROFILING_SESSION_ID", "CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT",
    "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "KINETO_USE_DAEMON", "TMPDIR",
)  # fmt: skip
_TRITON_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
_CONTAINER_SIGNS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_CONTAINER_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
}
_CONTAINER_GROUPS = ("kubepods", "docker", "containerd", "lxc", "libpod")

_VERSION_TIMEOUT_S = 15.0
_STATE_TIMEOUT_S = 30.0
DRIVER_TIMEOUT_S = 60.0
# Starting CUDA on a machine with many GPUs and no persistence takes tens of seconds.
TORCH_TIMEOUT_S = 120.0
_COUNTERS_TIMEOUT_S = 90.0

_VERSION = re.compile(r"(?<![\w./-])V?(\d+(?:\.\d+)+)")
_TROUBLE = re.compile(r"cupti|kineto|roctracer|warn|error|fail", re.IGNORECASE)
_METRIC = "sm__cycles_elapsed.max"


class ProgramFacts(msgspec.Struct, frozen=True):
    """A program; its path if it was found, and why its version is not known though it was."""

    name: str
    path: str | None = None
    version: str | None = None
    failure: str | None = None


class MachineFacts(msgspec.Struct, frozen=True):
    system: str
    processor: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    container: str | None = None  # the kind that this process runs in
    pci_gpu_count: int | None = None  # NVIDIA's display controllers; a container shows its host's
    variables: Mapping[str, str] = {}


class Driver(msgspec.Struct, frozen=True):
    """NVIDIA's driver: its kernel module and its library."""

    version: str | None = None
    cuda_version: str | None = None  # the newest it serves
    device_files: tuple[str, ...] = ()
    smi: ProgramFacts = ProgramFacts("nvidia-smi")
    library: str | None = None
    library_failure: str | None = None
    init_error: str | None = None
    devices: tuple[CudaDevice, ...] | None = None  # those it shows to this process


class GpuProcess(msgspec.Struct, frozen=True):
    pid: int
    name: str | None = None


class Gpu(msgspec.Struct, frozen=True):
    """A GPU before anything of opscope ran on it."""

    index: int
    name: str
    source: str  # who told: nvidia-smi, cuda or torch
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_fraction: float | None = None
    mig_mode: bool | None = None
    mig_instance_count: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    is_visible: bool | None = None  # whether CUDA shows it to this process


class Inventory(msgspec.Struct, frozen=True):
    """What nvidia-smi told of the machine's GPUs; `smi` has what it answered if asked in vain."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    smi: ProgramFacts = ProgramFacts("nvidia-smi")


class CaptureFacts(msgspec.Struct, frozen=True):
    """A few operators recorded by torch's profiler; `messages` are those of its standard error."""

    activities: tuple[str, ...] = ()
    operator_count: int | None = None
    kernels_launched: int = 0
    kernels_recorded: int = 0
    error: str | None = None
    messages: str = ""


class Torch(msgspec.Struct, frozen=True):
    """torch as it came up in a process of its own."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    git_version: str | None = None
    import_error: str | None = None
    import_s: float | None = None
    cudnn: str | None = None
    architectures: tuple[str, ...] = ()
    is_available: bool | None = None
    cuda_error: str | None = None
    devices: tuple[CudaDevice, ...] = ()
    has_calculated: bool = False
    calculation_error: str | None = None  # which one fails, and how
    capture: CaptureFacts | None = None
    stopped: str | None = None  # how the process ended before it was done, and in which stage


class Counters(msgspec.Struct, frozen=True):
    """Whether hardware counters could be read; None where it was not tried."""

    is_readable: bool | None = None
    failure: str | None = None


class ExaminedMachine:
    """A machine, of which whoever asks first finds out.

    GPUs are looked at before anything runs on them, counters after all else has left them.

    Args:
        environment: Environment variables.
        python: The Python executable that programs use.
        root: What stands for the root of the file system.
        answers: What need not be found out, by the property's name.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        python: str,
        *,
        root: Path = Path("/"),
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        self.environment, self.python, self.root = environment, python, root
        vars(self).update(answers or {})

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> list[str] | None:
        try:
            return sorted(entry.name for entry in self.at(path).iterdir())
        except OSError:
            return None

    def run(self, *command: str, timeout_s: float = _VERSION_TIMEOUT_S) -> ProgramExit:
        return run_program(command, timeout_s=timeout_s, environment=self.environment)

    def ask_child(self, task: str, timeout_s: float) -> tuple[dict[str, Any], str | None, str]:
        """What `child` says of a task, how it ended before it was done, and its standard error."""
        end = self.run(*self._child(task), timeout_s=timeout_s)
        return (*read_answer(end), end.err)

    def _child(self, task: str) -> tuple[str, ...]:
        return self.python, str(Path(child.__file__).resolve()), task

    @cached_property
    def machine(self) -> MachineFacts:
        memory = re.search(r"^MemTotal:\s*(\d+) kB", self.text("/proc/meminfo"), re.M)
        buses = self.names("/sys/bus/pci/devices")
        gpus = [
            bus
            for bus in buses or ()
            if self.text(f"/sys/bus/pci/devices/{bus}/vendor").strip() == "0x10de"
            and self.text(f"/sys/bus/pci/devices/{bus}/class").startswith("0x03")
        ]
        affinity = getattr(os, "sched_getaffinity", None)
        return MachineFacts(
            f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
            cpu_name(self.text("/proc/cpuinfo")),
            len(affinity(0)) if affinity is not None else os.cpu_count(),
            int(memory[1]) * 1024 if memory else None,
            self._container(),
            None if buses is None else len(gpus),
            {name: self.environment[name] for name in _VARIABLES if name in self.environment},
        )

    def _container(self) -> str | None:
        groups = self.text("/proc/1/cgroup")
        signs = (
            *(kind for variable, kind in _CONTAINER_VARIABLES.items() if variable in self.environment),
            *(kind for path, kind in _CONTAINER_SIGNS if self.at(path).exists()),
            *(name for name in _CONTAINER_GROUPS if name in groups),
        )
        return next(iter(signs), self.environment.get("container"))

    @cached_property
    def packages(self) -> dict[str, str | None]:
        names = ("torch", *_TRITON_PACKAGES, "transformers", "vllm", "numpy", "nvidia-ml-py", "ncu-report")
        found = {name: next(iter(Distribution.discover(name=name)), None) for name in names}
        return {name: None if one is None else one.version for name, one in found.items()}

    @cached_property
    def _inventory(self) -> Inventory:
        smi = ProgramFacts("nvidia-smi", self._on_path("nvidia-smi"))
        if smi.path is None:
            return Inventory(smi=smi)
        end = self.run(smi.path, "-q", "-x", timeout_s=_STATE_TIMEOUT_S)
        if end.succeeded:
            return read_smi(end.out, smi)
        failure = end.failure or last_lines(end.err or end.out) or f"exit code {end.exit_code}"
        return Inventory(smi=msgspec.structs.replace(smi, failure=failure))

    @cached_property
    def driver(self) -> Driver:
        """The driver by its files, and as its library answers."""
        inventory = self._inventory
        said, stopped, _ = self.ask_child("driver", DRIVER_TIMEOUT_S)
        if stopped is not None:
            unanswered = "init_error" if said.get("library") else "library_failure"
            said[unanswered] = f"the program that asks the driver {stopped}"
        known = {
            "version": inventory.driver_version or self.text("/sys/module/nvidia/version").strip() or None,
            # Through dxg Linux inside Windows reaches the driver.
            "device_files": [
                one for one in self.names("/dev") or () if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", one)
            ],
        }
        return msgspec.convert({**known, **said, "smi": msgspec.to_builtins(inventory.smi)}, Driver)

    @cached_property
    def torch(self) -> Torch | None:
        """What torch is and does here; None if it is not installed."""
        self._inventory  # noqa: B018 - before anything runs on the GPUs
        said, stopped, err = self.ask_child("torch", TORCH_TIMEOUT_S)
        if said.get("import_error") == "ModuleNotFoundError: No module named 'torch'":
            return None
        stage = said.pop("stage", None)
        if stage != "end" and "import_error" not in said:
            how = stopped or f"ended early: {last_lines(err, 1)}"
            said["stopped"] = f"{how} at {stage}" if stage else how
            if stage == "recording":
                said["capture"] = {"error": said["stopped"]}
        if "capture" in said:
            said["capture"]["messages"] = last_lines("\n".join(filter(_TROUBLE.search, err.splitlines())))
        return msgspec.convert(said, Torch)

    @cached_property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs with what CUDA knows of them; those that CUDA alone knows, where no tool told of any."""
        torch, shown, source = self.torch, self.driver.devices, "cuda"
        if shown is None and torch is not None and torch.devices:
            shown, source = torch.devices, "torch"
        found = self._inventory.gpus
        if shown is None:
            return found
        if not found:
            return tuple(_with_cuda(Gpu(one.index, one.name, source), one) for one in shown)
        if len(found) == len(shown) == 1:
            return (_with_cuda(found[0], shown[0]),)  # a slice of a GPU has an identity of its own
        by_uuid = {one.uuid: one for one in shown if one.uuid is not None}
        return tuple(
            _with_cuda(one, by_uuid[one.uuid])
            if one.uuid in by_uuid
            # Slices are not the whole: the GPU is there, and CUDA shows parts of it.
            else (one if one.mig_mode else msgspec.structs.replace(one, is_visible=False))
            for one in found
        )

    @cached_property
    def counters(self) -> Counters:
        """One counter of a kernel of torch, read with ncu; clocks stay as they are."""
        torch, ncu = self.torch, self.ncu.path  # torch must have left the GPUs
        if ncu is None:
            return Counters(failure="ncu is not installed")
        if torch is None or not torch.has_calculated or torch.calculation_error:
            return Counters(failure="no kernel runs on the GPU")
        end = self.run(
            ncu, "--metrics", _METRIC, "--clock-control", "none", "--launch-count", "1", "--page", "raw",
            "--csv", *self._child("kernel"), timeout_s=_COUNTERS_TIMEOUT_S,
        )  # fmt: skip
        return read_counters(end)

    @cached_property
    def nsys(self) -> ProgramFacts:
        return self._program("nsys", self._on_path("nsys") or self._cuda_tool("nsys"))

    @cached_property
    def ncu(self) -> ProgramFacts:
        return self._program("ncu", self._on_path("ncu") or self._cuda_tool("ncu"))

    @cached_property
    def cuobjdump(self) -> ProgramFacts:
        """The disassembler, of a toolkit or of Triton's package."""
        return self._program("cuobjdump", self._cuda_tool("cuobjdump"))

    @cached_property
    def nvcc(self) -> ProgramFacts:
        return self._program("nvcc", self._cuda_tool("nvcc"))

    def _on_path(self, name: str) -> str | None:
        return shutil.which(name, path=self.environment.get("PATH", ""))

    def _cuda_tool(self, name: str) -> str | None:
        return find_cuda_tool(name, environment=self.environment, root=self.root)

    def _program(self, name: str, path: str | None) -> ProgramFacts:
        """A program with its version: the last in what it prints."""
        if path is None:
            return ProgramFacts(name)
        end = self.run(path, "--version")
        versions = _VERSION.findall(end.out) or _VERSION.findall(end.err)
        if end.succeeded:
            failure = None if versions else "prints no version that is known"
        else:
            failure = end.failure or last_lines(end.err or end.out) or f"ended with exit code {end.exit_code}"
        return ProgramFacts(name, path, versions[-1] if versions else None, failure)


def last_lines(text: str, count: int = 3) -> str:
    """The last lines that say something, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-count:])


def read_answer(end: ProgramExit) -> tuple[dict[str, Any], str | None]:
    """What a program of `child` said, later lines over earlier ones, and how it ended before it was done."""
    said: dict[str, Any] = {}
    for line in end.out.splitlines():
        _, mark, content = line.partition(child.MARK)
        try:
            value = json.loads(content) if mark else None
        except ValueError:  # cut off in the middle
            continue
        said.update(value if isinstance(value, dict) else {})
    if end.exit_code is None:
        return said, end.failure
    if end.exit_code < 0:
        return said, f"died of {signal_name(-end.exit_code)}"
    return said, None if end.exit_code in (0, 1) else f"ended with exit code {end.exit_code}"


def read_smi(text: str, smi: ProgramFacts) -> Inventory:
    """What `nvidia-smi -q -x` printed; a field it does not have is None."""
    try:
        log = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return Inventory(smi=msgspec.structs.replace(smi, failure=f"its XML cannot be read ({error})"))
    gpus = tuple(_smi_gpu(index, gpu) for index, gpu in enumerate(log.findall("gpu")))
    failed = msgspec.structs.replace(smi, failure=None if gpus else "it shows no GPU")
    return Inventory(gpus, _smi_word(log, "driver_version"), failed)


def _smi_word(parent: ElementTree.Element, path: str) -> str | None:
    """A field, if it is told."""
    text = (parent.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]", "None", "Not Supported", "[Not Supported]") else text


def _smi_number(parent: ElementTree.Element, path: str, scale: float) -> float | None:
    """That of a text such as `345 MiB`, in so many parts."""
    try:
        return float((_smi_word(parent, path) or "").split()[0]) * scale
    except (IndexError, ValueError):
        return None


def _smi_gpu(index: int, gpu: ElementTree.Element) -> Gpu:
    memory, used = (_smi_number(gpu, f"fb_memory_usage/{part}", 1024**2) for part in ("total", "used"))
    mig = _smi_word(gpu, "mig_mode/current_mig")
    return Gpu(
        index,
        _smi_word(gpu, "product_name") or "",
        "nvidia-smi",
        uuid=_smi_word(gpu, "uuid"),
        memory_bytes=None if memory is None else int(memory),
        memory_used_bytes=None if used is None else int(used),
        utilization_fraction=_smi_number(gpu, "utilization/gpu_util", 0.01),
        mig_mode=None if mig is None else mig == "Enabled",
        mig_instance_count=len(gpu.findall("mig_devices/mig_device")) if mig == "Enabled" else None,
        processes=tuple(
            GpuProcess(int(pid), _smi_word(one, "process_name"))
            for one in gpu.findall("processes/process_info")
            if (pid := _smi_word(one, "pid")) is not None
        ),
    )


def _with_cuda(gpu: Gpu, same: CudaDevice) -> Gpu:
    return msgspec.structs.replace(
        gpu,
        uuid=gpu.uuid or same.uuid,
        compute_capability=gpu.compute_capability or same.compute_capability,
        sm_count=gpu.sm_count or same.sm_count,
        memory_bytes=gpu.memory_bytes or same.memory_bytes,
        is_visible=True,
    )


def read_counters(end: ProgramExit) -> Counters:
    """What a run of ncu showed in its raw page: rows that end in a counter, of each kernel."""
    errors = re.findall(r"^==ERROR== (.*)$", f"{end.out}\n{end.err}", re.MULTILINE)
    if not errors and re.search(r',"[\d,]+(\.\d+)?"$', end.out, re.MULTILINE):
        return Counters(is_readable=True)
    failure = " ".join(errors[:2]) or end.failure or f"ncu printed no counter (exit code {end.exit_code})"
    return Counters(is_readable=False, failure=failure)
