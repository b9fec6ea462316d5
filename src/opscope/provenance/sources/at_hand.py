"""Which source indexes and source files are at hand: the installed torch's headers, releases, a checkout.

Finds an installation without importing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from opscope.errors import InputError
from opscope.model.location import SourceLocation
from opscope.provenance.cache import cache_folder
from opscope.provenance.installation import package_folders
from opscope.provenance.sources.headers import header_index
from opscope.provenance.sources.index import SourceIndex
from opscope.provenance.sources.lines import read_lines
from opscope.provenance.sources.storage import FILE_NAME, source_index
from opscope.provenance.sources.table import DefinitionTable

__all__ = ["indexed_versions", "installed_headers", "nearest_index", "release_headers", "source_reader"]

HEADERS_FILE = "headers.msgpack.zst"


@cache
def installed_headers() -> SourceIndex | None:
    """The index of the headers of the torch that this Python would import; None if there are none."""
    folder = _include_folder()
    if folder is None:
        return None
    try:
        return header_index(folder)
    except InputError:  # an installation without headers
        return None


def indexed_versions() -> tuple[str, ...]:
    """Releases with a source index, packaged or added by the user, oldest first."""
    packaged = Path(str(resources.files("opscope.provenance"))) / "releases" / "data"
    roots = (packaged, cache_folder() / "releases")
    found = {path.parent.name for root in roots for path in root.glob(f"*/{FILE_NAME}")}
    return tuple(sorted(found, key=_minor))


@cache
def release_headers(version: str) -> SourceIndex | None:
    """The packaged index of the headers a release ships; None if there is none.

    Most kernel templates are in headers, so their lines are the release's own even without its source tree.
    """
    file = resources.files("opscope.provenance") / "releases" / "data" / version / HEADERS_FILE
    if not file.is_file():
        return None
    return SourceIndex(DefinitionTable.decode(file.read_bytes(), file))


def nearest_index(version: str | None) -> SourceIndex | None:
    """The index of the release nearest to a version, by minor releases; the newest for an unknown one."""
    known = indexed_versions()
    if not known:
        return None
    wanted = _minor(version) or _minor(known[-1])
    return source_index(min(reversed(known), key=lambda one: abs(_minor(one) - wanted)))


def source_reader(
    checkout: Path | None = None, copies: Sequence[Path] = ()
) -> Callable[[SourceLocation], list[str] | None]:
    """A function that gives the lines at a location, from a checkout or the installed headers.

    A user's own or a generated file (an absolute path) is read where it lies, else from its copy. None stands
    for a file that is not at hand.

    Args:
        checkout: Of PyTorch; looked at first.
        copies: Folders with copies of generated files, under their own names.
    """
    include = _include_folder()
    roots = [root for root in (checkout, include) if root is not None]

    def read(location: SourceLocation) -> list[str] | None:
        if location.line is None:
            return None
        path = Path(location.file)
        if path.is_absolute():
            return read_lines(path.name, location.line, location.end_line, [path.parent, *copies])
        return read_lines(location.file, location.line, location.end_line, roots)

    return read


def _include_folder() -> Path | None:
    folders = (folder / "include" for folder in package_folders("torch"))
    return next((folder for folder in folders if folder.is_dir()), None)


def _minor(version: str | None) -> int:
    parts = (version or "").split(".")
    return (
        1000 * int(parts[0]) + int(parts[1])
        if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()
        else 0
    )
