"""Where the `traceEvents` array lies in a trace file, without reading the events.

A Kineto file is one JSON object whose array may be gigabytes; only the text before and after it is parsed. A
file cut off in the middle of the array (killed job, full disk) is salvaged to its last complete event.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opscope.errors import InputError

__all__ = ["EventArray", "error_offset", "locate_events"]

_WHITESPACE = b" \t\r\n"
_EVENT_END = re.compile(rb"\}\s*\]")
_EVENT_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_TAIL_BYTES = 1 << 16
_KEY = b'"traceEvents"'
# An event with more objects in an array of its arguments is not salvaged when it is the last one.
_MOST_NESTED_OBJECTS = 16


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
    raise InputError(
        "JSON without a traceEvents array",
        source=source,
        byte_offset=first,
        hint="opscope reads Kineto (Chrome) traces; a stats or sidecar file is not one",
    )


def _find_array_end(text: mmap.mmap, start: int, *, is_bare_array: bool) -> tuple[int, dict[str, Any]] | None:
    """Position of the closing bracket and the keys after it, or None if the array is not closed.

    Arrays may follow traceEvents (`INFO`, `distributedInfo`), so the last `}]` need not be the one. What
    follows the right bracket parses as the rest of an object; what follows an earlier bracket has closers
    too many. So the right one is the first whose rest parses. The tail grows until looking further back
    changes nothing.
    """
    size, best = _TAIL_BYTES, None
    while True:
        tail_start = max(start, len(text) - size)
        found = _first_valid_end(text, tail_start, is_bare_array)
        if tail_start == start or (found is not None and found == best):
            return found
        best = found
        if best is None and size >= 64 * _TAIL_BYTES:
            return None
        size *= 4


def _first_valid_end(
    text: mmap.mmap, tail_start: int, is_bare_array: bool
) -> tuple[int, dict[str, Any]] | None:
    tail = text[tail_start:]
    for match in _EVENT_END.finditer(tail):
        rest = tail[match.end() :]
        if is_bare_array:
            if not rest.strip():
                return tail_start + match.end() - 1, {}
            continue
        # A cheap look first: the rest of the object is `}` or `, "key"`, never another brace or bracket.
        if not re.match(rb'\s*(,\s*"|\}\s*$)', rest):
            continue
        trailer = _parse_object(b'{"":0' + rest)
        if trailer is not None:
            trailer.pop("")
            return tail_start + match.end() - 1, trailer
    return None


def _salvage(text: mmap.mmap, start: int, header: dict[str, Any], source: str) -> EventArray:
    """The array up to the last event that parses; the rest is counted as lost."""
    for end in _event_ends_backwards(text, start):
        if _is_event(text[_last_boundary(text, start, end) : end]):
            return EventArray(start, end, header, lost_bytes=len(text) - end)
    raise InputError("the file ends before its first complete event", source=source, byte_offset=len(text))


def _event_ends_backwards(text: mmap.mmap, start: int) -> Iterator[int]:
    """Positions just after a `}` that may end an event, from the end of the file back (at most 10,000)."""
    position = len(text)
    for _ in range(10_000):
        position = text.rfind(b"}", start, position)
        if position < 0:
            return
        yield position + 1


def _last_boundary(text: mmap.mmap, start: int, end: int) -> int:
    """Start of the event that ends at `end`: after the last `},{` at whose left an event ends."""
    low = max(start, end - (1 << 20))
    window = text[low:end]
    starts = [low + match.end() - 1 for match in _EVENT_BOUNDARY.finditer(window)]
    for candidate in reversed(starts[-_MOST_NESTED_OBJECTS:]):
        if _is_event(text[candidate:end]):
            return candidate
    return _skip_whitespace(text, start)


def _is_event(text: bytes) -> bool:
    """Whether it is one whole object with a phase; objects in arguments or in later keys have none."""
    value = _parse_object(text)
    return value is not None and "ph" in value


def _parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, tolerating NaN, and control characters and foreign bytes in strings; None if it is none."""
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
