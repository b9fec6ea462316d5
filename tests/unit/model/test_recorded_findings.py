"""Findings of a recorder: kept in the trace, told again when it is opened."""

from __future__ import annotations

from typing import Any

import pytest

from opscope.model.finding import RECORDER_KEY, Finding, Severity, findings_as_json, recorded_findings

FINDING = Finding("recorder.dropped", Severity.WARNING, "3 records.", "Less.", evidence={"dropped_count": 3})


def test_they_come_back_with_their_trace() -> None:
    properties = {RECORDER_KEY: {"findings": findings_as_json([FINDING])}}
    (found,) = recorded_findings(properties, 2)
    assert found == Finding(
        "recorder.dropped", Severity.WARNING, "3 records.", "Less.", trace_id=2, evidence={"dropped_count": 3}
    )


@pytest.mark.parametrize(
    "value",
    [
        None, 3, [], {}, {"findings": None}, {"findings": {}}, {"findings": [1, None, {"code": "a"}]},
        {"findings": [{"code": "a", "severity": "unheard", "message": "b"}]},
    ],
)  # fmt: skip
def test_what_is_none_is_passed_over(value: Any) -> None:
    assert list(recorded_findings({RECORDER_KEY: value}, 0)) == []
    assert list(recorded_findings({}, 0)) == []
