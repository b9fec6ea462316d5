"""`--html` of every verb: the same words, nothing overwritten, the command as it was typed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from opscope.cli.app import main

VERBS = ("analyze", "profile", "run", "bench", "compare", "try", "explain", "ncu", "stats")
WORDS = "Also write the report with pictures to this HTML file, which needs no network."


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reports_offers_a_page_in_the_same_words(opscope, verb: str) -> None:
    outcome = opscope(verb, "--help")
    assert WORDS in " ".join(outcome.out.replace("│", " ").split())


@pytest.mark.parametrize(
    "command",
    [
        ["analyze", "TRACE"],
        ["stats", "TRACE"],
        ["compare", "TRACE", "TRACE"],
        ["explain", "aten::mm", "--trace", "TRACE"],
        ["ncu", "none.ncu-rep"],
        ["bench", "gelu"],
        ["try", "none.py"],
    ],
)
def test_a_file_that_exists_is_kept(opscope, trace: Path, tmp_path: Path, command: list[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("precious")
    outcome = opscope(*(trace if word == "TRACE" else word for word in command[:1]), "--html", page, *(
        trace if word == "TRACE" else word for word in command[1:]
    ))  # fmt: skip
    assert outcome.code == 1
    assert "exists" in outcome.err and "--force" in outcome.err
    assert page.read_text() == "precious"


def test_the_page_tells_the_command(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a page.html"
    typed = ["compare", str(trace), str(trace), "--json", "--html", str(page)]
    monkeypatch.setattr(sys, "argv", ["/somewhere/opscope", *typed])
    assert main() == 0
    assert shlex.join(["opscope", *typed]).replace("'", "&#39;") in page.read_text("utf-8")
    assert capsys.readouterr().err == f"Wrote {page}\n"
