"""Takes the pictures of the documents anew: the five main pages, and figures of them.

Needs Chromium on PATH and playwright. Every input lies in the repository. With a width other than 1280 the
pictures go to a folder of that name, to be looked at: `scripts/page_images.py 390`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from opscope.analysis.session_comparison import compare_sessions
from opscope.benchmarking.benchmark_sweep import load_benchmark
from opscope.model.benchmark import BenchmarkResult
from opscope.model.comparison import ComparisonOptions
from opscope.report.benchmark import benchmark_document
from opscope.report.comparison import comparison_document
from opscope.report.html.charts import (
    benchmark_charts,
    workload_charts,
)
from opscope.report.html.page import render_page, session_page
from opscope.report.sweep import sweep_document, sweep_json, sweep_record
from opscope.results import load, summarize

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs/images"
RESULTS = ROOT / "benchmarks/results"
BERT = "src/opscope/data/bert_h200.json.gz"
COMPILED = "examples/traces/bert_compile_bf16.json.gz"
RANKS = "examples/traces/ddp_straggler_w4"
HEIGHT = 1250
# Figures by themselves: the page, and the id of the figure.
FIGURES = {
    "steps": ("analyze", "steps"),
    "timeline": ("analyze", "timeline"),
    "late": ("ranks", "late"),
}


def pages() -> Iterator[tuple[str, str]]:
    """Each main page by its verb."""
    for name, source in (("analyze", BERT), ("ranks", RANKS)):
        with load(str(ROOT / source)) as session:
            page = session_page(session, summarize(session), command=f"opscope analyze {source}")
            yield name, page.replace(f"{ROOT}/", "")
    with load(str(ROOT / BERT)) as before, load(str(ROOT / COMPILED)) as after:
        compared = compare_sessions(before, after, ComparisonOptions())
    page = render_page(comparison_document(compared))
    yield "compare", page.replace(f"{ROOT}/", "")
    result = load_benchmark(RESULTS / "h200_gelu.json")
    assert isinstance(result, BenchmarkResult)
    yield "bench", render_page(benchmark_document(result), benchmark_charts(result))
    records = [
        sweep_record(path.stem.removeprefix("profiling_stats_"), json.loads(path.read_bytes()))
        for path in sorted((RESULTS / "h200_bert").glob("profiling_stats_*.json"))
    ]
    maps = workload_charts(sweep_json(records)["configurations"])
    yield "profile", render_page(sweep_document(records), maps)


def take(width: int, folder: Path) -> None:
    """Write the pictures at this width."""
    folder.mkdir(parents=True, exist_ok=True)
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, text in pages():
            file = Path(scratch) / f"{name}.html"
            file.write_text(text, "utf-8")
            page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme="light")
            page.goto(file.as_uri())
            keys = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
            for key in keys:
                _draw(page, key)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=folder / f"page_{name}.png")
            for figure, (of, key) in FIGURES.items():
                if of == name:
                    place = page.locator("figure", has=page.locator(f"#{key}"))
                    place.screenshot(path=folder / f"page_{figure}.png")
            page.close()
        browser.close()


def _draw(page: Any, key: str) -> None:
    page.locator(f"#{key}").scroll_into_view_if_needed()
    page.locator(f"#{key} .main-svg").first.wait_for()


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 1280
    take(chosen, IMAGES if chosen == 1280 else IMAGES / str(chosen))
