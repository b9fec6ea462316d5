from __future__ import annotations

from pathlib import Path

import pytest

from opscope.provenance.sources.at_hand import read_lines

FILE = "aten/src/ATen/native/cuda/A.cuh"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "checkout" / FILE
    path.parent.mkdir(parents=True)
    path.write_text("one\ntwo\r\nthree\x0cx\nfour\n", encoding="utf-8")
    (tmp_path / "secret.cu").write_text("secret", encoding="utf-8")
    return tmp_path / "checkout"


@pytest.mark.parametrize(
    ("line", "end_line", "lines"),
    [
        (1, 2, ["one", "two"]),
        (3, None, ["three\x0cx"]),
        (4, 9, ["four"]),
        (5, 9, None),
        (0, 1, None),
        (3, 2, None),
    ],
)
def test_lines_of_a_file(root: Path, line: int, end_line: int | None, lines: list[str] | None) -> None:
    assert read_lines(FILE, line, end_line, [root]) == lines


def test_headers_of_an_installation(root: Path, tmp_path: Path) -> None:
    header = tmp_path / "include" / "ATen/native/cuda/A.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("of the installation\n", encoding="utf-8")
    assert read_lines(FILE, 1, None, [tmp_path / "include", root]) == ["of the installation"]
    assert read_lines(FILE, 1, None, [root, tmp_path / "include"]) == ["one"]


@pytest.mark.parametrize(
    "file", ["../secret.cu", "aten/../../secret.cu", "/etc/passwd", "", "a\0b", "none.cu", "aten", ".."]
)
def test_nothing_outside_the_roots(root: Path, file: str) -> None:
    assert read_lines(file, 1, None, [root]) is None


def test_a_link_that_leads_out_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "link.cu").symlink_to(tmp_path / "secret.cu")
    (root / "aten" / "loop.cu").symlink_to(root / "aten" / "loop.cu")
    assert read_lines("link.cu", 1, None, [root]) is None
    assert read_lines("aten/loop.cu", 1, None, [root]) is None


def test_no_roots(tmp_path: Path) -> None:
    assert read_lines(FILE, 1, None, []) is None
    assert read_lines(FILE, 1, None, [tmp_path / "none"]) is None


def test_not_more_than_a_screenful_of_screens(root: Path) -> None:
    (root / "long.cu").write_text("x\n" * 5000, encoding="utf-8")
    lines = read_lines("long.cu", 1, 5000, [root])
    assert lines is not None
    assert len(lines) == 2000
