"""Every example runs as a user runs it, says what it promises, and leaves files only where it is told."""

import ast
import getpass
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from case_tables import cases, tables

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))
# Long enough for a compiler on a busy machine.
LIMIT_S = 300

WITH_FOLDER = {name for name in NAMES if "sys.argv[1]" in (EXAMPLES / name).read_text("utf-8")}


# What most of an example's time would go to, imported once; each example is a process forked from there.
SERVER = Path(__file__).with_name("forking_server.py.txt").read_text(encoding="utf-8")
# One sets an environment variable that is read where Triton is imported, the others import little.
FRESH = {"02_trace_to_source.py", "07_triton_kernel.py", "09_gemm_names.py"}


def environment():
    """This process's, without a GPU, with torch.compile's usual cache.

    One thread: threads that wait for each other take a multiple of the time on a busy machine.
    """
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        "COLUMNS": "120",
    }


@pytest.fixture(scope="module")
def forked():
    """Runs a program with arguments in a process that has torch; returns its exit code."""
    pytest.importorskip("torch")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin
        assert server.stdout

        def run(argv, places):
            outputs = [str(places["out"]), str(places["err"])]
            folders = {name: str(places[name]) for name in ("work", "temporary")}
            limit = threading.Timer(LIMIT_S, server.kill)
            limit.start()
            print(json.dumps({"argv": argv, "outputs": outputs, **folders}), file=server.stdin, flush=True)
            code = server.stdout.readline()
            limit.cancel()
            return int(code)

        yield run
        server.stdin.close()


def fresh(argv, places):
    with places["out"].open("w") as out, places["err"].open("w") as err:
        return subprocess.run(
            [sys.executable, *argv],
            cwd=places["work"],
            env={**environment(), "TMPDIR": str(places["temporary"])},
            stdout=out,
            stderr=err,
            timeout=LIMIT_S,
            check=False,
        ).returncode


@pytest.mark.torch
@pytest.mark.exhaustive(few=False)
@cases("name", "patterns")
def test_an_example_says_what_it_promises(name, patterns, request, tmp_path):
    if "triton" in name:
        pytest.importorskip("triton")
    places = {part: tmp_path / part for part in ("work", "temporary", "given", "out", "err")}
    for made in ("work", "temporary", "given"):
        places[made].mkdir()
    before = set(EXAMPLES.rglob("*"))
    argv = [str(EXAMPLES / name), *([str(places["given"])] if name in WITH_FOLDER else [])]
    code = (fresh if name in FRESH else request.getfixturevalue("forked"))(argv, places)
    output, errors = (places[part].read_text(encoding="utf-8") for part in ("out", "err"))
    assert code == 0, output + errors
    assert "Warning" not in errors, errors
    assert list(places["work"].iterdir()) == []
    assert {path for path in set(EXAMPLES.rglob("*")) - before if "__pycache__" not in path.parts} == set()
    if name in WITH_FOLDER:
        assert list(places["given"].iterdir())
        assert not list(places["temporary"].glob("opscope-example-*"))
    position = 0
    for pattern in patterns:
        found = re.compile(pattern).search(output, position)
        assert found, f"after character {position} nothing matches {pattern!r} in:\n{output}"
        position = found.start()


def test_examples_are_numbered_without_gaps():
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(1, len(NAMES) + 1)]
    promised = tables(Path(__file__).with_suffix(".toml"))["an_example_says_what_it_promises"]
    assert [name for name, _ in promised] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_opens_with_what_it_shows(name):
    text = (EXAMPLES / name).read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    head, empty, *body = docstring.splitlines()
    assert re.search(r"\(guides? 00[0-4]", head)
    assert empty == ""
    assert 2 <= len(body) <= 5
    assert "ook at" in docstring
    assert 15 <= text.count("\n") <= 60


def test_the_readme_lists_every_example_once_and_in_order():
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert re.findall(r"^\| \[(\S+)\]\((\S+)\) \| ", text, re.MULTILINE) == [(name, name) for name in NAMES]
