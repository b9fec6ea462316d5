"""What advice expects of changes."""

from __future__ import annotations

from opscope.trials.predictions import SaidGain, gains_said


def test_a_gain_is_of_the_step_that_was_timed() -> None:
    finding = {
        "code": "advice.tf32_off",
        "estimated_gain_ns_per_step": 4.0,
        "gain_interval_ns_per_step": (2, 5),
    }
    step = {"unrecorded_ns": {"median": 10.0}}
    assert gains_said({"findings": [finding], "step": step})["tf32_off"].of(20.0) == SaidGain(
        8, (4, 10), "", 20
    )
    assert gains_said({"findings": [finding], "step": None})["tf32_off"].of(20.0) == SaidGain(4.0, (2, 5))
