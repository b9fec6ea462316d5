"""What verbs print of small recordings and results: exit code, output and errors of each command, as text.

`--update-golden` writes what is expected: read the difference before you commit it.
"""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from case_tables import cases
from fakes import TraceBuilder

from .conftest import saved, write_trace

EXPECTED = Path(__file__).parent / "expected"


def steps(duration, count=8):
    builder = TraceBuilder()
    for step in range(count):
        start = 10_000 * step
        builder.step(step, start, 5_000).operator("aten::mm", start, 50).launch(start + 5)
        builder.kernel("gemm", start + 100, duration + step / 1000)
    return builder


def result(median_ns):
    """A saved benchmark."""
    samples = [median_ns * (1 + 0.001 * (index % 5)) for index in range(30)]
    return {
        "schema_version": 1, "suite": "gelu", "shape": [8], "dtype": "float32", "device": "cpu",
        "reference": "torch", "clock": "wall", "cache_state": "uncontrolled", "options": {},
        "environment": {"python": "3.12", "platform": "Linux", "opscope": "0"}, "created": "",
        "rows": [{"name": "torch", "status": "ok", "samples_ns": samples}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings and results, as files and as Sessions that name them by relative paths."""
    folder = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        saved(write_trace(Path("small.json")))
        for name, builder in {"slow": steps(150), "fast": steps(100), "short": steps(200, count=3)}.items():
            saved(builder.write(Path(f"{name}.json")))
    for ns in (1000, 1300):
        (folder / f"{ns}.json").write_text(json.dumps(result(ns)))
        sweep = {"schema_version": 1, "suite": "gelu", "parameters": {"n": [1]}, "points": [result(ns)]}
        (folder / f"sweep{ns}.json").write_text(json.dumps(sweep))
    return folder


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """The current folder: the files, shown 120 columns wide."""
    place = tmp_path / "place"
    # As links they are still this process' own, which opens them without asking another to look first.
    shutil.copytree(folder, place, copy_function=os.link)
    monkeypatch.chdir(place)
    for name, value in {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


@pytest.mark.usefixtures("place")
@cases("verb", "commands")
def test_verbs_print_what_they_always_printed(opscope, verb, commands, pytestconfig):
    parts = []
    for command in commands:
        outcome = opscope(*shlex.split(command))
        code = f"exit {outcome.code}\n" if outcome.code else ""
        parts.append(f"$ opscope {command}\n{code}{outcome.err}{outcome.out}")
    text = "\n".join("\n".join(map(str.rstrip, part.splitlines())) for part in parts) + "\n"
    expectation = EXPECTED / f"{verb}.txt"
    if pytestconfig.getoption("--update-golden"):
        EXPECTED.mkdir(exist_ok=True)
        expectation.write_text(text, encoding="utf-8")
    assert text.splitlines() == expectation.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    return saved(steps(100).write(tmp_path_factory.mktemp("fast") / "fast.json"))


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"schema_version": 1}', "no JSON"])
def test_other_files_are_refused(opscope, tmp_path, fast, text):
    other = tmp_path / "other.json"
    other.write_text(text)
    opscope("compare", fast, other).fails(str(other))
