"""Kernels that ATen compiles at run time: they are in no binary, but their names are strings in the source.

Source: PyTorch 2.6.0, aten/src/ATen/native/cuda/jit_utils.cpp and reduction_template.cuh: a kernel is named
`NAME_kernel`, `NAME_vectorizedN_kernel` or `reduction_NAME_kernel`, NAME being a constant such as
`constexpr char asin_name[] = "asin_impl"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opscope.provenance.indexer.lexer import LexedSource
from opscope.provenance.sources.table import Definition

_NAME = re.compile(r"\bchar\s+\w*name\[\]\s*=\s*\"([A-Za-z_]\w*)\"")
_KERNEL = re.compile(r"(?:reduction_)?([A-Za-z_]\w*?)(?:_vectorized\d+)?_kernel$")


def jiterated_names(file: str, source: LexedSource) -> Iterator[Definition]:
    """The names of run-time kernels that a CUDA file declares."""
    if not file.endswith((".cu", ".cuh")):
        return
    for match in _NAME.finditer(source.text):
        if source.code.startswith("char", match.start()):  # neither in a comment nor in a dead branch
            line = source.line_of(match.start())
            yield Definition("jiterator", match.group(1), "", file, line, line)


def jiterated_name(kernel_name: str) -> str | None:
    """The NAME in a run-time kernel's name; None if it is not of that form."""
    match = _KERNEL.match(kernel_name)
    return match.group(1) if match else None
