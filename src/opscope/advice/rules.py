"""The rules as data: `rules.toml`, read into frozen values.

What a rule says, when it speaks and what its numbers are stand in the file; the functions of this package
only look for the evidence. Every number has a reason. Imports nothing of the analysis.
"""

from __future__ import annotations

from functools import cache

import msgspec

from opscope.data import packaged_toml
from opscope.model.finding import Severity


class Number(msgspec.Struct, frozen=True):
    value: float
    reason: str


class EngineWords(msgspec.Struct, frozen=True):
    """What to do in a serving engine, and as its options."""

    suggestion: str
    change: str | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    code: str  # stable code of its findings, `advice.tf32_off`
    severity: Severity  # of its findings
    title: str  # what is wrong, in a few words
    meaning: str  # what it recognizes, and by what
    gain: str  # how the gain is estimated
    unknown: str  # what a trace cannot tell about it; the documentation says so
    suggestion: str  # what to do
    change: str | None = None  # the change to try, as code
    # What the code sets, where other rules set it too: a set of changes sets it in one way
    field: str | None = None
    basis: str | None = None  # how a finding's gain was estimated, where every finding says the same
    gain_error: float = 0.0  # how far the device time that it saves may be off, as a fraction of it
    thresholds: dict[str, Number] = {}  # its numbers by name
    # What to do where a serving engine was recorded, by engine, `ENGINE_prefill` where it mostly prefills, or
    # `any`
    engines: dict[str, EngineWords] = {}

    def threshold(self, name: str) -> float:
        return self.thresholds[name].value


class RuleBook(msgspec.Struct, frozen=True):
    """All rules by code, and the numbers that several share."""

    rules: dict[str, Rule]
    numbers: dict[str, Number]

    def number(self, name: str) -> float:
        return self.numbers[name].value


@cache
def rule_book() -> RuleBook:
    document = packaged_toml(__package__, "rules.toml")
    rules = {rule.code: rule for rule in msgspec.convert(document["rule"], list[Rule])}
    return RuleBook(rules, msgspec.convert(document["numbers"], dict[str, Number]))
