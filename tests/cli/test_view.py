"""Pages of every verb: what they keep and what they say of themselves."""

import shlex
import sys

import pytest

from opscope.cli.app import main


def test_the_page_that_is_written_is_opened(opscope, trace, tmp_path, monkeypatch):
    opened, page = [], tmp_path / "a page.html"
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert "--output report.html" in opscope("analyze", trace, "--open").fails().err
    assert not opened
    opscope("analyze", trace, "--open", "--output", page).fine()
    assert page.is_file() and opened == [page.as_uri()]


@pytest.mark.parametrize("command", [("ncu", "none.ncu-rep"), ("bench", "gelu"), ("try", "none.py")])
def test_a_file_that_exists_is_kept(opscope, tmp_path, command):
    page = tmp_path / "page.html"
    page.write_text("precious")
    verb, source = command
    outcome = opscope(verb, "--output", page, source).fails()
    assert "exists" in outcome.err and "--force" in outcome.err
    assert page.read_text() == "precious"


def test_the_page_tells_the_command(trace, tmp_path, monkeypatch, capsys):
    page = tmp_path / "a page.html"
    typed = ["compare", str(trace), str(trace), "--json", "--output", str(page)]
    monkeypatch.setattr(sys, "argv", ["/somewhere/opscope", *typed])
    assert main() == 0
    assert shlex.join(["opscope", *typed]).replace("'", "&#39;") in page.read_text("utf-8")
    assert capsys.readouterr().err == f"Wrote {page}\n"
