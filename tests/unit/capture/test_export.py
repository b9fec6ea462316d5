from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from opscope.capture.trace_file import export_trace
from opscope.errors import CaptureError


def saver(text: str):
    return lambda path: Path(path).write_text(text.replace("PATH", path))


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


TRACE = """{
"traceEvents": [{"name": "\\"traceName\\": \\"no\\""}],
 "traceName": "PATH",
 "displayTimeUnit": "ms"}
"""


def test_the_trace_is_named_after_its_file(tmp_path):
    target = tmp_path / "a trace.json"
    export_trace(saver(TRACE), target, read_bytes)
    assert json.loads(target.read_text()) == {
        "traceEvents": [{"name": '"traceName": "no"'}],
        "traceName": "a trace.json",
        "displayTimeUnit": "ms",
    }
    assert list(tmp_path.iterdir()) == [target]


def test_a_gz_target_is_compressed(tmp_path):
    target = tmp_path / "t.json.gz"
    text = export_trace(saver(TRACE), target, read_bytes)
    assert text == gzip.decompress(target.read_bytes())
    assert json.loads(gzip.decompress(target.read_bytes()))["traceName"] == "t.json.gz"
    assert list(tmp_path.iterdir()) == [target]


def test_a_trace_without_a_name_stays_as_it_is(tmp_path):
    export_trace(saver('{"traceEvents": []}'), tmp_path / "t.json", read_bytes)
    assert (tmp_path / "t.json").read_text() == '{"traceEvents": []}'


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"na'])
def test_a_cut_trace_is_refused_and_an_older_file_kept(tmp_path, text):
    target = tmp_path / "t.json"
    target.write_text("old")
    with pytest.raises(CaptureError, match="incomplete"):
        export_trace(saver(text), target, read_bytes)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


def test_a_trace_that_was_never_written_is_an_error(tmp_path):
    with pytest.raises(CaptureError, match="cannot be written"):
        export_trace(lambda path: None, tmp_path / "t.json", read_bytes)


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(path: str) -> None:
        Path(path).write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_trace(interrupted, tmp_path / "t.json", read_bytes)
    assert list(tmp_path.iterdir()) == []
