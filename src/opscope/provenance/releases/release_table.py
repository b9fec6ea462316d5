"""The kernel table of each release: which translation units register a kernel.

Exact answers are by the whole name, as a trace shows it. Loose ones, for kernels of another release, are by
what outlives a release in a name, and only where that points to a single unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.errors import InputError
from opscope.provenance.demangle import demangle
from opscope.provenance.installation import label_order, parse_version
from opscope.provenance.packaged import lazy_pattern, release_file, release_files
from opscope.provenance.releases.table_file import (
    SEVERAL_UNITS,
    HashMap,
    UnitTableFile,
    decode_table,
    text_hash,
)

# Loose keys: the part of a kernel name that outlives a release, that is what is launched, and whose code it
# runs. `vectorized_elementwise_kernel<4, …gelu(…)::{lambda…}, …>` changes its arguments from release to
# release; the function that owns the lambda, or the functor in the template arguments, rarely moves to
# another file. Each name has up to two keys: `owner`, that function, in one file whatever launches it; and
# `launch`, the kernel's function with the functors of its template arguments. Element types, sizes and
# argument holders are left out of both. Packaged tables hold hashes of these keys: a change here asks for new
# tables.
_TOKEN = lazy_pattern(
    r"""\(anonymous\ namespace\)|<unnamed>
    | \{(?:lambda|unnamed)
    | operator(?:\(\)|\[\]|<<=?|>>=?|->\*?|<=>|[-+*/%^&|!=<>~]=?|(?=\W))
    | [A-Za-z_$~][\w$]*(?:\[abi:\w+\])?
    | ::|->|[<>(){}\[\],]|\d\w*""",
    re.VERBOSE,
)
_CLOSING = {"<": ">", "(": ")", "{": "}", "[": "]"}
_ANONYMOUS = "(anonymous namespace)"

# Namespaces that carry their library's version, and nvcc's namespace of what is local to a unit.
_VERSION_NAMESPACE = lazy_pattern(r"(?:THRUST|CUB)_\w+_NS|__\d+|_INTERNAL_[0-9a-f]{8}_\d+_\w+")
_KEYWORD = lazy_pattern(
    "void|bool|char|signed|unsigned|short|int|long|float|double|auto|wchar_t|true|false|nullptr|const|volatile"
    "|half|__half|__nv_bfloat16|double2|float2|float4|uint4|ulonglong2"
)
# What template arguments hold besides functors: element types, sizes, iterators, argument holders.
_ARGUMENT_NAMESPACES = (
    "std::",
    "c10::",
    "cuda::",
    "thrust::",
    "cub::",
    "at_cuda_detail::",
    "cutlass::",
    "cute::",
)
_ARGUMENT_TYPE = lazy_pattern(
    r"(?:^|::)(?:(?:Trivial)?OffsetCalculator|CUDAGeneratorImpl|ReduceOp|Array|(?:Load|Store)With(?:out)?Cast"
    r"|\w*Metadata)$"
)


class LooseKeys(msgspec.Struct, frozen=True):
    """The keys of one kernel name; None where the name has no such part."""

    owner: str | None
    launch: str | None

    def hashes(self) -> dict[str, int]:
        """The hash that a table holds for each key there is, `owner` first."""
        keys = {"owner": self.owner, "launch": self.launch}
        return {kind: text_hash(f"{kind}\0{key}") for kind, key in keys.items() if key is not None}


def loose_keys(kernel_name: str) -> LooseKeys:
    """The keys of a demangled kernel name; both None for a mangled one."""
    if kernel_name.startswith("_Z"):
        return LooseKeys(None, None)
    scan = _Scan()
    for token in _TOKEN.finditer(kernel_name):
        scan.feed(token.group())
    scan.end_path()
    owner = scan.owners[0] if scan.owners else None
    if scan.function is None or (not scan.functors and scan.function.startswith(_ARGUMENT_NAMESPACES)):
        # A template library's kernel without anybody's functor is anybody's.
        return LooseKeys(owner, None)
    return LooseKeys(owner, "|".join(dict.fromkeys((scan.function, *scan.functors))))


class _Path(msgspec.Struct):
    """A qualified name while it is read; inside a lambda, the name of the function that owns it."""

    parts: list[str] = msgspec.field(default_factory=list)
    owns_lambda: bool = False


class _Scan:
    """Reads tokens one by one; brackets set the path around them aside until they close."""

    def __init__(self) -> None:
        self.function: str | None = None
        self.owners: list[str] = []
        self.functors: list[str] = []
        self._path = _Path()
        self._outer: list[tuple[str, _Path]] = []
        self._other_brackets = 0  # open ones that are not <>
        self._after_colons = False

    def feed(self, token: str) -> None:
        if token == "::":
            self._after_colons = True
            return
        if token[0] in _CLOSING and token not in (_ANONYMOUS, "<unnamed>"):
            self._open(token[0], is_lambda=len(token) > 1)
        elif token in ">)}]":
            self._close(token)
        elif token == ",":
            self.end_path()
            self._path = _Path()
        elif token != "const" and not token[0].isdigit() and token != "->":
            self._name(_ANONYMOUS if token == "<unnamed>" else token)
        if token != "const":
            self._after_colons = False

    def end_path(self) -> None:
        """Note the path just read, by where it stands."""
        parts = [part for part in self._path.parts if not _VERSION_NAMESPACE.fullmatch(part)]
        if not parts:
            return
        name = "::".join(parts)
        if not self._outer:
            if not _KEYWORD.fullmatch(name):
                self.function = name
        elif self._path.owns_lambda:
            if self._outer[0][0] == "<":
                self.owners.append(name)
        elif not self._other_brackets and _is_functor(name):
            self.functors.append(name)

    def _open(self, bracket: str, *, is_lambda: bool) -> None:
        path = self._path
        if is_lambda:
            path.owns_lambda = True
        self._outer.append((bracket, path))
        self._other_brackets += bracket != "<"
        self._path = _Path()

    def _close(self, token: str) -> None:
        self.end_path()
        self._path = _Path()
        while self._outer:
            bracket, path = self._outer.pop()
            self._other_brackets -= bracket != "<"
            if _CLOSING[bracket] == token:
                self._path = path
                break

    def _name(self, token: str) -> None:
        if not self._after_colons:
            self.end_path()
            self._path = _Path([token])
        elif not self._path.owns_lambda:
            self._path.parts.append(token)


def _is_functor(name: str) -> bool:
    return not (
        _KEYWORD.fullmatch(name) or name.startswith(_ARGUMENT_NAMESPACES) or _ARGUMENT_TYPE.search(name)
    )


class ReleaseTable:
    def __init__(self, content: UnitTableFile) -> None:
        self._unit_sets = content.unit_sets
        self._exact = HashMap.unpacked(content.exact)
        self._loose = HashMap.unpacked(content.loose)
        self.version = content.version
        self.git_version = content.git_version
        self.cuda = content.cuda
        self.libraries = content.libraries
        self.units = content.units

    def units_of(self, kernel_name: str) -> tuple[str, ...]:
        """Every unit that registers the kernel, as path or file name; empty if the name is not known."""
        found = self._exact.get(text_hash(kernel_name))
        if found is None and (shown := demangle(kernel_name)) is not None:
            found = self._exact.get(text_hash(shown))
        return () if found is None else self._labels(self._unit_sets[found])

    def loose_units_of(self, kernel_name: str) -> tuple[str, ...]:
        """The one unit whose kernels launch the same code; empty unless there is exactly one."""
        hashes = loose_keys(demangle(kernel_name) or kernel_name).hashes()
        found = self._loose.get(hashes["owner"]) if "owner" in hashes else SEVERAL_UNITS
        # The owner of a lambda that no kernel here has is not of this release: its launcher says nothing.
        if found == SEVERAL_UNITS:
            found = self._loose.get(hashes["launch"]) if "launch" in hashes else None
        return () if found is None or found == SEVERAL_UNITS else self._labels((found,))

    def knows(self, name_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash of a kernel name whether the table has it: bool[n]."""
        return self._exact.contains(name_hashes)

    def _labels(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.units[index].label for index in indexes))


TABLE_NAME = "units.msgpack.zst"


@cache
def release_versions() -> tuple[str, ...]:
    return tuple(sorted(release_files(TABLE_NAME), key=label_order))


def release(version: str) -> ReleaseTable:
    """The table of a version; `2.11.0+cu130` is `2.11.0`."""
    known, parsed = release_versions(), parse_version(version)
    name = version if parsed is None else parsed.name
    if name not in known:
        raise InputError(f"no kernel table of PyTorch {version}; there are: {', '.join(known)}")
    return _table(name)


def git_version(version: str) -> str | None:
    """The commit a release was built from; None if it is not known."""
    parsed = parse_version(version)
    name = version if parsed is None else parsed.name
    return release(name).git_version if name in release_versions() else None


@cache
def _table(version: str) -> ReleaseTable:
    file = release_file(version, TABLE_NAME)
    return ReleaseTable(decode_table(file.read_bytes(), str(file)))
