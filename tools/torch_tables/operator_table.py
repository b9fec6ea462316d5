"""The operator table of a PyTorch installation, from the yaml files that it ships."""

from __future__ import annotations

from pathlib import Path

from opscope.provenance.operators import OperatorTable
from torch_tables.declarations import declared_functions, generated_functions, known_tags
from torch_tables.derivatives import backward_nodes

# In a folder `torchgen/packaged` of a PyTorch installation.
NATIVE_FUNCTIONS_YAML = "ATen/native/native_functions.yaml"
TAGS_YAML = "ATen/native/tags.yaml"
DERIVATIVES_YAML = "autograd/derivatives.yaml"


def build_operator_table(
    packaged: Path, *, version: str | None = None, git_version: str | None = None
) -> OperatorTable:
    """The table of a PyTorch installation, from the yaml files it ships. Takes about a second."""
    tags = known_tags(packaged / TAGS_YAML)
    functions = declared_functions(packaged / NATIVE_FUNCTIONS_YAML, tags)
    functions += generated_functions(functions, tags)
    derivatives = backward_nodes(packaged / DERIVATIVES_YAML, functions)
    return OperatorTable(tuple(functions), tuple(derivatives), version, git_version)
