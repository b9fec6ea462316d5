"""What strangers name things, in every verb that reads their files and every form that it writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.testing import TraceBuilder

EVIL = "evil\x1b[31m\u202e\u200b\x07\x00name"
UNSEEN = {"\x1b", "\u202e", "\u200b", "\x07", "\x00"}
VERBS = [
    "analyze {file}",
    "analyze {file} --lang zh",
    "analyze {file} --output-dir out",
    "analyze {file} --html out/page.html",
    "analyze {file} --brief",
    "analyze {file} --markdown",
    "compare {file} {file} --output out/report.md --html out/compared.html",
    "explain aten::add --trace {file} --html out/explained.html",
    "explain {evil}",
    "flamegraph {file} --format collapsed",
    "sql {file} 'SELECT name FROM operators'",
    "sql {file} 'SELECT name FROM operators' --csv",
    "sql {file} 'SELECT nothing FROM {evil}'",
    "stats {file}",
    "stats {file} --csv",
    "bench {evil}",
    "profile {evil}",
    "nvcc {evil}",
    "ncu read {evil}",
    "index --library {evil} --release 1.0",
    "devices {evil}",
]


@pytest.mark.parametrize("words", VERBS)
def test_names_paths_and_queries_reach_nothing_unseen(
    opscope: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    # Paths and arguments may hold all but a null character.
    file = Path(EVIL.replace("\x00", "") + ".json")
    step = TraceBuilder().step(1, 0, 100).operator(EVIL, 10, 20).launch(12, 4).kernel(EVIL, 20, 5)
    file.write_text(step.text())
    arguments = [
        word.format(file=os.fspath(file), evil=file.stem)
        for word in (part.strip("'") for part in _split(words))
    ]
    outcome = opscope(*arguments)
    written = [one.read_text() for one in Path("out").rglob("*") if one.suffix in {".md", ".html", ".csv"}]
    for text in (outcome.out, outcome.err, *written):
        assert not UNSEEN.intersection(text), words
    assert outcome.code in {0, 1, 2, 4}
    assert "internal error" not in outcome.err


def _split(words: str) -> list[str]:
    import shlex

    return shlex.split(words)
