"""Room and permission to write, and whether all probes answered."""

from __future__ import annotations

from collections.abc import Iterable

from opscope.toolchain.doctor.checks.outcome import Outcome, not_applicable, ok, problem, unknown, warning
from opscope.toolchain.doctor.facts import Facts, FolderFacts
from opscope.toolchain.doctor.probes.folders import SHARED_MEMORY

__all__ = [
    "cache_folders",
    "free_space",
    "output_folder",
    "probes_answered",
    "shared_memory",
    "temporary_folder",
]

_MIB = 1024**2
_GIB = 1024**3
# A trace of a training step is tens of megabytes, of a long recording a few gigabytes.
_LITTLE_BYTES = 2 * _GIB
_TOO_LITTLE_BYTES = 100 * _MIB
_LITTLE_SHARED_BYTES = _GIB
_VARIABLES = {
    "opscope cache": "XDG_CACHE_HOME",
    "Triton cache": "TRITON_CACHE_DIR",
    "extension cache": "TORCH_EXTENSIONS_DIR",
    "compile cache": "TORCHINDUCTOR_CACHE_DIR",
}


def output_folder(facts: Facts) -> Outcome:
    """A working folder that no trace can be written to."""
    return _writable(facts, "output", "choose another: cd FOLDER, or --output FOLDER")


def temporary_folder(facts: Facts) -> Outcome:
    """No place for temporary files."""
    return _writable(facts, "temporary", "export TMPDIR=FOLDER")


def cache_folders(facts: Facts) -> Outcome:
    """Caches that cannot be written: all is compiled and indexed again each time."""
    caches = [one for one in facts.folders if one.purpose in _VARIABLES]
    if not caches:
        return unknown("the folders were not looked at")
    refused = [one for one in caches if one.is_writable is False]
    if not refused:
        return ok("all caches can be written")
    names = ", ".join(f"{one.purpose} ({one.failure or one.path})" for one in refused)
    return warning(
        f"not writable: {names}",
        "export " + " ".join(f"{_VARIABLES[one.purpose]}=FOLDER" for one in refused),
    )


def free_space(facts: Facts) -> Outcome:
    """Little room for traces and compiled code."""
    known = [one for one in facts.folders if one.free_bytes is not None and one.purpose != SHARED_MEMORY]
    if not known:
        return unknown("the free space is not known")
    little = [one for one in known if (one.free_bytes or 0) < _LITTLE_BYTES]
    if not little:
        least = min(known, key=lambda one: one.free_bytes or 0)
        return ok(f"{_size(least.free_bytes)} or more")
    reason = "; ".join(f"{_size(one.free_bytes)} for {one.purpose} ({one.path})" for one in _by_place(little))
    remedy = f"df -h {' '.join(one.path for one in _by_place(little))}  # make room, or choose another disk"
    too_little = [one for one in little if (one.free_bytes or 0) < _TOO_LITTLE_BYTES]
    if any(one.purpose in ("output", "temporary") for one in too_little):
        return problem(f"hardly any room: {reason}", remedy)
    return warning(f"little room: {reason}", remedy)


def shared_memory(facts: Facts) -> Outcome:
    """Little shared memory, through which data loader workers hand over batches."""
    found = next((one for one in facts.folders if one.purpose == SHARED_MEMORY), None)
    if found is None or found.total_bytes is None:
        return not_applicable("there is no /dev/shm")
    if found.total_bytes >= _LITTLE_SHARED_BYTES:
        return ok(_size(found.total_bytes))
    return warning(
        f"/dev/shm has {_size(found.total_bytes)}: workers of a DataLoader may crash",
        "docker run --shm-size=8g …  # or --ipc=host",
    )


def probes_answered(facts: Facts) -> Outcome:
    """Probes that failed: what they would have found is missing above."""
    if not facts.failed_probes:
        return ok("every probe answered")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in facts.failed_probes.items())
    return unknown(f"not found out: {reasons}")


def _writable(facts: Facts, purpose: str, remedy: str) -> Outcome:
    found = next((one for one in facts.folders if one.purpose == purpose), None)
    if found is None or found.is_writable is None:
        return unknown("the folder was not looked at")
    if not found.is_writable:
        return problem(f"no file can be made: {found.failure or found.path}", remedy)
    return ok(found.path)


def _by_place(folders: Iterable[FolderFacts]) -> list[FolderFacts]:
    """The first folder of each file system."""
    by_system: dict[object, FolderFacts] = {}
    for one in folders:
        by_system.setdefault(one.path if one.file_system is None else one.file_system, one)
    return list(by_system.values())


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "–"
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.0f} MiB"
