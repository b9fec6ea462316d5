"""Files for other viewers, opened in those viewers: speedscope."""

import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import opscope

pytestmark = [pytest.mark.browser, pytest.mark.exhaustive(few=False)]

SPEEDSCOPE = "speedscope@1.25.0"
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory):
    """The folder of the viewer, from npm."""
    folder = tmp_path_factory.mktemp("speedscope")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on PATH")
    packed = subprocess.run(
        [npm, "pack", SPEEDSCOPE], cwd=folder, capture_output=True, text=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"npm has no {SPEEDSCOPE}: {packed.stderr[-200:]}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder)
    return folder / "package/dist/release"


@pytest.fixture
def served(speedscope):
    """Address of the viewer's folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(speedscope))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_speedscope_shows_the_stacks(browser, served, speedscope):
    (speedscope / "mine.json").write_text(opscope.flamegraph(opscope.example_trace(), name="mine"), "utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{served}/index.html#profileURL={served}/mine.json")
    page.get_by_text("bert_h200").first.wait_for(timeout=WAIT_MS)
    page.get_by_text("Sandwich").click()
    page.get_by_text("aten::addmm").first.wait_for(timeout=WAIT_MS)
    assert "14.18ms (65%)" in page.inner_text("body")  # the first kernel, as the report has it
    assert not errors
    page.close()
