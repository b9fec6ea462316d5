"""Every example runs as a user runs it, says what it promises, and leaves files only where it is told."""

import ast
import getpass
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from case_tables import cases, tables

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))
# Long enough for a compiler on a busy machine.
LIMIT_S = 300

WITH_FOLDER = {name for name in NAMES if "sys.argv[1]" in (EXAMPLES / name).read_text("utf-8")}


def environment():
    """This process's, without a GPU, with torch.compile's usual cache.

    One thread: threads that wait for each other take a multiple of the time on a busy machine.
    """
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    fixed = {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        "COLUMNS": "120",
    }
    return {"TORCHINDUCTOR_CACHE_DIR": str(inductor), **os.environ, **fixed}


@pytest.mark.torch
@pytest.mark.exhaustive(few=False)
@cases("name", "patterns")
def test_an_example_says_what_it_promises(name, patterns, tmp_path):
    pytest.importorskip("torch")
    if "triton" in name:
        pytest.importorskip("triton")
    places = {part: tmp_path / part for part in ("work", "temporary", "given")}
    for place in places.values():
        place.mkdir()
    before = set(EXAMPLES.rglob("*"))
    command = [sys.executable, EXAMPLES / name, *([places["given"]] if name in WITH_FOLDER else [])]
    process = {"cwd": places["work"], "env": {**environment(), "TMPDIR": str(places["temporary"])}}
    options = {"capture_output": True, "encoding": "utf-8", "timeout": LIMIT_S}
    done = subprocess.run(command, check=False, **process, **options)
    output, errors = done.stdout, done.stderr
    assert done.returncode == 0, output + errors
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
