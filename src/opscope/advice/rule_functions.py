"""The shape of a rule's function: it looks at a case and yields what it found, nothing where all is well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule

__all__ = ["RuleFunction"]


class RuleFunction(Protocol):
    """Looks for the evidence of one rule."""

    def __call__(self, case: Case, rule: Rule, /) -> Iterable[Advice]:
        """What it found."""
        ...
