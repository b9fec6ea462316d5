"""Operator tables: a packaged one, and small ones made of yaml that a test writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.provenance.operators import OperatorTable, build_operator_table, packaged_table

MakeYaml = Callable[..., Path]

TAGS = "- tag: core\n  desc: x\n- tag: out\n  desc: x\n- tag: pointwise\n  desc: x\n"


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


@pytest.fixture(scope="session")
def table() -> OperatorTable:
    """The packaged table of PyTorch 2.13.0."""
    found = packaged_table("2.13.0")
    assert found is not None
    return found
