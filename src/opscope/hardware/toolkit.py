"""Programs of the CUDA toolkit on this machine: nvcc, cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from opscope.errors import DependencyError

__all__ = ["find_cuda_tool", "require_nvcc"]


_USUAL_FOLDER = Path("/usr/local/cuda/bin")


def find_cuda_tool(name: str) -> str | None:
    """Path of a program: from CUDA_HOME, PATH, the usual folder, NVIDIA's Python packages, or Triton's."""
    for folder in _folders():
        found = shutil.which(name) if folder is None else shutil.which(name, path=str(folder))
        if found is not None:
            return found
    return None


def require_nvcc() -> str:
    """Path of the CUDA compiler.

    Raises:
        DependencyError: There is none.
    """
    nvcc = find_cuda_tool("nvcc")
    if nvcc is None:
        raise DependencyError(
            "nvcc, the CUDA compiler, was not found",
            hint="pip install nvidia-cuda-nvcc (CUDA 13 or newer, finds its way here); or install the CUDA "
            "toolkit, from https://developer.nvidia.com/cuda-downloads or by conda install -c nvidia "
            "cuda-toolkit, and put its bin folder on PATH or set CUDA_HOME",
        )
    return nvcc


def _folders() -> Iterator[Path | None]:
    """Where to look, in order; None is PATH."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin"
    yield None
    yield _USUAL_FOLDER
    yield from _package_folders("nvidia", "cu*/bin")  # of the packages for CUDA 13 and newer
    yield from _package_folders("triton", "backends/nvidia/bin")


def _package_folders(package: str, pattern: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted(Path(location).glob(pattern), reverse=True)
