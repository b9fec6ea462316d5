"""What the user names → local, uncompressed, seekable files, one per trace.

A source is a file, a folder of rank files, a pattern of names (`runs/*/rank*.json.gz`), or any fsspec address
of these (`s3://`, `gs://`, `https://`, `memory://`).
Plain local files are read in place; compressed and remote ones are spooled, chunk by chunk, to a temporary
file.
"""

from __future__ import annotations

import glob
import json
import mmap
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from opscope.data import packaged_toml
from opscope.errors import DependencyError, InputError
from opscope.model.files import check_ratio

_CHUNK_BYTES = 1 << 22
# Small, because what a broken chunk held before its flaw is lost with it.
_GZIP_CHUNK_BYTES = 1 << 13
_SUFFIXES = tuple(kind + packed for kind in (".json", ".sqlite") for packed in ("", ".gz", ".zst"))
EXPORT_COMMAND = "nsys export --type sqlite"
_SQLITE_MAGIC = b"SQLite format 3\0"
# Stats of a sweep take tens of kilobytes.
_LARGEST_OTHER_JSON_BYTES = 4 << 20
_ADDRESS = re.compile(r"^([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "https", "https": "https"}


class OtherRecorderError(InputError):
    """A file of another recorder, of which totals alone are read (`recorder_totals`)."""


class TraceFile(msgspec.Struct, frozen=True):
    name: str
    path: Path | None = None
    address: str | None = None


class LocalText(msgspec.Struct):
    """A local uncompressed file with a trace's text.

    `damage` says what is wrong with the compressed stream it came from; what could be decompressed is there.
    """

    path: Path
    damage: str | None = None


def find_traces(source: str) -> list[TraceFile]:
    """The traces a source names: itself, or those of a folder or pattern in natural order of their names."""
    match = _ADDRESS.match(source)
    if match and match.group(1).lower() != "file":
        return _find_remote(source, match.group(1).lower())
    text = source[7:] if match else source
    if not text:
        raise InputError("a file without a name", hint="Give the file of a trace, or a folder: . is this one")
    path = Path(text)
    try:
        path = path.expanduser()
        is_there = path.exists()
    except (OSError, RuntimeError, ValueError):  # too long a name, a user without a home, a null character
        is_there = False
    if is_there and not path.is_dir():
        return [TraceFile(str(path), path=path)]
    if is_there:
        found = list(path.iterdir())
    elif glob.has_magic(text):
        found = [Path(one) for one in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - absolute too
    else:
        raise InputError("no such file or folder", source=source, hint="Check the path")
    traces = [one for one in found if _is_trace_name(one.name) and not _is_other_json(one)]
    if is_there and not traces:
        raise _no_traces(source)
    if not traces:
        raise InputError(
            "no traces have names like this", source=text, hint=f"Traces end in {', '.join(_SUFFIXES)}"
        )
    return [TraceFile(str(one), path=one) for one in sorted(traces, key=natural_order)]


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


def natural_order(name: object) -> list[tuple[int, int, str]]:
    """Sort key under which `rank2` comes before `rank10`."""
    parts = re.split(r"(\d{1,18})", str(name))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def _find_remote(address: str, protocol: str) -> list[TraceFile]:
    import fsspec  # noqa: PLC0415 - slow to import and seldom needed

    try:
        system, path = fsspec.url_to_fs(address)
        if system.isdir(path):
            names = system.ls(path, detail=False)
        elif system.exists(path):
            return [TraceFile(full := system.unstrip_protocol(path), address=full)]
        else:
            names = (system.glob(path) if glob.has_magic(path) else []) or None
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        install = f'pip install "opscope[{extra}]"' if extra else f"install the package fsspec names: {error}"
        raise DependencyError(
            f"reading {protocol}:// needs an extra", source=address, hint=f"Run: {install}"
        ) from error
    except ValueError as error:
        raise InputError(f"unknown kind of address ({error})", source=address) from error
    except Exception as error:
        raise InputError(f"cannot be reached ({type(error).__name__}: {error})", source=address) from error
    if names is None:
        raise InputError("no such file", source=address, hint="Check the address and your credentials")
    traces = sorted((one for one in names if _is_trace_name(one.rsplit("/", 1)[-1])), key=natural_order)
    if not traces:
        raise _no_traces(address)
    return [TraceFile(full, address=full) for full in map(system.unstrip_protocol, traces)]


def _no_traces(folder: str) -> InputError:
    return InputError(
        "the folder holds no traces",
        source=folder,
        hint=f"Traces end in {', '.join(_SUFFIXES)}; a report of nsys is exported first: "
        "nsys export --type sqlite FILE.nsys-rep",
    )


@contextmanager
def local_text(trace: TraceFile, spool_directory: Path) -> Iterator[LocalText]:
    """The trace as a local uncompressed file for the duration of the block."""
    with tempfile.TemporaryDirectory(dir=spool_directory) as folder:
        try:
            text = _local_text(trace, Path(folder))
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", source=trace.name) from error
        yield text


def _local_text(trace: TraceFile, folder: Path) -> LocalText:
    path, spool = trace.path, folder / "spool.json"
    if path is not None and (path.is_char_device() or path.is_block_device()):  # which may never end
        raise InputError(
            "a device, not a trace", source=path, hint="Give a file, or send one into opscope … -"
        )
    if path is not None and not path.is_file():  # what comes out of a pipe can be read once only
        with path.open("rb") as pipe, (folder / "piped").open("wb") as copy:
            shutil.copyfileobj(pipe, copy, _CHUNK_BYTES)
        path = folder / "piped"
    with _open(trace.address) if path is None else path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(0)
        unpack = _gunzip if head[:2] == b"\x1f\x8b" else _unzstd if head == b"\x28\xb5\x2f\xfd" else None
        if unpack is None and path is not None:
            return LocalText(path)
        text = LocalText(spool)
        with spool.open("wb") as out:
            if unpack is None:
                shutil.copyfileobj(stream, out, _CHUNK_BYTES)
            else:
                unpack(stream, out, text, trace.name)
    return text


def _open(address: str | None) -> Any:
    import fsspec  # noqa: PLC0415 - slow to import and seldom needed

    return fsspec.open(address, "rb")


def _gunzip(stream: BinaryIO, out: BinaryIO, text: LocalText, name: str) -> None:
    """Gzip members one after the other. A broken stream keeps what came out of it."""
    module: Any = zlib
    error_type: Any = zlib.error
    with suppress(ImportError):  # about twice as fast on traces, where it is installed
        from isal import isal_zlib  # noqa: PLC0415

        module, error_type = isal_zlib, isal_zlib.IsalError
    inflate = module.decompressobj(wbits=31)
    try:
        while data := stream.read(_GZIP_CHUNK_BYTES):
            while data:
                out.write(inflate.decompress(data))
                check_ratio(stream, out, name)
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


def _unzstd(stream: BinaryIO, out: BinaryIO, text: LocalText, name: str) -> None:
    import zstandard  # noqa: PLC0415 - only for .zst

    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    try:
        while chunk := reader.read1(_CHUNK_BYTES):
            out.write(chunk)
            check_ratio(stream, out, name)
    except zstandard.ZstdError as error:
        text.damage = f"the zstd stream is broken near its byte {stream.tell()} ({error})"
    if not out.tell():
        reason = text.damage or "the zstd stream ends before any text"
        raise InputError(f"broken zstd: {reason}", source=name, byte_offset=stream.tell())


_WHITESPACE = re.compile(rb"[ \t\r\n]*")
_COLON = re.compile(rb"\s*(?::|\Z)")
# Strings and brackets. A string without an end takes the rest: what is looked at is looked at once.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|[{}\[\]]', re.DOTALL)
_KEY = b'"traceEvents"'
# Strings and brackets in front of the array (hundreds are usual), and how deep they nest.
_MOST_TOKENS, _DEEPEST = 1 << 20, 1000


class EventArray(msgspec.Struct, frozen=True):
    """Bytes `[start, end)` between the brackets of the array, and the object's other keys.

    `lost_bytes` counts the bytes after the last complete event of a truncated file; 0 for a whole one.
    """

    start: int
    end: int
    properties: dict[str, Any] = msgspec.field(default_factory=dict)
    lost_bytes: int = 0


@contextmanager
def mapped_text(path: Path, name: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        try:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise InputError("the file is empty", source=name) from None
        with text:
            yield text


class OpenArray(msgspec.Struct, frozen=True):
    """Where the event array begins (behind its bracket), and the object's keys before it."""

    start: int
    header: dict[str, Any] | None = None  # None of an array that is in no object


def open_array(text: mmap.mmap, source: str) -> OpenArray:
    """The begin of a trace's event array; an InputError if the text is not JSON, or has no event in one."""

    def wrong(what: str, byte_offset: int | None, hint: str | None = None) -> InputError:
        return InputError(what, source=source, byte_offset=byte_offset, hint=hint)

    def begins(mark: str) -> object:
        parts = f"{mark} … ".split(" … ")
        begin, later = (re.compile(part.encode("latin-1"), re.DOTALL) for part in parts[:2])
        return any(begin.match(text, at) for at in {0, first}) and later.search(text, first)

    first = _skip_whitespace(text, 3 if text[:3] == b"\xef\xbb\xbf" else 0)
    mark, header = text[first : first + 1], None
    if not mark:
        raise wrong("the file is empty", None)
    if (other := other_file("begins", begins, source)) is not None:
        raise other
    if mark == b"[":
        start = first + 1
    elif mark == b"{":
        key = _own_key(text, first)
        header = None if key is None else _parse_object(text[first:key] + b'"traceEvents":0}')
        if key is None or header is None:
            raise _without_array(text, first, source)
        header.pop("traceEvents")
        start = _skip_whitespace(text, key + len(_KEY))
        if has_colon := text[start : start + 1] == b":":
            start = _skip_whitespace(text, start + 1)
        if start >= len(text):
            raise wrong("the file ends before its first event", start)
        if not has_colon or text[start : start + 1] != b"[":
            raise wrong("traceEvents is not an array", start)
        start += 1
    else:
        raise InputError(
            "not JSON, and no other kind of file that opscope knows",
            source=source,
            hint=_known_files()["reads"],
        )
    if text[(after := _skip_whitespace(text, start)) : after + 1] == b"]":
        raise wrong("the traceEvents array is empty", None, "Record at least one active step")
    return OpenArray(start, header)


def trailer(text: mmap.mmap, bracket: int, opened: OpenArray) -> dict[str, Any] | None:
    """The object's keys behind the array that a bracket closes; None if they are cut off or no keys."""
    if opened.header is None:
        return None if text[bracket + 1 :].strip(b" \t\r\n\0") else {}
    found = _parse_object(b'{"":0' + text[bracket + 1 :])
    if found is not None:
        found.pop("")
    return found


def _known_files() -> dict[str, Any]:
    return packaged_toml(__package__, "other_files.toml")


def other_file(part: str, has: Callable[[str], object], source: str) -> InputError | None:
    """The error of a file of another tool, by the first mark of a part of the table that it has."""
    table = _known_files()
    found = next((one for one in table[part] if has(one["mark"])), None)
    if found is None:
        return None
    hint = found.get("hint", "{reads}").format(source=source, reads=table["reads"])
    return (OtherRecorderError if "totals" in found else InputError)(found["what"], source=source, hint=hint)


def foreign_json(text: mmap.mmap, unknown: str, source: str) -> InputError:
    """The error of JSON that has nothing of torch's profiler: by what others write, or else `unknown`."""
    found = other_file("holds", lambda mark: text.find(mark.encode()) >= 0, source)
    return found or InputError(unknown, source=source, hint=_known_files()["reads"])


def _skip_whitespace(text: mmap.mmap, position: int) -> int:
    found = _WHITESPACE.match(text, position)
    return position if found is None else found.end()


def _own_key(text: mmap.mmap, first: int) -> int | None:
    """Where the object's own key `traceEvents` stands, not one of an object or a text within it."""
    depth = 0
    for match in islice(_TOKEN.finditer(text, first), _MOST_TOKENS):
        token = match.group()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1 and token == _KEY and _COLON.match(text, match.end()):
            return match.start()
        if not 0 < depth <= _DEEPEST:
            return None
    return None


def _without_array(text: mmap.mmap, first: int, source: str) -> InputError:
    """The error that fits a file without a usable traceEvents key."""
    try:
        msgspec.json.decode(memoryview(text)[first:], type=msgspec.Raw)
    except msgspec.DecodeError as error:
        reason = re.sub(r"\s*\(byte \d+\)", "", str(error)).removeprefix("JSON is malformed: ")
        place = first + error_offset(error, len(text) - first)
        return InputError(f"not valid JSON ({reason})", source=source, byte_offset=place)
    except RecursionError:
        return InputError("not valid JSON (nested too deeply)", source=source)
    return foreign_json(text, "JSON without a traceEvents array", source)


def _parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, also with NaN, control characters or foreign bytes in it; None if it is none."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def error_offset(error: msgspec.DecodeError, size: int) -> int:
    """Byte at which msgspec found the text malformed; `size` if it ran out of text."""
    match = re.search(r"\(byte (\d+)\)", str(error))
    return int(match.group(1)) if match else size


def is_export(trace: TraceFile, local: LocalText) -> bool:
    """Whether a file is a database, or is called one; an InputError of a report of nsys."""
    name = trace.name.lower()
    if name.endswith((".nsys-rep", ".qdrep", ".qdstrm")):
        raise InputError(
            "a report of Nsight Systems, in a format that only nsys reads",
            source=trace.name,
            hint=f"Export it where nsys is installed: {EXPORT_COMMAND} {trace.name}",
        )
    with local.path.open("rb") as file:
        head = file.read(len(_SQLITE_MAGIC))
    return head == _SQLITE_MAGIC or name.removesuffix(".gz").removesuffix(".zst").endswith(".sqlite")
