"""What is changed in a copy of a trace's text, and that nothing else is."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

from opscope.ingest import kineto_file as rewrite
from opscope.ingest.kineto_file import mend, normalize
from opscope.ingest.source import EventArray


def rewritten(text: bytes, tmp_path: Path) -> bytes:
    target = tmp_path / "copy.json"
    with mmap.mmap(-1, len(text)) as mapped:
        mapped[:] = text
        array = normalize(mapped, EventArray(0, len(text), {"a": 1}, 7), target)
    assert (array.start, array.end) == (0, target.stat().st_size)
    assert (array.properties, array.lost_bytes) == ({"a": 1}, 7)
    return target.read_bytes()


def mended(text: bytes, tmp_path: Path, start: int = 0) -> tuple[bytes, dict[str, int]]:
    target = tmp_path / "copy.json"
    with mmap.mmap(-1, len(text)) as mapped:
        mapped[:] = text
        array, flaws, _ = mend(mapped, EventArray(start, len(text), {"a": 1}, 7), target)
    assert (array.start, array.end) == (0, len(text) - start)
    assert (array.properties, array.lost_bytes) == ({"a": 1}, 7)
    return target.read_bytes(), flaws


class TestNormalize:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b'{"ts": 1712345678901234.567, "dur": 5}', b'{"ts": "1712345678901234.567", "dur": 5}'),
            (b'{"dur":5,"ts":12}', b'{"dur":5,"ts":"12"}'),
            (b'{"ts" : -3.5\n}', b'{"ts" : "-3.5"\n}'),
            (b'{"ts": NaN, "x": 1}', b'{"ts": null, "x": 1}'),
            (b'{"ts":-Infinity}', b'{"ts":null}'),
            (b'{"ts": "12.5"}', b'{"ts": "12.5"}'),
            (b'{"ts": 1e15}', b'{"ts": 1e15}'),
            (b'{"name": "\\"ts\\": 5,"}', b'{"name": "\\"ts\\": 5,"}'),
            (b'{"args": {"external id": "7"}}', b'{"args": {"External id": "7"}}'),
        ],
    )
    def test_times_are_quoted_and_keys_are_todays(self, text: bytes, expected: bytes, tmp_path: Path) -> None:
        assert rewritten(text, tmp_path) == expected

    @pytest.mark.parametrize("chunk", [1, 5, 33, 200])
    def test_chunks_change_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
        events = [{"ts": index + 0.5, "args": {"external id": index}} for index in range(20)]
        text = json.dumps(events)[1:-1].encode()
        monkeypatch.setattr(rewrite, "_CHUNK_BYTES", chunk)
        assert json.loads(b"[" + rewritten(text, tmp_path) + b"]") == [
            {"ts": f"{index + 0.5}", "args": {"External id": index}} for index in range(20)
        ]


class TestMend:
    def test_a_sound_text_is_left_as_it_is(self, tmp_path: Path) -> None:
        text = '{"name": "é \\n \\" {",\n\t"x": "雪"}'.encode()
        assert mended(text, tmp_path) == (text, {})

    def test_control_characters_in_strings_become_spaces(self, tmp_path: Path) -> None:
        text = b'xx{"a":\t"b\x01c\nd\\"\x00"\n}'
        assert mended(text, tmp_path, start=2) == (
            b'{"a":\t"b c d\\" "\n}',
            {"control_characters": text.index(b"\x01")},
        )

    def test_foreign_bytes_become_question_marks(self, tmp_path: Path) -> None:
        text = 'xx{"a": "é'.encode() + b'\xff\xe9", "b": "\xf0\x9f\x92"}'
        assert mended(text, tmp_path, start=2) == (
            '{"a": "é??", "b": "???"}'.encode(),
            {"invalid_utf8": text.index(b"\xff")},
        )

    @pytest.mark.parametrize("chunk", [1, 10, 64])
    def test_the_first_flaw_is_named_across_chunks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        monkeypatch.setattr(rewrite, "_CHUNK_BYTES", chunk)
        text = b",".join([b'{"a": "fine"}'] * 9 + [b'{"a": "\x02\xff"}'] * 9)
        copy, flaws = mended(text, tmp_path)
        assert copy == text.replace(b"\x02\xff", b" ?")
        assert flaws == {
            "control_characters": text.index(b"\x02"),
            "invalid_utf8": text.index(b"\xff"),
        }


class TestBrokenEvents:
    SOUND = b'{"ph": "X", "name": "%d", "args": {"a": [{"b": 1}]}}'

    @pytest.mark.parametrize(
        "broken",
        [
            b'{"ph": "X", "name": "Library("_inductor", "IMPL")\n(1)", "args": {"a": {"b": 1}}}',
            b'{"ph": "X", "name": "C:\\Users\\user\\x.py"}',
            b'{"ph": "X", "name": "cut off',
            b'{"ph": "X", "dur": , "args": {"ts": 1}}',
            b'"no event"',
        ],
    )
    @pytest.mark.parametrize("place", [0, 1, 39, 40])
    @pytest.mark.parametrize("at_once", [200, 1 << 20])
    def test_one_costs_itself_alone(
        self, broken: bytes, place: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("opscope.ingest.source._AT_ONCE", at_once)
        events = [self.SOUND % index for index in range(40)]
        text = b",\n  ".join([*events[:place], broken, *events[place:]])
        copy, flaws = mended(text, tmp_path)
        assert json.loads(b"[" + copy + b"]") == [json.loads(one) for one in events]
        assert list(flaws) == ["broken_events"]
