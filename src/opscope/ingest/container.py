"""Where the `traceEvents` array lies in a trace file, without reading the events.

A Kineto file is one JSON object whose array may be gigabytes; only the text before and after it is parsed. A
file cut off in the middle of the array (killed job, full disk) is salvaged to its last complete event.
"""

from __future__ import annotations

import json
import mmap
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opscope.errors import InputError

__all__ = ["EventArray", "error_offset", "locate_events"]

_EVENT_END = re.compile(rb"\}\s*\]")
_TAIL_BYTES = 1 << 16
_KEY = b'"traceEvents"'
# Every event has a phase; objects in its arguments, or in keys after the array, have none.
_PHASE = b'"ph"'
# How far a salvage looks: objects in front of the phase of one event, broken events, bytes of one event.
_MOST_OBJECTS, _MOST_BROKEN_EVENTS, _LARGEST_EVENT_BYTES = 64, 20, 16 << 20


@dataclass(frozen=True)
class EventArray:
    """Bytes `[start, end)` between the brackets of the array, and the object's other keys.

    `lost_bytes` counts the bytes after the last complete event of a truncated file; 0 for a whole one.
    """

    start: int
    end: int
    properties: dict[str, Any] = field(default_factory=dict)
    lost_bytes: int = 0


def locate_events(text: mmap.mmap, source: str) -> EventArray:
    """The event array of a trace.

    Args:
        text: The whole uncompressed file.
        source: Its name, for errors.

    Raises:
        InputError: Not JSON, no traceEvents array, or no complete event in it.
    """
    first = _skip_whitespace(text, 3 if text[:3] == b"\xef\xbb\xbf" else 0)
    if first >= len(text):
        raise InputError("the file is empty", source=source, byte_offset=0)
    header: dict[str, Any] = {}
    if text[first : first + 1] == b"[":
        start = first + 1
    elif text[first : first + 1] == b"{":
        start, header = _find_array_start(text, first, source)
    else:
        raise InputError(
            "not JSON", source=source, byte_offset=first, hint="opscope reads Kineto (Chrome) traces in JSON"
        )
    if text[(after := _skip_whitespace(text, start)) : after + 1] == b"]":
        raise InputError(
            "the traceEvents array is empty",
            source=source,
            byte_offset=start - 1,
            hint="Record at least one active step",
        )
    found = _find_array_end(text, start, is_bare_array=not header and text[first : first + 1] == b"[")
    if found is None:
        return _salvage(text, start, header, source)
    end, trailer = found
    return EventArray(start, end, {**header, **trailer})


def _skip_whitespace(text: mmap.mmap, position: int) -> int:
    while position < len(text) and text[position : position + 1] in (b" ", b"\t", b"\r", b"\n"):
        position += 1
    return position


def _find_array_start(text: mmap.mmap, first: int, source: str) -> tuple[int, dict[str, Any]]:
    position = text.find(_KEY)
    while position >= 0:
        header = _parse_object(text[first:position] + b'"traceEvents":0}')
        if header is not None:
            header.pop("traceEvents")
            return _open_bracket(text, position + len(_KEY), source), header
        position = text.find(_KEY, position + 1)
    _explain_missing_array(text, first, source)
    raise AssertionError("unreachable")


def _open_bracket(text: mmap.mmap, position: int, source: str) -> int:
    position = _skip_whitespace(text, position)
    if text[position : position + 1] == b":":
        position = _skip_whitespace(text, position + 1)
        if text[position : position + 1] == b"[":
            return position + 1
    if position >= len(text):
        raise InputError("the file ends before its first event", source=source, byte_offset=position)
    raise InputError("traceEvents is not an array", source=source, byte_offset=position)


def _explain_missing_array(text: mmap.mmap, first: int, source: str) -> None:
    """Raise the error that fits a file without a usable traceEvents key."""
    try:
        msgspec.json.decode(memoryview(text)[first:], type=msgspec.Raw)
    except msgspec.DecodeError as error:
        offset = first + error_offset(error, len(text) - first)
        raise InputError(f"not valid JSON ({_reason(error)})", source=source, byte_offset=offset) from None
    except RecursionError:
        raise InputError("not valid JSON (nested too deeply)", source=source, byte_offset=first) from None
    raise InputError(
        "JSON without a traceEvents array",
        source=source,
        byte_offset=first,
        hint="opscope reads Kineto (Chrome) traces; a stats or sidecar file is not one",
    )


def _find_array_end(text: mmap.mmap, start: int, *, is_bare_array: bool) -> tuple[int, dict[str, Any]] | None:
    """Position of the closing bracket and the keys after it, or None if the array is not closed.

    Arrays may follow traceEvents (`INFO`, `distributedInfo`), so the last `}]` need not be the one. The right
    one ends an event, and what follows it parses as the rest of an object. The tail grows until it is found.
    """
    size = _TAIL_BYTES
    while True:
        tail_start = max(start, len(text) - size)
        found = _first_valid_end(text, start, tail_start, is_bare_array)
        if found is not None or tail_start == start or size >= 64 * _TAIL_BYTES:
            return found
        size *= 4


def _first_valid_end(
    text: mmap.mmap, start: int, tail_start: int, is_bare_array: bool
) -> tuple[int, dict[str, Any]] | None:
    tail = text[tail_start:]
    for match in _EVENT_END.finditer(tail):
        trailer = _trailer(tail[match.end() :], is_bare_array)
        event_end = tail_start + match.start() + 1
        if trailer is not None and _last_event_end(text, start, event_end) == event_end:
            return tail_start + match.end() - 1, trailer
    return None


def _trailer(rest: bytes, is_bare_array: bool) -> dict[str, Any] | None:
    """The keys after the array, if the text after a bracket can be what follows it."""
    if is_bare_array:
        return None if rest.strip() else {}
    # A cheap look first: the rest of the object is `}` or `, "key"`, never another brace or bracket.
    if not re.match(rb'\s*(,\s*"|\}\s*$)', rest):
        return None
    trailer = _parse_object(b'{"":0' + rest)
    if trailer is not None:
        trailer.pop("")
    return trailer


def _salvage(text: mmap.mmap, start: int, header: dict[str, Any], source: str) -> EventArray:
    """The array up to the last event that parses; the rest is counted as lost."""
    position = len(text)
    for _ in range(_MOST_BROKEN_EVENTS):
        position = text.rfind(_PHASE, start, position)
        if position < 0:
            break
        end = _last_event_end(text, start, position + len(_PHASE))
        if end is not None:
            return EventArray(start, end, header, lost_bytes=len(text) - end)
    raise InputError("the file ends before its first complete event", source=source, byte_offset=len(text))


def _last_event_end(text: mmap.mmap, start: int, before: int) -> int | None:
    """Where the event with the last phase before a position ends; None if it is cut off, or there is none."""
    opening = phase = text.rfind(_PHASE, start, before)
    for _ in range(_MOST_OBJECTS):
        opening = text.rfind(b"{", start, opening) if opening >= 0 else -1
        if opening < 0:
            return None
        length = _event_length(text[opening : opening + _LARGEST_EVENT_BYTES])
        if opening + length > phase:
            return opening + length
    return None


def _event_length(text: bytes) -> int:
    """Length of the event a text begins with; 0 if it begins with none."""
    try:
        # Structure is ASCII, and Latin-1 keeps every byte one character.
        value, length = json.JSONDecoder(strict=False).raw_decode(text.decode("latin-1"))
    except (ValueError, RecursionError):
        return 0
    return length if "ph" in value else 0


def _parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, also with NaN, control characters or foreign bytes in it; None if it is none."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reason(error: msgspec.DecodeError) -> str:
    return re.sub(r"\s*\(byte \d+\)", "", str(error)).removeprefix("JSON is malformed: ")


def error_offset(error: msgspec.DecodeError, size: int) -> int:
    """Byte at which msgspec found the text malformed; `size` if it ran out of text."""
    match = re.search(r"\(byte (\d+)\)", str(error))
    return int(match.group(1)) if match else size
