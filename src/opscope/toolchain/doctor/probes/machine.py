"""The machine, the container around the process, and other tools that watch the same GPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from opscope.toolchain.doctor.facts import MachineFacts
from opscope.toolchain.doctor.probes.surroundings import Surroundings

__all__ = ["probe_machine"]

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
