"""Versions of NVIDIA's tools: nsys, ncu, cuobjdump."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from opscope.errors import DependencyError
from opscope.toolchain.doctor.facts import ProgramFacts
from opscope.toolchain.doctor.probes.surroundings import Surroundings, last_lines
from opscope.toolchain.ncu_command import find_ncu
from opscope.toolchain.nsys.running import find_nsys
from opscope.toolchain.programs import ProgramEnd

__all__ = ["describe_program", "probe_cuobjdump", "probe_ncu", "probe_nsys"]

_CUOBJDUMP_PLACES = ("/usr/local/cuda/bin/cuobjdump", "/usr/local/cuda-*/bin/cuobjdump")
_TRITON_PROGRAMS = "triton/backends/nvidia/bin"
_VERSION = re.compile(r"(?:version|release)\s+V?(\d+(?:\.\d+)+)", re.IGNORECASE)


def probe_nsys(surroundings: Surroundings) -> ProgramFacts:
    """Nsight Systems, where `opscope nsys` finds it."""
    return describe_program(surroundings, "nsys", _found(find_nsys, surroundings))


def probe_ncu(surroundings: Surroundings) -> ProgramFacts:
    """Nsight Compute, where `opscope ncu` finds it."""
    return describe_program(surroundings, "ncu", _found(find_ncu, surroundings))


def probe_cuobjdump(surroundings: Surroundings) -> ProgramFacts:
    """The disassembler, of a toolkit or of Triton's package."""
    home = surroundings.environment.get("CUDA_HOME") or surroundings.environment.get("CUDA_PATH")
    path = surroundings.find_in(f"{home}/bin", "cuobjdump") if home else None
    path = path or surroundings.find("cuobjdump", _CUOBJDUMP_PLACES) or _of_triton(surroundings, "cuobjdump")
    return describe_program(surroundings, "cuobjdump", path)


def _found(find: Callable[[str | None], str], surroundings: Surroundings) -> str | None:
    try:
        return find(surroundings.environment.get("PATH", ""))
    except DependencyError:
        return None


def _of_triton(surroundings: Surroundings, name: str) -> str | None:
    folders = sys.path if surroundings.package_path is None else surroundings.package_path
    inside = (surroundings.find_in(str(Path(one) / _TRITON_PROGRAMS), name) for one in folders if one)
    return next((path for path in inside if path is not None), None)


def describe_program(
    surroundings: Surroundings, name: str, path: str | None, pattern: re.Pattern[str] = _VERSION
) -> ProgramFacts:
    """Ask a program for its version.

    Args:
        surroundings: Where to run it.
        name: What it is called.
        path: Where it is; None if it was not found.
        pattern: Finds the version in what it prints; the last match counts.
    """
    if path is None:
        return ProgramFacts(name)
    end = surroundings.run(path, "--version")
    versions = pattern.findall(end.out) or pattern.findall(end.err)
    return ProgramFacts(name, path, versions[-1] if versions else None, _failure(end, bool(versions)))


def _failure(end: ProgramEnd, has_version: bool) -> str | None:
    if end.succeeded:
        return None if has_version else "prints no version that is known"
    return end.failure or last_lines(end.err or end.out) or f"ended with exit code {end.exit_code}"
