"""What a formula for operations is, and the few shapes most formulas have.

A formula gives the operations of a call on real floating-point numbers from its effects; None if they do not
follow from what is recorded. Conventions, the same for all:

* An addition, subtraction, multiplication or division is 1; so is an elementary function (exp, log, sqrt,
  sin, tanh, erf, pow …), whatever a kernel spends on it.
* Comparing, choosing (max, where, relu), changing a sign, rounding and converting types are 0: none of them
  is arithmetic. So is everything on integers and truth values.
* A sum of n terms is n − 1 additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from opscope.analysis.cost.call_cost import FlopSource
from opscope.analysis.cost.effects import CallEffects

__all__ = [
    "UNKNOWN_FLOPS",
    "Definition",
    "FlopCount",
    "Formula",
    "defined",
    "nothing",
    "per_element",
    "registered",
]

Formula: TypeAlias = Callable[[CallEffects], "int | None"]


@dataclass(frozen=True)
class FlopCount:
    """Operations of one call, and how they were counted; a reason where they are unknown."""

    count: int | None = None
    source: FlopSource | None = None
    reason: str | None = None


UNKNOWN_FLOPS = FlopCount(reason="no formula for its operations")


@dataclass(frozen=True)
class Definition:
    """A formula and what it stands on.

    Attributes:
        formula: None: it computes nothing.
        source: Of its counts.
        complex_factor: Real operations that one of its operations is on complex numbers; None if they differ.
        needs_floats: Whether operations on anything but floating-point numbers do not count.
    """

    formula: Formula | None
    source: FlopSource = FlopSource.DEFINITION
    complex_factor: int | None = None
    needs_floats: bool = True


def nothing() -> Definition:
    """No operations."""
    return Definition(None, FlopSource.NONE)


def registered(formula: Formula) -> Definition:
    """A formula that torch has too: for any element type, complex ones as real ones."""
    return Definition(formula, FlopSource.REGISTRY, needs_floats=False)


def defined(formula: Formula, *, complex_factor: int | None = None) -> Definition:
    """A formula of our own."""
    return Definition(formula, complex_factor=complex_factor)


def per_element(operations: int, *, complex_factor: int | None = None) -> Definition:
    """So many operations for each element of the first result."""
    return defined(lambda effects: operations * effects.output_elements, complex_factor=complex_factor)
