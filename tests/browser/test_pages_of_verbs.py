"""The page of every verb in Chromium, with names that would be markup; and the trace handed to Perfetto."""

import threading

import pytest

from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.api import load
from opscope.cli.console import write_page, write_recording_page
from opscope.cli.page_server import PageServer
from opscope.report.benchmark import benchmark_document
from opscope.report.comparison import comparison_document
from opscope.report.exports import export_trace
from opscope.report.html.result_charts import (
    benchmark_charts,
    comparison_charts,
    trial_charts,
    workload_charts,
)
from opscope.report.ncu import ncu_document
from opscope.report.sweep import sweep_document, sweep_json
from opscope.report.tables import stats_tables_document
from opscope.report.trial import trial_document

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></script>"
SEEN = "document.querySelector('header').textContent + document.querySelector('main').textContent"
PICTURES = {
    "compare": {"waterfall"},
    "bench": {"samples", "times"},
    "sweep": {"scaling"},
    "profile": {"operators", "latency", "throughput", "busy"},
    "try": {"steps"},
    "ncu": set(),
    "stats": set(),
    "explain": set(),
}


@pytest.fixture(scope="module")
def files(results_named, tmp_path_factory):
    found, folder = results_named(HOSTILE), tmp_path_factory.mktemp("pages")
    parts = {
        "compare": (comparison_document(found.sessions), comparison_charts(found.sessions)),
        "bench": (benchmark_document(found.benchmark), benchmark_charts(found.benchmark)),
        "sweep": (benchmark_document(found.sweep), benchmark_charts(found.sweep)),
        "profile": (
            sweep_document(found.configurations),
            workload_charts(sweep_json(found.configurations)["configurations"]),
        ),
        "try": (trial_document(found.trial, "opscope try x"), trial_charts(found.trial)),
        "ncu": (ncu_document(found.counters), ()),
        "stats": (stats_tables_document(found.statistics, title=f"Statistics of {HOSTILE}"), ()),
        "explain": (found.explanation, ()),
    }  # fmt: skip
    return {name: write_page(folder / f"{name}.html", *both) for name, both in parts.items()}


def recording(folder):
    trace = TraceBuilder()
    for step in (1, 2):
        start = 500 * step
        trace.step(step, start, 500).operator(HOSTILE, start + 10, 30).launch(start + 20, 5)
        trace.kernel(HOSTILE, start + 40, 300)
        trace.launch(start + 60, 300, name="cudaDeviceSynchronize")
    return load(trace.write(folder / "trace.json"), threads=1)


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


PERFETTO = """<!DOCTYPE html><script>
let pings = 0;
addEventListener("message", ({ data, source, origin }) => {
  if (data === "PING") {
    pings += 1;
    if (pings === 3) source.postMessage("PONG", origin);
  } else {
    const { buffer, title, fileName } = data.perfetto;
    window.got = { size: buffer.byteLength, head: [...new Uint8Array(buffer.slice(0, 2))], title, fileName };
  }
});
</script>"""


@pytest.fixture
def served(tmp_path):
    with recording(tmp_path) as session:
        trace = export_trace(session, tmp_path / "trace.json.gz")
        page = tmp_path / "page.html"
        write_recording_page(page, session, Summary(session).complete(), top=10, trace=trace.name)
    with PageServer({"": page, trace.name: trace}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server, trace
        server.shutdown()
        thread.join()


@pytest.mark.exhaustive(few=False)
def test_perfetto_gets_the_trace(served, open_page, axe):
    server, trace = served
    page = open_page(server.url, allowed=(server.url,))
    page.context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(
        body=PERFETTO, content_type="text/html"
    ))  # fmt: skip
    assert HOSTILE in page.evaluate(SEEN)
    axe(page)
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Perfetto").click()
    perfetto = opened.value
    perfetto.wait_for_function("window.got")
    assert perfetto.evaluate("window.got") == {
        "size": trace.stat().st_size,
        "head": [0x1F, 0x8B],
        "title": page.title().removesuffix(" – opscope"),
        "fileName": "trace.json.gz",
    }
    assert page.locator("#handed").inner_text() == "Perfetto has the trace"
