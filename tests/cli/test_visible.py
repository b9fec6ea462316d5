"""What strangers name things, in every verb that reads their files and every form that it writes."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import cases
from fakes import TraceBuilder

EVIL = "evil\x1b[31m\u202e\u200b\x07\x00name"
UNSEEN = {"\x1b", "\u202e", "\u200b", "\x07", "\x00"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A trace with such names, in a file of such a name in the current folder."""
    monkeypatch.chdir(tmp_path)
    # Paths and arguments may hold all but a null character.
    path = Path(EVIL.replace("\x00", "") + ".json")
    return TraceBuilder().step(1, 0, 100).operator(EVIL, 10, 20).launch(12, 4).kernel(EVIL, 20, 5).write(path)


@cases("words")
def test_names_paths_and_queries_reach_nothing_unseen(opscope, file, words):
    Path("out").mkdir()
    arguments = [word.format(file=os.fspath(file), evil=file.stem) for word in shlex.split(words)]
    outcome = opscope(*arguments)
    written = [one.read_text() for one in Path("out").rglob("*") if one.suffix in {".md", ".html", ".csv"}]
    for text in (outcome.out, outcome.err, *written):
        assert not UNSEEN.intersection(text), words
    assert outcome.code in {0, 1, 2, 4}
    assert "internal error" not in outcome.err


PROGRAM = Path(__file__).with_name("saying.py.txt").read_text(encoding="utf-8")


@pytest.mark.torch
@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize(
    "words", ["run --record modules --active 2 --output out/page.html --output-dir out", "try --budget 5s"]
)
def test_of_a_program_that_is_run(tmp_path, words):
    """Its file, its modules and its ranges; what it prints itself is its own."""
    evil = EVIL.replace("\x00", "")
    (tmp_path / "out").mkdir()
    (tmp_path / f"{evil}.py").write_text(PROGRAM.format(evil=evil))
    command = [sys.executable, "-m", "opscope", *words.split(), f"{evil}.py"]
    options = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, check=False, cwd=tmp_path, **options)
    assert done.returncode in {0, 1}, done.stderr
    assert "internal error" not in done.stderr
    written = [one.read_text() for one in (tmp_path / "out").rglob("*") if one.suffix in {".md", ".html"}]
    for text in (done.stdout, done.stderr, *written):
        assert not UNSEEN.intersection(text)


WRITES = {"sys.stderr.write", "sys.stdout.write"}


def test_verbs_write_no_text_of_others_past_the_edge():
    """What is put together goes through `console`; streams take constants, and what was encoded whole."""
    for file in sorted(Path(sys.modules["opscope.cli"].__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES:
                put_together = [one for one in ast.walk(node.args[0]) if isinstance(one, ast.FormattedValue)]
                said = {ast.unparse(one.value) for one in put_together}
                assert file.name == "console.py" or said <= {"server.url"}, f"{file}:{node.lineno}"
