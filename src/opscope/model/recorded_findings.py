"""Findings of a recorder, kept in the trace it writes: whoever opens the trace later is told them too.

They are one key beside the events, `opscopeRecorder`, which other tools pass over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from opscope.model.finding import Finding, Severity

__all__ = ["RECORDER_KEY", "findings_as_json", "recorded_findings"]

RECORDER_KEY = "opscopeRecorder"


class _Recorded(msgspec.Struct, frozen=True):
    code: str
    severity: Severity
    message: str
    suggestion: str | None = None
    evidence: dict[str, Any] = {}


def findings_as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The findings as the value of `findings` under the key."""
    return [
        {
            "code": one.code,
            "severity": str(one.severity),
            "message": one.message,
            "suggestion": one.suggestion,
            "evidence": one.evidence,
        }
        for one in findings
    ]


def recorded_findings(properties: dict[str, Any], trace_id: int) -> Iterator[Finding]:
    """The findings in a trace's keys; what is not one is passed over."""
    recorder = properties.get(RECORDER_KEY)
    kept = recorder.get("findings") if isinstance(recorder, dict) else None
    for entry in kept if isinstance(kept, list) else []:
        try:
            one = msgspec.convert(entry, _Recorded)
        except msgspec.ValidationError:
            continue
        yield Finding(one.code, one.severity, one.message, one.suggestion, trace_id, one.evidence)
