"""Small real traces and the advice they have always had; `--update-golden` writes the expectation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.advice import advise
from opscope.analysis.summary import summarize
from opscope.model.finding import Finding
from opscope.model.session import Session

HERE = Path(__file__).parent
TRACES = sorted((HERE / "traces").glob("*.json.gz"))


def facts(findings: tuple[Finding, ...]) -> list[list[Any]]:
    """Code, severity, gain in µs, and the message of each."""
    return [
        [
            finding.code,
            str(finding.severity),
            None
            if finding.estimated_gain_ns_per_step is None
            else round(finding.estimated_gain_ns_per_step / 1000),
            finding.message,
        ]
        for finding in findings
    ]


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_trace_has_the_advice_it_always_had(
    trace: Path, load: Callable[..., Session], pytestconfig: pytest.Config
) -> None:
    session = load(trace)
    found = facts(advise(session, summarize(session)))
    expectation = HERE / "expected_advice" / trace.name.replace(".json.gz", ".json")
    if pytestconfig.getoption("--update-golden"):
        expectation.parent.mkdir(exist_ok=True)
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in found)
        expectation.write_text(f"[\n{lines}\n]\n" if lines else "[]\n", encoding="utf-8")
    assert found == json.loads(expectation.read_text(encoding="utf-8"))


def test_there_is_no_expectation_without_a_trace() -> None:
    names = {path.name.removesuffix(".json.gz") for path in TRACES}
    assert {path.stem for path in (HERE / "expected_advice").glob("*.json")} == names
