"""The libraries of this process as the origin of its kernels, in the form a sidecar keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opscope.model.origin import RecordedKernel, RecordedUnit

__all__ = ["recorded_origins"]


def recorded_origins(names: Collection[str], /) -> Mapping[str, RecordedKernel]:
    """Library, build id and translation units of the kernels that a library of this process registered.

    The first call for a library reads it (tenths of a second); later ones, in any process, use a cache.

    Raises:
        OpscopeError: The libraries cannot be read.
    """
    from opscope.provenance.binaries.process import units_of_process  # noqa: PLC0415 - needed only to record

    return {
        name: RecordedKernel(
            name,
            library=origin.library,
            build_id=origin.build_id,
            units=tuple(RecordedUnit(unit.name, unit.module_id, unit.source_path) for unit in origin.units),
        )
        for name, origin in units_of_process(names).items()
    }
