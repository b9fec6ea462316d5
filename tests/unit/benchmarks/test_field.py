"""Edits of the field apply to its scripts, and shown changes are judged as said."""

import sys
from pathlib import Path

import pytest

from case_tables import cases

pytest.importorskip("torch")

FIELD = Path(__file__).parents[3] / "benchmarks/field"
sys.path.insert(0, str(FIELD))

from first_changes import edited, first_sibling, median_interval  # noqa: E402
from scoring import Measured, Shown, misses, verdict  # noqa: E402
from trials import PROGRAMS, trials_of  # noqa: E402

SHARED = FIELD.parents[2] / "shared/field/programs"


@pytest.mark.parametrize(
    "script", [*PROGRAMS.glob("*.py"), *SHARED.glob("*.py")], ids=lambda script: str(script.stem)
)
def test_every_script_has_trials_whose_edits_apply_once_and_compile(script):
    for trial in trials_of(script):
        text = edited(script.read_text(encoding="utf-8"), trial)
        compile(text, script.name, "exec")
        assert text.count("STEP()") + text.count("ENDLESS(") == 1


@cases("gain", "interval", "true", "expected")
def test_verdict(gain, interval, true, expected):
    assert verdict(Shown("tf32", gain, interval), {"tf32": true and Measured(*true)}) == expected


@pytest.mark.parametrize(("count", "at"), [(2, 1), (5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (25, 8)])
def test_the_interval_of_a_median_is_that_of_the_binomial(count, at):
    values = [float(value) for value in range(count, 0, -1)]
    assert median_interval(values) == (at, count + 1 - at)


def test_a_core_whose_siblings_cannot_be_read_stands_for_itself():
    assert first_sibling(10**6) == 10**6


def test_what_nobody_measured_is_not_judged():
    assert verdict(Shown("tf32", 8.0), {}) == "not measured"


def test_a_gain_above_a_tenth_that_is_not_shown_is_missed():
    gains = {"tf32": Measured(2.0, 1.5, 2.5), "fused": Measured(3.0, 2.0, 4.0), "compile": None,
             "bf16": Measured(2.0, -1.0, 4.0)}  # fmt: skip
    assert misses([Shown("fused", 2.0)], gains, 10.0) == ["tf32"]
