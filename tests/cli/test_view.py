"""Pages of every verb, and `opscope analyze --open`: what is served, to whom, and what is left of it."""

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from opscope.cli.app import main


@pytest.fixture
def started(trace, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "opscope", "analyze", str(trace), "--open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "BROWSER": "true"},
    )
    yield running, running.stdout.readline().split()[0]
    running.kill()
    running.communicate()


def status(url, host=None, method="GET"):
    request = urllib.request.Request(url, method=method, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive(few=False))]
)
def test_page_and_trace_are_served_here_until_the_end(started, number, tmp_path):
    running, url = started
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert page.lstrip().startswith("<!DOCTYPE html>") and "opscope analyze" in page
    with urllib.request.urlopen(f"{url}trace.json.gz", timeout=10) as answer:
        events = json.loads(gzip.decompress(answer.read()))["traceEvents"]
    tracks = {one["args"]["name"] for one in events if one["name"] == "thread_name" and one["pid"] == 1 << 30}
    assert {"critical path", "idle: device 0", "operator: device 0, stream 7"} <= tracks
    port = url.split(":")[2].split("/")[0]
    assert status(url, f"localhost:{port}") == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1"):
        assert status(url, host) == 404
    for other in (f"{url}page.html", f"{url}..", f"http://127.0.0.1:{port}/", f"{url}?x"):
        assert status(other) == 404
    assert status(url, method="POST") == 501
    assert list((tmp_path / "temporary").glob("opscope-*"))
    running.send_signal(number)
    _, said = running.communicate(timeout=20)
    assert (running.returncode, said.strip()) == (0, "")
    assert not list((tmp_path / "temporary").glob("opscope*"))


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
