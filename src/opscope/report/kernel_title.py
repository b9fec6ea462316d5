"""Titles of kernels for headings.

A title stands for a name and is not one: the full name is always said beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from opscope.analysis.kernel_titles import kernel_title
from opscope.analysis.provenance import KernelFacts
from opscope.report.document import Code

__all__ = ["distinct_titles", "kernel_title"]


def distinct_titles(kernels: Sequence[KernelFacts]) -> list[Code]:
    """A title for each kernel; where several have the same one, their names."""
    titles = [kernel_title(facts) for facts in kernels]
    counts = Counter(titles)
    return [
        Code(title if counts[title] == 1 else facts.name)
        for title, facts in zip(titles, kernels, strict=True)
    ]
