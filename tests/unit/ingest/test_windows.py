"""Cuts of the event array, the virtual files made of them, and what a wrong cut costs: nothing but time."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.ingest import staging
from opscope.ingest.source import split_windows
from opscope.ingest.windows import WindowFileSystem
from opscope.model.session import Session
from opscope.testing import TraceBuilder


def split(text: bytes, count: int) -> list[bytes]:
    with mmap.mmap(-1, len(text)) as mapped:
        mapped[:] = text
        return [text[start:end] for start, end in split_windows(mapped, 0, len(text), count)]


def events(count: int) -> list[dict[str, Any]]:
    return [{"ph": "X", "name": f"e{i}", "args": {"x": "},{" * (i % 3)}} for i in range(count)]


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([",", ", ", " ,\n  "]))
def test_windows_hold_every_event_once(count: int, windows: int, separator: str) -> None:
    text = separator.join(json.dumps(event) for event in events(count)).encode()
    found = split(text, windows)
    assert 1 <= len(found) <= windows
    assert [event for window in found for event in json.loads(b"[" + window + b"]")] == events(count)


def test_windows_are_of_about_equal_size() -> None:
    found = split(b",".join(json.dumps(event).encode() for event in events(400)), 4)
    assert len(found) == 4
    assert max(map(len, found)) - min(map(len, found)) < 300


def test_text_without_a_boundary_is_one_window() -> None:
    assert split(b'{"a": 1},{"b": 2},{"c": 3}', 3) == [b'{"a": 1},{"b": 2},{"c": 3}']


def test_a_window_reads_as_an_array_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'xx{"ph": 1},{"ph": 2}yy')
    files = WindowFileSystem(str(path), [(2, 11), (12, 21)])
    assert files.urls == ["opscopewindow://0", "opscopewindow://1"]
    for url, text in zip(files.urls, [b'[{"ph": 1}]', b'[{"ph": 2}]'], strict=True):
        assert files.info(url)["size"] == len(text)
        assert files.ls(url, detail=False) == files.glob(url) == [url]
        assert files.ls(url)[0]["type"] == "file"
        assert files.exists(url)
        assert files.modified(url) == files.created(url)
        with closing(files.open(url, "rb")) as window:
            assert read_all(window, 4) == text
            assert window.tell() == len(text)
            assert window.seek(-3, 2) == len(text) - 3
            assert read_all(window, -1) == text[-3:]
            window.seek(1)
            assert window.seek(2, 1) == 3
            assert window.read(2) == text[3:5]
            assert window.readable()
            assert window.seekable()
            window.seek(99)
            assert window.read(5) == b""


def read_all(window: Any, size: int) -> bytes:
    parts = []
    while part := window.read(size):
        parts.append(part)
    return b"".join(parts)


def builder(count: int, **args: Any) -> TraceBuilder:
    trace = TraceBuilder()
    for index in range(count):
        trace.operator(f"aten::op{index % 7}", 10 * index, 8, **args)
        trace.launch(10 * index + 1).kernel(f"k{index % 3}", 10 * index + 5, 3, stream=7 + index % 2)
    return trace


def content(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that the order of rows in storage says nothing about."""
    return {
        "operators": session.query(
            "SELECT name, start_ns, duration_ns, depth, self_device_ns FROM operators ORDER BY start_ns"
        ),
        "activities": session.query(
            "SELECT activity_id, n.name, stream, start_ns, attribution FROM device_activities "
            "JOIN kernel_names n USING (name_id) ORDER BY activity_id"
        ),
        "events": session.query("SELECT event_count FROM traces"),
    }


Load = Callable[..., Session]


@pytest.mark.parametrize("largest_copy", [0, 1 << 20])
@pytest.mark.parametrize("threads", [2, 5])
def test_windows_change_nothing_in_the_tables(
    load: Load, monkeypatch: pytest.MonkeyPatch, threads: int, largest_copy: int
) -> None:
    trace = builder(200)
    whole = content(load(trace, threads=1))
    monkeypatch.setattr(staging, "_SMALLEST_WINDOW_BYTES", 1_000)
    monkeypatch.setattr(staging, "_LARGEST_COPY_BYTES", largest_copy)
    assert content(load(trace, threads=threads)) == whole
    assert whole["events"] == [(600,)]


def test_arguments_that_look_like_a_boundary_do_no_harm(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    decoy = [{"name": "a"}, {"name": "b"}, {"ph": "X"}] * 10
    trace = builder(60, decoy=decoy)
    whole = content(load(trace, threads=1))
    windows: list[int] = []
    split_before = staging.split_windows

    def spy(*arguments: Any) -> list[tuple[int, int]]:
        found = split_before(*arguments)
        windows.append(len(found))
        return found

    monkeypatch.setattr(staging, "_SMALLEST_WINDOW_BYTES", 1_000)
    monkeypatch.setattr(staging, "split_windows", spy)
    assert content(load(trace, threads=3)) == whole
    assert windows == [3]


def test_names_that_look_like_a_boundary_do_no_harm(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder()
    for index in range(100):
        trace.operator('q},{"ph":"X","name":"', 10 * index, 8)
    monkeypatch.setattr(staging, "_SMALLEST_WINDOW_BYTES", 500)
    session = load(trace, threads=4)
    assert session.query("SELECT DISTINCT name, count(*) FROM operators GROUP BY 1") == [
        ('q},{"ph":"X","name":"', 100)
    ]
