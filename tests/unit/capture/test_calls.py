from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from opscope.capture.calls import profile_call, profiled  # noqa: E402
from opscope.errors import CaptureError  # noqa: E402

pytestmark = pytest.mark.torch


def test_profile_call_returns_the_last_result_and_the_cycle(tmp_path):
    calls = []

    def fn(a, b):
        calls.append(a @ b)
        return len(calls)

    result, cycle = profile_call(
        fn, torch.ones(2, 2), torch.ones(2, 2), output_dir=tmp_path, wait=1, active=2, unrecorded=0
    )
    assert result == 4
    assert cycle.sidecar.steps == 2
    names = [event["name"] for event in json.loads(cycle.trace_path.read_text())["traceEvents"]]
    assert names.count("aten::matmul") == 2


def test_a_failing_function_fails_unchanged(tmp_path):
    with pytest.raises(ZeroDivisionError):
        profile_call(lambda: 1 / 0, output_dir=tmp_path)
    with pytest.raises(CaptureError, match="out of memory"):
        profile_call(lambda: (_ for _ in ()).throw(MemoryError()), output_dir=tmp_path)


def test_profiled_records_the_calls_whose_turn_has_come(tmp_path):
    @profiled(tmp_path, warmup=1, active=2)
    def countdown(n: int) -> int:
        """Doc."""
        torch.ones(2)
        return countdown(n - 1) if n else 0

    assert [countdown(2) for _ in range(5)] == [0] * 5
    assert countdown.__name__ == "countdown"
    assert countdown.__doc__ == "Doc."
    assert [cycle.trace_path.name for cycle in countdown.cycles] == [
        "countdown_call1.json",
        "countdown_call2.json",
    ]
    trace = json.loads(countdown.cycles[0].trace_path.read_text())["traceEvents"]
    assert [event["name"] for event in trace].count("aten::ones") == 3


def test_profiled_passes_errors_and_goes_on(tmp_path):
    @profiled(tmp_path, active=2)
    def fn(x: int) -> float:
        return 1 / x

    with pytest.raises(ZeroDivisionError):
        fn(0)
    assert fn(2) == 0.5
    assert len(fn.cycles) == 1
