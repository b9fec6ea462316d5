"""Short titles of kernels: the function, with the functor that a generic one was given.

A title stands for a name and is not one: the full name is always kept beside it.
"""

from __future__ import annotations

from opscope.analysis.provenance import KernelFacts

__all__ = ["kernel_title"]


def kernel_title(facts: KernelFacts) -> str:
    """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
    if facts.function is None:
        return facts.name
    functor = _last(str(facts.fields.get("functor") or ""))
    function = _last(facts.function)
    return f"{function}<… {functor} …>" if functor else function


def _last(qualified: str) -> str:
    return qualified.rpartition("::")[2]
