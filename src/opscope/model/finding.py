"""A finding: one fact about a trace or a run that a reader must know, with its evidence.

Data-quality problems are findings, never log lines or exceptions; every renderer shows them. Codes are
stable.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from opscope.model.notebook import Shown
from opscope.text_enum import TextEnum
from opscope.units import counted


class Severity(TextEnum):
    """How much a finding matters: `error` invalidates figures, `warning` qualifies, `info` explains them."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return (Severity.ERROR, Severity.WARNING, Severity.INFO).index(self)


# Between bounds further apart a gain is a guess, which only a trial settles.
_WIDEST_GAIN = 3


class ApplicabilityStatus(TextEnum):
    """Whether a recording shows that a change can be made as it is; unknown if it shows too little."""

    APPLICABLE = "applicable"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class Blocker(msgspec.Struct, frozen=True):
    """What stands in the way of a change: an operator or call, where (None if not recorded), how often."""

    operator: str | None
    line: str | None
    per_step: float


class Applicability(msgspec.Struct, frozen=True):
    """Whether the suggested change can be made; applicable where nothing looked for stands in its way."""

    status: ApplicabilityStatus = ApplicabilityStatus.APPLICABLE
    blocked_by: tuple[Blocker, ...] = ()


# What a change brings cannot be told.
OPEN = Applicability(ApplicabilityStatus.UNKNOWN)


class Finding(Shown, msgspec.Struct, frozen=True):
    """One fact with a stable code.

    Args:
        code: Stable identifier, `area.fact`, e.g. `trace.truncated`.
        severity: How much it matters.
        message: One sentence for people, with the numbers in it.
        suggestion: What to do, or None when nothing is to be done.
        trace_id: Trace it concerns (joins `traces`), or None for all.
        evidence: The numbers it rests on; keys carry their unit.
        estimated_gain_ns_per_step: Wall time a step would save; None where no gain is estimated.
        gain_interval_ns_per_step: Between what it lies, by what is not known for sure; None if not estimated.
        gain_basis: How that was estimated, in one sentence.
        change: The change to try, as code.
        applicability: Whether the recording shows that it can be made, and what stands in its way.
    """

    code: str
    severity: Severity
    message: str
    suggestion: str | None = None
    trace_id: int | None = None
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    estimated_gain_ns_per_step: float | None = None
    gain_interval_ns_per_step: tuple[float, float] | None = None
    gain_basis: str | None = None
    change: str | None = None
    applicability: Applicability = Applicability()

    @property
    def is_to_try(self) -> bool:
        """Whether it is a change with a gain, be that known or not."""
        is_open = self.change is not None and self.applicability.status is ApplicabilityStatus.UNKNOWN
        return bool(self.estimated_gain_ns_per_step) or is_open

    @property
    def is_gain_known(self) -> bool:
        """Whether its gain is a number to show: above 0, to within a factor of 3, with nothing in the way."""
        low_ns, high_ns = self.gain_interval_ns_per_step or (1.0, 1.0)
        is_near = 0 < high_ns <= _WIDEST_GAIN * low_ns
        return bool(self.estimated_gain_ns_per_step) and is_near and not self.applicability.blocked_by


RECORDER_KEY = "opscopeRecorder"
_KEPT = ("code", "severity", "message", "suggestion", "evidence")


def findings_as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The findings as the value of `findings` under the key."""
    return [{name: one[name] for name in _KEPT} for one in map(msgspec.to_builtins, findings)]


def recorded_findings(properties: dict[str, Any], trace_id: int) -> Iterator[Finding]:
    """The findings in a trace's keys; what is not one is passed over."""
    recorder = properties.get(RECORDER_KEY)
    kept = recorder.get("findings") if isinstance(recorder, dict) else None
    for entry in kept if isinstance(kept, list) else []:
        with suppress(msgspec.ValidationError):
            known = {name: entry[name] for name in _KEPT if isinstance(entry, dict) and name in entry}
            yield msgspec.convert(known | {"trace_id": trace_id}, Finding)


def most_severe_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: finding.severity.rank))


class _Wording(string.Formatter):
    """`{count:event}` is a count with its noun."""

    def format_field(self, value: Any, format_spec: str) -> str:
        is_noun = format_spec[:1].isalpha()
        return counted(value, format_spec) if is_noun else str(super().format_field(value, format_spec))


def worded(
    code: str,
    entry: Mapping[str, Any],
    evidence: dict[str, Any],
    words: Mapping[str, Any],
    *,
    severity: Severity | None = None,
    trace_id: int | None = None,
) -> Finding:
    """The finding of a packaged entry: evidence and other words fill its `message`."""
    message = _Wording().vformat(entry["message"], (), {**evidence, **words})
    severity = severity or Severity(entry.get("severity", "info"))
    return Finding(code, severity, message, entry.get("suggestion") or None, trace_id, evidence)
