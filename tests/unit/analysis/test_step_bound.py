from __future__ import annotations

import pytest

from opscope.analysis.step_model import StepBound, StepExecution


@pytest.mark.parametrize(
    ("step_ns", "host_ns", "device_ns", "bound"),
    [
        (100, 40, 99, StepBound.DEVICE),
        (100, 99, 40, StepBound.HOST),
        (100, 99, 96, StepBound.BALANCE),
        (100, 60, 70, StepBound.TURNS),
        (100, 79, 76, StepBound.TURNS),
    ],
)
def test_which_side_decides(step_ns: float, host_ns: float, device_ns: float, bound: StepBound) -> None:
    one = StepExecution(0, 100, step_ns, (step_ns, step_ns), host_ns, device_ns, 0.0, None, 0, ())
    assert one.bound is bound
