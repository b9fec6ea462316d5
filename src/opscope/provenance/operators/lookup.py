"""Which operator table fits a trace: the installed PyTorch's, a packaged release's, or a neighbor's.

Finds an installation without importing it: neither torch nor torchgen runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from functools import cache
from importlib import resources
from pathlib import Path

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.provenance.cache import cache_folder, write_atomically
from opscope.provenance.installation import package_folders, torch_build
from opscope.provenance.operators.table import (
    DERIVATIVES_YAML,
    FORMAT,
    NATIVE_FUNCTIONS_YAML,
    TAGS_YAML,
    OperatorTable,
    build_operator_table,
    decode_table,
    encode_table,
)

__all__ = ["TABLE_FILE", "installed_table", "packaged_table", "packaged_versions", "table_for"]

TABLE_FILE = "operators.msgpack.zst"
_YAML_FILES = (NATIVE_FUNCTIONS_YAML, TAGS_YAML, DERIVATIVES_YAML)
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def table_for(version: str | None, git_version: str | None = None) -> OperatorTable:
    """The best table for a trace made by a version of PyTorch, graded for it.

    Args:
        version: As `torch.__version__` says; None if unknown.
        git_version: The commit, where known; then only that installation counts as the same.

    Raises:
        InputError: A table cannot be read, or none is packaged.
    """
    installed = installed_table()
    if installed is not None and _is_same_build(installed, version, git_version):
        return installed
    exact = packaged_table(version)
    if exact is not None:
        return exact
    neighbor = packaged_table(_nearest(version, packaged_versions()))
    if neighbor is None:
        raise InputError("no operator table is packaged", hint="Reinstall opscope")
    return neighbor.graded(Grade.NEIGHBOR_VERSION)


def installed_table() -> OperatorTable | None:
    """The table of the PyTorch that this Python would import; None if there is none or its files are broken.

    Built on the first call for a set of yaml files (a second), then read from the cache.
    """
    folders = package_folders("torchgen")
    if not folders:
        return None
    packaged = folders[0] / "packaged"
    build = next((torch_build(folder) for folder in package_folders("torch")[:1]), None)
    version, git_version = build or (None, None)
    try:
        contents = [(packaged / name).read_bytes() for name in _YAML_FILES]
    except OSError:
        return None
    digest = hashlib.sha256(b"\0".join([*contents, f"{FORMAT} {version} {git_version}".encode()])).hexdigest()
    return _cached_table(packaged, digest[:32], version, git_version)


@cache
def packaged_table(version: str | None) -> OperatorTable | None:
    """The table of exactly this release, packaged or added by the user; None if there is none.

    Raises:
        InputError: There is one, but it cannot be read.
    """
    stored = _stored_tables()
    # A user may have added a build under its whole label.
    path = None if version is None else stored.get(version) or stored.get(_public(version))
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=path) from error
    return decode_table(content, source=path, grade=Grade.RELEASE_INDEX)


def packaged_versions() -> tuple[str, ...]:
    """Releases with a table, oldest first."""
    return tuple(sorted((v for v in _stored_tables() if _RELEASE.match(v)), key=_release_key))


@cache
def _cached_table(
    packaged: Path, key: str, version: str | None, git_version: str | None
) -> OperatorTable | None:
    path = cache_folder() / "operators" / f"{key}.msgpack.zst"
    with contextlib.suppress(OSError, InputError):  # absent, or from a damaged disk: built anew
        return decode_table(path.read_bytes(), source=path, grade=Grade.EXACT)
    try:
        table = build_operator_table(packaged, version=version, git_version=git_version)
    except InputError:
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second each time
        write_atomically(path, encode_table(table))
    return table


def _stored_tables() -> dict[str, Path]:
    """Table files by release; what the user added comes before what is packaged."""
    packaged = Path(str(resources.files("opscope.provenance"))) / "releases" / "data"
    found: dict[str, Path] = {}
    for root in (packaged, cache_folder() / "releases"):
        found.update({path.parent.name: path for path in sorted(root.glob(f"*/{TABLE_FILE}"))})
    return found


def _is_same_build(table: OperatorTable, version: str | None, git_version: str | None) -> bool:
    if git_version is not None and table.git_version is not None:
        return git_version == table.git_version
    if version is None or table.version is None:
        return False
    return version == table.version or (
        _public(version) == _public(table.version) and _RELEASE.fullmatch(_public(version)) is not None
    )


def _public(version: str) -> str:
    """The version without its local part: `2.13.0` of `2.13.0+cu130`."""
    return version.partition("+")[0]


def _nearest(version: str | None, versions: tuple[str, ...]) -> str | None:
    """The nearest release by minor version, the later of two; the last one for an unknown version.

    A function that a release lacks was more often added later than removed before.
    """
    if not versions:
        return None
    wanted = None if version is None else _RELEASE.match(version)
    if wanted is None:
        return versions[-1]
    key = _release_key(wanted[0])
    return min(reversed(versions), key=lambda one: _distance(_release_key(one), key))


def _release_key(version: str) -> tuple[int, int, int]:
    match = _RELEASE.match(version)
    return (0, 0, 0) if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def _distance(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int]:
    releases = 1000 * (one[0] - other[0]) + one[1] - other[1]
    return abs(releases), abs(one[2] - other[2])
