"""The environment a recording was made in, as its sidecar keeps it. Unknown fields are None."""

from __future__ import annotations

import msgspec


class GpuInfo(msgspec.Struct, frozen=True, omit_defaults=False):
    """One GPU as its driver describes it."""

    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int


class Environment(msgspec.Struct, frozen=True, omit_defaults=False):
    """Versions and devices, none of which names a person or a path."""

    python: str
    platform: str
    opscope: str
    torch: str | None = None
    torch_git_version: str | None = None
    cuda_runtime: str | None = None
    cuda_driver: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    transformers: str | None = None
    cpu: str | None = None
    gpu: tuple[GpuInfo, ...] = ()
    # Part of ten seconds in which something waited for a CPU, by the kernel
    cpu_pressure_fraction: float | None = None
