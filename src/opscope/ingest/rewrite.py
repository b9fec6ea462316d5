"""A copy of a trace's text in which its flaws are mended, byte-stream to byte-stream.

Needed for few files: times with more digits than a double holds, key names of 2021, raw control characters in
strings, bytes that are not UTF-8. Everything else is copied as it is.
"""

from __future__ import annotations

import codecs
import mmap
import re
from pathlib import Path

from opscope.ingest.container import EventArray

__all__ = ["mend", "normalize"]

_CHUNK_BYTES = 8 << 20
_TIME = re.compile(rb'("ts"\s*:\s*)(-?\d+(?:\.\d+)?)(?=\s*[,}\]])')
_NO_TIME = re.compile(rb'("ts"\s*:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])', re.IGNORECASE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FOREIGN = "opscope.foreign_bytes"
_CONTROL = re.compile(rb"[\x00-\x1f]")


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


# Unlike "replace" it keeps every position, so that later errors name the byte of the original.
codecs.register_error(_FOREIGN, _question_marks)


def normalize(text: mmap.mmap, events: EventArray, target: Path) -> EventArray:
    """Write the array with quoted times, so that no digit is lost, and today's key names.

    Returns:
        Where the array lies in the copy.
    """
    with target.open("wb") as out:
        for chunk in _chunks(text, events.start, events.end):
            timed = _NO_TIME.sub(rb"\1null", _TIME.sub(rb'\1"\2"', chunk))
            out.write(timed.replace(b'"external id"', b'"External id"'))
        size = out.tell()
    return EventArray(0, size, events.properties, events.lost_bytes)


def mend(text: mmap.mmap, events: EventArray, target: Path) -> tuple[EventArray, dict[str, int]]:
    """Write the array with control characters and invalid UTF-8 replaced, byte for byte.

    Returns:
        Where the array lies in the copy, and for each kind of flaw its first byte in the original. Empty if
        there was nothing to mend.
    """
    flaws: dict[str, int] = {}
    position = events.start
    with target.open("wb") as out:
        for chunk in _chunks(text, events.start, events.end):
            mended = _mend_utf8(chunk, position, flaws)
            out.write(_STRING.sub(lambda match: _CONTROL.sub(b" ", match.group()), mended))
            _note_control_characters(chunk, position, flaws)
            position += len(chunk)
        size = out.tell()
    return EventArray(0, size, events.properties, events.lost_bytes), flaws


def _mend_utf8(chunk: bytes, position: int, flaws: dict[str, int]) -> bytes:
    try:
        codecs.utf_8_decode(chunk, "strict", True)
    except UnicodeDecodeError as error:
        flaws.setdefault("invalid_utf8", position + error.start)
        return chunk.decode("utf-8", _FOREIGN).encode("utf-8")
    return chunk


def _note_control_characters(chunk: bytes, position: int, flaws: dict[str, int]) -> None:
    if "control_characters" in flaws:
        return
    for match in _STRING.finditer(chunk):
        inside = _CONTROL.search(match.group())
        if inside:
            flaws["control_characters"] = position + match.start() + inside.start()
            return


def _chunks(text: mmap.mmap, start: int, end: int):  # type: ignore[no-untyped-def]
    """Pieces that end between events, so that no string or number is cut."""
    position = start
    while position < end:
        stop = min(end, position + _CHUNK_BYTES)
        if stop < end:
            boundary = text.rfind(b"},", position, stop)
            stop = boundary + 2 if boundary > position else end
        yield text[position:stop]
        position = stop
