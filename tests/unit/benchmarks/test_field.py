"""Edits of the field apply to its scripts, blocks are read as written, and shown changes are judged as said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FIELD = Path(__file__).parents[3] / "benchmarks/field"
sys.path.insert(0, str(FIELD))

from first_changes import edited  # noqa: E402
from scoring import Shown, misses, verdict  # noqa: E402
from trials import MORE, TRIALS, Trial  # noqa: E402

SHARED = FIELD.parents[2] / "shared/field/programs"


@pytest.mark.parametrize(("name", "trial"), [*TRIALS.items(), *MORE.items()])
def test_every_edit_applies_once_and_the_text_compiles(name: str, trial: Trial) -> None:
    path = FIELD / f"programs/{name}.py"
    path = path if path.exists() else SHARED / path.name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    text = edited(path.read_text(encoding="utf-8"), trial)
    compile(text, path.name, "exec")
    assert text.count("STEP()") + text.count("ENDLESS(") == 1


def test_every_program_has_its_trial() -> None:
    assert {path.stem for path in (FIELD / "programs").glob("*.py")} <= set(TRIALS)


@pytest.mark.parametrize(
    ("gain", "interval", "true", "expected"),
    [
        (8.0, None, 10.0, "right"),
        (5.0, (4.0, 11.0), 10.0, "right"),
        (5.0, (2.0, 11.0), 10.0, "unknown"),
        (7.2, (5.7, 10.5), 25.0, "wrong"),
        (7.2, (5.7, 10.5), -1.0, "wrong"),
        (1.0, None, None, "impossible"),
    ],
)
def test_verdict(
    gain: float, interval: tuple[float, float] | None, true: float | None, expected: str
) -> None:
    assert verdict(Shown("tf32", gain, interval), {"tf32": true}) == expected


def test_what_has_something_in_its_way_is_shown_as_unknown() -> None:
    assert verdict(Shown("tf32", 8.0, is_unknown=True), {"tf32": 1.0}) == "unknown"
    assert verdict(Shown("tf32", 8.0), {}) == "not measured"


def test_a_gain_above_a_tenth_that_is_not_shown_is_missed() -> None:
    assert misses([Shown("fused", 2.0)], {"tf32": 2.0, "fused": 3.0, "compile": None}, 10.0) == ["tf32"]
