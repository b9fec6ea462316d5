"""The pass of `scan.c` in Python, far slower: what the compiled one is held against, on any bytes."""

import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from opscope.ingest.arrow import packed
from opscope.ingest.scan import (
    _CATEGORIES,
    _CLASS_COUNT,
    _TYPES,
    HEADS,
    MEMBERS,
    TARGETS,
    ColumnKind,
    Scanned,
    _heads,
)

_DEEPEST, _LARGEST_EVENT, _LARGEST_RETRIED, _MOST_TRIES = 64, 16 << 20, 1 << 20, 1000
_SPACE = rb"[ \n\t\r]*"
_UNIT = (  # half a character is none
    rb"(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_TEXT = rb'"[^"\\]*(?:\\(?:["\\/bfnrt]|u%b)[^"\\]*)*"' % _UNIT
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NO_NUMBER = rb"-?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![a-zA-Z])"
_STRING, _SPACES = re.compile(_TEXT), re.compile(_SPACE)
_TOKEN = re.compile(rb"%b|(?:true|false|null)(?![a-zA-Z])|%b" % (_NUMBER, _NO_NUMBER))
_BRACKET = re.compile(rb'[\[\]{}"]')
# What stands around a value: its key; behind it the end of its object, or what leads to the next key.
_KEY = re.compile(rb"(%b)%b:%b" % (_TEXT, _SPACE, _SPACE))
_NEXT_KEY = re.compile(rb"%b(?:,%b|(\}))" % (_SPACE, _SPACE))
_NEXT_EVENT = re.compile(rb"%b(?:,%b|(?=\])|\Z)" % (_SPACE, _SPACE))
_BEGIN = re.compile(rb'\{[ \n\t\r]*"(?:ph|name|cat|pid|tid|ts|id|dur|args|s|bp)"[ \n\t\r]*:')
_HANDLE = re.compile(rb"0[xX][0-9a-fA-F]{1,16}")
_WHOLE = re.compile(rb"(-?[0-9]+)(?:\.0*)?")
_CARE = re.compile(rb"[\x00-\x1f\\\x80-\xff]")
_PLACES = {(one.key.encode(), one.in_arguments): at for at, one in enumerate(MEMBERS)}
_PHASE, _CATEGORY, _ARGUMENTS_PLACE = (_PLACES[key, False] for key in (b"ph", b"cat", b"args"))
_RANGES = {ColumnKind.UNSIGNED: (0, 1 << 64), ColumnKind.INT32: (-(1 << 31), 1 << 31)}
_LONGEST_REAL, _UNUSED = 64, 3
_EXACT = Context(prec=1 << 20)


class _Pass:
    """The grammar. Texts are interned by their bytes, and whether they are JSON: number and begin of each.

    Values of an event are 64 bits each, by their columns' places in `MEMBERS`.
    """

    def __init__(self, text):
        self.text = text
        self.texts = {}
        self.irregular = 0  # values of the event that was read last

    def event(self, at, end, largest):
        """The event, where it ends, and where the next one begins; None if there is none."""
        row = {}
        sound_end = behind = None
        self.irregular = 0
        if self.text[at : at + 1] == b"{":
            sound_end = self.members(row, at + 1, min(end, at + largest), in_arguments=False)
        if sound_end is not None:
            behind = _NEXT_EVENT.match(self.text, sound_end, end)
        return None if sound_end is None or behind is None else (row, sound_end, behind.end())

    def members(self, row, at, end, *, in_arguments):
        """Read the members of an object behind its brace: behind the object, None if it is none."""
        text = self.text
        at = self.space_end(at, end)
        if text[at : min(at + 1, end)] == b"}":
            return at + 1
        while (key := _KEY.match(text, at, end)) is not None:
            at = key.end()
            place = _PLACES.get((key[1][1:-1], in_arguments))
            if place == _ARGUMENTS_PLACE and text[at : min(at + 1, end)] == b"{":
                behind = self.members(row, at + 1, end, in_arguments=True)
            else:
                behind = self.value_end(at, end)
                if behind is not None and place is not None:
                    self.store(row, place, at, behind)
            found = None if behind is None else _NEXT_KEY.match(text, behind, end)
            if found is None or found[1]:
                return found and found.end()
            at = found.end()
        return None

    def space_end(self, at, end):
        found = _SPACES.match(self.text, at, end)
        return at if found is None else found.end()

    def value_end(self, at, end):
        first = self.text[at : at + 1] if at < end else b""
        if first not in (b"[", b"{"):
            found = (_STRING if first == b'"' else _TOKEN).match(self.text, at, end)
            return found and found.end()
        opened = []
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

    def store(self, row, place, begin, end):
        """Keep the value of a member; one of another type than its column is none, and counted."""
        member, raw = MEMBERS[place], self.text[begin:end]
        row.pop(TARGETS[place], None)  # of the same key before
        if raw == b"null":
            return
        is_quoted, value = raw[:1] == b'"', None
        if member.kind is ColumnKind.OBJECT:
            self.irregular += raw[:1] != b"n"
        elif member.kind in (ColumnKind.TEXT, ColumnKind.JSON):
            is_json = member.kind is ColumnKind.JSON or not is_quoted
            key = raw if is_json else raw[1:-1], is_json
            value, _ = self.texts.setdefault(key, (len(self.texts), begin + (not is_json)))
        else:
            raw = raw[1:-1] if is_quoted else raw
            is_number = _TOKEN.fullmatch(raw) is not None and raw not in (b"true", b"false")
            is_integer = member.kind in (ColumnKind.INTEGER, ColumnKind.UNSIGNED)
            if is_quoted and is_integer and _HANDLE.fullmatch(raw):
                value = int(raw, 16)
            elif is_number:
                value = _number(member.kind, raw)
            if value is None:
                self.irregular += not (is_number and member.kind in (ColumnKind.TIME, ColumnKind.REAL))
        if value is not None:
            row[TARGETS[place]] = value - (1 << 64) if value >= 1 << 63 else value


def _number(kind, raw):
    """A number as the bits that its column holds; None if it does not fit."""
    if kind is ColumnKind.REAL:
        value = float(raw) if len(raw) < _LONGEST_REAL and raw[-1:].isdigit() else math.inf
        return int(np.float64(value).view(np.int64)) if math.isfinite(value) else None
    if kind is ColumnKind.TIME:  # microseconds, rounded half away from zero
        try:
            number_ns = int(_EXACT.scaleb(Decimal(raw.decode()), 3).to_integral_value(ROUND_HALF_UP))
        except (ArithmeticError, ValueError):  # beyond all bounds, or not a number
            return None
        return number_ns if abs(number_ns) < 1 << 63 else None
    low, high = _RANGES.get(kind, (-(1 << 63), 1 << 63))
    found = _WHOLE.fullmatch(raw)
    return int(found[1]) if found is not None and low <= int(found[1]) < high else None


def scan_in_python(text, start, limit):
    """As `scan.scan_natively`."""
    one, end = _Pass(text), len(text)
    heads = {}
    used = set()  # texts of events that are kept
    classes = [[] for _ in range(_CLASS_COUNT)]
    row_count = irregular = broken_count = first_broken = 0
    tries, is_cut = _MOST_TRIES, False
    at = sound_end = one.space_end(start, end)
    while at < end and at < limit and text[at : at + 1] != b"]":
        found = one.event(at, end, _LARGEST_EVENT)
        if found is not None:
            row, sound_end, at = found
            irregular += one.irregular
            known = {one.texts[name.encode(), False][0]: at_class for name, at_class in _CATEGORIES.items()
                     if (name.encode(), False) in one.texts}  # fmt: skip
            at_class = known.get(row.get(_CATEGORY, -1), 0)
            if at_class >= 0:
                used.update(text for place, text in row.items() if _TYPES[place] == np.int32)
                head = tuple(row.pop(place, -1) for place in range(len(HEADS)))
                classes[at_class].append((row_count, heads.setdefault(head, len(heads)), row))
                row_count += 1
            continue
        # What stands here is no event: on to the next that is one, which is then read in its turn.
        begin = at
        while found is None and tries and (next_begin := _BEGIN.search(text, at + 1)) is not None:
            tries -= 1
            at = next_begin.start()
            found = one.event(at, end, _LARGEST_RETRIED)
            found = found if found is not None and _PHASE in found[0] else None
        if found is None:
            at, is_cut = end, True
            break
        first_broken = first_broken if broken_count else begin
        broken_count += 1
    found_classes = []
    for rows in classes:
        columns = {}
        for place in sorted({place for *_, row in rows for place in row}):
            present = packed(np.array([place in row for *_, row in rows]))
            values = np.array([row.get(place, 0) for *_, row in rows], dtype=_TYPES[place])
            columns[MEMBERS[place].name] = values, present
        found_classes.append((*np.array([row[:2] for row in rows], dtype=np.int32).reshape(-1, 2).T, columns))
    texts = [
        (begin, len(raw), 2 if is_json and raw[:1] in (b"[", b"{", b'"') else _CARE.search(raw) is not None)
        if number in used
        else (begin, len(raw), _UNUSED)
        for (raw, is_json), (number, begin) in one.texts.items()
    ]
    return Scanned(
        row_count, at, sound_end, at < end and text[at : at + 1] == b"]", is_cut, broken_count, first_broken,
        irregular, _heads(np.array(list(heads), dtype=np.int32)), found_classes,
        np.array(texts, dtype=np.int64).reshape(-1, 3).T,
    )  # fmt: skip
