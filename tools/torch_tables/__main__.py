"""Build the packaged tables of a PyTorch release from its CUDA wheel and, if at hand, its source tree.

    PYTHONPATH=src:tools python -m torch_tables 2.15.0
    PYTHONPATH=src:tools python -m torch_tables 2.15.0 --torch site-packages/torch
    PYTHONPATH=src:tools python -m torch_tables 2.6.0 --torch site-packages/torch --checkout pytorch

Without --torch, pip downloads the wheel, of which the needed part is unpacked into a folder that is deleted
afterwards. Each input gives tables in `src/opscope/provenance/releases/data/VERSION`; a table whose input is
not given is left as it is:

    units      kernel -> source file, from the libraries of --torch (or --library, --kernels)
    operators  native functions and derivatives, from torchgen beside --torch (or --torchgen)
    sources    definitions and their lines, from --checkout
    functions  native function -> file, from the symbols of the libraries and the release's unit paths
    headers    definitions in the headers of --torch; not for a release whose sources are packaged
    lines      how far lines moved from the release whose sources are packaged, from checks in the libraries

Tables hold facts only: names, paths, lines, hashes of kernel names. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from opscope.errors import InputError, OpscopeError
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.operators import TABLE_FILE as OPERATORS_FILE
from opscope.provenance.operators.table import encode_table as encode_operators
from opscope.provenance.releases.catalog import FUNCTIONS_FILE, TABLE_NAME, encode_functions
from opscope.provenance.releases.lines import LINES_FILE, LINES_FORMAT, StoredLines
from opscope.provenance.releases.release_table import ReleaseTable
from opscope.provenance.releases.table_file import Library, Unit, decode_table, encode_table
from opscope.provenance.sources.at_hand import HEADERS_FILE, nearest_index
from opscope.provenance.sources.index import FILE_NAME as SOURCES_FILE
from opscope.provenance.table_format import TableFormat
from torch_tables.indexer.build import build_table as build_sources
from torch_tables.indexer.build import header_table
from torch_tables.indexer.defining_files import defining_files
from torch_tables.indexer.units import (
    PathEvidence,
    build_folders,
    build_table,
    kernels_of_library,
    locate_units,
    located,
)
from torch_tables.line_constants import Sites, anchors, segments, sites_of
from torch_tables.operator_table import build_operator_table

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "src/opscope/provenance/releases/data"
LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
# Checks of C++ code are in that of the CPU as well.
CHECKED_LIBRARIES = (*LIBRARIES, "libtorch_cpu.so")
TABLES = ("units", "operators", "sources", "functions", "headers", "lines")
NEEDED = re.compile(rf"torch/(?:lib/(?:{'|'.join(CHECKED_LIBRARIES)})|include/.*|version\.py)|torchgen/.*")
Kernels = Mapping[str, Iterable[TranslationUnit]]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if not (options.torch or options.library or options.kernels or options.torchgen):
                options.torch = unpacked(options.version, Path(folder))
            for table in options.table or TABLES:
                _BUILDERS[table](options)
    except (OpscopeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def unpacked(version: str, folder: Path) -> Path:
    """The torch folder of the release's CUDA wheel, which pip finds, with what is needed of it."""
    # Three equal signs: else pip takes 2.13.0+cpu for 2.13.0.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"torch==={version}"]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    wheel = next(folder.glob("torch-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if NEEDED.fullmatch(name)])
    wheel.unlink()
    return folder / "torch"


def write_units(options: argparse.Namespace) -> None:
    """The kernel table."""
    if not (options.torch or options.library or options.kernels):
        return
    paths = libraries(options)
    kernels, read_from = read_kernels(paths, options.kernels)
    commit, cuda = release_facts(options.torch)
    units = locate_units({unit for of in kernels.values() for unit in of}, path_evidence(options, paths))
    table = build_table(
        located(kernels, units), options.version, git_version=commit, cuda=cuda, libraries=tuple(read_from)
    )
    write(options, TABLE_NAME, encode_table(table))
    print_units(ReleaseTable(table))


def write_operators(options: argparse.Namespace) -> None:
    """The table of native functions."""
    packaged: Path | None = options.torchgen
    if packaged is None and options.torch is not None:
        beside = Path(options.torch).parent / "torchgen" / "packaged"
        packaged = beside if beside.is_dir() else None
    if packaged is None:
        return
    commit, _ = release_facts(options.torch)
    table = build_operator_table(packaged, version=options.version, git_version=commit)
    write(options, OPERATORS_FILE, encode_operators(table))


def write_sources(options: argparse.Namespace) -> None:
    """The index of definitions."""
    if options.checkout is None or not options.checkout.is_dir():
        return
    commit, _ = release_facts(options.torch)
    table = build_sources(options.checkout, options.version, git_version=commit)
    write(options, SOURCES_FILE, table.encode())


def write_functions(options: argparse.Namespace) -> None:
    """The files that may define each native function."""
    unit_paths = [unit.path for unit in packaged_units(options) if unit.path]
    found: dict[str, set[str]] = {}
    for path in libraries(options):
        for name, files in defining_files(path, unit_paths).items():
            found.setdefault(name, set()).update(files)
    if found:
        write(options, FUNCTIONS_FILE, encode_functions({name: sorted(found[name]) for name in found}))


def write_headers(options: argparse.Namespace) -> None:
    """The index of definitions in headers, where there is none of the whole source tree."""
    include = options.torch / "include" if options.torch else None
    if include is None or not include.is_dir() or packaged_file(options, SOURCES_FILE):
        return
    write(options, HEADERS_FILE, header_table(include).encode())


class StoredChecks(msgspec.Struct, array_like=True):
    """The checks of the release whose sources are packaged, for comparison with all others."""

    format_version: int
    files: dict[str, list[tuple[int, str]]]


CHECKS_FORMAT = TableFormat("a table of checks", StoredChecks)


def write_lines(options: argparse.Namespace) -> None:
    """How far lines moved, or of the release whose sources are packaged, what others are compared with."""
    index = nearest_index(options.version)
    paths = [path for name in CHECKED_LIBRARIES if (path := library_folder(options) / name).is_file()]
    if index is None or not paths:
        return
    sites: Sites = {}
    for path in paths:
        for file, found in sites_of(path).items():
            sites.setdefault(file, set()).update(found)
    reference = HERE / f"checks_{index.version}.msgpack.zst"
    if index.version == options.version:
        files = {file: sorted(sites[file]) for file in sorted(sites)}
        reference.write_bytes(CHECKS_FORMAT.encode(StoredChecks(CHECKS_FORMAT.number, files)))
        print(f"Wrote {reference}")
        return
    before = CHECKS_FORMAT.decode(reference.read_bytes(), reference).files
    known = sorted(set(index.source.files) & set(before) & set(sites))
    moved = {file: segments(anchors(set(before[file]), sites[file])) for file in known}
    moved = {file: found for file, found in moved.items() if found}
    write(options, LINES_FILE, LINES_FORMAT.encode(StoredLines(LINES_FORMAT.number, index.version, moved)))


def library_folder(options: argparse.Namespace) -> Path:
    """Where the libraries of --torch lie."""
    return options.torch / "lib" if options.torch else Path()


def packaged_file(options: argparse.Namespace, name: str) -> Path | None:
    """A table of the release: the one just built, else the packaged one."""
    places = (folder / options.version / name for folder in (options.output, DATA))
    return next((file for file in places if file.is_file()), None)


def packaged_units(options: argparse.Namespace) -> tuple[Unit, ...]:
    """The units of the release's kernel table."""
    file = packaged_file(options, TABLE_NAME)
    return () if file is None else decode_table(file.read_bytes(), str(file)).units


def libraries(options: argparse.Namespace) -> list[Path]:
    """The libraries to read: those named, else those of the torch folder that have kernels."""
    if options.library or options.torch is None:
        return list(options.library)
    return [path for name in LIBRARIES if (path := options.torch / "lib" / name).is_file()]


def read_kernels(paths: Iterable[Path], listing: Path | None) -> tuple[Kernels, list[Library]]:
    """Kernels of the libraries, else of a listing `{kernel name: [file names]}` (JSON, may be .xz)."""
    if listing is not None:
        opened = lzma.open if listing.suffix == ".xz" else open
        with opened(listing, "rt", encoding="utf-8") as stream:
            names: dict[str, list[str]] = json.load(stream)
        return {name: [TranslationUnit(unit) for unit in units] for name, units in names.items()}, []
    kernels: dict[str, set[TranslationUnit]] = {}
    read_from = []
    for path in paths:
        library, found = kernels_of_library(path)
        read_from.append(library)
        for name, units in found.items():
            kernels.setdefault(name, set()).update(units)
    if not kernels:
        raise InputError("no kernels", hint="Give --torch with its libraries, --library or --kernels")
    return kernels, read_from


def path_evidence(options: argparse.Namespace, paths: Iterable[Path]) -> PathEvidence:
    """What tells where units lie; the packaged tables of other releases are part of it."""
    lists = [*map(listed, options.paths), *packaged_paths(options.version)]
    return PathEvidence(
        files=checkout_files(options.checkout) if options.checkout else frozenset(),
        other_files=frozenset(path for paths in lists for path in paths),
        folders=build_folders(options.torch, paths) if options.torch else frozenset(),
    )


def checkout_files(checkout: Path) -> frozenset[str]:
    """CUDA files of a checkout of the release, or of a file that lists its files."""
    if checkout.is_file():
        return frozenset(listed(checkout))
    return frozenset(path.relative_to(checkout).as_posix() for path in checkout.rglob("*.cu"))


def listed(file: Path) -> list[str]:
    """The CUDA files in a list of paths, as `git ls-tree -r --name-only TAG` writes it."""
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.endswith(".cu")]


def packaged_paths(version: str) -> Iterator[list[str]]:
    """Per packaged table of another release, the paths of its units."""
    for file in sorted(DATA.glob(f"*/{TABLE_NAME}")):
        if file.parent.name != version:
            yield [unit.path for unit in decode_table(file.read_bytes(), str(file)).units if unit.path]


def release_facts(torch_folder: Path | None) -> tuple[str | None, str | None]:
    """Commit and CUDA version, from the text of the wheel's `version.py`."""
    if torch_folder is None:
        return None, None
    text = (torch_folder / "version.py").read_text(encoding="utf-8")
    commit = re.search(r"^git_version = '([0-9a-f]{40})'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]*)? = '([\d.]+)'", text, re.MULTILINE)
    return commit and commit[1], cuda and cuda[1]


def write(options: argparse.Namespace, name: str, content: bytes) -> None:
    target = options.output / options.version / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    print(f"Wrote {target} ({len(content):,} bytes)")


def print_units(table: ReleaseTable) -> None:
    origins = Counter(unit.origin.value for unit in table.units)
    print(f"  commit {table.git_version or 'unknown'}, CUDA {table.cuda or 'unknown'}")
    print(f"  {table.kernel_count:,} kernels")
    counts = ", ".join(f"{count:,} {origin}" for origin, count in origins.most_common())
    print(f"  {len(table.units):,} units: {counts}")


_BUILDERS = {
    "units": write_units,
    "operators": write_operators,
    "sources": write_sources,
    "functions": write_functions,
    "headers": write_headers,
    "lines": write_lines,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("version", help="the release, e.g. 2.11.0")
    add("--torch", type=Path, help="torch folder of the unpacked CUDA wheel")
    add("--torchgen", type=Path, help="folder torchgen/packaged, if it is not beside --torch")
    add("--checkout", type=Path, help="source tree of this very release, or a list of its files")
    add("--library", type=Path, action="append", default=[], help="libraries to read instead of --torch's")
    add("--kernels", type=Path, help="a listing {kernel: [files]} to read instead of libraries")
    add("--paths", type=Path, action="append", default=[], help="files of other releases and of submodules")
    add(
        "--table", choices=TABLES, action="append", help="tables to build (default: all there are inputs for)"
    )
    add("--output", type=Path, default=DATA, help="folder of tables (default: the packaged ones)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
