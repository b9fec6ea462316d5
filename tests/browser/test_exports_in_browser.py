"""Files for other viewers, opened in those viewers: speedscope and TensorBoard's profiler plugin."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
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


@pytest.mark.torch
def test_tensorboard_lists_the_recording(browser, tmp_path):
    torch = pytest.importorskip("torch")
    if find_spec("torch_tb_profiler") is None:
        pytest.skip("the plugin is not installed")
    with opscope.profile(
        tmp_path / "raw", active=2, on_cycle=opscope.tensorboard_trace(tmp_path / "logs")
    ) as p:
        for _ in range(4):
            torch.mm(torch.rand(9, 9), torch.rand(9, 9))
            p.step()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    board = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(tmp_path / "logs"),
        "--load_fast=false",
    ]
    with subprocess.Popen(
        [*board, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        try:
            runs = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/runs"
            for _ in range(WAIT_MS // 500):
                time.sleep(0.5)
                try:
                    with urllib.request.urlopen(runs) as answer:
                        if b'"logs"' in answer.read():
                            break
                except OSError:
                    continue
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/#pytorch_profiler")
            plugin = page.frame_locator("iframe[src*=pytorch_profiler]")
            for words in ("logs", "Overview", "pid"):
                plugin.get_by_text(words).first.wait_for(timeout=WAIT_MS)
            page.close()
        finally:
            run.terminate()
