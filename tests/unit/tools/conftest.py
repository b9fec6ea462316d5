"""Snippets of C++ and CUDA as an index would read them, and small trees of files."""

import pytest

from torch_tables.definitions import read_tree

from ..provenance.conftest import checkout, dedented, index_of, table

__all__ = ["checkout", "index_of", "table"]


@pytest.fixture
def read():
    """Reads one file's text, by default that of a `.cu` file, and gives its definitions in order."""

    def of(text, file="a.cu"):
        return read_tree(dedented({file: text}))[0]

    return of
