"""What is known of one library's kernels: which it has, and the translation unit each comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opscope.provenance.binaries.kernel_index import KernelIndex
from opscope.provenance.binaries.translation_unit import TranslationUnit, UnitKernels
from opscope.provenance.demangle import demangle_all
from opscope.text_enum import TextEnum

__all__ = ["LibraryKernels", "Route", "library_kernels"]


class Route(TextEnum):
    """How the kernels of a library were found. A closed set."""

    REGISTRATION = "registration"
    FATBIN = "fatbin"


@dataclass(frozen=True, eq=False)
class LibraryKernels:
    """The kernels a shared library brings along.

    Args:
        path: The library.
        build_id: The linker's identification of the build; None if it left none.
        route: How the kernels were found.
        units: Every translation unit named, with kernels or without, by name.
        index: Where the names lead.
    """

    path: str
    build_id: str | None
    route: Route
    units: tuple[TranslationUnit, ...]
    index: KernelIndex = field(repr=False)

    def __contains__(self, name: object) -> bool:
        """Whether the library has a kernel of this name, demangled as Kineto writes it or mangled."""
        return isinstance(name, str) and self.index.find(name) is not None

    def units_of(self, name: str) -> tuple[TranslationUnit, ...]:
        """Units a kernel comes from.

        Several units may hold the same kernel, or kernels that differ in what demangling hides. None: not a
        kernel of this library, or one whose unit the library does not tell (see `in`).

        Args:
            name: Demangled, as Kineto writes it, or mangled.
        """
        return tuple(self.units[index] for index in self.index.find(name) or ())

    def kernel_names(self) -> list[str]:
        """Every kernel once, demangled where possible, in the order of the mangled names."""
        return self.index.list_names()


def library_kernels(
    path: str, build_id: str | None, route: Route, found: Sequence[UnitKernels]
) -> LibraryKernels:
    """The kernels of a library, by unit, made searchable."""
    units = sorted({kernels.unit for kernels in found if kernels.unit is not None}, key=_sort_key)
    positions = {unit: position for position, unit in enumerate(units)}
    unit_indexes: dict[str, set[int]] = {}
    for kernels in found:
        for name in kernels.kernels:
            indexes = unit_indexes.setdefault(name, set())
            if kernels.unit is not None:
                indexes.add(positions[kernels.unit])
    mangled = sorted(unit_indexes)
    shown = [text or name for name, text in zip(mangled, demangle_all(mangled), strict=True)]
    keys = {name: frozenset(unit_indexes[name]) for name in mangled}
    for name, text in zip(mangled, shown, strict=True):
        keys[text] = keys.get(text, frozenset()) | unit_indexes[name]
    return LibraryKernels(path, build_id, route, tuple(units), KernelIndex.of(keys, dict.fromkeys(shown)))


def _sort_key(unit: TranslationUnit) -> tuple[str, str, str]:
    return unit.name, unit.module_id or "", unit.source_path or ""
