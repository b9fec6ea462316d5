from html import unescape
from types import SimpleNamespace

import pytest

import opscope
from fakes import TraceBuilder, benchmark_result
from opscope.errors import DependencyError, InputError
from opscope.model.benchmark import BenchmarkRow, Status


@pytest.fixture
def result():
    samples = tuple(100.0 + number % 3 for number in range(30))
    row = BenchmarkRow(name="slow", status=Status.OK, samples_ns=samples, median_ns=101.0, ratio=1.0)
    return benchmark_result(row, suite="mine", shape=None, reference="slow")


def test_what_has_no_report_is_refused():
    with pytest.raises(InputError, match="no report on a int"):
        opscope.print_report(3)


def test_a_saved_result_is_loaded_as_it_was(result, tmp_path):
    path = opscope.save_result(result, tmp_path / "result.json")
    assert opscope.load_result(path) == result
    with pytest.raises(InputError, match="the file exists"):
        opscope.save_result(result, path)
    assert opscope.save_result(result, path, overwrite=True) == path


def test_a_notebook_shows_the_page_and_a_terminal_what_is_printed(load, result, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels have it
    session = load(TraceBuilder().operator("aten::mm", 0, 10).launch(2).kernel("gemm", 20, 5))
    summary = opscope.summarize(session)
    change = opscope.compare(result, result)
    finding = opscope.Finding("area.fact", opscope.Severity.INFO, "A <b> fact.")
    chain = opscope.explain("aten::mm", session)
    shown = [(session, "aten::mm", True), (summary, "aten::mm", True), (result, "slow", False)]
    shown += [
        (change, "slow", False),
        (finding, "A &lt;b&gt; fact.", False),
        (opscope.doctor(), "Python", False),
    ]
    for subject, words, has_pictures in (*shown, (chain, "Matrix operations", False)):
        printed = []
        type(subject).__dict__["_repr_pretty_"](subject, SimpleNamespace(text=printed.append), False)
        assert unescape(words) in "".join(printed)
        assert "\x1b" not in "".join(printed)
        assert subject._repr_html_().startswith('<iframe srcdoc="')
        page = unescape(subject._repr_html_().split('"')[1])
        assert page.strip().startswith("<!DOCTYPE html>")
        assert words in page
        assert ('id="plotly"' in page) == has_pictures
    session.close()
    assert 'id="plotly"' not in unescape(summary._repr_html_())


def test_rows_become_frames_where_the_package_is_there(load, monkeypatch):
    rows = load(TraceBuilder().operator("aten::mm", 0, 10)).query(
        "SELECT name FROM operators WHERE ? = 1", [1]
    )
    assert rows == [("aten::mm",)]
    monkeypatch.setattr("opscope.model.notebook.find_spec", lambda name: None)
    for method, package in (("df", "pandas"), ("pl", "polars and pyarrow"), ("arrow", "pyarrow")):
        with pytest.raises(DependencyError, match=f"needs {package}"):
            getattr(rows, method)()
