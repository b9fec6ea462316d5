"""Which tables of PyTorch releases there are, and adding to them: kernels, operators, sources.

Added tables lie in `releases/<version>/` of the user's cache folder and come before packaged ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.cache import store
from opscope.provenance.indexer.build import build_index
from opscope.provenance.indexer.units import add_library_table
from opscope.provenance.installation import (
    COMMIT,
    RELEASE_NAME,
    TorchBuild,
    label_order,
    parse_version,
    torch_build,
)
from opscope.provenance.operators import (
    TABLE_FILE,
    build_operator_table,
    encode_table,
    packaged_table,
    packaged_versions,
)
from opscope.provenance.packaged import added_releases
from opscope.provenance.releases import release, release_versions
from opscope.provenance.releases.catalog import added_table
from opscope.provenance.sources import SourceIndex, source_index
from opscope.provenance.sources.at_hand import indexed_versions, release_headers
from opscope.provenance.sources.index import store_index


@dataclass(frozen=True)
class ReleaseInventory:
    """What the tables of one release hold; None where there is none of a kind."""

    version: str  # release, or the user's label
    is_added: bool  # the user added one of its tables
    kernels: int | None
    units: int | None  # source files they come from
    native_functions: int | None  # entries of the yaml, and those derived from them
    definitions: int | None  # functions, kernels, functors and stubs in its source tree
    header_definitions: int | None  # the same, in the headers it ships


def known_releases() -> tuple[ReleaseInventory, ...]:
    """Every release with a table, oldest first."""
    with_units, with_sources = release_versions(), indexed_versions()
    versions = sorted({*with_units, *packaged_versions(), *with_sources}, key=label_order)
    return tuple(_inventory(version, version in with_units, version in with_sources) for version in versions)


def _inventory(version: str, has_units: bool, has_sources: bool) -> ReleaseInventory:
    table = release(version) if has_units else None
    operators = packaged_table(version)
    return ReleaseInventory(
        version,
        any((added_releases() / version).glob("*")),
        None if table is None else table.kernel_count,
        None if table is None else len(table.units),
        None if operators is None else len(operators.functions),
        _definition_count(source_index(version) if has_sources else None),
        _definition_count(release_headers(version)),
    )


def _definition_count(index: SourceIndex | None) -> int | None:
    return None if index is None else len(index.source)


def label_of_library(path: Path) -> str:
    """The version of the torch installation a library lies in; of a release, without its build tag."""
    with open_elf(path):
        build = _build_around(path)
    if build is None or build.version is None:
        raise InputError(
            "the library lies in no torch installation, so its version is unknown",
            source=path,
            hint="Name it with --release",
        )
    version = parse_version(build.version)
    return version.name if version is not None and version.is_official else build.version


def add_library(path: Path, label: str) -> Path:
    """Keep the kernels of a library under a version; returns the file written."""
    return add_library_table(path, label, git_version=_commit(_build_around(path)))


def add_operators(library: Path, label: str) -> tuple[Path, ...]:
    """Keep the native functions of the torch installation a library lies in; nothing if it ships no yaml."""
    build = _build_around(library)
    packaged = library.resolve().parent.parent.parent / "torchgen" / "packaged"
    if build is None or not packaged.is_dir():
        return ()
    table = build_operator_table(packaged, version=label, git_version=_commit(build))
    path = store(added_table(label).with_name(TABLE_FILE), encode_table(table), "table")
    packaged_table.cache_clear()
    return (path,)


def add_source(checkout: Path, label: str | None) -> Path:
    """Keep the source index of a checkout under a version, or its own; returns the file written."""
    if label is not None and not RELEASE_NAME.match(label):
        raise InputError(
            f"{label!r} is not a version, which an index of sources is kept under",
            hint="Name the release the checkout is of, such as 2.12.0",
        )
    return store_index(build_index(checkout, label))


def _build_around(library: Path) -> TorchBuild | None:
    """The torch installation a library lies in, `torch/lib`."""
    return torch_build(library.resolve().parent.parent)


def _commit(build: TorchBuild | None) -> str | None:
    commit = None if build is None else build.git_version
    return commit if commit is not None and COMMIT.fullmatch(commit) else None
