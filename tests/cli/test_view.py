"""Reports of every verb: their parts, and their pages."""

import io
import shlex
import sys

import pytest
from msgspec.structs import replace
from rich.console import Console

from opscope import example_trace
from opscope.cli.app import main
from opscope.report.analysis import recording_document
from opscope.report.benchmark import benchmark_document
from opscope.report.comparison import comparison_document
from opscope.report.ncu import ncu_document
from opscope.report.sweep import sweep_document
from opscope.report.tables import stats_tables_document
from opscope.report.terminal import render_terminal
from opscope.report.trial import trial_document
from opscope.results import summarize


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


VERBS = ("analyze", "profile", "run", "bench", "compare", "try", "explain", "ncu")
MOST_LINES = 14


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reports_offers_parts_and_a_page(opscope, verb):
    page = "Also write the report to FILE.md, FILE.html (with pictures) or FILE.json"
    opscope(verb, "--help").fine("--section", "--full", "--output", page)


@pytest.fixture(scope="module")
def documents(results_named):
    found = results_named("aten::native_layer_norm_backward")
    return {
        "compare": comparison_document(found.sessions),
        "compare benchmarks": comparison_document(found.benchmarks),
        "bench": benchmark_document(found.benchmark),
        "sweep": benchmark_document(found.sweep),
        "profile": sweep_document(found.configurations),
        "try": trial_document(found.trial, "opscope try train.py"),
        "ncu": ncu_document(found.counters),
        "explain": found.explanation,
        "stats": stats_tables_document(found.statistics),
    }


def lines_of(document, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(render_terminal(document), crop=False)
    return stream.getvalue().splitlines()


def test_the_first_screen_of_every_verb_is_small_and_says_something(documents):
    for verb, document in documents.items():
        shown = lines_of(replace(document, sections=()))
        assert 4 <= len(shown) <= MOST_LINES, verb
        assert max(map(len, shown)) <= 80, verb


@pytest.mark.exhaustive(few=False)
def test_everything_is_more_than_a_report_and_tells_every_operator(shared_session):
    bert = summarize(shared_session(example_trace()))
    usual, everything = (
        lines_of(one) for one in (recording_document(bert), recording_document(bert, top=None, is_full=True))
    )
    assert len(everything) > 3 * len(usual)
    text = "\n".join(everything)
    assert all(one.name in text for one in bert.operators)
    assert "How it was estimated" in text
    assert "How it was estimated" not in "\n".join(usual)
