"""The libraries of a process as the origin of its kernels, in the form a sidecar keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from opscope.model.origin import RecordedKernel, RecordedUnit


def recorded_origins(names: Collection[str], /, *, maps: Path | None = None) -> Mapping[str, RecordedKernel]:
    """Library, build id and translation units of the kernels that a library of a process registered.

    The first call for a library reads it (tenths of a second); later ones, in any process, use a cache.
    """
    from opscope.provenance.binaries.process import units_of_process  # noqa: PLC0415 - needed only to record

    found = units_of_process(names) if maps is None else units_of_process(names, maps=maps)
    return {
        name: RecordedKernel(
            name,
            library=origin.library,
            build_id=origin.build_id,
            units=tuple(RecordedUnit(unit.name, unit.module_id, unit.source_path) for unit in origin.units),
        )
        for name, origin in found.items()
    }
