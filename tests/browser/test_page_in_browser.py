"""The page in Chromium: it asks for nothing, complains of nothing, and its tools do what they say."""

from pathlib import Path

import pytest

from opscope.api import analyze
from opscope.report.html.page import session_page
from opscope.results import advised

pytestmark = pytest.mark.browser

BERT = Path(__file__).parents[2] / "src/opscope/data/bert_h200.json.gz"


@pytest.fixture(scope="module")
def file(shared_session, tmp_path_factory):
    session = shared_session(BERT)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(session_page(session, advised(session), command="opscope analyze x"), "utf-8")
    return path


@pytest.fixture
def page(open_page, file):
    return open_page(file.as_uri())


def axis_range(page):
    return page.evaluate("[...document.getElementById('timeline').layout.xaxis.range]")


def test_every_picture_is_drawn(page, drawn):
    keys = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
    assert {"steps", "timeline", "icicle", "roofline"} <= set(keys)
    for key in keys:
        assert drawn(page, key).bounding_box()["width"] > 300


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_is_a_picture_and_what_to_change(page, drawn, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate("window.scrollTo(0, 0)")
    picture = page.locator(".chart .main-svg").first.bounding_box()
    assert picture["y"] + picture["height"] < height
    cards = page.locator(".card")
    assert cards.count() == 3
    assert all(code.is_visible() for code in page.locator(".card code").all())
    last = cards.last.bounding_box()
    assert last["y"] + last["height"] < height
    assert width < 1280 or last["x"] > picture["x"] + picture["width"]  # beside it
    drawn(page, "timeline")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_profilers_part_is_as_large_as_it_is_said_to_be(page, drawn):
    """A step that takes 7.00 to 7.12 ms was recorded as one of 7.80."""
    drawn(page, "steps")
    parts = dict(
        page.evaluate(
            "document.getElementById('steps').data.map((one) => [one.name, one.x[one.y.indexOf('a step')]])"
        )
    )
    assert parts["Profiler"] == pytest.approx(7.80 - 7.06, abs=0.02)
    assert parts["Busy without profiler"] + parts["Idle without profiler"] == pytest.approx(7.06, abs=0.02)


def test_the_timeline_moves_by_keys_and_names_wide_bars(page, drawn):
    drawn(page, "timeline")
    whole = axis_range(page)
    labels = page.locator("#timeline .bartext")
    before = len("".join(labels.all_text_contents()))
    assert before
    for key in "www":
        page.keyboard.press(key)
    near = axis_range(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 8)
    page.keyboard.press("a")
    assert axis_range(page)[0] < near[0]
    page.keyboard.press("s")
    far = axis_range(page)
    assert far[1] - far[0] == pytest.approx((whole[1] - whole[0]) / 4)
    assert len("".join(labels.all_text_contents())) > before
    search = page.get_by_role("searchbox", name="Find", exact=True)
    search.press("w")
    assert axis_range(page) == far


def test_the_timeline_shows_every_step(page, drawn):
    figure = drawn(page, "timeline").locator("xpath=..")
    found = figure.locator(".found")
    first = "document.getElementById('timeline').data.map((one) => one.base?.[0])"

    def turned(number):
        figure.locator("strong", has_text=f"Step {number}, event by event").wait_for()
        assert figure.locator(".legend li").count() > 3
        assert axis_range(page)[0] == 0  # all of it, whatever part of another step was seen
        return page.evaluate(first)

    previous, following = (page.get_by_role("button", name=one) for one in ("Previous step", "Next step"))
    last = turned(4)  # the typical one
    assert following.is_disabled()
    page.get_by_role("button", name="Zoom in").click()
    previous.click()
    before = turned(3)
    figure.get_by_role("searchbox").fill("softmax")
    assert int(found.inner_text().split()[0]) > 0
    previous.click()
    assert turned(2) not in (before, last)
    assert previous.is_disabled()
    assert found.inner_text().endswith("found")  # looked for in this step
    following.focus()
    page.keyboard.press("n")
    assert turned(3) == before != last
    following.click()
    assert turned(4) == last
    page.keyboard.press("p")
    turned(3)


@pytest.mark.exhaustive(few=False)
def test_search_counts_and_enter_goes_to_the_first(page, drawn):
    drawn(page, "timeline")
    whole = axis_range(page)
    search = page.get_by_role("searchbox", name="Find", exact=True)
    found = page.locator(".tools .found")
    for name in ("sm80_xmma_gemm…128x64x8", "softmax"):  # as a report shortens it, and a part
        search.fill(name)
        assert int(found.inner_text().split()[0]) > 0, name
    search.press("Enter")
    assert found.inner_text().startswith("1 of ")
    low, high = axis_range(page)
    assert high - low < (whole[1] - whole[0]) / 5
    search.fill("no such kernel")
    assert found.inner_text() == "0 found"


@pytest.mark.exhaustive(few=False)
def test_arrows_and_zoom_outlive_a_change_of_theme(page, drawn):
    drawn(page, "timeline")
    traces = "document.getElementById('timeline').data"
    shown = f"{traces}.filter((one) => one.type === 'scatter').map((one) => one.visible)"
    assert page.evaluate(shown) == [False]
    page.locator("[data-arrows]").click()
    page.get_by_role("button", name="Zoom in").click()
    near = axis_range(page)
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(shown) == [True]
    assert axis_range(page) == near


@pytest.mark.exhaustive(few=False)
def test_a_part_of_the_icicle_opens_its_way_to_the_source(page, drawn):
    place = drawn(page, "icicle")
    place.locator("g.slice", has_text="aten::addmm").first.click()
    chain = page.locator("#chain")
    chain.locator("a").first.wait_for()
    assert "aten::addmm" in chain.inner_text()
    assert chain.locator("a").first.get_attribute("href").startswith("https://")


@pytest.mark.exhaustive(few=False)
def test_parts_of_the_icicle_are_reached_by_keys(page, drawn):
    drawn(page, "icicle")
    page.get_by_role("button", name="Largest child").focus()
    chain = page.locator("#chain")
    seen = []
    for key in ("Enter", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
        seen.append(chain.locator("p").inner_text())
    linear, addmm, kernel, beside, above = seen
    assert "aten::linear" in linear and "aten::addmm" in addmm and ": kernel: " in kernel
    assert kernel != beside and above == addmm
    assert chain.locator("a").first.get_attribute("href").startswith("https://")
    marked = "document.getElementById('icicle').data[0].marker.line.width.filter((one) => one === 3).length"
    assert page.evaluate(marked) == 1


@pytest.mark.exhaustive(few=False)
def test_tables_sort_by_amount_and_filter(page):
    table = page.locator("table", has=page.get_by_role("button", name="Mean")).first
    page.get_by_role("button", name="Mean").first.click()
    means = table.locator("tbody tr td:last-child").all_inner_texts()
    units = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
    amounts = [float(text.split()[0].replace(",", "")) * units[text.split()[1]] for text in means]
    assert amounts == sorted(amounts, reverse=True)
    table.locator("xpath=../preceding-sibling::label[1]//input").fill("softmax")
    count = table.locator("tbody tr:visible").count()
    assert 0 < count < len(amounts)
    assert all("softmax" in text for text in table.locator("tbody tr:visible").all_inner_texts())


@pytest.mark.exhaustive(few=False)
def test_axe_finds_nothing(page, drawn, axe):
    drawn(page, "steps")  # not the timeline, of whose thousands of bars axe takes seconds
    axe(page)


@pytest.mark.exhaustive(few=False)
def test_print_shows_everything_on_white(page):
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert not page.locator("nav").is_visible()
    assert page.locator("details.part:not([open])").count() == 0


def test_a_notebook_has_the_page_in_a_frame(open_page, shared_session, tmp_path):
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><h1>Cell</h1>{analyze(shared_session(BERT))._repr_html_()}", "utf-8")
    page = open_page(notebook.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#steps .main-svg").first.wait_for()
    frame.get_by_role("link", name="Where the GPU waits").click()
    frame.locator("#timeline .main-svg").first.wait_for()
    assert page.locator("h1").inner_text() == "Cell"
    assert page.locator("iframe").bounding_box()["height"] == 700
