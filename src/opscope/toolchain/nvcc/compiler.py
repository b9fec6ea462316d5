"""One nvcc: which release it is, and which targets it knows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opscope.errors import DependencyError
from opscope.toolchain.nvcc.targets import Target, parse_target
from opscope.toolchain.programs import run_program

__all__ = ["Nvcc", "read_nvcc"]

_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V([\d.]+))?")
_TARGET = re.compile(r"\bsm_\d+[af]?\b")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Nvcc:
    """A compiler.

    Attributes:
        path: Of the program.
        release: Of the CUDA toolkit, `13.0`.
        version: `13.0.88`; None if it does not say.
        targets: All it builds for, lowest first, those with features of one GPU (`sm_90a`) included.
    """

    path: str
    release: str
    version: str | None
    targets: tuple[Target, ...]

    @property
    def general_targets(self) -> tuple[Target, ...]:
        """Targets whose code later GPUs of the generation run too."""
        return tuple(one for one in self.targets if one.is_general)


def read_nvcc(path: str) -> Nvcc:
    """What the compiler says of itself.

    Raises:
        DependencyError: It cannot be run, or is no nvcc.
    """
    release = _RELEASE.search(_answer(path, "--version"))
    # The list has no specific targets and is missing before 11.1; the help has them all.
    listed = _TARGET.findall(_answer(path, "--list-gpu-code") + _answer(path, "--help"))
    targets = {target for word in listed if (target := parse_target(word)) is not None}
    if release is None or not targets:
        raise DependencyError(
            f"{path} does not answer as nvcc does",
            hint="Is it the compiler of a CUDA toolkit, and is the toolkit complete?",
        )
    return Nvcc(path, release[1], release[2], tuple(sorted(targets)))


def _answer(path: str, option: str) -> str:
    """What it prints; empty if it does not know the option."""
    done = run_program([path, option], timeout_s=_TIMEOUT_S)
    if done.failure is not None:
        raise DependencyError(
            f"nvcc {done.failure}", source=path, hint="Install the CUDA toolkit again, or set CUDA_HOME"
        )
    return done.out if done.succeeded else ""
