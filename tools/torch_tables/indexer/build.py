"""The source index of a PyTorch checkout, or of the headers in `torch/include`, read without a compiler."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.provenance.installation import COMMIT, RELEASE_NAME, TorchBuild, torch_build
from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.sources.at_hand import repository_path, without_guard
from opscope.provenance.sources.index import Definition, Registration, SourceIndex, is_member
from torch_tables.indexer.lexer import LexedSource, lex
from torch_tables.indexer.macros import MacroTable, macros_of
from torch_tables.indexer.tracker import FileFacts, read_definitions

# What kernels, operators and their functors are defined in.
_FOLDERS = (
    "aten/src/ATen",
    "aten/src/THC",
    "c10/core",
    "c10/cuda",
    "torch/csrc/autograd",
    "torch/csrc/cuda",
    "torch/csrc/distributed/c10d",
    "torch/csrc/inductor",
    "torch/headeronly",
)
_SKIPPED_FOLDERS = frozenset(
    ("test", "tests", "benchmarks", "bench", "templates", "qnnpack", "metal", "nnapi")
)
_SKIPPED_PATHS = ("aten/src/ATen/native/vulkan",)
_SUFFIXES = (".cu", ".cuh", ".cpp", ".h", ".hpp", ".cc", ".mm")
_LARGEST_FILE_BYTES = 8 << 20
_INCLUDE = lazy_pattern(r'\s*["<](?:[^">]*/)?([^">/]+)[">]')
# All that the body of an error stub calls.
_RAISING = frozenset(
    ("TORCH_CHECK", "TORCH_CHECK_NOT_IMPLEMENTED", "TORCH_INTERNAL_ASSERT", "AT_ERROR", "runtime_error")
)


def build_table(checkout: Path, version: str | None = None, *, git_version: str | None = None) -> SourceIndex:
    """The definitions of a checkout."""
    checkout = Path(checkout)
    files = _source_files(checkout)
    if not files:
        raise InputError(
            "not a PyTorch source tree: it holds no aten/src/ATen",
            source=checkout,
            hint="Give the root folder of a checkout of pytorch/pytorch",
        )
    sources = {file: lex_file(checkout / file) for file in files}
    definitions, registrations = read_tree(sources)
    return SourceIndex.from_definitions(
        version or checkout_version(checkout),
        git_version or _checkout_commit(checkout),
        definitions,
        registrations,
    )


def read_tree(sources: Mapping[str, LexedSource]) -> tuple[list[Definition], list[Registration]]:
    """Definitions and stub registrations of files that may use each other's macros and stubs."""
    includes = {file: _includes(source) for file, source in sources.items()}
    macros = MacroTable(
        (macro for file, source in sources.items() for macro in macros_of(file, source)), includes
    )
    facts = [read_definitions(file, source, macros) for file, source in sources.items()]
    facts = [_without_error_stubs(entry) for entry in facts]
    stubs = {name for entry in facts for name in entry.declared_stubs}
    # Names of functions that a `.cu` file defines and no other file does: a call can mean nothing else.
    files: dict[str, set[str]] = defaultdict(set)
    for row in (row for entry in facts for row in entry.definitions):
        if row.kind in ("function", "structured", "kernel") and not is_member(row):
            files[row.name].add(row.file)
    launchers = {name for name, of in files.items() if len(of) == 1 and next(iter(of)).endswith(".cu")}
    definitions = []
    for entry in facts:
        for index, row in enumerate(entry.definitions):
            called = entry.calls.get(index, frozenset())
            is_cuda = row.file.endswith((".cu", ".cuh"))
            of_stubs = tuple(sorted(called & stubs))
            of_launchers = () if is_cuda else tuple(sorted(called & launchers))
            definitions.append(msgspec.structs.replace(row, stubs=of_stubs, launchers=of_launchers))
    return definitions, [registration for entry in facts for registration in entry.registrations]


def lex_file(path: Path) -> LexedSource:
    """The lexed text of a file; of one too large to be source, nothing."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            return lex("")
        return lex(without_guard(path.read_text(encoding="utf-8", errors="replace")))
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", source=path) from error


def _source_files(checkout: Path) -> list[str]:
    files: list[str] = []
    for folder in _FOLDERS:
        for parent, folders, names in os.walk(checkout / folder):
            relative = Path(parent).relative_to(checkout).as_posix()
            folders[:] = sorted(
                name
                for name in folders
                if name not in _SKIPPED_FOLDERS and f"{relative}/{name}" not in _SKIPPED_PATHS
            )
            files += [f"{relative}/{name}" for name in sorted(names) if name.endswith(_SUFFIXES)]
    return files


def _includes(source: LexedSource) -> tuple[str, ...]:
    matches = (_INCLUDE.match(entry.text) for entry in source.others if entry.keyword == "include")
    return tuple(match.group(1) for match in matches if match)


def _without_error_stubs(facts: FileFacts) -> FileFacts:
    """Without functions that only raise "not compiled with …" where the file has the real one too."""
    raising = {
        index
        for index, row in enumerate(facts.definitions)
        if row.kind in ("function", "structured") and _RAISING.issuperset(facts.calls.get(index, ("",)))
    }
    real = {_signature(row) for index, row in enumerate(facts.definitions) if index not in raising}
    kept = [
        index
        for index, row in enumerate(facts.definitions)
        if index not in raising or _signature(row) not in real
    ]
    return replace(
        facts,
        definitions=[facts.definitions[index] for index in kept],
        calls={new: facts.calls[old] for new, old in enumerate(kept) if old in facts.calls},
    )


def _signature(definition: Definition) -> tuple[str, str, str, tuple[str, ...]]:
    return definition.scope, definition.name, definition.parameters, definition.template_parameters


def checkout_version(checkout: Path) -> str:
    """The release a checkout is of, from its version.txt ("2.6.0a0" counts as "2.6.0")."""
    path = checkout / "version.txt"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"the version of the checkout cannot be read ({error.strerror})", source=path, hint="Give it"
        ) from error
    match = RELEASE_NAME.match(text.strip())
    if match is None:
        raise InputError("not a version", source=path, hint="Give the version")
    return match.group()


def _checkout_commit(checkout: Path) -> str | None:
    """The commit that a checkout's `.git` says is checked out; None if there is none to read."""
    folder = checkout / ".git"
    head = _text(folder / "HEAD")
    if head.startswith("ref: "):
        reference = head.removeprefix("ref: ")
        packed = (line.split() for line in _text(folder / "packed-refs").splitlines())
        named = next((words[0] for words in packed if len(words) == 2 and words[1] == reference), "")
        head = _text(folder / reference) or named
    return head if COMMIT.fullmatch(head) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# Where kernels, launchers and functors are; the rest of the headers holds none.
_HEADER_FOLDERS = ("ATen/native", "ATen/cuda", "c10/cuda", "torch/csrc/distributed/c10d")
_HEADER_SUFFIXES = (".cuh", ".h", ".hpp")


def header_table(include_folder: Path) -> SourceIndex:
    """The definitions in an installation's headers. Files are named by their paths in the repository."""
    sources: dict[str, LexedSource] = {}
    for top in _HEADER_FOLDERS:
        for parent, folders, names in os.walk(include_folder / top):
            folders.sort()
            relative = Path(parent).relative_to(include_folder).as_posix()
            for name in sorted(names):
                file = repository_path(f"{relative}/{name}") if name.endswith(_HEADER_SUFFIXES) else None
                if file is not None:
                    sources[file] = lex_file(Path(parent, name))
    if not sources:
        raise InputError("no ATen headers", source=include_folder, hint="Give the folder torch/include")
    build = torch_build(include_folder.parent) or TorchBuild(None, None)
    return SourceIndex.from_definitions(build.version or "", build.git_version, *read_tree(sources))
