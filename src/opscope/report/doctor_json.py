"""The document `opscope doctor --json` prints: every fact and every check.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning. What is not known
is null. Sizes are in bytes, clocks in MHz, fractions 0–1.
"""

from __future__ import annotations

from typing import Any

import msgspec

from opscope._version import __version__
from opscope.toolchain.doctor.diagnosis import CheckResult, Diagnosis

__all__ = ["DOCTOR_SCHEMA_VERSION", "doctor_json"]

DOCTOR_SCHEMA_VERSION = 1


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON values; checks in the order of the table in docs/doctor.md."""
    return {
        "schema_version": DOCTOR_SCHEMA_VERSION,
        "opscope_version": __version__,
        "verdict": str(diagnosis.verdict),
        "can_profile": diagnosis.can_profile,
        "facts": msgspec.to_builtins(diagnosis.facts),
        "checks": [_check(one) for one in diagnosis.results],
    }


def _check(result: CheckResult) -> dict[str, Any]:
    return {
        "code": result.check.code,
        "question": result.check.question,
        "is_required": result.check.is_required,
        "verdict": str(result.verdict),
        "reason": result.outcome.reason,
        "remedy": result.outcome.remedy,
    }
