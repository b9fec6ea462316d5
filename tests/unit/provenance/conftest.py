"""Snippets of C++ and CUDA as an index would read them, small trees of files, and a packaged table."""

from textwrap import dedent

import pytest

from opscope.provenance.native_functions import packaged_table
from torch_tables.definitions import index_of as index_of_definitions
from torch_tables.definitions import read_tree


def dedented(files):
    return {name: dedent(text).lstrip("\n") for name, text in files.items()}


@pytest.fixture
def index_of():
    """Builds an index of files given as `{path: text}`."""

    def of(files, version="2.6.0", git_version=None):
        return index_of_definitions(version, git_version, read_tree(dedented(files)))

    return of


@pytest.fixture
def checkout(tmp_path):
    """Writes a source tree and returns its root."""

    def write(files):
        root = tmp_path / "pytorch"
        for name, text in dedented(files).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return root

    return write


@pytest.fixture(scope="session")
def table():
    """The packaged table of PyTorch 2.13.0."""
    found = packaged_table("2.13.0")
    assert found is not None
    return found
