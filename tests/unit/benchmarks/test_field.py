"""The field's declarations apply to its scripts, and shown changes are scored as said."""

import sys
from pathlib import Path

import pytest

FIELD = Path(__file__).parents[3] / "benchmarks" / "field"
sys.path.insert(0, str(FIELD))

from scoring import Shown, misses, verdict  # noqa: E402
from trials import TRIALS  # noqa: E402


@pytest.mark.parametrize("path", sorted((FIELD / "programs").glob("*.py")), ids=lambda path: path.stem)
def test_every_edit_applies_once_and_the_text_compiles(path: Path) -> None:
    for _, _, _, _, edits in TRIALS.get(path.stem, []):
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        compile(text, path.name, "exec")


@pytest.mark.parametrize(
    ("gain", "interval", "true", "expected"),
    [
        (8.0, None, 10.0, "right"),
        (5.0, (4.0, 11.0), 10.0, "right"),
        (5.0, (2.0, 11.0), 10.0, "wrong"),
        (7.2, (5.7, 10.5), 25.0, "wrong"),
        (1.0, None, None, "impossible"),
    ],
)
def test_verdict(
    gain: float, interval: tuple[float, float] | None, true: float | None, expected: str
) -> None:
    assert verdict(Shown("tf32", gain, interval), true) == expected


def test_a_gain_above_a_tenth_that_is_not_shown_is_missed() -> None:
    assert misses([Shown("fused", 2.0)], {"tf32": 2.0, "fused": 3.0, "compile": None}, 10.0) == ["tf32"]
