"""What every check answers, on machines that differ in a few facts from one on which all is well.

A row of `outcomes.jsonl` is one case: the machine it begins with, the facts that are others there (a number
names an element of a list, `=` stands before a whole object in place of the old), and the answer.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opscope.toolchain.doctor.diagnosis import CHECKS, diagnose
from opscope.toolchain.doctor.facts import DriverFacts, Facts, ProgramFacts
from opscope.toolchain.doctor.outcome import GpuPresence, gpu_presence, hides_all

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
]


def _changed(base: Any, changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    if "=" in changes:
        return changes["="]
    if isinstance(base, list):
        return [_changed(one, changes.get(str(index), {})) for index, one in enumerate(base)]
    return {**base, **{name: _changed(base.get(name), value) for name, value in changes.items()}}


@pytest.mark.each("row", ROWS)
def test_a_check_answers(row: dict[str, Any], request: pytest.FixtureRequest) -> None:
    machine = request.getfixturevalue(f"{row['machine']}_machine")
    facts = msgspec.convert(_changed(msgspec.to_builtins(machine), row["facts"]), Facts)
    diagnosis = diagnose(facts)
    outcome = next(one.outcome for one in diagnosis.results if one.check.code == row["check"])
    expected = (row["verdict"], row["reason"], row.get("remedy"), row.get("can_profile", True))
    assert (str(outcome.verdict), outcome.reason, outcome.remedy, diagnosis.can_profile) == expected


def test_every_check_is_asked() -> None:
    assert {row["check"] for row in ROWS} == {one.code for one in CHECKS}


def test_the_drivers_packages_without_a_gpu_are_no_gpu(cpu_machine: Facts) -> None:
    facts = replace(
        cpu_machine,
        driver=DriverFacts(version="580.95.05", smi=ProgramFacts("nvidia-smi", "/usr/bin/nvidia-smi")),
    )
    assert gpu_presence(facts) is GpuPresence.NONE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False), ("", True), ("-1", True), ("NoDevFiles", True), ("0", False), ("1,-1", False),
        ("-1,0", True), ("GPU-5f5a", False), ("MIG-1", False), (" 2", False),
    ],
)  # fmt: skip
def test_what_hides_every_device(value: str | None, expected: bool) -> None:
    assert hides_all(value) is expected
