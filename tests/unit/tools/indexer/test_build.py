from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.sources.index import SourceIndex
from torch_tables.indexer.build import build_table, checkout_version, lex_file

Checkout = Callable[[dict[str, str]], Path]
FILE = "aten/src/ATen/native/cuda/A.cu"


def test_a_checkout(checkout: Checkout) -> None:
    root = checkout(
        {
            "version.txt": "2.9.1a0+git\n",
            FILE: "#include <ATen/M.h>\nDEFINE(f)\n",
            "aten/src/ATen/M.h": "#define DEFINE(x) void x() { }\n",
            "aten/src/ATen/other/M2.h": "#define DEFINE(x) int x##2() { }\n",
            "aten/src/ATen/test/T.cu": "void in_test() {}",
            "aten/src/ATen/native/vulkan/V.cpp": "void in_vulkan() {}",
            "aten/src/ATen/notes.txt": "void in_text() {}",
            "docs/a.cu": "void in_docs() {}",
        }
    )
    index = build_table(root)
    assert (index.version, index.git_version) == ("2.9.1", None)
    assert isinstance(index, SourceIndex)
    assert [(row.name, row.file, row.line) for row in index] == [("f", FILE, 2)]


def test_version_and_commit_may_be_given(checkout: Checkout) -> None:
    index = build_table(checkout({FILE: ""}), "2.6.0", git_version="b" * 40)
    assert (index.version, index.git_version) == ("2.6.0", "b" * 40)


@pytest.mark.parametrize(
    ("git", "commit"),
    [
        ({".git/HEAD": "a" * 40}, "a" * 40),
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": "c" * 40 + "\n"}, "c" * 40),
        (
            {
                ".git/HEAD": "ref: refs/heads/main\n",
                ".git/packed-refs": f"# pack\n{'d' * 40} refs/heads/main\n",
            },
            "d" * 40,
        ),
        ({".git/HEAD": "ref: refs/heads/none"}, None),
        ({".git/HEAD": "nonsense"}, None),
    ],
)
def test_the_commit_of_a_checkout(checkout: Checkout, git: dict[str, str], commit: str | None) -> None:
    assert build_table(checkout({FILE: "", **git}), "2.6.0").git_version == commit


def test_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a PyTorch source tree"):
        build_table(tmp_path, "2.6.0")


def test_no_version(checkout: Checkout) -> None:
    with pytest.raises(InputError, match="version of the checkout"):
        checkout_version(checkout({FILE: ""}))
    with pytest.raises(InputError, match="not a version"):
        checkout_version(checkout({"version.txt": "main"}))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        lex_file(tmp_path / "none.cu")
