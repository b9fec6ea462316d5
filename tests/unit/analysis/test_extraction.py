"""What a step gains by another version of a recorded call."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope import example_trace, load
from opscope.analysis.extraction import alone_calls, calls_of_file, chosen_call, extracted, step_gain
from opscope.analysis.summary import Summary
from opscope.operators.call_file import CallFile
from opscope.operators.starts import StartKind


def test_a_step_that_the_device_decides_loses_what_the_kernels_lose(tmp_path: Path) -> None:
    with load(example_trace()) as session:
        summary = Summary(session)
        calls = alone_calls(session, summary.efficiency)
        one = chosen_call(calls, "linear 8×128×3072")
        written = extracted(1, one, start=StartKind.ATEN).file
        assert isinstance(written, CallFile)
        file = tmp_path / "call.py"
        file.write_text(written.text.replace("return reference(input, weight, bias)", "return None"))
        assert calls_of_file(calls, file) == (one,)
        half = step_gain(summary, [one], "call", 0.5, (0.45, 0.55))
        slower = step_gain(summary, [one], "call", 2.0, None)
        assert half is not None
        assert slower is not None
    steps = len(summary.steps)
    assert half.calls == len(one.operator_ids) / steps
    assert half.gain.ns == pytest.approx(0.5 * one.device_ns / steps, rel=0.02)
    assert half.gain.low_ns == pytest.approx(0.45 * one.device_ns / steps, rel=0.02)
    assert slower.gain.ns == pytest.approx(-one.device_ns / steps, rel=0.02)
    assert half.step_ns == slower.step_ns > one.device_ns / steps
