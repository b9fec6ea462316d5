"""The data of provenance, in the package and in the user's cache.

Tables of a release lie under `<version>/<file name>`. A table of facts is stored as MessagePack within
zstandard, with the number of its format in front. What lies in the cache can be made again: readers rebuild
what they cannot use.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, AnyStr, Generic, TypeVar, cast

import msgspec
import zstandard

from opscope.errors import InputError
from opscope.model.files import replacing


def packaged_path(*parts: str) -> Path:
    """A file or folder of provenance's own data."""
    return Path(str(resources.files("opscope.provenance")), *parts)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A regular expression that is compiled when first used: hundreds would slow every start."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern:
    def __init__(self, pattern: Any, flags: int) -> None:
        self._pattern = pattern, flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(*self._pattern), name)
        setattr(self, name, method)  # found at once from now on
        return method


def packaged_releases() -> Path:
    return packaged_path("releases", "data")


_COMPRESSION_LEVEL = 19
_LARGEST_BYTES = 64 << 20  # the packaged ones need 0.3 to 3 MB

Stored = TypeVar("Stored", bound=msgspec.Struct)


class TableFormat(msgspec.Struct, Generic[Stored], frozen=True, eq=False):
    what: str  # what it is to people, `an operator table`
    content: type[Stored]  # what is stored; its field `format_version` (of a list: the first) is `number`
    number: int = 1  # of the format that is read and written
    hint: str | None = None  # what to do about a file that holds no such table
    has_checksum: bool = False  # the frame holds a checksum of its content
    file: str = ""  # name of the packaged table of a release

    @cache  # noqa: B019 - formats are constants
    def releases(self) -> tuple[str, ...]:
        """Those of which a table is packaged, oldest first."""
        names = (path.parent.name for path in packaged_releases().glob(f"*/{self.file}"))
        return tuple(sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]))

    @cache  # noqa: B019
    def of_release(self, release: str | None) -> Stored | None:
        """The packaged table of exactly this release, `2.13.0` or `2.13.0+cu130`; None if there is none."""
        name = (release or "").partition("+")[0]
        return self.read(packaged_releases() / name / self.file) if name in self.releases() else None

    def encode(self, table: Stored) -> bytes:
        """The table as bytes; equal tables give equal bytes."""
        compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=self.has_checksum)
        return bytes(compressor.compress(msgspec.msgpack.encode(table)))

    def decode(self, content: bytes, source: str | Path | None) -> Stored:
        try:
            # The decompressor believes the size a frame declares, whatever limit it is given.
            if zstandard.frame_content_size(content) > _LARGEST_BYTES:
                raise InputError(f"too large for {self.what}", source=source, hint=self.hint)
            plain = zstandard.ZstdDecompressor().decompress(content, max_output_size=_LARGEST_BYTES)
            is_list = self.content.__struct_config__.array_like
            head: Any = msgspec.defstruct("Head", [("format_version", int)], array_like=is_list)
            found = msgspec.msgpack.decode(plain, type=head).format_version
            if found == self.number:
                return msgspec.msgpack.decode(plain, type=self.content)
        except (zstandard.ZstdError, msgspec.MsgspecError, MemoryError) as error:
            message = f"not {self.what}, or a damaged one ({error})"
            raise InputError(message, source=source, hint=self.hint) from error
        message = f"{self.what} of format {found}; this opscope reads format {self.number}"
        raise InputError(message, source=source, hint=self.hint)

    def read(self, path: Path) -> Stored:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", source=path) from error
        return self.decode(content, path)


Kept = TypeVar("Kept")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/opscope`, else `~/.cache/opscope`; for a user without a home, a temporary folder.

    It may not exist yet.

    Source: XDG Base Directory Specification 0.8; a relative `XDG_CACHE_HOME` is to be ignored.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "opscope"
    try:
        return Path.home() / ".cache" / "opscope"
    except RuntimeError:
        return Path(tempfile.gettempdir(), "opscope")


def kept(
    path: Path,
    decode: Callable[[bytes], Kept | None],
    make: Callable[[], Kept],
    encode: Callable[[Kept], bytes],
) -> Kept:
    """What a file in the cache holds; if it is absent or damaged, what `make` gives, kept for the next time.

    A cache that cannot be written costs time only.
    """
    with suppress(OSError, InputError):
        if (found := decode(path.read_bytes())) is not None:
            return found
    made = make()
    with suppress(InputError), replacing(path) as partial:
        partial.write_bytes(encode(made))
    return made
