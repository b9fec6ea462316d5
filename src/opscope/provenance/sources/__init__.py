"""Where PyTorch's functions, kernels, functors and dispatch stubs are defined, to the line.

`source_index` opens the index of a release. An answer is a `Definition` or None: what the evidence does not
single out is not guessed. `tools/torch_tables` builds the tables.
"""

from opscope.provenance.sources.at_hand import (
    indexed_versions,
    nearest_index,
    permalink,
    release_headers,
    source_reader,
)
from opscope.provenance.sources.index import SourceIndex, source_index
from opscope.provenance.sources.signatures import named_arguments
from opscope.provenance.sources.table import Definition

__all__ = [
    "Definition",
    "SourceIndex",
    "indexed_versions",
    "named_arguments",
    "nearest_index",
    "permalink",
    "release_headers",
    "source_index",
    "source_reader",
]
