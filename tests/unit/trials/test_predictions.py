"""What advice expects of changes."""

from __future__ import annotations

from pathlib import Path

from opscope.model.finding import Finding, Severity
from opscope.trials.predictions import SaidGain, gains_said, predicted
from opscope.trials.rounds import NO_RECORDING


def test_a_gain_is_of_the_step_that_was_timed() -> None:
    finding = Finding(
        code="advice.tf32_off",
        severity=Severity.WARNING,
        message="",
        estimated_gain_ns_per_step=4.0,
        gain_interval_ns_per_step=(2, 5),
    )
    assert gains_said([finding], 10.0)["tf32_off"].of(20.0) == SaidGain(8, (4, 10), "", 20)
    assert gains_said([finding], None)["tf32_off"].of(20.0) == SaidGain(4.0, (2, 5))


def test_a_recording_that_failed_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "trace.json").write_text("[1, 2")
    assert predicted(tmp_path, note=notes.append) == {}
    (tmp_path / NO_RECORDING).write_text("a profiler is running")
    assert predicted(tmp_path, note=notes.append) == {}
    assert predicted(tmp_path / "none", note=notes.append) == {}
    assert [one.startswith("no predictions: ") for one in notes] == [True, True, True]
    assert "a profiler is running" in notes[1]
    assert "the program ended before" in notes[2]
