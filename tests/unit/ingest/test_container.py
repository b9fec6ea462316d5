"""Where the event array lies: keys before and after it, truncation at every byte, and what is no trace."""

from __future__ import annotations

import json
import mmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.ingest.source import EventArray
from opscope.ingest.staging import locate_events

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "a}]b", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {}},
    {"ph": "X", "cat": "cpu_op", "name": 'q"},{"', "pid": 1, "tid": 1, "ts": 5, "dur": 2,
     "args": {"nested": [{"a": 1}, {"name": "b"}, {"c": [{"d": 2}]}]}},
]  # fmt: skip
TRAILER: dict[str, Any] = {
    "INFO": ["[x] }] {", "a, ]}"],
    "distributedInfo": {"backend": "nccl", "rank": 3, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]},
    "other": [{"a": 1}, {"b": [{}]}],
    "traceName": "/tmp/}],x",
}


def locate(content: str | bytes) -> tuple[EventArray, bytes]:
    """The array, and the bytes it spans."""
    data = content if isinstance(content, bytes) else content.encode()
    with mmap.mmap(-1, max(1, len(data))) as text:
        text[:] = data or b" "
        found = locate_events(text, "t.json")
        return found, text[found.start : found.end]


def events_of(content: str | bytes) -> tuple[list[Any], dict[str, Any], int]:
    found, span = locate(content)
    return json.loads(b"[" + span + b"]", strict=False), found.properties, found.lost_bytes


def error_of(content: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        locate(content)
    assert caught.value.source == "t.json"
    return caught.value


class TestWholeFiles:
    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " :\r\n")])
    @pytest.mark.parametrize("trailer", [{}, TRAILER], ids=["array-last", "keys-after"])
    @pytest.mark.parametrize("header", [{}, {"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}]}])
    def test_keys_before_and_after(
        self, header: dict[str, Any], trailer: dict[str, Any], separators: tuple[str, str]
    ) -> None:
        text = json.dumps({**header, "traceEvents": EVENTS, **trailer}, separators=separators)
        assert events_of(text) == (EVENTS, {**header, **trailer}, 0)

    @pytest.mark.parametrize("indent", [None, 0, 2])
    def test_a_bare_array(self, indent: int | None) -> None:
        assert events_of(json.dumps(EVENTS, indent=indent) + "\n") == (EVENTS, {}, 0)

    def test_whitespace_and_a_byte_order_mark(self) -> None:
        text = "\ufeff \n\t" + json.dumps({"traceEvents": EVENTS}) + "\r\n \n"
        assert events_of(text) == (EVENTS, {}, 0)
        assert events_of("\ufeff" + json.dumps(EVENTS)) == (EVENTS, {}, 0)

    @pytest.mark.parametrize(
        "header",
        [
            {"note": 'a "traceEvents": [ {'},
            {"note": "traceEvents"},
            {"traceEventsX": [{"a": 1}]},
            {"meta": {"traceEvents": [{"a": 1}]}},
            {"traceEvents": "twice"},
        ],
        ids=["in-a-string", "a-value", "a-prefix", "nested", "in-a-nested-string"],
    )
    def test_the_key_elsewhere_is_not_the_array(self, header: dict[str, Any]) -> None:
        header = {"wrapped": header} if "traceEvents" in header else header
        text = json.dumps({**header, "traceEvents": EVENTS})
        assert events_of(text) == (EVENTS, header, 0)

    def test_flaws_in_other_keys_do_not_hide_the_array(self) -> None:
        text = b'{"a": NaN, "b": "\xff\x01", "traceEvents": [{"ph": "X"}], "traceName": "/tmp/\xe9"}'
        events, properties, lost_bytes = events_of(text)
        assert (events, lost_bytes) == ([{"ph": "X"}], 0)
        assert properties.keys() == {"a", "b", "traceName"}
        assert properties["traceName"] == "/tmp/\ufffd"

    def test_a_trailer_longer_than_one_look_at_the_tail(self) -> None:
        trailer = {"distributedInfo": {"pg_config": [{"ranks": list(range(50))} for _ in range(2_000)]}}
        text = json.dumps({"traceEvents": EVENTS, **trailer, "z": [{"q": 1}]})
        assert len(text) > 3 * (1 << 16)
        assert events_of(text) == (EVENTS, {**trailer, "z": [{"q": 1}]}, 0)

    def test_many_events(self) -> None:
        many = EVENTS * 2_000
        text = json.dumps({"a": 1, "traceEvents": many, **TRAILER})
        assert events_of(text) == (many, {"a": 1, **TRAILER}, 0)


class TestTruncation:
    @pytest.mark.parametrize("trailer", [{}, TRAILER], ids=["array-last", "keys-after"])
    @pytest.mark.parametrize("form", ["object", "pretty", "bare"])
    def test_at_every_byte(self, form: str, trailer: dict[str, Any]) -> None:
        if form == "bare":
            text = json.dumps(EVENTS)
        else:
            indent = 1 if form == "pretty" else None
            text = json.dumps({"a": "é", "traceEvents": EVENTS, **trailer}, indent=indent, ensure_ascii=False)
        data = text.encode()
        ends = event_ends(data)
        for cut in range(len(data)):
            complete = [end for end in ends if end <= cut]
            if not complete:
                assert error_of(data[:cut]).byte_offset is not None
                continue
            events, _, lost_bytes = events_of(data[:cut])
            assert events == EVENTS[: len(complete)], cut
            assert lost_bytes == cut - complete[-1], cut

    @pytest.mark.exhaustive(few=False)
    def test_a_long_file_is_cut_where_its_last_event_ends(self) -> None:
        data = json.dumps({"traceEvents": EVENTS * 3_000, **TRAILER}).encode()
        ends = event_ends(data)
        for cut in (ends[-1], ends[-1] - 1, ends[-2] + 60, ends[-3] + 150, len(data) // 2, 1_000):
            last = max(end for end in ends if end <= cut)
            found, span = locate(data[:cut])
            assert found.lost_bytes == cut - last
            assert len(json.loads(b"[" + span + b"]")) == ends.index(last) + 1

    def test_bytes_after_the_object_are_lost_bytes(self) -> None:
        assert events_of(json.dumps({"traceEvents": EVENTS}) + "\0\0\0") == (EVENTS, {}, 5)

    @given(st.binary(max_size=40), st.integers(0, 200))
    def test_garbage_at_the_end_is_salvaged_or_refused(self, garbage: bytes, cut: int) -> None:
        data = json.dumps({"traceEvents": EVENTS}).encode()[: -cut or None] + garbage
        try:
            found, _ = locate(data)
        except InputError:
            return
        assert 0 < found.start < found.end <= len(data)
        assert 0 <= found.lost_bytes <= len(data) - found.end


def event_ends(data: bytes) -> list[int]:
    """Offset just after every event, by a decoder that is not ours."""
    text = data.decode()
    position = text.index("[", text.index('"traceEvents"') if text.startswith("{") else 0) + 1
    decoder, found = json.JSONDecoder(), []
    while True:
        while text[position] in " \n,":
            position += 1
        if text[position] == "]":
            return found
        position = decoder.raw_decode(text, position)[1]
        found.append(len(text[:position].encode()))


class TestNoTrace:
    @pytest.mark.parametrize(
        ("content", "message", "byte_offset"),
        [
            (b"", "the file is empty", 0),
            (b" \n ", "the file is empty", 0),
            (b"\xef\xbb\xbf", "the file is empty", 0),
            (b"hello", "not JSON", 0),
            (b"NVR\0" + bytes(64), "a report of Nsight Compute, not a trace", 0),
            (b"PK\3\4" + bytes(64), "an archive, not a trace", 0),
            (b"t.json".ljust(257, b"\0") + b"ustar", "an archive, not a trace", 0),
            (bytes(8) + b"DUCK" + bytes(64), "a saved session, not a trace", 0),
            (b"\n\n<html>", "not JSON", 2),
            (b"\xff\xfe{\x00", "not JSON", 0),
            (b'{"a": 1}', "JSON without a traceEvents array", 0),
            (b'  {"a": 1}', "JSON without a traceEvents array", 2),
            (b'{"a": [1, 2}', "not valid JSON", 11),
            (b'{"a": 1', "not valid JSON", 7),
            (b'{"a": b"traceEvents": []}', "not valid JSON", 6),
            (b'{"a": ' + b"[" * 100_000 + b', "traceEvents": []}', "not valid JSON", None),
            (b'{"traceEvents": 5}', "traceEvents is not an array", 16),
            (b'{"traceEvents": {"a": 1}}', "traceEvents is not an array", 16),
            (b'{"traceEvents": null}', "traceEvents is not an array", 16),
            (b'{"traceEvents": []}', "the traceEvents array is empty", 16),
            (b'{"traceEvents": [ \n ], "a": [{}]}', "the traceEvents array is empty", 16),
            (b"[]", "the traceEvents array is empty", 0),
            (b'{"traceEvents" ', "the file ends before its first event", 15),
            (b'{"traceEvents":', "the file ends before its first event", 15),
            (b'{"traceEvents": [', "the file ends before its first complete event", 17),
            (b'{"traceEvents": [{"ph": "X", "args": {"a": 1}', "the file ends before its first", 45),
            (b"[", "the file ends before its first complete event", 1),
            (b'["a", 5]', "the file ends before its first complete event", 8),
        ],
    )
    def test_says_what_and_where(self, content: bytes, message: str, byte_offset: int | None) -> None:
        error = error_of(content)
        assert error.message.startswith(message)
        assert byte_offset is None or error.byte_offset == byte_offset
