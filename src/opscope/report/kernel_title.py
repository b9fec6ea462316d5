"""Short titles of kernels for headings: the function, with the functor that a generic one was given.

A title stands for a name and is not one: the full name is always said beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from opscope.analysis.provenance import KernelFacts
from opscope.report.document import Code

__all__ = ["distinct_titles", "kernel_title"]


def kernel_title(facts: KernelFacts) -> str:
    """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
    if facts.function is None:
        return facts.name
    functor = _last(str(facts.fields.get("functor") or ""))
    function = _last(facts.function)
    return f"{function}<… {functor} …>" if functor else function


def distinct_titles(kernels: Sequence[KernelFacts]) -> list[Code]:
    """A title for each kernel; where several have the same one, their names."""
    titles = [kernel_title(facts) for facts in kernels]
    counts = Counter(titles)
    return [
        Code(title if counts[title] == 1 else facts.name)
        for title, facts in zip(titles, kernels, strict=True)
    ]


def _last(qualified: str) -> str:
    return qualified.rpartition("::")[2]
