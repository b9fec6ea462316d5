"""The intermediate files that `nvcc --keep` leaves: PTX and cubins, found by target.

nvcc names a file by its targets only where it must tell several apart: `add.ptx`, `add.compute_90.ptx`,
`add.compute_80.cubin`, `add.compute_90.sm_90.cubin`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opscope.toolchain.nvcc.targets import Target

__all__ = ["kept_cubin", "kept_ptx"]

_LINKED = "_dlink."  # what the device linker makes for the whole program: without kernels of its own


def kept_ptx(folder: Path, stem: str, target: Target) -> str | None:
    """PTX that was compiled for a target; None if there is none."""
    file = _kept(folder, stem, ".ptx", (target.ptx_name,))
    return None if file is None else file.read_text(encoding="utf-8", errors="replace")


def kept_cubin(folder: Path, stem: str, target: Target) -> bytes | None:
    """The machine code of a target; None if there is none."""
    file = _kept(folder, stem, ".cubin", (target.name, target.ptx_name))
    return None if file is None else file.read_bytes()


def _kept(folder: Path, stem: str, suffix: str, names: Sequence[str]) -> Path | None:
    files = [file for file in folder.iterdir() if file.suffix == suffix and _LINKED not in file.name]
    own = [file for file in files if file.name.startswith(f"{stem}.")]
    for name in names:
        for file in own:
            if re.search(rf"\.{name}\.", file.name[len(stem) :]):
                return file
    unnamed = [file for file in own if file.name == stem + suffix]
    return unnamed[0] if unnamed else None
