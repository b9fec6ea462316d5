"""The rules as data: `rules.toml`, read into frozen values.

What a rule says, when it speaks and what its numbers are stand in the file; the functions of this package
only look for the evidence. Every number has a reason. Imports nothing of the analysis.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from opscope.model.finding import Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Number", "Rule", "RuleBook", "rule_book"]


@dataclass(frozen=True)
class Number:
    """A threshold or a rate, and why it is what it is."""

    value: float
    reason: str


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: Stable code of its findings, `advice.tf32_off`.
        severity: Of its findings, unless one says otherwise.
        title: What is wrong, in a few words.
        meaning: What it recognizes, and by what.
        gain: How the gain is estimated.
        unknown: What a trace cannot tell about it.
        suggestion: What to do.
        change: The change to try, as code.
        thresholds: Its numbers by name.
    """

    code: str
    severity: Severity
    title: str
    meaning: str
    gain: str
    unknown: str
    suggestion: str
    change: str | None = None
    thresholds: Mapping[str, Number] = field(default_factory=dict)

    def threshold(self, name: str) -> float:
        """One of its numbers.

        Raises:
            KeyError: It has none of that name.
        """
        return self.thresholds[name].value


@dataclass(frozen=True)
class RuleBook:
    """All rules by code, and the numbers that several share."""

    rules: Mapping[str, Rule]
    numbers: Mapping[str, Number]

    def number(self, name: str) -> float:
        """A shared number.

        Raises:
            KeyError: There is none of that name.
        """
        return self.numbers[name].value


@cache
def rule_book() -> RuleBook:
    """The packaged rules."""
    text = resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    rules = [_rule(entry) for entry in document["rule"]]
    return RuleBook({rule.code: rule for rule in rules}, _numbers(document["numbers"]))


def _rule(entry: Mapping[str, Any]) -> Rule:
    words = {
        name: entry[name].strip() for name in ("code", "title", "meaning", "gain", "unknown", "suggestion")
    }
    change = entry.get("change")
    return Rule(
        **words,
        severity=Severity(entry["severity"]),
        change=None if change is None else change.strip(),
        thresholds=_numbers(entry.get("thresholds", {})),
    )


def _numbers(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Number]:
    return {name: Number(float(number["value"]), number["reason"].strip()) for name, number in table.items()}
