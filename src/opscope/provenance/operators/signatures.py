"""The schema of a recorded call: what its arguments are called, which of them it writes.

Releases differ little in this, so that no release need be known: of the packaged ones the newest counts that
has an overload with just such arguments. Only names and schemas are read of their tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache, partial

import msgspec

from opscope.provenance.operators.overloads import leaves, leaves_fewer
from opscope.provenance.operators.schema import Schema, schema_of
from opscope.provenance.operators.table import TABLE_FILE, TABLE_FORMAT, packaged_versions
from opscope.provenance.packaged import packaged_table
from opscope.provenance.table_format import TableFormat


class DeclaredFunction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a NativeFunction."""

    name: str
    overload: str
    schema: str


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format_version: int
    version: str | None
    git_version: str | None
    functions: tuple[DeclaredFunction, ...]


_FORMAT = TableFormat(TABLE_FORMAT.what, _Stored, TABLE_FORMAT.number)


@lru_cache(maxsize=65536)
def signature(name: str, overload: str | None, kinds: tuple[str, ...]) -> Schema | None:
    """The schema that a recorded call fits; None if no packaged release has such a one.

    `overload` is empty for the default overload, and None if overloads were not recorded.
    """
    if overload is not None:
        named = (one for one in _declared(name) if one.overload == overload)
        return next(
            (schema for one in named if len((schema := schema_of(one)).arguments) == len(kinds)), None
        )
    for fits in (leaves, partial(leaves, may=True), leaves_fewer):
        found = next((one for one in _declared(name) if fits(one, kinds)), None)
        if found is not None:
            return schema_of(found)
    return None


def _declared(name: str) -> Iterator[DeclaredFunction]:
    """Functions of a name, those of the newest release first."""
    return (one for version in packaged_versions()[::-1] for one in declared(version).get(name, ()))


@cache
def declared(version: str) -> dict[str, tuple[DeclaredFunction, ...]]:
    """Functions of a packaged release by name."""
    path = packaged_table(version, TABLE_FILE)
    if not path.is_file():  # of a release that the user added
        return {}
    found: dict[str, list[DeclaredFunction]] = defaultdict(list)
    for one in _FORMAT.decode(path.read_bytes(), path).functions:
        found[one.name].append(one)
    return {name: tuple(of_name) for name, of_name in found.items()}
