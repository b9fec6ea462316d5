"""Whether calls can be replayed at all: asked before torch is imported, which takes seconds."""

from __future__ import annotations

from importlib.util import find_spec

from opscope.analysis.cost.arguments import CallArguments

__all__ = ["has_torch", "obstacle"]

# Namespaces whose functions for tensors without data are torch's own.
_TORCH_NAMESPACES = frozenset(("aten", "prims"))
# Operators of torch that no function describes, and what is missing instead.
_UNDESCRIBED = {
    "record_param_comms": "the collective and its sizes were not recorded",
    "c10d": "the collective and its sizes were not recorded",
}


def has_torch() -> bool:
    """Whether torch is installed."""
    return find_spec("torch") is not None


def obstacle(call: CallArguments) -> str | None:
    """Why a call cannot be replayed, or told by rules; None if it can, or may."""
    namespace, separator, _ = call.name.partition("::")
    if namespace in _UNDESCRIBED:
        return _UNDESCRIBED[namespace]
    if call.defect is not None:
        return call.defect
    if not separator or namespace not in _TORCH_NAMESPACES:
        return f"{call.name} is no operator of torch: only its own code could tell its results"
    if call.has_unrecorded_list:
        return "the members of its lists of tensors were not recorded"
    return None
