"""What advice expected and what was measured, side by side in the user's history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.model.trial import Baseline, Correctness, TrialResult, TrialVerdict, Variant
from opscope.trials.predictions import SaidGain, append_history, gains_said


def variant(name: str, **fields: object) -> Variant:
    fields = {"verdict": TrialVerdict.FASTER, "correctness": Correctness.IDENTICAL, **fields}
    return Variant(name=name, ratio=0.75, ratio_interval=(0.7, 0.8), **fields)  # type: ignore[arg-type]


RESULT = TrialResult(
    program="train.py",
    baseline=Baseline(100.0, None, 1, 5, None),
    noise=None,
    variants=(
        variant(
            "tf32", finding="advice.tf32_off", predicted_gain_ns=30.0, predicted_interval_ns=(20.0, 40.0)
        ),
        variant("unsaid"),
        variant("wrong", predicted_gain_ns=10.0, correctness=Correctness.CHANGED),
        variant("broken", predicted_gain_ns=10.0, verdict=TrialVerdict.FAILED),
    ),
    not_tried=(),
    best=None,
    runs=4,
)


def test_pairs_of_said_and_measured_gains_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "data" / "gains.jsonl"
    assert append_history(file, RESULT, {"device": "a GPU"}) == 1
    assert append_history(file, RESULT, {"device": "a GPU"}) == 1
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first == second
    assert first.pop("measured_interval_ns") == pytest.approx([20.0, 30.0])
    assert first == {
        "device": "a GPU",
        "program": "train.py",
        "change": "tf32",
        "finding": "advice.tf32_off",
        "step_ns": 100.0,
        "predicted_gain_ns": 30.0,
        "predicted_interval_ns": [20.0, 40.0],
        "measured_gain_ns": 25.0,
        "verdict": "faster",
        "correctness": "identical",
    }


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


def test_a_history_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="history cannot be written"):
        append_history(tmp_path / "file" / "gains.jsonl", RESULT, {})
