"""Which files may define a native function, as a release's own binary shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec
import zstandard

from opscope.errors import InputError

__all__ = ["FUNCTIONS_FILE", "encode_functions", "function_files"]

FUNCTIONS_FILE = "functions.msgpack.zst"
_FORMAT = 1
_COMPRESSION_LEVEL = 19
_LARGEST_BYTES = 16 << 20


class _Stored(msgspec.Struct, array_like=True):
    format: int
    files: list[str]
    functions: dict[str, list[int]]  # name without namespace → indices into files


def function_files(version: str, name: str) -> tuple[str, ...]:
    """Paths in the repository of the files, one or two, of which one defines `at::native::NAME` in a release.

    Empty if nothing is known of it.
    """
    return _functions(version).get(name, ())


def encode_functions(functions: Mapping[str, Sequence[str]]) -> bytes:
    """Function → files as it is packaged."""
    paths = sorted({path for files in functions.values() for path in files})
    index = {path: position for position, path in enumerate(paths)}
    stored = _Stored(
        _FORMAT, paths, {name: [index[path] for path in files] for name, files in sorted(functions.items())}
    )
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(msgspec.msgpack.encode(stored))


@cache
def _functions(version: str) -> Mapping[str, tuple[str, ...]]:
    file = files(__package__) / "data" / version / FUNCTIONS_FILE
    if not file.is_file():
        return {}
    try:
        content = zstandard.ZstdDecompressor().decompress(file.read_bytes(), max_output_size=_LARGEST_BYTES)
        stored = msgspec.msgpack.decode(content, type=_Stored)
        if stored.format != _FORMAT:
            raise InputError(
                f"a table of functions of format {stored.format}, not {_FORMAT}", source=str(file)
            )
        return {
            name: tuple(stored.files[index] for index in indices)
            for name, indices in stored.functions.items()
        }
    except (zstandard.ZstdError, msgspec.MsgspecError, IndexError) as error:
        raise InputError(f"not a table of functions ({error})", source=str(file)) from error
