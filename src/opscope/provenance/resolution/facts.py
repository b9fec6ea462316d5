"""What the resolvers answer: frozen values, one per kernel name and one per native function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.provenance.kernel_names import DecodedKernel

__all__ = ["KernelProvenance", "NativeFunctionFacts"]


@dataclass(frozen=True)
class KernelProvenance:
    """What is known of one kernel name.

    Args:
        decoded: The fields its name states.
        category: Kind of work.
        template_arguments: (parameter name in the source or None, argument), in order.
        units: Translation units that hold it, as repository paths where known; empty if unknown.
        unit_grade: How the units are known; None exactly if there are none.
        binary: Shared library that registered it, where recorded or at hand.
        location: Where its own code lies: the functor of a generic launcher, else the template, else the
            unit.
        template: Where its `__global__` function is defined.
    """

    decoded: DecodedKernel
    category: str
    template_arguments: tuple[tuple[str | None, str], ...] = ()
    units: tuple[str, ...] = ()
    unit_grade: Grade | None = None
    binary: str | None = None
    location: SourceLocation | None = None
    template: SourceLocation | None = None


@dataclass(frozen=True)
class NativeFunctionFacts:
    """One native function (an overload) as the trace's device reaches it. None is unknown.

    `kind` is `native`, `composite`, `generated`, `backward`, `custom` or `triton`. `location` is the
    function's own, `stub_location` that of the function through which it reaches the device: what its
    dispatch stub calls, or without a stub (`stub` is None) the one function of a `.cu` file that it calls.
    """

    name: str
    overload: str | None
    kind: str
    category: str
    schema: str | None = None
    overload_grade: Grade | None = None
    structured_delegate: str | None = None
    dispatch_key: str | None = None
    cuda_function: str | None = None
    stub: str | None = None
    tags: tuple[str, ...] = ()
    yaml_line: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    location: SourceLocation | None = None
    stub_location: SourceLocation | None = None
