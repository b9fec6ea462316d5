"""Native function -> the files that may define it, from where its symbol lies in an unstripped library.

A linker puts the code of one object file in one piece: a global function between two local functions of one
unit is that unit's, one between local functions of two units belongs to one of them. Local functions follow
their file's symbol in `.symtab`. Weak functions (templates and inline ones, in many units) are left out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from opscope.provenance.binaries.elf import FILE, FUNCTION, ElfFile, ElfSection, Table, open_elf
from opscope.provenance.binaries.translation_unit import host_stem, paths_by_name, repository_paths
from opscope.provenance.demangle import demangle_all
from opscope.provenance.packaged import lazy_pattern

_GLOBAL = 1
_NATIVE = b"_ZN2at6native"
_MOST_FUNCTIONS = 1 << 17
# `at::native::structured_mm_out_cuda::impl(…)` is TORCH_IMPL_FUNC(mm_out_cuda).
_FUNCTION = lazy_pattern(
    r"at::native::(?:structured_(?P<structured>\w+)::impl|(?P<plain>\w+))(?:\[abi:\w+\])?\("
)


def defining_files(
    path: str | os.PathLike[str], unit_paths: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The files, one or two, that may define each function of `at::native`, by its name without namespace.

    A function of which one neighbor's path is not certain is left out, and so is one with overloads in
    several places; of a library without a symbol table the answer is empty. `unit_paths` are the repository
    paths of the units its kernels are known to come from.
    """
    with open_elf(path) as elf:
        table, names = elf.sections.get(".symtab"), elf.sections.get(".strtab")
        if table is None or names is None:
            return {}
        symbols = elf.symbols(table)
        found = list(_functions(elf, symbols, names))
        known = paths_by_name([*unit_paths, *repository_paths(elf)])
        paths = {
            file: _path(elf.string_at(names, int(symbols["name"][file])).decode("utf-8", "replace"), known)
            for file in {file for _, files in found for file in files}
        }
    candidates: dict[str, set[frozenset[str | None]]] = defaultdict(set)
    for name, (_, files) in zip(demangle_all([mangled for mangled, _ in found]), found, strict=True):
        match = None if name is None else _FUNCTION.match(name)
        if match is not None:
            candidates[match["structured"] or match["plain"]].add(frozenset(paths[file] for file in files))
    return {
        name: certain
        for name, sets in sorted(candidates.items())
        if len(sets) == 1 and (certain := _certain(next(iter(sets))))
    }


def _certain(paths: frozenset[str | None]) -> tuple[str, ...]:
    return () if None in paths else tuple(sorted(path for path in paths if path is not None))


def _functions(elf: ElfFile, symbols: Table, names: ElfSection) -> Iterator[tuple[str, frozenset[int]]]:
    """Mangled names of global functions of at::native, with the rows of the file symbols around them."""
    kind, binding = symbols["info"] & 15, symbols["info"] >> 4
    files = np.flatnonzero(kind == FILE)
    is_code = (kind == FUNCTION) & (symbols["value"] > 0)
    if not len(files):
        return
    local = np.flatnonzero(is_code & (binding == 0))
    local = local[np.argsort(symbols["value"][local], kind="stable")]
    addresses, owners = symbols["value"][local], _file_rows(symbols, files, local)
    wanted = np.flatnonzero(is_code & (binding == _GLOBAL))
    texts = elf.content(names)
    is_native = [texts.startswith(_NATIVE, name) for name in symbols["name"][wanted].tolist()]
    wanted = wanted[np.array(is_native, dtype=np.bool_)]
    if len(wanted) > _MOST_FUNCTIONS:
        elf.fail(f"{len(wanted)} functions of at::native", names.offset)
    after = np.searchsorted(addresses, symbols["value"][wanted])
    for row, position in zip(wanted.tolist(), after.tolist(), strict=True):
        if not 0 < position < len(local):
            continue
        around = frozenset(int(owner) for owner in owners[position - 1 : position + 1])
        if min(around) >= 0:
            yield elf.string_at(names, int(symbols["name"][row])).decode("utf-8", "replace"), around


def _file_rows(symbols: Table, files: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Row of the file symbol each local symbol belongs to; -1 for those of no named file."""
    rank = np.searchsorted(files, rows, side="right") - 1
    owner = np.where(rank >= 0, files[rank], -1)
    is_named = symbols["name"][files] > 0
    return np.where((rank >= 0) & is_named[rank], owner, -1).astype(np.int64)


def _path(file_symbol: str, known: dict[str, set[str]]) -> str | None:
    """The only known path of a file symbol's file: `…_SoftMax.compute_120.cudafe1.cpp` or `Blas.cpp`."""
    stem = host_stem(file_symbol)
    paths = known.get(f"{stem}.cu" if stem is not None else file_symbol, set())
    return next(iter(paths)) if len(paths) == 1 else None
