"""What the libraries of a build say: kernels and their units, files of native functions, lines of checks."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.device_code import host_stem, paths_by_name, repository_paths
from opscope.provenance.binaries.elf import FILE, FUNCTION, ElfFile, ElfSection, Table, open_elf
from opscope.provenance.binaries.library import by_shown_name, units_by_kernel
from opscope.provenance.demangle import demangle_all
from opscope.provenance.sources import Segment
from opscope.provenance.torch_releases import (
    SEVERAL_UNITS,
    Library,
    Origin,
    ReleaseTable,
    Unit,
    loose_hash,
    loose_keys,
    numbered_sets,
    packed_map,
    text_hash,
)

Name = TypeVar("Name")


def build_table(
    kernels: Mapping[str, Iterable[Unit]],
    version: str,
    *,
    git_version: str | None = None,
    cuda: str | None = None,
    libraries: tuple[Library, ...] = (),
) -> ReleaseTable:
    """The table of kernels and the units that register them; the order of either does not matter."""
    known = {name: frozenset(units) for name, units in sorted(kernels.items())}
    known = {name: units for name, units in known.items() if units}
    units, sets, numbers = numbered_sets(known, lambda unit: (unit.label, unit.origin.value))
    members = {name: sets[number] for name, number in numbers.items()}
    exact = _hashed({name: text_hash(name) for name in members}, version)
    return ReleaseTable(
        version=version,
        units=units,
        unit_sets=sets,
        exact=packed_map({exact[name]: number for name, number in numbers.items()}),
        loose=packed_map(_loose_entries(members, version)),
        git_version=git_version,
        cuda=cuda,
        libraries=libraries,
    )


def _hashed(hashes: Mapping[Name, int], version: str) -> Mapping[Name, int]:
    if len(set(hashes.values())) < len(hashes):
        raise InputError(f"two names of {version} share a hash")
    return hashes


def _loose_entries(members: Mapping[str, Sequence[int]], version: str) -> dict[int, int]:
    units_of_key: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name, unit_set in members.items():
        for kind, key in loose_keys(name).items():
            units_of_key[kind, key].update(unit_set)
    hashes = _hashed({key: loose_hash(*key) for key in units_of_key}, version)
    return {
        hashes[key]: next(iter(units)) if len(units) == 1 else SEVERAL_UNITS
        for key, units in units_of_key.items()
    }


# Paths that a library names, of its build's own folders.
_GENERATED = "build/"
_SUBMODULES = "third_party/"


def unit_at(name: str, path: str | None) -> Unit:
    """The unit of a file the build names; its path is relative to PyTorch's repository, or absolute."""
    if path is None:
        return Unit(name)
    if path.startswith("/"):
        return Unit(name, None, Origin.OTHER_PROJECT)
    if path.startswith(_GENERATED):
        return Unit(name, None, Origin.GENERATED)
    return Unit(name, path, Origin.SUBMODULE if path.startswith(_SUBMODULES) else Origin.REPOSITORY)


def kernels_of_library(path: Path) -> tuple[Library, dict[str, frozenset[RecordedUnit]]]:
    """What a library is, and the units of each of its kernels by the name a trace shows."""
    with open_elf(path) as elf:
        kernels = by_shown_name(units_by_kernel(elf))
        return Library(path.name, elf.build_id, len(kernels)), kernels


# Native function -> the files that may define it, from where its symbol lies in an unstripped library. A
# linker puts the code of one object file in one piece: a global function between two local functions of one
# unit is that unit's, one between local functions of two units belongs to one of them. Local functions follow
# their file's symbol in `.symtab`. Weak functions (templates and inline ones, in many units) are left out.

_GLOBAL = 1
_NATIVE = b"_ZN2at6native"
# `at::native::structured_mm_out_cuda::impl(…)` is TORCH_IMPL_FUNC(mm_out_cuda).
_FUNCTION = re.compile(
    r"at::native::(?:structured_(?P<structured>\w+)::impl|(?P<plain>\w+))(?:\[abi:\w+\])?\("
)


def defining_files(
    path: str | os.PathLike[str], unit_paths: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The files, one or two, that may define each function of `at::native`, by its name without namespace.

    Of a library without a symbol table the answer is empty. `unit_paths` are the repository paths of the
    units its kernels are known to come from.
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
        if match := _FUNCTION.match(name or ""):
            candidates[match["structured"] or match["plain"]].add(frozenset(paths[file] for file in files))
    # Of overloads in several places, and of a place without a certain path, nothing is said.
    places = {name: sets.pop() for name, sets in candidates.items() if len(sets) == 1}
    return {name: tuple(sorted(paths)) for name, paths in sorted(places.items()) if None not in paths}


def _functions(elf: ElfFile, symbols: Table, names: ElfSection) -> Iterator[tuple[str, frozenset[int]]]:
    """Mangled names of global functions of at::native, with the rows of the file symbols around them."""
    kind, binding = symbols["info"] & 15, symbols["info"] >> 4
    files = np.flatnonzero(kind == FILE)
    is_code = (kind == FUNCTION) & (symbols["value"] > 0)
    local = np.flatnonzero(is_code & (binding == 0))
    local = local[np.argsort(symbols["value"][local], kind="stable")]
    addresses, owners = symbols["value"][local], _file_rows(symbols, files, local)
    wanted = np.flatnonzero(is_code & (binding == _GLOBAL))
    texts = elf.content(names)
    is_native = [texts.startswith(_NATIVE, name) for name in symbols["name"][wanted].tolist()]
    wanted = wanted[np.array(is_native, dtype=np.bool_)]
    after = np.searchsorted(addresses, symbols["value"][wanted])
    for row, position in zip(wanted.tolist(), after.tolist(), strict=True):
        if not 0 < position < len(local):
            continue
        around = frozenset(int(owner) for owner in owners[position - 1 : position + 1])
        if min(around) >= 0:
            yield elf.string_at(names, int(symbols["name"][row])).decode("utf-8", "replace"), around


def _file_rows(symbols: Table, files: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Row of the file symbol each local symbol belongs to; -1 for those of no named file."""
    rank = np.searchsorted(files, rows, side="right")
    owners = np.where(symbols["name"][files] > 0, files, -1)
    return np.concatenate(([-1], owners))[rank]


def _path(file_symbol: str, known: dict[str, set[str]]) -> str | None:
    """The only known path of a file symbol's file: `…_SoftMax.compute_120.cudafe1.cpp` or `Blas.cpp`."""
    stem = host_stem(file_symbol)
    paths = known.get(file_symbol if stem is None else f"{stem}.cu", set())
    return next(iter(paths)) if len(paths) == 1 else None


# Where checks stand in the sources of a build: file, function and line, as its code passes them on.
# `TORCH_CHECK` calls `torchCheckFail(function, file, line, …)`, a launch check
# `c10_cuda_check_implementation(error, file, function, line, …)`. Both load the two texts relative to the
# instruction and the line as a constant, within a few instructions of each other and before the call:
# registers of System V's x86-64 ABI tell which is which. Nothing is disassembled: a combination that is not
# such a call would have to name a source file, a C++ identifier and a small number in the right registers.

# lea rsi / rdi / rdx, [rip + displacement]; mov edx / ecx, constant.
_LEA_FIRST, _LEA_THIRD = b"\x48\x8d\x3d", b"\x48\x8d\x15"
_MOV_THIRD, _MOV_FOURTH = b"\xba", b"\xb9"
_STRINGS, _CODE = (".rodata", ".lrodata"), (".text", ".ltext")  # the latter ones of large libraries
_WINDOW = 48
_CALL = 0xE8
_NEAR = frozenset((0x00, 0x01, 0x02, 0x03, 0xFC, 0xFD, 0xFE, 0xFF))
_LARGEST_LINE = 30_000
_PATH = re.compile(rb"/(?:[\w.+-]+/)*?((?:aten/src|torch/csrc|c10)/[\w./+-]+\.(?:cuh?|cpp|h))\0")
_IDENTIFIER = re.compile(rb"([A-Za-z_]\w*|operator\(\))\0")

Sites = dict[str, set[tuple[int, str]]]
"""By file, (line, function)."""


def sites_of(library: Path) -> Sites:
    sites: Sites = defaultdict(set)
    with open_elf(library) as elf:
        found = {
            name: (elf.sections[name].address, elf.content(elf.sections[name]))
            for name in (*_STRINGS, *_CODE)
            if name in elf.sections
        }
    texts = [found[name] for name in _STRINGS if name in found]
    for base, code in (found[name] for name in _CODE if name in found):
        for file, function, line in _calls(code, base, texts):
            sites[file].add((line, function))
    return dict(sites)


def _calls(code: bytes, base: int, texts: list[tuple[int, bytes]]) -> Iterator[tuple[str, str, int]]:
    octets = np.frombuffer(code, np.uint8)
    is_lea = (octets[:-7] == 0x48) & (octets[1:-6] == 0x8D) & (octets[2:-5] == 0x35)
    for at in np.flatnonzero(is_lea).tolist():
        file = _text(_target(code, at, base), texts, _PATH)
        if file is None:
            continue
        start, end = max(0, at - _WINDOW), min(len(code) - 8, at + _WINDOW)
        for lea, move in ((_LEA_FIRST, _MOV_THIRD), (_LEA_THIRD, _MOV_FOURTH)):
            function_at = _nearest(code, lea, start, end, at)
            line_at = _nearest(code, move, start, end, at)
            if function_at is None or line_at is None:
                continue
            function = _text(_target(code, function_at, base), texts, _IDENTIFIER)
            line = int.from_bytes(code[line_at + 1 : line_at + 5], "little")
            if function is not None and 0 < line < _LARGEST_LINE:
                yield file, function, line
                break


def _target(code: bytes, at: int, base: int) -> int:
    return base + at + 7 + int.from_bytes(code[at + 3 : at + 7], "little", signed=True)


def _text(address: int, texts: list[tuple[int, bytes]], pattern: re.Pattern[bytes]) -> str | None:
    for start, content in texts:
        if start <= address < start + len(content):
            found = pattern.match(content, address - start)
            return None if found is None else found[1].decode()
    return None


def _nearest(code: bytes, instruction: bytes, start: int, end: int, at: int) -> int | None:
    """The nearest place of an instruction that no call separates from `at`."""
    places = []
    position = code.find(instruction, start, end)
    while position >= 0:
        if position != at and not _has_call(code[min(position, at) + 5 : max(position, at)]):
            places.append(position)
        position = code.find(instruction, position + 1, end)
    return min(places, key=lambda one: abs(one - at), default=None)


def _has_call(between: bytes) -> bool:
    """Whether a `call` stands there: its target is within 64 MiB, as other bytes' would seldom be."""
    return any(octet == _CALL and between[index + 4] in _NEAR for index, octet in enumerate(between[:-4]))


Anchor = tuple[int, int]
"""A line of one release and the line of another where the same check stands."""


def anchors(old: set[tuple[int, str]], new: set[tuple[int, str]]) -> list[Anchor]:
    """Checks of a file that two releases have in common, in their order.

    Checks of one function cannot be told apart: where their number differs, which one is new is open, and
    only those count that moved as far as a check of another function beside them.
    """
    before, after = sorted(old), sorted(new)
    names, others = [name for _, name in before], [name for _, name in after]
    counts, other_counts = Counter(names), Counter(others)
    matcher = SequenceMatcher(None, names, others, autojunk=False)
    pairs = [
        (before[block.a + index], after[block.b + index])
        for block in matcher.get_matching_blocks()
        for index in range(block.size)
    ]
    certain = [counts[one[1]] == other_counts[one[1]] for one, _ in pairs]
    moved = [there[0] - here[0] for here, there in pairs]
    kept = []
    for index, (here, there) in enumerate(pairs):
        beside = [at for at in (index - 1, index + 1) if 0 <= at < len(pairs)]
        if certain[index] or any(certain[at] and moved[at] == moved[index] for at in beside):
            kept.append((here[0], there[0]))
    return kept


def segments(found: list[Anchor]) -> tuple[Segment, ...]:
    """The same in short: runs of checks that moved equally far."""
    runs: list[Segment] = []
    for here, there in found:
        if runs and runs[-1][2] == there - here:
            runs[-1] = (runs[-1][0], here, there - here)
        else:
            runs.append((here, here, there - here))
    return tuple(runs)
