"""The text of an event array → columns, chunk by chunk, in one forward pass.

`scan.c` does it where the package was built with a compiler, `scan_pass.py` where not, by the same rules and
with the same results. Chunks are scanned side by side: a chunk holds only if the one before it ends exactly
where it begins; if it does not (a cut inside of a text), it is scanned anew from there.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.scan_pass import (
    FORMATS,
    MEMBERS,
    SKIPPED_CATEGORIES,
    TARGETS,
    ColumnKind,
    Scanned,
    scan_in_python,
)

_CHUNK_BYTES = 32 << 20
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|ts)\"\s*:)")
_SEARCH_BYTES = 1 << 20


class _Column(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char_p), ("length", ctypes.c_int32), ("kind", ctypes.c_int32),
        ("target", ctypes.c_int32), ("in_arguments", ctypes.c_int32), ("is_rare", ctypes.c_int32),
    )  # fmt: skip


_COUNTS = ("rows", "end", "sound_end", "is_closed", "is_cut", "broken", "first_broken", "irregular")
_LISTS = {
    "rare_row": np.int32, "rare_column": np.int32, "rare_value": np.int64,
    "text_begin": np.int64, "text_length": np.int32, "text_care": np.uint8,
}  # fmt: skip
_MOST_COLUMNS = 96


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (*_COUNTS, "rare_count", "text_count")),
        ("values", ctypes.c_void_p * _MOST_COLUMNS),
        ("present", ctypes.c_void_p * _MOST_COLUMNS),
        *((name, ctypes.c_void_p) for name in _LISTS),
    )


_CONTRACT = 1


@cache
def _library() -> Any:
    """The compiled scanner; None where it was not built, or before it changed."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_scan.so")))
        if library.scan_contract() != _CONTRACT:
            return None
    except (OSError, AttributeError):  # of another machine, perhaps
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.scan_events.restype = ctypes.POINTER(_Result)
    library.scan_events.argtypes = [
        address, number, number, number, address, *[ctypes.c_int32] * 3, address, ctypes.c_int32,
    ]  # fmt: skip
    library.scan_free.restype, library.scan_free.argtypes = None, [address]
    return library


_NATIVE_COLUMNS = (_Column * len(MEMBERS))(
    *(
        _Column(key.encode(), len(key.encode()), kind, target, in_arguments, is_rare)
        for (key, _, kind, in_arguments, is_rare), target in zip(MEMBERS, TARGETS, strict=True)
    )
)
_NATIVE_SKIPPED = (ctypes.c_char_p * len(SKIPPED_CATEGORIES))(*map(str.encode, SKIPPED_CATEGORIES))


def scan_natively(text: mmap.mmap, start: int, limit: int) -> Scanned:
    """Scan from an event on, to the first that begins at `limit` or behind it, or to the end of the array."""
    whole = np.frombuffer(text, dtype=np.uint8)
    result = _library().scan_events(
        whole.ctypes.data, len(whole), start, limit, _NATIVE_COLUMNS, len(MEMBERS), 0, 1,
        _NATIVE_SKIPPED, len(SKIPPED_CATEGORIES),
    )  # fmt: skip
    if not result:
        raise MemoryError
    try:
        found = result.contents
        rows = found.rows
        columns = {}
        for index, column in enumerate(MEMBERS):
            if not found.present[index] or not rows:
                continue
            present = _copied(found.present[index], (rows + 7) // 8, np.uint8)
            if present.any():
                kind = np.int32 if FORMATS.get(column.kind) == "u" else np.int64
                columns[column.name] = _copied(found.values[index], rows, kind), present
        lists = [
            _copied(getattr(found, name), getattr(found, f"{name[:4]}_count"), kind)
            for name, kind in _LISTS.items()
        ]
        return Scanned(
            found.rows, found.end, found.sound_end, bool(found.is_closed), bool(found.is_cut), found.broken,
            found.first_broken, found.irregular, columns, np.stack(lists[:3]), np.stack(lists[3:]),
        )  # fmt: skip
    finally:
        _library().scan_free(result)


def _copied(address: int, count: int, kind: Any) -> npt.NDArray[Any]:
    if not count:
        return np.empty(0, dtype=kind)
    size = count * np.dtype(kind).itemsize
    there = np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=kind)
    copied: npt.NDArray[Any] = there.copy()
    return copied


class Chunk(NamedTuple):
    """Some of the events, in the order of the file."""

    scanned: Scanned  # As found; the row of each rare value is one of these
    texts: list[str | None]  # Each text, decoded; None for JSON that is none
    flaws: dict[str, int]  # For each kind of flaw that was mended, its first byte


def scan(text: mmap.mmap, start: int, threads: int) -> Iterator[Chunk]:
    """The events of an array whose bracket opens before `start`, chunk by chunk, in order.

    So many chunks as there are threads are scanned side by side.
    """
    scan_one = scan_in_python if _library() is None else scan_natively
    cuts = [start]  # where chunks begin, as far as one can see from near by
    for guess in range(start + _CHUNK_BYTES, len(text) - _CHUNK_BYTES // 2, _CHUNK_BYTES):
        found = _BOUNDARY.search(text, guess, min(len(text), guess + _SEARCH_BYTES))
        if found is not None:
            cuts.append(found.end())
    ends = [*cuts[1:], len(text)]
    position = start
    with ThreadPoolExecutor(threads) as executor:
        ahead: deque[Future[Scanned]] = deque()
        for index, limit in enumerate(ends):
            for later in range(index + len(ahead), min(index + threads, len(ends))):
                ahead.append(executor.submit(scan_one, text, cuts[later], ends[later]))
            scanned = ahead.popleft().result()
            if cuts[index] != position:  # it was inside of a text
                scanned = scan_one(text, position, limit)
            position = scanned.end
            chunk = _decoded(text, scanned)
            _release(text, cuts[index], position)
            yield chunk
            if scanned.is_closed or scanned.is_cut:
                return


def _release(text: mmap.mmap, start: int, end: int) -> None:
    """Let go of the pages of a text that was scanned: the file has them, and this process need not."""
    start -= start % mmap.PAGESIZE
    if hasattr(text, "madvise") and end > start:
        text.madvise(mmap.MADV_DONTNEED, start, end - start)


def _decoded(text: mmap.mmap, scanned: Scanned) -> Chunk:
    flaws = {"broken_events": scanned.first_broken} if scanned.broken_count else {}
    used = _used(scanned) if scanned.broken_count else itertools.repeat(True)
    texts = [
        None
        if not is_used
        else text[begin : begin + length].decode()
        if not care
        else _mended(text[begin : begin + length], begin, flaws)
        if care == 1
        else _json_text(text[begin : begin + length], begin, flaws)
        for (begin, length, care), is_used in zip(scanned.texts.T.tolist(), used, strict=False)
    ]
    is_none = np.array([one is None for one in texts], dtype=bool)
    if is_none.any():
        for name, (values, present) in scanned.columns.items():
            if values.dtype == np.int32:
                lost = np.packbits(is_none[values], bitorder="little") & present
                scanned.columns[name] = values, present & ~lost
                irregular = scanned.irregular_count + int(np.count_nonzero(lost))
                scanned = scanned._replace(irregular_count=irregular)
    return Chunk(scanned, texts, flaws)


def _used(scanned: Scanned) -> list[bool]:
    """Whether an event that was kept has each text; others are of broken ones."""
    used = np.zeros(scanned.texts.shape[1], dtype=bool)
    for values, bits in scanned.columns.values():
        if values.dtype == np.int32:
            used[values[np.unpackbits(bits, count=len(values), bitorder="little").astype(bool)]] = True
    is_text = np.array([member.kind is ColumnKind.TEXT for member in MEMBERS])
    used[scanned.rare[2][is_text[scanned.rare[1]]]] = True
    return list(used.tolist())


_CONTROL = re.compile("[\\x00-\\x1f]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _mended(raw: bytes, begin: int, flaws: dict[str, int]) -> str:
    """A string's text, decoded. What no text may hold is replaced, and noted with its place."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        flaws.setdefault("invalid_utf8", begin + error.start)
        text = raw.decode(errors="replace").replace("\ufffd", "?")
    if control := _CONTROL.search(text):
        flaws.setdefault("control_characters", begin + len(text[: control.start()].encode()))
        text = _CONTROL.sub(" ", text)
    if "\\" in text:
        text = json.loads(f'"{text}"')
    return text


def _json_text(raw: bytes, begin: int, flaws: dict[str, int]) -> str | None:
    """JSON without spaces; None if it is none."""
    try:
        return msgspec.json.format(raw, indent=-1).decode()
    except (ValueError, RecursionError, msgspec.DecodeError):
        mended = _STRING.sub(
            lambda match: json.dumps(_mended(match.group()[1:-1].encode("latin-1"), begin, flaws)),
            raw.decode("latin-1"),
        )
    with suppress(ValueError, RecursionError, msgspec.DecodeError):
        return msgspec.json.format(mended.encode(), indent=-1).decode()
    return None
