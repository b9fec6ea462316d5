"""What every check answers, on machines that differ in a few facts from one on which all is well.

A row of `outcomes.jsonl` is one case: the machine it begins with, the facts that are others there (a number
names an element of a list, `=` stands before a whole object in place of the old), and the answer.
"""

import json
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from case_tables import cases
from opscope.toolchain.doctor.checks import CHECKS, CheckVerdict, _hides_all
from opscope.toolchain.doctor.machine import ExaminedMachine

from .conftest import given

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
]


def answer(code, machine):
    return next(one.answer(machine) for one in CHECKS if one.code == code)


def _changed(base, changes):
    if not isinstance(changes, dict):
        return changes
    if "=" in changes:
        return changes["="]
    if isinstance(base, list):
        return [_changed(one, changes.get(str(index), {})) for index, one in enumerate(base)]
    return {**base, **{name: _changed(base.get(name), value) for name, value in changes.items()}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['check']} {row['verdict']}")
def test_a_check_answers(row, request):
    base = request.getfixturevalue(f"{row['machine']}_machine")
    answers = {
        name: msgspec.convert(value, get_type_hints(getattr(ExaminedMachine, name).func)["return"])
        for name, value in _changed(msgspec.to_builtins(base), row["facts"]).items()
    }
    machine = given(answers)
    outcome = answer(row["check"], machine)
    can_profile = not any(
        one.is_required and one.answer(machine).verdict is CheckVerdict.PROBLEM for one in CHECKS
    )
    expected = (row["verdict"], row["reason"], row.get("remedy"), row.get("can_profile", True))
    assert (str(outcome.verdict), outcome.reason, outcome.remedy, can_profile) == expected


def test_every_check_is_asked():
    assert {row["check"] for row in ROWS} == {one.code for one in CHECKS}


@cases("value", "expected")
def test_what_hides_every_device(value, expected):
    assert _hides_all(value) is expected
