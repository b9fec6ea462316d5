"""Short titles of kernels: the function, with the functor that a generic one was given.

A title stands for a name and is not one: the full name is always kept beside it. Imports nothing that reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opscope.analysis.provenance import KernelFacts

_WRAPPERS = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel"))  # templates of CUTLASS


def kernel_title(facts: KernelFacts) -> str:
    """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
    if facts.function is None:
        return facts.name
    arguments = [value for _, value in facts.template_arguments]
    return title_of(facts.function, arguments, str(facts.fields.get("functor") or ""))


def title_of(function: str, arguments: Sequence[str], functor: str) -> str:
    """The function without its namespaces, and the functor without its; of CUTLASS's wrapper what it wraps.

    `gelu` of `at::native::gelu`; `cutlass_80_gemm_…` of `cutlass::Kernel2<cutlass_80_gemm_…>`.
    """
    last, first, applied = _last(function), arguments[0] if arguments else "", _last(functor)
    is_wrapper = last in _WRAPPERS and "cutlass" in f"{function}<{first}"
    title = (is_wrapper and _last(first.partition("<")[0])) or last
    return f"{title}<… {applied} …>" if applied else title


def _last(qualified: str) -> str:
    return qualified.rpartition("::")[2]
