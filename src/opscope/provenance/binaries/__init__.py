"""What binaries say of kernels: libraries at hand, those mapped into this process, and the vendor's.

Everything is read with the code here, without CUDA's tools. A library is read once per build and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opscope.model.origin import RecordedKernel


def recorded_origins(
    names: Collection[str], /, *, maps: Path = Path("/proc/self/maps")
) -> Mapping[str, RecordedKernel]:
    """Library, build id and translation units of the kernels that a library of a process registered.

    The first call for a library reads it (tenths of a second); later ones, in any process, use a cache.
    """
    from opscope.provenance.binaries.library import units_of_process  # noqa: PLC0415 - needed only to record

    return units_of_process(names, maps=maps)
