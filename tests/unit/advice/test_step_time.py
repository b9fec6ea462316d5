"""What a change is worth follows from the slower side, and never exceeds the distance to the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opscope.advice.step_time import Saving, StepTime, slowest, step_times, typical

from opscope.advice.rules import rule_book
from opscope.analysis.timeline.values import HostTime

DURATIONS = st.floats(min_value=0, max_value=1e9)
STEPS = st.builds(
    StepTime,
    busy_ns=DURATIONS,
    gap_ns=st.sampled_from([0.0, 1000.0]),
    host_ns=DURATIONS,
    host_error_ns=DURATIONS,
    launches=st.floats(min_value=1, max_value=1e4),
    recorded_ns=DURATIONS,
    recorder_ns=DURATIONS,
)


def test_bert_by_tf32_is_held_by_its_host() -> None:
    """BERT-base, batch 8, on an H200: 6.61 ms bare, 3.12 ms with TF32, where launching is the limit."""
    step = StepTime(busy_ns=6.394e6, gap_ns=1000, host_ns=3.1e6, launches=157)
    assert step.limit_ns == pytest.approx(6.61e6, rel=0.02)
    gain_ns = step.gain_ns(Saving(device_ns=5.0e6))
    assert gain_ns == pytest.approx(6.61e6 - 3.12e6, rel=0.05)


def test_a_host_bound_step_gains_nothing_from_the_device() -> None:
    step = StepTime(busy_ns=2e6, host_ns=5e6, launches=100)
    assert step.is_host_bound
    assert step.gain_ns(Saving(device_ns=1.5e6)) == 0
    assert step.gain_ns(Saving(host_ns=1e6)) == 1e6
    assert step.gain_ns(Saving(host_ns=4.5e6)) == 3e6


def test_waits_are_gained_only_as_far_as_a_step_waits() -> None:
    step = StepTime(busy_ns=2e6, host_ns=1e6, launches=10, recorded_ns=2.5e6, recorder_ns=0.1e6)
    assert step.waiting_ns == pytest.approx(0.4e6)
    assert step.gain_ns(Saving(waiting_ns=0.3e6)) == pytest.approx(0.3e6)
    assert step.gain_ns(Saving(waiting_ns=5e6)) == pytest.approx(0.4e6)


def test_an_uncertain_host_gives_the_mean_of_what_it_may_be() -> None:
    certain = StepTime(busy_ns=10e6, host_ns=10e6, launches=10)
    uncertain = StepTime(busy_ns=10e6, host_ns=10e6, host_error_ns=3e6, launches=10)
    assert certain.gain_ns(Saving(host_ns=9e6)) == 0
    assert uncertain.gain_ns(Saving(host_ns=9e6)) == pytest.approx(1e6)


def test_without_a_host_nothing_is_promised() -> None:
    assert StepTime(busy_ns=5e6).gain_ns(Saving(device_ns=4e6)) is None


@given(STEPS)
def test_no_saving_no_gain(step: StepTime) -> None:
    assert step.gain_ns(Saving()) == pytest.approx(0, abs=1e-3)


@given(STEPS, DURATIONS, DURATIONS)
def test_saving_more_never_gains_less(step: StepTime, less: float, more: float) -> None:
    less, more = sorted((less, more))
    for kind in ("device_ns", "host_ns", "waiting_ns"):
        first, second = step.gain_ns(Saving(**{kind: less})), step.gain_ns(Saving(**{kind: more}))
        assert first is not None
        assert second is not None
        assert second >= first - 1e-3


@given(STEPS, DURATIONS, DURATIONS)
def test_a_gain_is_at_most_what_is_saved_on_both_sides(step: StepTime, device: float, host: float) -> None:
    gain_ns = step.gain_ns(Saving(device_ns=device, host_ns=host))
    assert gain_ns is not None
    assert -1e-3 <= gain_ns <= max(device, host) + 1e-3


@given(STEPS, DURATIONS)
def test_no_device_saving_passes_the_host(step: StepTime, device: float) -> None:
    certain = StepTime(step.busy_ns, step.gap_ns, step.host_ns, launches=step.launches)
    gain_ns = certain.gain_ns(Saving(device_ns=device))
    assert gain_ns is not None
    assert certain.limit_ns - gain_ns >= (certain.host_ns or 0.0) - 1e-3


def test_steps_of_traces_leave_out_the_recorder_and_waiting_for_others() -> None:
    hosts = [
        HostTime(0, 2, 20e6, 15e6, 9e6, 500, 3e6, "counted"),
        HostTime(1, 2, 20e6, 8e6, 18e6, 500, 3e6, "counted"),
        HostTime(2, 0, 20e6, 8e6, 18e6, 500, 3e6, "counted"),
    ]
    steps = step_times(hosts, {0: 9e6}, rule_book())
    assert set(steps) == {0, 1}
    assert steps[0].busy_ns == 6e6
    assert steps[0].host_ns == 6e6
    assert steps[0].host_error_ns == pytest.approx(1e6, rel=0.01)
    late = slowest(steps.values())
    assert late is steps[1]
    assert typical(steps.values()) is steps[1]
    assert typical([]) is None


def test_a_trace_without_launches_tells_no_host_time() -> None:
    steps = step_times([HostTime(0, 1, 5e6, 4e6, 0.0, 0, None)], {}, rule_book())
    assert steps[0].host_ns is None
    assert steps[0].waiting_ns == pytest.approx(1e6)
