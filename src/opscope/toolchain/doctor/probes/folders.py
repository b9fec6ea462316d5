"""Folders that are written to: where they are, whether a file can be made in them, how much room is left.

A folder that does not exist is not made; the nearest one above it answers for it.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opscope.toolchain.doctor.facts import FolderFacts
from opscope.toolchain.doctor.probes.surroundings import Surroundings

__all__ = ["SHARED_MEMORY", "probe_folders"]

SHARED_MEMORY = "shared memory"


def probe_folders(surroundings: Surroundings) -> tuple[FolderFacts, ...]:
    """Each folder by its purpose, those first that recording needs."""
    return tuple(_folder(purpose, path) for purpose, path in _folders(surroundings))


def _folders(surroundings: Surroundings) -> Iterator[tuple[str, Path]]:
    environment = surroundings.environment
    temporary = Path(environment.get("TMPDIR") or surroundings.at("/tmp"))
    yield "output", surroundings.folder
    yield "temporary", temporary
    yield "opscope cache", surroundings.cache_folder
    home = Path(environment["HOME"]) if environment.get("HOME") else None
    caches = (
        Path(environment["XDG_CACHE_HOME"]) if environment.get("XDG_CACHE_HOME") else home and home / ".cache"
    )
    # Source: triton/knobs.py, torch/utils/cpp_extension.py, torch/_inductor/runtime/cache_dir_utils.py.
    triton = environment.get("TRITON_CACHE_DIR") or (home and home / ".triton")
    extensions = environment.get("TORCH_EXTENSIONS_DIR") or (caches and caches / "torch_extensions")
    inductor = environment.get("TORCHINDUCTOR_CACHE_DIR") or temporary / f"torchinductor_{_user()}"
    named = (("Triton cache", triton), ("extension cache", extensions), ("compile cache", inductor))
    yield from ((purpose, Path(path)) for purpose, path in named if path is not None)
    shared = surroundings.at("/dev/shm")
    if shared.is_dir():
        yield SHARED_MEMORY, shared


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return "user"


def _folder(purpose: str, path: Path) -> FolderFacts:
    standing = _standing(path)
    failure = _refusal(standing)
    known = FolderFacts(purpose, str(path), standing == path, failure is None, failure=failure)
    try:
        space, number = os.statvfs(standing), standing.stat().st_dev
    except OSError as error:
        return replace(known, failure=failure or f"{standing}: {error.strerror}")
    free, total = (count * space.f_frsize for count in (space.f_bavail, space.f_blocks))
    return replace(known, free_bytes=free, total_bytes=total, file_system=number)


def _standing(path: Path) -> Path:
    """The path, or the nearest above it that is there, whatever it is."""
    return next((one for one in (path, *path.absolute().parents) if os.path.lexists(one)), Path("/"))


def _refusal(folder: Path) -> str | None:
    """Why no file can be made in a folder; None if one could. The file is gone again."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".opscope-doctor-", dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None
