"""Kernels of libraries met beside PyTorch's own: inference engines, fused trainers, quantizers, FBGEMM.

Names are read as far as they say plainly what the kernel does; all of it is inferred. Namespaces (`vllm::`)
name the library.
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.words import FamilyRules, direction_of

__all__ = ["library_of_namespace", "read_library"]

_NAMESPACES = {
    "vllm": "vllm",
    "flashinfer": "flashinfer",
    "tensorrt_llm": "tensorrt_llm",
    "transformer_engine": "transformer_engine",
    "fbgemm_gpu": "fbgemm",
    "deep_gemm": "deep_gemm",
    "deep_ep": "deep_ep",
    "apex": "apex",
    "marlin": "marlin",
    "cusparse": "cusparse",
    "torchao": "torchao",
    "mslk": "mslk",
    "gloo": "gloo",
    "torchvision": "torchvision",
    "vision": "torchvision",
    "nvshmem": "nvshmem",
    "nvshmemi": "nvshmem",
    "sgl": "sglang",
}
_FIRST_NAMESPACE = re.compile(r"(?:::)?(\w+)::")
_FUNCTIONS = FamilyRules("library")


def read_library(cxx: CxxName) -> Reading | None:
    """What a kernel of another library, or a program's own, says plainly; None if nothing.

    Args:
        cxx: The name, taken apart; its function is not None.
    """
    function = cxx.function or ""
    family = _FUNCTIONS.find(function)
    library = library_of_namespace(function)
    if family is None and library is None:
        return None
    return Reading(
        {"library": library}, {"family": family, "direction": direction_of(function) if family else None}
    )


def library_of_namespace(function: str) -> str | None:
    """The library that a function's outermost namespace names; None if it is none of those known."""
    namespace = _FIRST_NAMESPACE.match(function)
    return _NAMESPACES.get(namespace.group(1)) if namespace is not None else None
