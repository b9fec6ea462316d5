"""Programs of the CUDA toolkit on this machine: nvcc, cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find_cuda_tool"]

_USUAL_FOLDER = Path("/usr/local/cuda/bin")


def find_cuda_tool(name: str) -> str | None:
    """Path of a program: from CUDA_HOME, PATH, the usual folder, or the few that Triton's package carries."""
    for folder in _folders():
        found = shutil.which(name) if folder is None else shutil.which(name, path=str(folder))
        if found is not None:
            return found
    return None


def _folders() -> Iterator[Path | None]:
    """Where to look, in order; None is PATH."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin"
    yield None
    yield _USUAL_FOLDER
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or []) if triton is not None else []:
        yield Path(folder) / "backends" / "nvidia" / "bin"
