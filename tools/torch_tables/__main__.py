"""Build the packaged tables of a PyTorch release from its CUDA wheel and, if at hand, its source tree.

    PYTHONPATH=src:tools python -m torch_tables 2.15.0
    PYTHONPATH=src:tools python -m torch_tables 2.15.0 --torch site-packages/torch
    PYTHONPATH=src:tools python -m torch_tables 2.6.0 --torch site-packages/torch --checkout pytorch

Without --torch, pip installs the wheel into a folder that is deleted afterwards. Tables lie in
`src/opscope/provenance/releases/data/VERSION`; one whose input is not given is left as it is:

    units      kernel -> source file, from the libraries
    sources    definitions and their lines, from --checkout
    headers    definitions in the headers; not for a release whose sources are packaged
    lines      how far lines moved from the release whose sources are packaged, from checks in the libraries
    operators  native functions, what serves them, where that is defined, and derivatives: from torchgen
               beside torch, the tables above, and the symbols of the libraries

Tables hold facts only: names, paths, lines, hashes of kernel names. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.model.queries import grouped
from opscope.provenance import native_functions, sources, torch_releases
from opscope.provenance.packaged import TableFormat
from torch_tables import libraries
from torch_tables.definitions import tree_index
from torch_tables.operator_table import Places, build_operator_table

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "src/opscope/provenance/releases/data"
LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
# Checks of C++ code are in that of the CPU as well.
CHECKED_LIBRARIES = (*LIBRARIES, "libtorch_cpu.so")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("version", help="the release, e.g. 2.11.0")
    add("--torch", type=Path, help="torch folder of the unpacked CUDA wheel")
    add("--checkout", type=Path, help="source tree of this very release")
    add("--table", choices=_BUILDERS, action="append", help="tables to build (default: all)")
    add("--output", type=Path, default=DATA, help="folder of tables (default: the packaged ones)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        options.torch = options.torch or unpacked(options.version, Path(folder))
        facts = runpy.run_path(str(options.torch / "version.py"))
        options.commit, options.cuda = facts.get("git_version"), facts.get("cuda")
        options.include = next(options.torch.glob("include"), None)
        for table in options.table or _BUILDERS:
            _BUILDERS[table](options)


def unpacked(version: str, folder: Path) -> Path:
    """The torch folder of the release's CUDA wheel, which pip finds."""
    # Three equal signs: else pip takes 2.13.0+cpu for 2.13.0.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", str(folder), f"torch==={version}"], check=True)
    return folder / "torch"


def write_units(options: argparse.Namespace) -> None:
    read = [libraries.kernels_of_library(path) for path in library_files(options, LIBRARIES)]
    kernels = joined(found for _, found in read)
    if not kernels:
        raise InputError("no kernels", hint="Give the torch folder of a CUDA wheel")
    facts = {"git_version": options.commit, "cuda": options.cuda, "libraries": tuple(one for one, _ in read)}
    write(options, torch_releases.UNITS_FORMAT, libraries.build_table(kernels, options.version, **facts))


def write_index(options: argparse.Namespace, stored: TableFormat[Any], root: Path | None) -> None:
    """The index of the source tree; of the headers where there is none of the tree."""
    headers = stored is not sources.INDEX_FORMAT
    if root is not None and not (headers and packaged_table(options, sources.INDEX_FORMAT)):
        write(options, stored, tree_index(root, options.version, options.commit, headers=headers))


class StoredChecks(msgspec.Struct, array_like=True):
    """The checks of the release whose sources are packaged, for comparison with all others."""

    format_version: int
    files: dict[str, list[tuple[int, str]]]


CHECKS_FORMAT = TableFormat("a table of checks", StoredChecks)


def write_lines(options: argparse.Namespace) -> None:
    """How far lines moved, or of the release whose sources are packaged, what others are compared with."""
    index, paths = sources.nearest_index(options.version), library_files(options, CHECKED_LIBRARIES)
    if index is None or not paths:
        return
    sites = joined(map(libraries.sites_of, paths))
    reference = HERE / f"checks_{index.version}.msgpack.zst"
    if index.version == options.version:
        files = {file: sorted(sites[file]) for file in sorted(sites)}
        reference.write_bytes(CHECKS_FORMAT.encode(StoredChecks(CHECKS_FORMAT.number, files)))
        return
    before = CHECKS_FORMAT.read(reference).files
    known = sorted(set(index.files) & set(before) & set(sites))
    runs = ((file, libraries.segments(before[file], sites[file])) for file in known)
    moved = {file: found for file, found in runs if found}
    table = sources.StoredLines(sources.LINES_FORMAT.number, index.version, moved)
    table.contradicted = libraries.contradicted(index, table, sites)
    write(options, sources.LINES_FORMAT, table)


def write_operators(options: argparse.Namespace) -> None:
    packaged = options.torch.parent / "torchgen" / "packaged"
    if not packaged.is_dir():
        return
    tables = (torch_releases.UNITS_FORMAT, sources.INDEX_FORMAT, sources.HEADERS_FORMAT, sources.LINES_FORMAT)
    units, index, headers, lines = (packaged_table(options, one) for one in tables)
    paths = [unit.path for unit in (units.units if units else ()) if unit.path]
    found = joined(libraries.defining_files(path, paths) for path in library_files(options, LIBRARIES))
    files = {name: sorted(of) for name, of in found.items()}
    neighbor = sources.nearest_index(options.version)
    places = Places(index or headers, None if index else neighbor, lines, files)
    facts = {"version": options.version, "git_version": options.commit}
    facts["neighbor_git_version"] = neighbor and neighbor.git_version
    write(options, native_functions.TABLE_FORMAT, build_operator_table(packaged, places, **facts))


def joined(found: Iterable[Mapping[str, Iterable[Any]]]) -> dict[str, set[Any]]:
    """What several libraries say of the same names."""
    pairs = ((name, value) for one in found for name, values in one.items() for value in values)
    return {name: set(of) for name, of in grouped(pairs).items()}


def library_files(options: argparse.Namespace, names: tuple[str, ...]) -> list[Path]:
    return [path for name in names if (path := options.torch / "lib" / name).is_file()]


def packaged_table(options: argparse.Namespace, stored: TableFormat[Any]) -> Any:
    """A table of the release: the one just built, else the packaged one; None if there is neither."""
    places = (folder / options.version / stored.file for folder in (options.output, DATA))
    return next((stored.read(file) for file in places if file.is_file()), None)


def write(options: argparse.Namespace, stored: TableFormat[Any], table: msgspec.Struct) -> None:
    target, content = options.output / options.version / stored.file, stored.encode(table)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    print(f"Wrote {target} ({len(content):,} bytes)")


_BUILDERS = {
    "units": write_units,
    "sources": lambda options: write_index(options, sources.INDEX_FORMAT, options.checkout),
    "headers": lambda options: write_index(options, sources.HEADERS_FORMAT, options.include),
    "lines": write_lines,
    "operators": write_operators,
}


if __name__ == "__main__":
    main()
