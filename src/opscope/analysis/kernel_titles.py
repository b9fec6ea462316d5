"""Short titles of kernels: the function, with the functor that a generic one was given.

A title stands for a name and is not one: the full name is always kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from opscope.analysis.provenance import KernelFacts

__all__ = ["kernel_title", "unwrapped"]

_WRAPPERS = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel"))  # templates of CUTLASS


def kernel_title(facts: KernelFacts) -> str:
    """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
    if facts.function is None:
        return facts.name
    functor = _last(str(facts.fields.get("functor") or ""))
    function = unwrapped(facts.function, [value for _, value in facts.template_arguments])
    return f"{function}<… {functor} …>" if functor else function


def unwrapped(function: str, arguments: Sequence[str]) -> str:
    """`gelu` of `at::native::gelu`; `cutlass_80_gemm_…` of `cutlass::Kernel2<cutlass_80_gemm_…>`."""
    last, first = _last(function), arguments[0] if arguments else ""
    is_wrapper = last in _WRAPPERS and "cutlass" in f"{function}<{first}"
    return (is_wrapper and _last(first.partition("<")[0])) or last


def _last(qualified: str) -> str:
    return qualified.rpartition("::")[2]
