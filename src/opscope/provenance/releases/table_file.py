"""The file of a release's kernel table: msgpack within zstandard, facts only (names, paths, hashes of names).

Packaged tables and those a user added are of the same format. A file is checked wholly when it is read:
whoever holds a `UnitTableFile` may index without fear.
"""

from __future__ import annotations

import msgspec
import zstandard

from opscope.errors import InputError
from opscope.provenance.releases.hash_map import LARGEST_VALUE, HashMap, PackedMap
from opscope.provenance.releases.unit import Unit

__all__ = ["FORMAT_VERSION", "SEVERAL_UNITS", "Library", "UnitTableFile", "decode_table", "encode_table"]

FORMAT_VERSION = 1
# Loose keys whose kernels are in more than one unit. Only that is known of them.
SEVERAL_UNITS = LARGEST_VALUE
_COMPRESSION_LEVEL = 19
# The packaged ones need 0.3 MB.
_LARGEST_CONTENT_BYTES = 64 * 2**20


class Library(msgspec.Struct, frozen=True):
    """A library the table was read from."""

    name: str
    build_id: str | None = None
    kernel_count: int = 0


class UnitTableFile(msgspec.Struct, frozen=True):
    """What one file holds.

    Args:
        version: Release (`2.11.0`) or the user's label.
        units: Every unit that has a kernel.
        unit_sets: Sets of indexes into `units`.
        exact: Hash of a kernel name -> index into `unit_sets`.
        loose: Hash of a loose key -> index into `units`, or `SEVERAL_UNITS`.
        git_version: Commit of the release, if known.
        cuda: CUDA version it was built with, if known.
        libraries: What the table was read from.
        format_version: Of this file.
    """

    version: str
    units: tuple[Unit, ...]
    unit_sets: tuple[tuple[int, ...], ...]
    exact: PackedMap
    loose: PackedMap
    git_version: str | None = None
    cuda: str | None = None
    libraries: tuple[Library, ...] = ()
    format_version: int = FORMAT_VERSION


class _Format(msgspec.Struct):
    format_version: int


def encode_table(table: UnitTableFile) -> bytes:
    """The bytes of the file; equal tables give equal bytes."""
    compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=True)
    return bytes(compressor.compress(msgspec.msgpack.encode(table)))


def decode_table(content: bytes, source: str) -> UnitTableFile:
    """The table in a file.

    Raises:
        InputError: Damaged, not such a file, or written by a newer opscope; the error names `source`.
    """
    try:
        packed = _decompressed(content)
        found = msgspec.msgpack.decode(packed, type=_Format).format_version
        if found != FORMAT_VERSION:
            raise InputError(
                f"a kernel table of format {found}; this opscope reads format {FORMAT_VERSION}",
                source=source,
                hint="Add the library again, or use the opscope that made the table",
            )
        table = msgspec.msgpack.decode(packed, type=UnitTableFile)
        _check(table)
    except (zstandard.ZstdError, msgspec.DecodeError, ValueError) as error:
        raise InputError(
            f"not a kernel table of opscope, or a damaged one ({error})",
            source=source,
            hint="Delete the file and add the library again, or reinstall opscope",
        ) from error
    return table


def _decompressed(content: bytes) -> bytes:
    # The decompressor believes the size a frame declares, whatever limit it is given.
    if not 0 < zstandard.frame_content_size(content) <= _LARGEST_CONTENT_BYTES:
        raise ValueError("its size is not that of a table")
    return bytes(zstandard.ZstdDecompressor().decompress(content))


def _check(table: UnitTableFile) -> None:
    exact, loose = HashMap.unpacked(table.exact).values, HashMap.unpacked(table.loose).values
    if len(exact) and int(exact.max()) >= len(table.unit_sets):
        raise ValueError("a kernel refers to a set of units that is not there")
    known = loose[loose != SEVERAL_UNITS]
    if len(known) and int(known.max()) >= len(table.units):
        raise ValueError("a loose key refers to a unit that is not there")
    for unit_set in table.unit_sets:
        if not unit_set or min(unit_set) < 0 or max(unit_set) >= len(table.units):
            raise ValueError("a set of units refers to one that is not there")
