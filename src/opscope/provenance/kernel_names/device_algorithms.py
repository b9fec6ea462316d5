"""Kernels of CUB and Thrust: what the algorithm does, in whatever namespace they were wrapped.

Source: NVIDIA/cccl cub/device/dispatch/kernels and thrust/system/cuda/detail, whose kernels are public
templates: `DeviceRadixSortOnesweepKernel<policy, order, key, value, …>`,
`_kernel_agent<__reduce::ReduceAgent<…>, …>`.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_entities import entities
from opscope.provenance.kernel_names.cxx_name import CxxName, last_part, without_module
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import element_type
from opscope.provenance.kernel_names.words import FamilyRules

__all__ = ["read_device_algorithm"]

_CUB = FamilyRules("cub")
_THRUST = FamilyRules("thrust")
# A pass over all places (`for_each`, `parallel_for`) is told apart by what it calls.
_PASSES = (
    ("fill", re.compile(r"__uninitialized_fill|__fill::")),
    ("copy", re.compile(r"__uninitialized_copy|__copy::")),
    ("arange", re.compile(r"__tabulate.*(?:sequence|compute_sequence)")),
)
_TAKES_KEYS = re.compile(r"RadixSort(?:Onesweep|Histogram|Upsweep|Downsweep|SingleTile)")
_TAKES_INPUT = re.compile(r"^Device(?:Scan|Reduce|ReduceSingleTile|SegmentedReduce)Kernel$")
_POLICY = re.compile(
    r"[pP]olicy|ScanTileState|NullType|InputValue|Agent$|use_default|identity|GridQueue|[iI]terator|Scaling|device_ptr|context_t"
)


def read_device_algorithm(cxx: CxxName, last: str) -> Reading | None:
    """What a kernel of CUB or Thrust says; None if the name is not one.

    Args:
        cxx: The name, taken apart; its function is not None.
        last: Last part of the function.
    """
    function = cxx.function or ""
    if "thrust::" in function and last == "_kernel_agent":
        return _thrust(cxx)
    if "cub::" not in function:
        return None
    family = _CUB.find(last)
    if family is None:
        return None
    stated: dict[str, Any] = {"library": "cub", "family": family}
    joined = ", ".join(cxx.template_arguments)
    if family == "select" and "NonZeroOp" in joined:
        stated["family"] = "nonzero"
    elif family == "select" and "equal_to" in joined:
        stated["family"] = "unique"
    elif family == "elementwise":
        stated["family"] = _pass(joined)
        stated["variant"] = "adjacent_difference" if "Adjacent" in last else None
    stated["operand_type"] = _operand(cxx, last)
    stated["functor"] = _functor(cxx)
    return Reading(stated)


def _thrust(cxx: CxxName) -> Reading:
    joined = ", ".join(cxx.template_arguments)
    family = _THRUST.find(joined.split("<", 1)[0])
    if family == "elementwise":
        family = _pass(joined)
    return Reading({"library": "thrust", "family": family, "functor": _functor(cxx)})


def _pass(arguments: str) -> str:
    return next((family for family, pattern in _PASSES if pattern.search(arguments[:2000])), "elementwise")


def _operand(cxx: CxxName, last: str) -> str | None:
    arguments = cxx.template_arguments
    if _TAKES_KEYS.search(last):
        keys = (element_type(argument) for argument in arguments[1:4])
        return next((key for key in keys if key is not None), None)
    if _TAKES_INPUT.match(last) and len(arguments) > 1 and arguments[1].endswith("*"):
        return element_type(arguments[1])
    return None


def _functor(cxx: CxxName) -> str | None:
    """The first operation among the template arguments that is no policy, iterator or state."""
    for entity in entities(cxx.template_arguments):
        if not _POLICY.search(last_part(entity.name)) and ("::" in entity.name):
            return without_module(entity.name)
    return None
