"""The switch of a page: its words are another language's, and after a second click what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opscope.report.document import Code, Document, Paragraph, Section, Strong, Table, numeric
from opscope.report.html.page import render_page
from opscope.report.languages import Language

pytestmark = pytest.mark.browser

ROWS = (("3 steps",), ("12 steps",), ("7 steps",))
DOCUMENT = Document(
    "Operator report",
    (Paragraph((Strong("CPU-bound"), ": GPU alone 7 ms, CPU alone 3 ms")),),
    (Section("Kernels", (Paragraph(("Gradient of ", Code("Kernels"))), Table((numeric("Calls"),), ROWS))),),
)


@pytest.mark.parametrize("first", list(Language))
def test_words_are_swapped_and_swapped_back(browser: Any, tmp_path: Path, first: Language) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_page(DOCUMENT, language=first), "utf-8")
    context = browser.new_context()
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.lang") == first
    if first is Language.EN:
        before = page.inner_text("main")
        page.click("#language")
    said = page.inner_text("main")
    assert "受限于 CPU：仅 GPU 需 7 ms，仅 CPU 需 3 ms" in said
    assert "Kernels 的梯度" in said  # the name in it is code
    assert page.inner_text("h2") == "内核"
    page.click("th button")
    page.click("#theme")
    page.wait_for_function("document.getElementById('theme').textContent === '浅色'")
    assert page.locator("td").all_inner_texts() == ["12 步", "7 步", "3 步"]  # the largest first
    page.click("#theme")
    page.click("#language")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.inner_text("h2") == "Kernels"
    if first is Language.EN:
        assert sorted(page.inner_text("main").split()) == sorted(before.split())
    context.close()
    assert not complaints
