"""Values as JSON: a class without keys, texts and files. Reports' documents tell what keys choose."""

import json
import math
from dataclasses import dataclass

import pytest

from opscope.errors import InputError
from opscope.model.files import write_text
from opscope.report.json_encoding import Keys, encode, to_json, to_json_line, write_json


@dataclass(frozen=True)
class Part:
    """A value."""

    total_ns: int
    shapes: str | None = None


def test_a_value_without_keys_has_all_its_fields_and_no_others():
    assert encode([Part(1)]) == [{"total_ns": 1, "shapes": None}]
    with pytest.raises(AttributeError):
        encode(Part(1), {Part: Keys("total_us")})


def test_the_text_is_stable_utf8_and_null_for_what_is_no_number():
    assert to_json({"b": 1, "a": "µs"}) == '{\n  "b": 1,\n  "a": "µs"\n}\n'
    assert to_json_line({"n": 2**70}) == '{"n": 1180591620717411303424}'
    text = to_json({"a": math.nan, "b": [math.inf, 1.5], "c": (2, "x")})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": [2, "x"]}


def test_a_file_appears_whole_and_alone_or_is_an_input_error(tmp_path):
    path = write_json(tmp_path / "new" / "x.json", {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text("utf-8")) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]
    path = write_json(tmp_path / "x.json", {"name": "a\udc80b"})
    assert json.loads(path.read_text("utf-8")) == {"name": "a\udc80b"}
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "file" / "x.md", "text")
