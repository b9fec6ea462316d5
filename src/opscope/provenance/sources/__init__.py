"""Where PyTorch's functions, kernels, functors and dispatch stubs are defined, to the line.

`source_index` opens the index of a release, `header_index` that of the headers of an installation,
`build_index` that of a checkout. An answer is a `Definition` or None: what the evidence does not single out
is not guessed.
"""

from __future__ import annotations

from opscope.provenance.sources.at_hand import (
    indexed_versions,
    installed_headers,
    nearest_index,
    source_reader,
)
from opscope.provenance.sources.build import build_index
from opscope.provenance.sources.definitions import Definition
from opscope.provenance.sources.generated import Generated, generated_function, generated_unit
from opscope.provenance.sources.headers import header_index
from opscope.provenance.sources.index import SourceIndex
from opscope.provenance.sources.lines import read_lines
from opscope.provenance.sources.permalinks import include_path, permalink, repository_path
from opscope.provenance.sources.signatures import schema_parameters
from opscope.provenance.sources.storage import load_index, source_index, store_index
from opscope.provenance.sources.templates import named_arguments

__all__ = [
    "Definition",
    "Generated",
    "SourceIndex",
    "build_index",
    "generated_function",
    "generated_unit",
    "header_index",
    "include_path",
    "indexed_versions",
    "installed_headers",
    "load_index",
    "named_arguments",
    "nearest_index",
    "permalink",
    "read_lines",
    "repository_path",
    "schema_parameters",
    "source_index",
    "source_reader",
    "store_index",
]
