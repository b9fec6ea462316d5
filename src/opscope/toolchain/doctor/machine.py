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
# Files and variables by which a container is known.
_CONTAINERS = {
    "KUBERNETES_SERVICE_HOST": "kubernetes", "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity", "/.dockerenv": "docker", "/run/.containerenv": "podman",
}  # fmt: skip

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
    pci_gpu_count: int = 0  # NVIDIA's display controllers; a container shows its host's
    variables: Mapping[str, str] = {}


class Driver(msgspec.Struct, frozen=True):
    """NVIDIA's driver: its kernel module and its library."""

    version: str | None = None
    cuda_version: str | None = None  # the newest it serves
    device_files: tuple[str, ...] = ()
    library: str | None = None
    library_failure: str | None = None
    init_error: str | None = None
    devices: tuple[CudaDevice, ...] | None = None  # those it shows to this process


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that CUDA shows to this process, and what nvidia-smi told of it before anything ran on it."""

    device: CudaDevice
    memory_used_bytes: int | None = None
    utilization_fraction: float | None = None
    processes: tuple[str, ...] | None = None  # "python (pid 42)"; None where it was not told


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
        affinity = getattr(os, "sched_getaffinity", None)
        return MachineFacts(
            f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
            cpu_name(self.text("/proc/cpuinfo")),
            len(affinity(0)) if affinity is not None else os.cpu_count(),
            int(memory[1]) * 1024 if memory else None,
            next(
                (
                    kind
                    for sign, kind in _CONTAINERS.items()
                    if sign in self.environment or self.at(sign).exists()
                ),
                self.environment.get("container"),
            ),
            sum(
                self.text(f"{bus}/vendor").strip() == "0x10de"
                and self.text(f"{bus}/class").startswith("0x03")
                for bus in (
                    f"/sys/bus/pci/devices/{one.name}" for one in self.at("/sys/bus/pci/devices").glob("*")
                )
            ),
            {name: self.environment[name] for name in _VARIABLES if name in self.environment},
        )

    @cached_property
    def packages(self) -> dict[str, str | None]:
        names = ("torch", *_TRITON_PACKAGES, "transformers", "vllm", "numpy", "nvidia-ml-py", "ncu-report")
        found = {name: next(iter(Distribution.discover(name=name)), None) for name in names}
        return {name: None if one is None else one.version for name, one in found.items()}

    @cached_property
    def _usage(self) -> dict[str, dict[str, Any]]:
        """What nvidia-smi tells of each GPU by its UUID, as fields of `Gpu`."""
        found: dict[str, dict[str, Any]] = {}
        for uuid, used, busy in self._smi("gpu", "uuid,memory.used,utilization.gpu"):
            known = {"memory_used_bytes": (used, 1024**2), "utilization_fraction": (busy, 0.01)}
            found[uuid] = {name: int(one) * scale for name, (one, scale) in known.items() if one.isdigit()}
            found[uuid]["processes"] = ()
        for uuid, pid, name in self._smi("compute-apps", "gpu_uuid,pid,process_name"):
            if uuid in found:
                found[uuid]["processes"] += (f"{name} (pid {pid})",)
        return found

    def _smi(self, what: str, fields: str) -> list[list[str]]:
        path = shutil.which("nvidia-smi", path=self.environment.get("PATH", ""))
        if path is None:
            return []
        asked = (path, f"--query-{what}={fields}", "--format=csv,noheader,nounits")
        end = self.run(*asked, timeout_s=_STATE_TIMEOUT_S)
        rows = [line.split(", ", 2) for line in end.out.splitlines()] if end.succeeded else []
        return [row for row in rows if len(row) == 3]

    @cached_property
    def driver(self) -> Driver:
        """The driver by its files, and as its library answers."""
        self._usage  # noqa: B018 - before anything runs on the GPUs
        said, stopped, _ = self.ask_child("driver", DRIVER_TIMEOUT_S)
        if stopped is not None:
            unanswered = "init_error" if said.get("library") else "library_failure"
            said[unanswered] = f"the program that asks the driver {stopped}"
        known = {
            "version": self.text("/sys/module/nvidia/version").strip() or None,
            # Through dxg Linux inside Windows reaches the driver.
            "device_files": sorted(
                one.name
                for one in self.at("/dev").glob("*")
                if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", one.name)
            ),
        }
        return msgspec.convert({**known, **said}, Driver)

    @cached_property
    def torch(self) -> Torch | None:
        """What torch is and does here; None if it is not installed."""
        self._usage  # noqa: B018 - as above
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
        """The GPUs that CUDA shows, else those that torch does."""
        shown = self.driver.devices or (self.torch.devices if self.torch is not None else ())
        return tuple(
            msgspec.convert({"device": one, **self._usage.get(one.uuid or "", {})}, Gpu) for one in shown
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
        return self._program("nsys", self._cuda_tool("nsys"))

    @cached_property
    def ncu(self) -> ProgramFacts:
        return self._program("ncu", self._cuda_tool("ncu"))

    @cached_property
    def cuobjdump(self) -> ProgramFacts:
        """The disassembler, of a toolkit or of Triton's package."""
        return self._program("cuobjdump", self._cuda_tool("cuobjdump"))

    @cached_property
    def nvcc(self) -> ProgramFacts:
        return self._program("nvcc", self._cuda_tool("nvcc"))

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


def read_counters(end: ProgramExit) -> Counters:
    """What a run of ncu showed in its raw page: rows that end in a counter, of each kernel."""
    errors = re.findall(r"^==ERROR== (.*)$", f"{end.out}\n{end.err}", re.MULTILINE)
    if not errors and re.search(r',"[\d,]+(\.\d+)?"$', end.out, re.MULTILINE):
        return Counters(is_readable=True)
    failure = " ".join(errors[:2]) or end.failure or f"ncu printed no counter (exit code {end.exit_code})"
    return Counters(is_readable=False, failure=failure)
