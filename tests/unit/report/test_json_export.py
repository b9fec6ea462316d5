from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.model.files import write_text
from opscope.report.json_encoding import to_json, to_json_line, write_json


def test_what_is_no_number_becomes_null() -> None:
    assert json.loads(to_json({"a": math.nan, "b": [math.inf, 1.5], "c": (2, "x")})) == {
        "a": None,
        "b": [None, 1.5],
        "c": [2, "x"],
    }


def test_the_text_is_stable_and_utf8() -> None:
    assert to_json({"b": 1, "a": "µs"}) == '{\n  "b": 1,\n  "a": "µs"\n}\n'
    assert to_json_line({"n": 2**70}) == '{"n": 1180591620717411303424}'


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    path = write_json(tmp_path / "new" / "x.json", {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text("utf-8")) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_lone_surrogate_of_a_damaged_name_is_kept_readable(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.json", {"name": "a\udc80b"})
    assert json.loads(path.read_text("utf-8")) == {"name": "a\udc80b"}


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "file" / "x.md", "text")
