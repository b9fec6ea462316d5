"""What the user names → local, uncompressed, seekable files, one per trace.

A source is a file, a folder of rank files, or any fsspec address (`s3://`, `gs://`, `https://`, `memory://`).
Plain local files are read in place; compressed and remote ones are spooled, chunk by chunk, to a temporary
file.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from opscope.errors import DependencyError, InputError

__all__ = ["LocalText", "TraceFile", "find_traces", "local_text"]

_CHUNK_BYTES = 1 << 22
# Small, because what a broken chunk held before its flaw is lost with it.
_GZIP_CHUNK_BYTES = 1 << 13
_SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", ".sqlite.gz", ".sqlite.zst")
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Stats of a sweep take tens of kilobytes.
_LARGEST_OTHER_JSON_BYTES = 4 << 20
_ADDRESS = re.compile(r"^([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "https", "https": "https"}


@dataclass(frozen=True)
class TraceFile:
    """One trace: its name for people, and its local path or remote address."""

    name: str
    path: Path | None = None
    address: str | None = None


@dataclass
class LocalText:
    """A local uncompressed file with a trace's text.

    `damage` says what is wrong with the compressed stream it came from; what could be decompressed is there.
    """

    path: Path
    damage: str | None = None


def find_traces(source: str) -> list[TraceFile]:
    """The traces a source names: itself, or the trace files of a folder in natural order of their names.

    Raises:
        InputError: Nothing there, or a folder without traces.
        DependencyError: The address needs a package that is not installed.
    """
    match = _ADDRESS.match(source)
    if match and match.group(1).lower() != "file":
        return _find_remote(source, match.group(1).lower())
    path = _existing_path(source[7:] if match else source)
    if path is None:
        raise InputError("no such file or folder", source=source, hint="Check the path")
    if not path.is_dir():
        return [TraceFile(str(path), path=path)]
    named = (file for file in path.iterdir() if _is_trace_name(file.name) and not _is_other_json(file))
    files = sorted(named, key=lambda file: _natural(file.name))
    if not files:
        raise _no_traces(source)
    return [TraceFile(str(file), path=file) for file in files]


def _existing_path(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, a user without a home, a null character
        return None


def _is_trace_name(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.endswith(".opscope.json") and not name.startswith(".")


def _is_other_json(file: Path) -> bool:
    """Whether a plain file of a folder is JSON, but no trace: our own stats and summaries among others.

    Only complete small files are judged; what cannot be read is left for the loader to explain.
    """
    try:
        if file.suffix != ".json" or file.stat().st_size > _LARGEST_OTHER_JSON_BYTES:
            return False
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "traceEvents" not in document


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which rank2 comes before rank10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def _find_remote(address: str, protocol: str) -> list[TraceFile]:
    import fsspec  # noqa: PLC0415 - slow to import and seldom needed

    try:
        system, path = fsspec.url_to_fs(address)
        names = _list_remote(system, path)
    except ImportError as error:
        raise _missing_extra(address, protocol, error) from error
    except ValueError as error:
        raise InputError(f"unknown kind of address ({error})", source=address) from error
    except Exception as error:
        raise InputError(f"cannot be reached ({type(error).__name__}: {error})", source=address) from error
    if names is None:
        raise InputError("no such file", source=address, hint="Check the address and your credentials")
    if not names:
        raise _no_traces(address)
    return [TraceFile(full, address=full) for full in map(system.unstrip_protocol, names)]


def _list_remote(system: Any, path: str) -> list[str] | None:
    """The file itself or the traces of a folder, without protocol; None if there is neither."""
    if system.isdir(path):
        names = [name for name in system.ls(path, detail=False) if _is_trace_name(name.rsplit("/", 1)[-1])]
        return sorted(names, key=_natural)
    return [path] if system.exists(path) else None


def _no_traces(folder: str) -> InputError:
    return InputError(
        "the folder holds no traces",
        source=folder,
        hint=f"Traces end in {', '.join(_SUFFIXES)}; a report of nsys is exported first: "
        "nsys export --type sqlite FILE.nsys-rep",
    )


def _missing_extra(address: str, protocol: str, error: ImportError) -> DependencyError:
    extra = _EXTRAS.get(protocol)
    install = f'pip install "opscope[{extra}]"' if extra else f"install the package fsspec names: {error}"
    return DependencyError(f"reading {protocol}:// needs an extra", source=address, hint=f"Run: {install}")


@contextmanager
def local_text(trace: TraceFile, spool_directory: Path) -> Iterator[LocalText]:
    """The trace's text as a local uncompressed file, for the duration of the block.

    Raises:
        InputError: Unreadable, or its compression is broken before any text.
    """
    spool = spool_directory / "spool.json"
    try:
        with _open(trace) as stream:
            head = stream.read(4)
            stream.seek(0)
            decode = _decoder(head)
            text = LocalText(spool)
            if decode is None and trace.path is not None:
                text.path = trace.path
            else:
                with spool.open("wb") as out:
                    (decode or _copy)(stream, out, text, trace.name)
    except OSError as error:
        spool.unlink(missing_ok=True)
        raise InputError(f"cannot be read ({error.strerror or error})", source=trace.name) from error
    try:
        yield text
    finally:
        spool.unlink(missing_ok=True)


@contextmanager
def _open(trace: TraceFile) -> Iterator[BinaryIO]:
    if trace.path is not None:
        with trace.path.open("rb") as stream:
            yield stream
        return
    import fsspec  # noqa: PLC0415 - slow to import and seldom needed

    assert trace.address is not None
    with fsspec.open(trace.address, "rb") as stream:
        yield stream


Decoder = Callable[[BinaryIO, BinaryIO, LocalText, str], None]


def _decoder(head: bytes) -> Decoder | None:
    if head[:2] == _GZIP_MAGIC:
        return _gunzip
    return _unzstd if head == _ZSTD_MAGIC else None


def _copy(stream: BinaryIO, out: BinaryIO, text: LocalText, name: str) -> None:
    del text, name
    while chunk := stream.read(_CHUNK_BYTES):
        out.write(chunk)


def _gunzip(stream: BinaryIO, out: BinaryIO, text: LocalText, name: str) -> None:
    """Gzip members one after the other. A broken stream keeps what came out of it."""
    module, error_type = _inflate_module()
    inflate = module.decompressobj(wbits=31)
    try:
        while data := stream.read(_GZIP_CHUNK_BYTES):
            while data:
                out.write(inflate.decompress(data))
                data = b""
                if inflate.eof:
                    data = inflate.unused_data.lstrip(b"\0")
                    inflate = module.decompressobj(wbits=31) if data else inflate
        if not inflate.eof:
            text.damage = f"the gzip stream ends early, at its byte {stream.tell()}"
    except error_type as error:
        text.damage = f"the gzip stream is broken near its byte {stream.tell()} ({error})"
    if text.damage and not out.tell():
        raise InputError(f"broken gzip: {text.damage}", source=name, byte_offset=stream.tell())


def _inflate_module() -> tuple[Any, Any]:
    """ISA-L's zlib where it is installed: about twice as fast on traces."""
    try:
        from isal import isal_zlib  # noqa: PLC0415 - optional
    except ImportError:
        return zlib, zlib.error
    return isal_zlib, isal_zlib.IsalError


def _unzstd(stream: BinaryIO, out: BinaryIO, text: LocalText, name: str) -> None:
    import zstandard  # noqa: PLC0415 - only for .zst

    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    try:
        while chunk := reader.read1(_CHUNK_BYTES):
            out.write(chunk)
    except zstandard.ZstdError as error:
        text.damage = f"the zstd stream is broken near its byte {stream.tell()} ({error})"
    if not out.tell():
        reason = text.damage or "the zstd stream ends before any text"
        raise InputError(f"broken zstd: {reason}", source=name, byte_offset=stream.tell())
