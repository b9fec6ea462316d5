"""What a check answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opscope.text_enum import TextEnum
from opscope.toolchain.doctor.facts import Facts

__all__ = [
    "Check",
    "Outcome",
    "Verdict",
    "not_applicable",
    "ok",
    "problem",
    "unknown",
    "warning",
]


class Verdict(TextEnum):
    """How something stands.

    PROBLEM: what is there does not work. WARNING: it works, but something optional is missing or results may
    be off. UNKNOWN: it could not be found out. NOT_APPLICABLE: there is nothing here it could be said of.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True)
class Outcome:
    """A verdict with its reason.

    Attributes:
        remedy: The command that mends it, or what to do where there is no command; None if nothing is to do.
    """

    verdict: Verdict
    reason: str
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """One question about a machine.

    Attributes:
        code: Its stable name.
        question: What is asked, in a few words.
        answer: The function that answers it.
        is_required: Whether a problem here means that programs cannot be profiled on this machine.
    """

    code: str
    question: str
    answer: Callable[[Facts], Outcome]
    is_required: bool = False


def ok(reason: str) -> Outcome:
    """All is well."""
    return Outcome(Verdict.OK, reason)


def warning(reason: str, remedy: str | None = None) -> Outcome:
    """Something optional is missing, or results may be off."""
    return Outcome(Verdict.WARNING, reason, remedy)


def problem(reason: str, remedy: str | None = None) -> Outcome:
    """What is there does not work."""
    return Outcome(Verdict.PROBLEM, reason, remedy)


def unknown(reason: str, remedy: str | None = None) -> Outcome:
    """It could not be found out."""
    return Outcome(Verdict.UNKNOWN, reason, remedy)


def not_applicable(reason: str) -> Outcome:
    """There is nothing here it could be said of."""
    return Outcome(Verdict.NOT_APPLICABLE, reason)
