"""The kernel table of one release: which translation units register a kernel.

Exact answers are by the whole name, as a trace shows it. Loose ones, for kernels of another release, are by
what outlives a release in a name, and only where that points to a single unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from opscope.provenance.demangle import demangle
from opscope.provenance.releases.hash_map import HashMap, text_hash
from opscope.provenance.releases.loose_key import loose_keys
from opscope.provenance.releases.table_file import SEVERAL_UNITS, Library, UnitTableFile
from opscope.provenance.releases.unit import Unit

__all__ = ["ReleaseTable", "launch_key_hash", "owner_key_hash"]


class ReleaseTable:
    """Kernels and units of one release.

    Args:
        content: A checked file.
    """

    def __init__(self, content: UnitTableFile) -> None:
        self._content = content
        self._exact = HashMap.unpacked(content.exact)
        self._loose = HashMap.unpacked(content.loose)

    @property
    def version(self) -> str:
        """The release (`2.11.0`), or the label a user gave."""
        return self._content.version

    @property
    def git_version(self) -> str | None:
        """The commit the release was built from."""
        return self._content.git_version

    @property
    def cuda(self) -> str | None:
        """The CUDA version the release was built with (`13.0`)."""
        return self._content.cuda

    @property
    def libraries(self) -> tuple[Library, ...]:
        """What the table was read from."""
        return self._content.libraries

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every unit that has a kernel."""
        return self._content.units

    @property
    def kernel_count(self) -> int:
        """Kernel names the table knows."""
        return len(self._exact)

    @property
    def loose_key_count(self) -> int:
        """Loose keys that name one unit."""
        return int(np.count_nonzero(self._loose.values != SEVERAL_UNITS))

    def units_of(self, kernel_name: str) -> tuple[str, ...]:
        """Every unit that registers the kernel, as path or file name; empty if the name is not known."""
        found = self._exact.get(text_hash(kernel_name))
        if found is None and (shown := demangle(kernel_name)) is not None:
            found = self._exact.get(text_hash(shown))
        return () if found is None else self._labels(self._content.unit_sets[found])

    def loose_units_of(self, kernel_name: str) -> tuple[str, ...]:
        """The one unit whose kernels launch the same code; empty unless there is exactly one."""
        keys = loose_keys(demangle(kernel_name) or kernel_name)
        if keys.owner is not None:
            found = self._loose.get(owner_key_hash(keys.owner))
            # The owner of a lambda that no kernel here has is not of this release: its launcher says nothing.
            if found != SEVERAL_UNITS:
                return () if found is None else self._labels((found,))
        if keys.launch is None:
            return ()
        found = self._loose.get(launch_key_hash(keys.launch))
        return () if found is None or found == SEVERAL_UNITS else self._labels((found,))

    def unit(self, label: str) -> Unit | None:
        """The unit of an answer."""
        return self._units_by_label.get(label)

    def knows(self, name_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash of a kernel name whether the table has it: bool[n]."""
        return self._exact.contains(name_hashes)

    @cached_property
    def _units_by_label(self) -> dict[str, Unit]:
        return {unit.label: unit for unit in self._content.units}

    def _labels(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._content.units[index].label for index in indexes))


def owner_key_hash(owner: str) -> int:
    """The hash a table holds for `LooseKeys.owner`."""
    return text_hash(f"owner\0{owner}")


def launch_key_hash(launch: str) -> int:
    """The hash a table holds for `LooseKeys.launch`."""
    return text_hash(f"launch\0{launch}")
