"""The source index of a source tree of PyTorch, or of the headers in `torch/include`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.provenance.sources import (
    INDEX_FORMAT,
    INDEX_TEXTS,
    Definition,
    IndexRow,
    Registration,
    SourceIndex,
    repository_path,
    without_guard,
)
from torch_tables.definitions import FileFacts, Found, is_member
from torch_tables.preprocess import MacroTable, Source

# What kernels, operators and their functors are defined in.
_FOLDERS = (
    "aten/src/ATen",
    "c10/core",
    "c10/cuda",
    "torch/csrc/autograd",
    "torch/csrc/cuda",
    "torch/csrc/distributed/c10d",
    "torch/csrc/inductor",
    "torch/headeronly",
)
_SKIPPED = re.compile(
    r".*/(?:test|tests|benchmarks|bench|templates|qnnpack|metal|nnapi|ATen/native/vulkan)/.*"
)
_SUFFIXES = (".cu", ".cuh", ".cpp", ".h", ".hpp", ".cc", ".mm")
# Where kernels, launchers and functors are; the rest of the headers holds none.
_HEADER_FOLDERS = ("ATen/native", "ATen/cuda", "c10/cuda", "torch/csrc/distributed/c10d")
_HEADER_SUFFIXES = (".cuh", ".h", ".hpp")
# All that the body of an error stub calls.
_RAISING = frozenset(
    ("TORCH_CHECK", "TORCH_CHECK_NOT_IMPLEMENTED", "TORCH_INTERNAL_ASSERT", "AT_ERROR", "runtime_error")
)

Tree = tuple[Sequence[Definition], Sequence[Registration]]


def tree_index(checkout: Path, version: str, git_version: str | None) -> SourceIndex:
    files = _files(checkout, _FOLDERS, _SUFFIXES)
    texts = {file: path.read_text(encoding="utf-8", errors="replace") for file, path in files}
    if not texts:
        raise InputError(
            "not a PyTorch source tree: it holds no aten/src/ATen",
            source=checkout,
            hint="Give the root folder of a checkout of pytorch/pytorch",
        )
    return index_of(version, git_version, read_tree(texts))


def header_index(include_folder: Path, version: str, git_version: str | None) -> SourceIndex:
    """The definitions in an installation's headers. Files are named by their paths in the repository."""
    texts = {
        file: without_guard(path.read_text(encoding="utf-8", errors="replace"))
        for header, path in _files(include_folder, _HEADER_FOLDERS, _HEADER_SUFFIXES)
        if (file := repository_path(header)) is not None
    }
    if not texts:
        raise InputError("no ATen headers", source=include_folder, hint="Give the folder torch/include")
    return index_of(version, git_version, read_tree(texts))


def index_of(version: str, git_version: str | None, tree: Tree) -> SourceIndex:
    """The index of definitions whose lines are known, in any order."""
    numbers: dict[str | tuple[str, ...], int] = {}
    rows: dict[str, list[IndexRow]] = {}
    for one in sorted(tree[0], key=lambda one: (one.file, one.line or 0)):
        texts = {field: numbers.setdefault(getattr(one, field), len(numbers)) for field in INDEX_TEXTS}
        line = one.line or 0
        lines = {"line": line, "span": max(0, (one.end_line or 0) - line)}
        row = IndexRow(**texts, **lines, is_specialization=one.is_specialization)
        rows.setdefault(one.name, []).append(row)
    packed = {name: msgspec.Raw(msgspec.msgpack.encode(of)) for name, of in rows.items()}
    listed = tuple(sorted(tree[1], key=lambda entry: (entry.file, entry.line, entry.stub)))
    return SourceIndex(INDEX_FORMAT.number, version, git_version, list(numbers), packed, listed)


def _files(root: Path, tops: Iterable[str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for top in tops:
        for path in sorted((root / top).rglob("*.*")):
            file = path.relative_to(root).as_posix()
            if file.endswith(suffixes) and not _SKIPPED.match(file):
                yield file, path


def read_tree(texts: Mapping[str, str]) -> Tree:
    """Definitions and stub registrations of files that may use each other's macros and stubs."""
    sources = [Source(file, text) for file, text in texts.items()]
    macros = MacroTable(sources)
    facts = [FileFacts(source, macros) for source in sources]
    found = [one for entry in facts for one in _without_error_stubs(entry.found)]
    stubs = {name for entry in facts for name in entry.declared_stubs}
    # Names of functions that a `.cu` file defines and no other file does: a call can mean nothing else.
    files: dict[str, set[str]] = defaultdict(set)
    for row in (one.row for one in found):
        if row.kind in ("function", "structured", "kernel") and not is_member(row):
            files[row.name].add(row.file)
    launchers = {name for name, of in files.items() if len(of) == 1 and next(iter(of)).endswith(".cu")}
    definitions = [
        replace(
            one.row,
            stubs=tuple(sorted(one.calls & stubs)),
            launchers=() if one.row.file.endswith((".cu", ".cuh")) else tuple(sorted(one.calls & launchers)),
        )
        for one in found
    ]
    return definitions, [registration for entry in facts for registration in entry.registrations]


def _without_error_stubs(found: list[Found]) -> list[Found]:
    """Without functions that only raise "not compiled with …" where the file has the real one too."""

    def signature(row: Definition) -> tuple[object, ...]:
        return row.scope, row.name, row.parameters, row.template_parameters

    def raises(one: Found) -> bool:
        return one.row.kind in ("function", "structured") and bool(one.calls) and one.calls <= _RAISING

    real = {signature(one.row) for one in found if not raises(one)}
    return [one for one in found if not raises(one) or signature(one.row) not in real]
