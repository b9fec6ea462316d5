"""The libraries of a process as the origin of its kernels, in the form a sidecar keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from opscope.model.origin import RecordedKernel


def recorded_origins(
    names: Collection[str], /, *, maps: Path = Path("/proc/self/maps")
) -> Mapping[str, RecordedKernel]:
    """Library, build id and translation units of the kernels that a library of a process registered.

    The first call for a library reads it (tenths of a second); later ones, in any process, use a cache.
    """
    from opscope.provenance.binaries.process import units_of_process  # noqa: PLC0415 - needed only to record

    return units_of_process(names, maps=maps)
