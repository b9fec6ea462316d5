"""Pages that verbs write: the command in them, and files that stay."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from opscope.cli.app import main


@pytest.mark.parametrize("command", [("ncu", "none.ncu-rep"), ("bench", "gelu"), ("try", "none.py")])
def test_a_file_that_exists_is_kept(opscope, tmp_path: Path, command: tuple[str, str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("precious")
    verb, source = command
    outcome = opscope(verb, "--output", page, source).fails()
    assert "exists" in outcome.err and "--force" in outcome.err
    assert page.read_text() == "precious"


def test_the_page_tells_the_command(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a page.html"
    typed = ["compare", str(trace), str(trace), "--json", "--output", str(page)]
    monkeypatch.setattr(sys, "argv", ["/somewhere/opscope", *typed])
    assert main() == 0
    assert shlex.join(["opscope", *typed]).replace("'", "&#39;") in page.read_text("utf-8")
    assert capsys.readouterr().err == f"Wrote {page}\n"
