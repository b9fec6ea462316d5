"""The environment a recording was made in, as its sidecar keeps it. Unknown fields are None."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# Launchers and the variables in which they tell a process its rank and their number.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def rank_of(variables: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Rank of a process and number of processes by its environment variables; None where they do not say."""
    for names in RANK_VARIABLES:
        rank, size = (int(text) if (text := variables.get(name, "")).isdecimal() else None for name in names)
        if rank is not None:
            return rank, size
    return None, None


class GpuInfo(msgspec.Struct, frozen=True, omit_defaults=False):
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
