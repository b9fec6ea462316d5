"""Chromium, pages opened in it, and what is found wrong with them."""

import shutil
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Opens a page; the test fails for what it says on the console, or asks of what is not `allowed`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    said = []

    def opened(url, *, allowed=()):
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))

        def asked(request):
            if request.url.startswith("http") and not request.url.startswith(allowed):
                said.append(request.url)

        page.on("request", asked)
        page.goto(url, wait_until="load")
        return page

    yield opened
    context.close()
    assert not said


@pytest.fixture(scope="session")
def drawn():
    """Scrolls to a picture and waits for it."""

    def wait(page, key):
        place = page.locator(f"#{key}")
        place.scroll_into_view_if_needed()
        place.locator(".main-svg").first.wait_for()
        return place

    return wait


@pytest.fixture(scope="session")
def axe():
    """Fails for what hinders people who do not see or point."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")

    def check(page):
        page.evaluate(script)
        passed, violations = page.evaluate(
            "axe.run({include: [['html']], exclude: [['.main-svg']]}).then(({passes, violations}) => "
            "[passes.length, violations.map("
            "(one) => [one.id, one.nodes.slice(0, 3).map(({html}) => html.slice(0, 120))])])"
        )
        assert violations == []
        assert passed > 15

    return check
