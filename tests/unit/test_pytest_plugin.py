"""The fixture `opscope` of the pytest plugin, in runs of pytest within this one."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FAST = """
    import torch, time

    def work(x):
        time.sleep({seconds})
        return x

    def test_work(opscope):
        measured = opscope.bench(
            {{"work": work}}, inputs=(torch.ones(4),), device="cpu", ceilings=False, time_budget_s=0.1,
            min_samples=8, max_samples=30, warmup_s=0.0,
        )
        measured.assert_not_slower()
"""


@pytest.fixture
def pytest_run(tmp_path, monkeypatch, capsys):
    """Runs pytest with the plugin on the text of a test module, in this process; its exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # texts of one second and size are told apart

    def run(text, *options):
        Path("test_it.py").write_text(textwrap.dedent(text), encoding="utf-8")
        sys.modules.pop("test_it", None)
        # What looks for unraisable exceptions collects garbage of the whole process five times.
        without = (f"no:{name}" for name in ("cacheprovider", "xdist", "unraisableexception"))
        plugins = [f"-p{name}" for name in (*without, "opscope.pytest_plugin")]
        code = pytest.main(["-q", "-Wdefault", "--import-mode=importlib", *plugins, *options, "test_it.py"])
        return int(code), "".join(capsys.readouterr())

    return run


def test_the_plugin_is_imported_without_heavy_packages():
    code = "import sys, opscope.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "opscope.pytest_plugin" in loaded
    assert not loaded & {"torch", "numpy", "duckdb", "rich", "opscope.api"}


@pytest.mark.torch
def test_what_became_slower_fails_until_it_is_accepted(pytest_run, tmp_path):
    pytest.importorskip("torch")
    fast, slow = FAST.format(seconds=0.001), FAST.format(seconds=0.004)
    kept = tmp_path / ".opscope" / "test_it.py-test_work.json"
    assert pytest_run(fast)[0] == 0
    accepted = json.loads(kept.read_text(encoding="utf-8"))
    code, output = pytest_run(slow)
    assert code == 1
    assert "slower than before:" in output
    assert "work" in output
    assert json.loads(kept.read_text(encoding="utf-8")) == accepted
    assert pytest_run(slow, "--opscope-update")[0] == 0
    assert json.loads(kept.read_text(encoding="utf-8")) != accepted
    assert pytest_run(fast)[0] == 0  # faster is no failure
    assert pytest_run(fast, "--opscope-results", "elsewhere")[0] == 0
    assert (tmp_path / "elsewhere" / kept.name).exists()


@pytest.mark.torch
def test_without_a_verdict_it_warns_or_fails_if_strict(pytest_run):
    pytest.importorskip("torch")
    text = FAST.format(seconds=0.001).replace("min_samples=8, max_samples=30", "min_samples=1, max_samples=1")
    assert pytest_run(text)[0] == 0
    code, output = pytest_run(text)
    assert (code, "no verdict: work" in output) == (0, True)
    code, output = pytest_run(text, "--opscope-strict")
    assert (code, "no verdict: work" in output) == (1, True)


@pytest.mark.torch
def test_what_cannot_be_compared_fails_in_one_line(pytest_run):
    pytest.importorskip("torch")
    text = FAST.format(seconds=0.001).replace("assert_not_slower()", "assert_not_slower('absent.json')")
    code, output = pytest_run(text)
    assert (code, "absent.json: no such file" in output) == (1, True)
    assert "Traceback" not in output
    assert "ingest" not in output


def test_a_fixture_of_that_name_in_the_tests_comes_first(pytest_run):
    text = """
        import pytest

        @pytest.fixture
        def opscope():
            return "mine"

        def test_it(opscope):
            assert opscope == "mine"
    """
    assert pytest_run(text)[0] == 0
