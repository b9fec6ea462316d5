"""The page of every verb in Chromium, with names that would be markup."""

import pytest

from opscope.cli.console import write_page
from opscope.report.benchmark import benchmark_document
from opscope.report.comparison import comparison_document
from opscope.report.html.charts import benchmark_charts
from opscope.report.ncu import ncu_document
from opscope.report.sweep import sweep_document
from opscope.report.tables import stats_tables_document
from opscope.report.trial import trial_document

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></script>"
SEEN = "document.querySelector('header').textContent + document.querySelector('main').textContent"
PICTURES = {
    "compare": set(),
    "bench": set(),
    "sweep": {"scaling"},
    "profile": set(),
    "try": set(),
    "ncu": set(),
    "stats": set(),
    "explain": set(),
}


@pytest.fixture(scope="module")
def files(results_named, tmp_path_factory):
    found, folder = results_named(HOSTILE), tmp_path_factory.mktemp("pages")
    parts = {
        "compare": (comparison_document(found.sessions), ()),
        "bench": (benchmark_document(found.benchmark), benchmark_charts(found.benchmark)),
        "sweep": (benchmark_document(found.sweep), benchmark_charts(found.sweep)),
        "profile": (sweep_document(found.configurations), ()),
        "try": (trial_document(found.trial, "opscope try x"), ()),
        "ncu": (ncu_document(found.counters), ()),
        "stats": (stats_tables_document(found.statistics, title=f"Statistics of {HOSTILE}"), ()),
        "explain": (found.explanation, ()),
    }  # fmt: skip
    return {name: write_page(folder / f"{name}.html", *both) for name, both in parts.items()}


@pytest.mark.parametrize(
    "verb",
    [
        one if one == "compare" else pytest.param(one, marks=pytest.mark.exhaustive(few=False))
        for one in PICTURES
    ],
)
def test_a_page_says_all_and_asks_for_nothing(verb, files, open_page, drawn, axe):
    page = open_page(files[verb].as_uri())
    keys = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
    assert set(keys) >= PICTURES[verb]
    page.set_viewport_size({"width": 390, "height": 800})
    for key in keys:
        drawn(page, key)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert HOSTILE in page.evaluate(SEEN)
    assert page.locator("img").count() == 0
    assert page.locator("h2", has_text="To repeat").count() == 1
    axe(page)
    if verb == "compare":
        page.locator("#theme").click()
        axe(page)
