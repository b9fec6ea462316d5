"""A finding: one fact about a trace or a run that a reader must know, with its evidence.

Data-quality problems are findings, never log lines or exceptions; every renderer shows them. Codes are
stable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opscope.text_enum import TextEnum

__all__ = ["Finding", "Severity", "most_severe_first"]


class Severity(TextEnum):
    """How much a finding matters: `error` invalidates figures, `warning` qualifies, `info` explains them."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return (Severity.ERROR, Severity.WARNING, Severity.INFO).index(self)


@dataclass(frozen=True)
class Finding:
    """One fact with a stable code.

    Args:
        code: Stable identifier, `area.fact`, e.g. `trace.truncated`.
        severity: How much it matters.
        message: One sentence for people, with the numbers in it.
        suggestion: What to do, or None when nothing is to be done.
        trace_id: Trace it concerns (joins `traces`), or None for all.
        evidence: The numbers it rests on; keys carry their unit.
        estimated_gain_ns_per_step: Wall time a step would save; None where no gain is estimated.
        gain_basis: How that was estimated, in one sentence.
        change: The change to try, as code.
    """

    code: str
    severity: Severity
    message: str
    suggestion: str | None = None
    trace_id: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    estimated_gain_ns_per_step: float | None = None
    gain_basis: str | None = None
    change: str | None = None


def most_severe_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: finding.severity.rank))
