"""What the libraries of a build say: kernels and their units, files of native functions, lines of checks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from opscope.errors import InputError
from opscope.model.queries import grouped
from opscope.provenance import torch_releases
from opscope.provenance.binaries.device_code import host_stem, path_strings, paths_by_name, repository_root
from opscope.provenance.binaries.elf import FILE, FUNCTION, open_elf
from opscope.provenance.binaries.library import by_shown_name, units_by_kernel
from opscope.provenance.kernel_names.cxx_name import demangle_all
from opscope.provenance.sources import Moved, Segment, SourceIndex, StoredLines, moved_in
from opscope.provenance.torch_releases import Library, ReleaseTable, Unit


def build_table(kernels: Mapping[str, Iterable[Unit]], version: str, **facts: Any) -> ReleaseTable:
    """The table of kernels and the units that register them; the order of either does not matter."""
    known = {name: units for name, of in sorted(kernels.items()) if (units := frozenset(of))}
    units, sets, numbers = torch_releases.numbered_sets(known, lambda unit: (unit.label, unit.path is None))
    keys = ((key, name) for name in numbers for key in torch_releases.loose_keys(name).items())
    of_key = {key: set().union(*(sets[numbers[name]] for name in of)) for key, of in grouped(keys).items()}
    exact = {torch_releases.text_hash(name): number for name, number in numbers.items()}
    loose = {
        torch_releases.loose_hash(*key): min(of) if len(of) == 1 else torch_releases.SEVERAL_UNITS
        for key, of in of_key.items()
    }
    if len(exact) < len(numbers) or len(loose) < len(of_key):
        raise InputError(f"two names of {version} share a hash")
    return ReleaseTable(version, units, sets, *map(torch_releases.packed_map, (exact, loose)), **facts)


def unit_at(name: str, path: str | None) -> Unit:
    """The unit of a file the build names; its path is relative to PyTorch's repository, or absolute."""
    return Unit(name, None if path is None or path.startswith(("/", "build/")) else path)


def kernels_of_library(path: Path) -> tuple[Library, dict[str, set[Unit]]]:
    """What a library is, and the units of each of its kernels by the name a trace shows."""
    with open_elf(path) as elf:
        kernels = by_shown_name(units_by_kernel(elf)).items()
        units = {name: {unit_at(one.name, one.source_path) for one in of} for name, of in kernels}
        return Library(path.name), units


_GLOBAL = 1
_NATIVE = b"_ZN2at6native"
# `at::native::structured_mm_out_cuda::impl(…)` is TORCH_IMPL_FUNC(mm_out_cuda).
_FUNCTION = re.compile(r"at::native::(?:structured_(\w+)::impl|(\w+))(?:\[abi:\w+\])?\(")


def defining_files(path: Path, unit_paths: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """The files, one or two, that may define each function of `at::native`, by its name without namespace.

    They follow from where its symbol lies in an unstripped library; of one without a symbol table the answer
    is empty. A linker puts the code of one object file in one piece: a global function between two local
    functions of one unit is that unit's, one between local functions of two units belongs to one of them.
    Local functions follow their file's symbol in `.symtab`. Weak functions (templates and inline ones, in
    many units) are left out. `unit_paths` are the repository paths of the units its kernels are known to come
    from.
    """
    with open_elf(path) as elf:
        table, names = elf.sections.get(".symtab"), elf.sections.get(".strtab")
        if table is None or names is None:
            return {}
        symbols, texts = elf.symbols(table), elf.content(names)
        strings = set(path_strings(elf.rodata))
        root = repository_root(strings)
        own = (path.removeprefix(root) for path in strings if root and path.startswith(root))
        known = paths_by_name([*unit_paths, *own])
    text_offsets, addresses = symbols["name"], symbols["value"]
    kind, binding = symbols["info"] & 15, symbols["info"] >> 4
    is_code = (kind == FUNCTION) & (addresses > 0)
    files = np.flatnonzero(kind == FILE)
    local = np.flatnonzero(is_code & (binding == 0))
    local = local[np.argsort(addresses[local], kind="stable")]
    # Row of the file symbol each local function belongs to; -1 for those of no named file.
    named_files = np.concatenate(([-1], np.where(text_offsets[files] > 0, files, -1)))
    owners = named_files[np.searchsorted(files, local, side="right")]
    wanted = np.flatnonzero(is_code & (binding == _GLOBAL))
    after = np.searchsorted(addresses[local], addresses[wanted])

    def text_of(row: int) -> str:
        return elf.string_in(texts, int(text_offsets[row])).decode("utf-8", "replace")

    def path_of(file: int) -> str | None:
        """The only known path of a file symbol's file: `…_SoftMax.compute_120.cudafe1.cpp` or `Blas.cpp`."""
        stem = host_stem(text_of(file))
        paths = known.get(text_of(file) if stem is None else f"{stem}.cu", set())
        return next(iter(paths)) if len(paths) == 1 else None

    found: list[tuple[str, frozenset[str | None]]] = []
    for row, place in zip(wanted.tolist(), after.tolist(), strict=True):
        around = set(owners[place - 1 : place + 1].tolist()) if 0 < place < len(local) else {-1}
        if -1 not in around and texts.startswith(_NATIVE, int(text_offsets[row])):
            found.append((text_of(row), frozenset(map(path_of, around))))
    shown = (_FUNCTION.match(name or "") for name in demangle_all(mangled for mangled, _ in found))
    named = ((match, paths) for match, (_, paths) in zip(shown, found, strict=True) if match)
    places = grouped((match[1] or match[2], paths) for match, paths in named)
    # Of overloads in several places, and of a place without a certain path, nothing is said.
    certain = {name: of[0] for name, of in places.items() if len(set(of)) == 1 and None not in of[0]}
    return {name: tuple(sorted(filter(None, of))) for name, of in certain.items()}


# Where checks stand in the sources of a build: file, function and line, as its code passes them on.
# `TORCH_CHECK` calls `torchCheckFail(function, file, line, …)`, a launch check
# `c10_cuda_check_implementation(error, file, function, line, …)`. Both load the two texts relative to the
# instruction and the line as a constant, within a few instructions of each other and before the call:
# registers of System V's x86-64 ABI tell which is which. Nothing is disassembled: a combination that is not
# such a call would have to name a source file, a C++ identifier and a small number in the right registers.

# lea rsi, [rip + displacement]; lea rdi with mov edx, or lea rdx with mov ecx.
_LEA_SECOND = re.compile(rb"\x48\x8d\x35")
_FORMS = (
    (re.compile(rb"\x48\x8d\x3d"), re.compile(rb"\xba")),
    (re.compile(rb"\x48\x8d\x15"), re.compile(rb"\xb9")),
)
# A `call`: its target is within 64 MiB, as other bytes' would seldom be.
_CALL = re.compile(rb"\xe8...[\x00-\x03\xfc-\xff]", re.DOTALL)
_STRINGS, _CODE = (".rodata", ".lrodata"), (".text", ".ltext")  # the latter ones of large libraries
_WINDOW = 48
_LARGEST_LINE = 30_000
_PATH = re.compile(rb"/(?:[\w.+-]+/)*?((?:aten/src|torch/csrc|c10)/[\w./+-]+\.(?:cuh?|cpp|h))\0")
_IDENTIFIER = re.compile(rb"([A-Za-z_]\w*|operator\(\))\0")


def sites_of(library: Path) -> dict[str, list[tuple[int, str]]]:
    """Line and function of each check, by file."""
    with open_elf(library) as elf:
        texts, codes = (
            [(one.address, elf.content(one)) for name in names if (one := elf.sections.get(name)) is not None]
            for names in (_STRINGS, _CODE)
        )
    calls = (call for base, code in codes for call in _calls(code, base, texts))
    return grouped((file, (line, function)) for file, function, line in calls)


def _calls(code: bytes, base: int, texts: list[tuple[int, bytes]]) -> Iterator[tuple[str, str, int]]:
    def loaded(at: int, pattern: re.Pattern[bytes]) -> str | None:
        address = base + at + 7 + int.from_bytes(code[at + 3 : at + 7], "little", signed=True)
        held = ((start, content) for start, content in texts if start <= address < start + len(content))
        found = next((pattern.match(content, address - start) for start, content in held), None)
        return None if found is None else found[1].decode()

    def nearest(instruction: re.Pattern[bytes], at: int) -> int | None:
        """The nearest place of an instruction that no call separates from `at`."""
        found = instruction.finditer(code, max(0, at - _WINDOW), min(len(code) - 8, at + _WINDOW))
        places = [one.start() for one in found if one.start() != at]
        joined = [one for one in places if not _CALL.search(code, min(one, at) + 5, max(one, at))]
        return min(joined, key=lambda one: abs(one - at), default=None)

    for at in (found.start() for found in _LEA_SECOND.finditer(code, 0, len(code) - 5)):
        if (file := loaded(at, _PATH)) is None:
            continue
        for lea, move in _FORMS:
            function_at, line_at = nearest(lea, at), nearest(move, at)
            if function_at is None or line_at is None:
                continue
            function = loaded(function_at, _IDENTIFIER)
            line = int.from_bytes(code[line_at + 1 : line_at + 5], "little")
            if function is not None and 0 < line < _LARGEST_LINE:
                yield file, function, line
                break


def segments(old: Iterable[tuple[int, str]], new: Iterable[tuple[int, str]]) -> tuple[Segment, ...]:
    """Runs of checks of a file that two releases have in common and that moved equally far.

    Checks of one function cannot be told apart: where their number differs, which one is new is open, and
    only those count that moved as far as a check of another function beside them.
    """
    before, after = sorted(old), sorted(new)
    names, others = [name for _, name in before], [name for _, name in after]
    counts, other_counts = Counter(names), Counter(others)
    moves = [
        (line, after[second + index][0] - line, counts[name] == other_counts[name])
        for first, second, size in SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
        for index, (line, name) in enumerate(before[first : first + size])
    ]
    certain = [
        (line, moved)
        for index, (line, moved, _) in enumerate(moves)
        if any(beside[1:] == (moved, True) for beside in moves[max(0, index - 1) : index + 2])
    ]
    runs = (list(run) for _, run in groupby(certain, key=lambda one: one[1]))
    return tuple((run[0][0], run[-1][0], run[0][1]) for run in runs)


def contradicted(
    index: SourceIndex, lines: StoredLines, sites: Mapping[str, Iterable[tuple[int, str]]]
) -> dict[str, tuple[int, ...]]:
    """Lines of the index, by file, of which no segment tells and that cannot be the release's.

    There a check of the function, or of one behind it, comes before the line, or one of a function in front
    of it comes after. Functions are told by names that the file has once.
    """
    found = {}
    for file, rows in sorted(grouped((row.file, row) for row in index).items()):
        names = Counter(row.name for row in rows)
        checks = grouped((of, at) for at, of in sites.get(file, ()) if of != "operator()")  # not of lambdas
        once = (row for row in rows if names[row.name] == 1 and checks[row.name])
        known = [(row.line, min(checks[row.name]), max(checks[row.name])) for row in once]
        left = {row.line for row in rows if moved_in(lines, file, row.line) == Moved(row.line)}
        wrong = {at for at in left for own, low, high in known if (low < at if own >= at else high >= at)}
        if wrong:
            found[file] = tuple(sorted(wrong))
    return found
