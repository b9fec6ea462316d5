"""Small real traces and what opscope has always said about them; `--update-golden` writes the expectation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opscope
from opscope.model.session import Session

HERE = Path(__file__).parent
TRACES = sorted((HERE / "traces").glob("*.json.gz"))
OPERATOR_COLUMNS = (
    "name", "category", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns", "total_cpu_ns",
    "kernel_launches",
)  # fmt: skip
DEVICE_COLUMNS = ("device", "name", "span_ns", "busy_ns", "idle_ns", "activity_count")
STEP_COLUMNS = ("step", "duration_ns", "device_ns", "kernel_count")
TOTALS = (
    "device_time_ns",
    "attributed_ns",
    "cpu_time_ns",
    "kernel_launches",
    "activity_count",
    "operator_calls",
)


def rows(records: tuple[Any, ...], columns: tuple[str, ...]) -> list[list[Any]]:
    return [[getattr(record, column) for column in columns] for record in records]


def facts(summary: opscope.Summary) -> dict[str, list[list[Any]]]:
    """What is kept of a Summary: tables whose rows are short enough to be read in a diff."""
    return {
        "totals": [[name, getattr(summary, name)] for name in TOTALS],
        "unattributed": [list(item) for item in summary.unattributed_ns.items()],
        "findings": [[finding.code, str(finding.severity)] for finding in summary.findings],
        "devices": [list(DEVICE_COLUMNS), *rows(summary.devices, DEVICE_COLUMNS)],
        "steps": [list(STEP_COLUMNS), *rows(summary.steps, STEP_COLUMNS)],
        "operators": [list(OPERATOR_COLUMNS), *rows(summary.operators, OPERATOR_COLUMNS)],
        "kernels": rows(summary.kernels[:20], ("name", "kind", "calls", "total_ns")),
    }


def one_row_a_line(document: dict[str, list[list[Any]]]) -> str:
    parts = []
    for key, table in document.items():
        lines = ",\n".join(f"  {json.dumps(row)}" for row in table)
        parts.append(f"{json.dumps(key)}: [\n{lines}\n]" if table else f"{json.dumps(key)}: []")
    return "{" + ",\n".join(parts) + "}\n"


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_trace_says_what_it_always_said(
    trace: Path, load: Callable[..., Session], pytestconfig: pytest.Config
) -> None:
    session = load(trace)
    assert [check.name for check in session.check() if not check.holds] == []
    found = facts(opscope.summarize(session))
    expectation = HERE / "expected" / trace.name.replace(".json.gz", ".json")
    if pytestconfig.getoption("--update-golden"):
        expectation.parent.mkdir(exist_ok=True)
        expectation.write_text(one_row_a_line(found), encoding="utf-8")
    expected = json.loads(expectation.read_text(encoding="utf-8"))
    assert found.keys() == expected.keys()
    for key, table in found.items():
        assert table == expected[key], key


def test_there_are_traces_and_no_expectation_without_one() -> None:
    names = {path.name.removesuffix(".json.gz") for path in TRACES}
    assert len(names) >= 4
    assert {path.stem for path in (HERE / "expected").glob("*.json")} == names
