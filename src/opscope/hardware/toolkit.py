"""Programs of the CUDA toolkit on this machine: nvcc, cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from opscope.errors import DependencyError

# Those of NVIDIA are for CUDA 13 and newer.
_PACKAGES = (("nvidia", "cu*/bin"), ("triton", "backends/nvidia/bin"))


def find_cuda_tool(
    name: str,
    *,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    packages: Sequence[str] | None = None,
) -> str | None:
    """Path of a program: from CUDA_HOME, PATH, the usual folders, NVIDIA's Python packages, or Triton's."""
    variables = os.environ if environment is None else environment
    for folder in _folders(variables, root, packages):
        found = shutil.which(name, path=str(folder))
        if found is not None:
            return found
    return None


def require_nvcc() -> str:
    """Path of the CUDA compiler."""
    nvcc = find_cuda_tool("nvcc")
    if nvcc is None:
        raise DependencyError(
            "nvcc, the CUDA compiler, was not found",
            hint="pip install nvidia-cuda-nvcc (CUDA 13 or newer, finds its way here); or install the CUDA "
            "toolkit, from https://developer.nvidia.com/cuda-downloads or by conda install -c nvidia "
            "cuda-toolkit, and put its bin folder on PATH or set CUDA_HOME",
        )
    return nvcc


def _folders(
    environment: Mapping[str, str], root: Path, packages: Sequence[str] | None
) -> Iterator[Path | str]:
    """Where to look, in order."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield Path(environment[variable]) / "bin"
    yield environment.get("PATH", os.defpath)
    yield root / "usr/local/cuda/bin"
    yield from sorted((root / "usr/local").glob("cuda-*/bin"), reverse=True)
    for package, pattern in _PACKAGES:
        for location in _locations(package, packages):
            yield from sorted(Path(location).glob(pattern), reverse=True)


def _locations(package: str, folders: Sequence[str] | None) -> Iterable[str | Path]:
    if folders is not None:
        return [Path(folder) / package for folder in folders]
    spec = importlib.util.find_spec(package)
    return () if spec is None else spec.submodule_search_locations or ()
