"""Names of NCCL's (and RCCL's) kernels, `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`.

Source: NVIDIA/nccl src/device/generate.py. One kernel serves many algorithms, protocols and reductions: `LL`,
`RING` and `Sum` in a name are those of the kernel that was compiled, not of the call. Only the collective
holds, and the element type where it is a floating one; integers share the kernels of unsigned ones, and
collectives that do not reduce move bytes.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import FLOATING, element_type

__all__ = ["read_nccl"]

_NAME = re.compile(
    r"(?:ncclSymkDevKernel|ncclSymDevKernel|ncclDevKernel|ncclKernel)(?:Debug)?_(?P<collective>[A-Z][A-Za-z]+)(?P<rest>_\w+)?"
)
_REDUCING = frozenset(("AllReduce", "Reduce", "ReduceScatter"))
_OTHER = re.compile(r"nccl(?:SymkDev|SymDev|Dev)?Kernel|oneRankReduce|nccl::|rccl")


def read_nccl(function: str) -> Reading | None:
    """What a kernel of NCCL says; None if it is not one."""
    match = _NAME.match(function)
    if match is None:
        if _OTHER.search(function) is None:
            return None
        return Reading({"library": "nccl", "family": "collective"})
    collective = match.group("collective")
    stated: dict[str, Any] = {"library": "nccl", "family": "collective"}
    if collective != "Generic":  # one kernel for all
        stated["collective"] = collective
    if collective in _REDUCING:
        words = (match.group("rest") or "").split("_")
        types = {kind for word in words if (kind := element_type(word)) in FLOATING}
        stated["operand_type"] = types.pop() if len(types) == 1 else None
    return Reading(stated)
