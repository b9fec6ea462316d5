"""`opscope index`: list known PyTorch releases, or add tables of another build."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from opscope.cli.console import say_wrote, show, status
from opscope.errors import InputError
from opscope.provenance.indexer.inventory import (
    ReleaseInventory,
    add_library,
    add_operators,
    add_source,
    known_releases,
    label_of_library,
)
from opscope.report.document import Document, Paragraph, Section, identifier, number, table, words


def index(
    *,
    library: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    source: Path | None = None,
    release: str | None = None,
    json: bool = False,
) -> int:
    """Add tables of another PyTorch build or release; without options, list those there are.

    Example: opscope index --source ~/pytorch --release 2.14.1

    Args:
        library: Shared libraries with CUDA kernels (libtorch_cuda.so, libtorch_cuda_linalg.so): which source
            file each kernel comes from. Of an installed torch its yaml files are read too.
        source: A PyTorch checkout: where every function, stub and kernel is defined.
        release: Version the tables are for; that of the installation around the library, or of the checkout.
        json: Print one JSON document and nothing else.
    """
    if release is not None and not library and source is None:
        raise InputError("--release names what is added", hint="Give --library or --source with it")
    written: list[Path] = []
    with status("Reading"):
        for path in library or ():
            label = release or label_of_library(path)
            written.append(add_library(path, label))
            written.extend(add_operators(path, label))
        if source is not None:
            written.append(add_source(source, release))
    releases = known_releases()
    show(lambda: _json(releases, written), lambda: _document(releases), json=json)
    say_wrote(dict.fromkeys(written), on_stderr=json)
    return 0


def _json(releases: tuple[ReleaseInventory, ...], written: list[Path]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "releases": [asdict(one) for one in releases],
        "written": [str(path) for path in dict.fromkeys(written)],
    }


def _document(releases: tuple[ReleaseInventory, ...]) -> Document:
    tables = table(
        releases,
        identifier("PyTorch", "version"),
        words("Tables", lambda one: "added" if one.is_added else "packaged"),
        number("Kernels", "kernels"),
        number("Units", "units"),
        number("Native functions", "native_functions"),
        number("Definitions", "definitions"),
        number("In headers", "header_definitions"),
    )
    note = Paragraph(
        "A dash: no such table; answers then come from the nearest release, graded so. "
        "Definitions of a source tree include its headers."
    )
    return Document("", sections=(Section("Known releases", (tables, note)),))
