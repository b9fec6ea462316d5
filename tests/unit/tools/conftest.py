"""Snippets of C++ and CUDA as an index would read them, small trees of files, and tables made of yaml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.provenance.operators import OperatorTable
from opscope.provenance.sources import Definition
from torch_tables.indexer.build import read_tree
from torch_tables.indexer.lexer import lex
from torch_tables.operator_table import build_operator_table

from ..provenance.conftest import checkout, dedented, index_of, table

__all__ = ["checkout", "index_of", "table"]

MakeYaml = Callable[..., Path]

TAGS = "- tag: core\n  desc: x\n- tag: out\n  desc: x\n- tag: pointwise\n  desc: x\n"


@pytest.fixture
def read() -> Callable[..., list[Definition]]:
    """Reads one file's text, by default that of a `.cu` file, and gives its definitions in order."""

    def of(text: str, file: str = "a.cu") -> list[Definition]:
        return read_tree({name: lex(content) for name, content in dedented({file: text}).items()})[0]

    return of


@pytest.fixture
def write_yaml(tmp_path: Path) -> MakeYaml:
    """Writes a folder `torchgen/packaged` and returns it."""

    def write(functions: str, derivatives: str = "[]", tags: str = TAGS) -> Path:
        folder = tmp_path / "packaged"
        for name, text in (
            ("ATen/native/native_functions.yaml", functions),
            ("ATen/native/tags.yaml", tags),
            ("autograd/derivatives.yaml", derivatives),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


@pytest.fixture
def make_table(write_yaml: MakeYaml) -> Callable[..., OperatorTable]:
    """Builds a table from the text of yaml files."""
    return lambda *texts, **options: build_operator_table(write_yaml(*texts), **options)
