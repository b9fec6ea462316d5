"""Snippets of C++ and CUDA as an index would read them, and small trees of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from opscope.provenance.indexer.build import read_tree
from opscope.provenance.indexer.lexer import lex
from opscope.provenance.sources import Definition, SourceIndex
from opscope.provenance.sources.table import DefinitionTable


def _texts(files: dict[str, str]) -> dict[str, str]:
    return {name: dedent(text).lstrip("\n") for name, text in files.items()}


@pytest.fixture
def read() -> Callable[..., list[Definition]]:
    """Reads one file's text, by default that of a `.cu` file, and gives its definitions in order."""

    def of(text: str, file: str = "a.cu") -> list[Definition]:
        return read_tree({name: lex(content) for name, content in _texts({file: text}).items()})[0]

    return of


@pytest.fixture
def index_of() -> Callable[..., SourceIndex]:
    """Builds an index of files given as `{path: text}`."""

    def of(files: dict[str, str], version: str = "2.6.0", git_version: str | None = None) -> SourceIndex:
        found = read_tree({name: lex(content) for name, content in _texts(files).items()})
        return SourceIndex(DefinitionTable.from_definitions(version, git_version, *found))

    return of


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes a source tree and returns its root."""

    def write(files: dict[str, str]) -> Path:
        root = tmp_path / "pytorch"
        for name, text in _texts(files).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return root

    return write
