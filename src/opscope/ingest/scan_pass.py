"""What `scan.c` does, in Python, for machines on which it was not compiled: equal, and far slower."""

from __future__ import annotations

import math
import mmap
import re
import struct
from typing import Any

import numpy as np

from opscope.ingest.arrow import Column
from opscope.ingest.event_columns import FORMATS, MEMBERS, SKIPPED_CATEGORIES, ColumnKind, Scanned

_DEEPEST, _LARGEST_EVENT, _LARGEST_RETRIED, _MOST_TRIES = 64, 16 << 20, 1 << 20, 1000
_SPACE = re.compile(rb"[ \n\t\r]*")
_UNIT = (  # half a character is none
    rb"(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_STRING = re.compile(rb'"[^"\\]*(?:\\(?:["\\/bfnrt]|u%b)[^"\\]*)*"' % _UNIT)
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NO_NUMBER = rb"-?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![a-zA-Z])"
_TOKEN = re.compile(rb"%b|(?:true|false|null)(?![a-zA-Z])|%b" % (_NUMBER, _NO_NUMBER))
_BRACKET = re.compile(rb'[\[\]{}"]')
_DECIMAL = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_HANDLE = re.compile(rb"0[xX][0-9a-fA-F]{1,16}")
_WHOLE = re.compile(rb"(-?[0-9]+)(?:\.0*)?")
_BEGIN = re.compile(rb'\{[ \n\t\r]*"(?:ph|name|cat|pid|tid|ts|id|dur|args|s|bp)"[ \n\t\r]*:')
_KEYS = {(one.key.encode(), one.in_arguments): at for at, one in enumerate(MEMBERS)}
_TARGETS = [[one.name for one in MEMBERS].index(one.name) for one in MEMBERS]
_PHASE, _CATEGORY = (_KEYS[key, False] for key in (b"ph", b"cat"))
_SKIPPED = {(one.encode(), False) for one in SKIPPED_CATEGORIES}


class _Row:
    """The members of one event that were read."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.rare: list[tuple[int, Any]] = []
        self.irregular = 0


class _Pass:
    def __init__(self, text: mmap.mmap) -> None:
        self.text = text
        self.ids: dict[tuple[bytes, bool], int] = {}
        self.begins: list[int] = []

    def space_end(self, at: int, end: int) -> int:
        found = _SPACE.match(self.text, at, end)
        return at if found is None else found.end()

    def value_end(self, at: int, end: int) -> int | None:
        first = self.text[at : at + 1] if at < end else b""
        if first not in (b"[", b"{"):
            found = (_STRING if first == b'"' else _TOKEN).match(self.text, at, end)
            return None if found is None else found.end()
        opened: list[bytes] = []
        while (found := _BRACKET.search(self.text, at, end)) is not None:
            at, mark = found.end(), found.group()
            if mark == b'"':
                found = _STRING.match(self.text, at - 1, end)
                if found is None:
                    return None
                at = found.end()
            elif mark in b"[{":
                opened.append(mark)
                if len(opened) > _DEEPEST:
                    return None
            elif opened.pop() != (b"{" if mark == b"}" else b"["):
                return None
            elif not opened:
                return at
        return None

    def members(self, row: _Row, at: int, end: int, in_arguments: bool) -> int | None:
        text = self.text
        at = self.space_end(at, end)
        if at < end and text[at : at + 1] == b"}":
            return at + 1
        while True:
            name = _STRING.match(text, at, end)
            if name is None:
                return None
            index = _KEYS.get((name.group()[1:-1], in_arguments))
            at = self.space_end(name.end(), end)
            if text[at : min(at + 1, end)] != b":":
                return None
            at = self.space_end(at + 1, end)
            is_object = index is not None and MEMBERS[index].kind is ColumnKind.OBJECT
            if is_object and text[at : min(at + 1, end)] == b"{":
                behind = self.members(row, at + 1, end, True)
            else:
                behind = self.value_end(at, end)
                if behind is not None and is_object:
                    row.irregular += text[at : at + 1] != b"n"
                elif behind is not None and index is not None:
                    self.store(row, index, at, behind)
            if behind is None:
                return None
            at = self.space_end(behind, end)
            mark = text[at : min(at + 1, end)]
            if mark == b"}":
                return at + 1
            if mark != b",":
                return None
            at = self.space_end(at + 1, end)

    def intern(self, begin: int, end: int, *, is_json: bool) -> int:
        key = self.text[begin:end], is_json
        found = self.ids.setdefault(key, len(self.ids))
        if found == len(self.begins):
            self.begins.append(begin)
        return found

    def store(self, row: _Row, index: int, begin: int, end: int) -> None:
        member, target = MEMBERS[index], _TARGETS[index]
        raw = self.text[begin:end]
        if not member.is_rare:
            row.values.pop(target, None)  # of the same key before
        if raw == b"null":
            return
        value: Any
        if member.kind in (ColumnKind.TEXT, ColumnKind.JSON):
            is_json = member.kind is ColumnKind.JSON or raw[:1] != b'"'
            value = self.intern(begin + (not is_json), end - (not is_json), is_json=is_json)
        else:
            is_quoted = raw[:1] == b'"'
            raw = raw[1:-1] if is_quoted else raw
            token = _TOKEN.fullmatch(raw)
            value = None if token is None else _number(member.kind, raw)
            if (
                is_quoted
                and member.kind in (ColumnKind.INTEGER, ColumnKind.UNSIGNED)
                and _HANDLE.fullmatch(raw)
            ):
                value = int(raw, 16)
                value -= (1 << 64) if member.kind is ColumnKind.INTEGER and value >= 1 << 63 else 0
            if value is None:
                is_number = token is not None and raw not in (b"true", b"false")
                row.irregular += not (is_number and member.kind in (ColumnKind.TIME, ColumnKind.REAL))
                return
        if member.is_rare:
            row.rare.append((target, value))
        else:
            row.values[target] = value

    def event(self, at: int, end: int, largest: int) -> tuple[_Row, int, int] | None:
        """The event, where it ends, and where the next one begins; None if there is none."""
        row = _Row()
        if self.text[at : at + 1] != b"{":
            return None
        sound_end = self.members(row, at + 1, min(end, at + largest), False)
        if sound_end is None:
            return None
        behind = self.space_end(sound_end, end)
        mark = self.text[behind : behind + 1]
        if mark == b",":
            return row, sound_end, self.space_end(behind + 1, end)
        return (row, sound_end, behind) if mark in (b"", b"]") else None


def scan_in_python(text: mmap.mmap, start: int, limit: int) -> Scanned:
    """As `scan.scan_natively`."""
    one, end = _Pass(text), len(text)
    rows: list[dict[int, Any]] = []
    rare: list[tuple[int, int, Any]] = []
    irregular = broken_count = first_broken = 0
    tries, is_cut = _MOST_TRIES, False
    at = sound_end = one.space_end(start, end)
    while at < end and at < limit and text[at : at + 1] != b"]":
        found = one.event(at, end, _LARGEST_EVENT)
        if found is not None:
            row, sound_end, at = found
            irregular += row.irregular
            category = row.values.get(_CATEGORY, -1)
            if all(one.ids.get(key) != category for key in _SKIPPED):
                rare += [(len(rows), index, value) for index, value in row.rare]
                rows.append(row.values)
            continue
        begin, candidate = at, None
        while tries > 0 and candidate is None:
            tries -= 1
            at_next = _BEGIN.search(text, at + 1)
            if at_next is None:
                break
            at = at_next.start()
            retried = one.event(at, end, _LARGEST_RETRIED)
            candidate = None if retried is None or _PHASE not in retried[0].values else at
        if candidate is None:
            at, is_cut = end, True
            break
        if not broken_count:
            first_broken = begin
        broken_count += 1
    is_closed = at < end and text[at : at + 1] == b"]"
    columns = {
        MEMBERS[index].name: _column(rows, index, MEMBERS[index].kind)
        for index in sorted({index for row in rows for index in row})
    }
    bits = [struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else
            value - (1 << 64) if value >= 1 << 63 else value for *_, value in rare]  # fmt: skip
    texts = [
        (begin, len(raw), 2 if is_json and raw[:1] in (b"[", b"{", b'"') else _CARE.search(raw) is not None)
        for begin, (raw, is_json) in zip(one.begins, one.ids, strict=True)
    ]
    return Scanned(
        len(rows), at, sound_end, is_closed, is_cut, broken_count, first_broken, irregular, columns,
        np.array([[row for row, *_ in rare], [index for _, index, _ in rare], bits], dtype=np.int64),
        np.array(texts, dtype=np.int64).reshape(-1, 3).T,
    )  # fmt: skip


def _column(rows: list[dict[int, Any]], index: int, kind: ColumnKind) -> Column:
    dtype = np.int32 if FORMATS.get(kind) == "u" else np.float64 if kind is ColumnKind.REAL else np.int64
    values = np.zeros(len(rows), dtype=dtype)
    has = np.zeros(len(rows), dtype=bool)
    for at, row in enumerate(rows):
        if index in row:
            values[at], has[at] = row[index], True
    return values.view(np.int64) if dtype is np.float64 else values, np.packbits(has, bitorder="little")


_CARE = re.compile(rb"[\x00-\x1f\\\x80-\xff]")


def _number(kind: ColumnKind, raw: bytes) -> int | float | None:
    """A number as its column holds it; None if it does not fit."""
    if kind is ColumnKind.REAL:
        value = float(raw) if len(raw) < _LONGEST_REAL and raw[-1:].isdigit() else math.inf
        return value if math.isfinite(value) else None
    if kind is ColumnKind.TIME:
        return _fixed_point(raw)
    found = _WHOLE.fullmatch(raw)
    number = None if found is None else int(found.group(1))
    low, high = _RANGES.get(kind, (-(1 << 63), 1 << 63))
    return number if number is not None and low <= number < high else None


_RANGES = {ColumnKind.UNSIGNED: (0, 1 << 64), ColumnKind.INT32: (-(1 << 31), 1 << 31)}


_LONGEST_REAL, _MOST_DIGITS, _DECIMALS = 64, 36, 3


def _fixed_point(raw: bytes) -> int | None:
    """Nanoseconds of a decimal of microseconds, rounded half away from zero."""
    found = _DECIMAL.fullmatch(raw)
    if found is None:
        return None
    sign, whole, fraction, exponent = found.groups()
    digits = (whole + (fraction or b"")).lstrip(b"0")
    kept = int(digits[:_MOST_DIGITS] or b"0")
    power = _DECIMALS - len(fraction or b"") + max(0, len(digits) - _MOST_DIGITS) + int(exponent or 0)
    if not kept:
        return 0
    if power >= 0:
        kept = kept * 10**power if power < _MOST_DIGITS else 1 << 63
    else:
        kept = (kept // 10 ** min(-power - 1, 2 * _MOST_DIGITS) + 5) // 10
    return None if kept >= 1 << 63 else -kept if sign else kept
