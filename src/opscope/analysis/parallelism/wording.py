"""Phrases that rules share: shapes, counts and ceilings in words; and the statements' short constructors."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.analysis.parallelism.account import Heading, Statement
from opscope.model.evidence import Grade

__all__ = [
    "algorithm",
    "ceil_div",
    "ceiling",
    "computes",
    "every",
    "independent",
    "memory",
    "over",
    "plural",
    "shape_text",
    "synchronization",
]

_RULE_GRADE = Grade.NAME_PATTERN


def ceil_div(value: int, divisor: int) -> int:
    """The quotient rounded up."""
    return -(-value // divisor)


def ceiling(value: int, divisor: int) -> str:
    """`ceil(1,000 / 512)`."""
    return f"ceil({value:,} / {divisor:,})"


def shape_text(shape: Sequence[int]) -> str:
    """`16×256×768`; a tensor without dimensions is a scalar."""
    return "×".join(f"{size:,}" for size in shape) if shape else "scalar"


def plural(count: int, noun: str) -> str:
    """`1 row`, `1,024 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def every(count: int, noun: str) -> str:
    """`1 output`, `All 1,024 outputs`."""
    return plural(count, noun) if count == 1 else f"All {plural(count, noun)}"


def independent(count: int) -> str:
    """`are independent`, said of `count` things."""
    return "is the only one" if count == 1 else "are independent"


def over(text: str, grade: Grade = _RULE_GRADE) -> Statement:
    """Which elements are independent, and why."""
    return Statement(Heading.PARALLEL_OVER, text, grade)


def computes(text: str, grade: Grade = _RULE_GRADE) -> Statement:
    """What one block computes."""
    return Statement(Heading.BLOCK_COMPUTES, text, grade)


def memory(text: str, grade: Grade = _RULE_GRADE) -> Statement:
    """How memory is accessed."""
    return Statement(Heading.MEMORY, text, grade)


def synchronization(text: str, grade: Grade = _RULE_GRADE) -> Statement:
    """What threads and blocks wait for."""
    return Statement(Heading.SYNCHRONIZATION, text, grade)


def algorithm(text: str, grade: Grade = _RULE_GRADE) -> Statement:
    """A step of the computation."""
    return Statement(Heading.ALGORITHM, text, grade)
