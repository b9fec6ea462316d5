"""Steps without the profiler: which samples are warm-up, which clock is true, what follows from them."""

import pytest

from case_tables import cases
from fakes import sidecar
from opscope.analysis.measured_step import (
    MeasuredStep,
    StepClockKind,
    UnrecordedTime,
    measured_steps,
    unrecorded_time,
    warmup_count,
)
from opscope.analysis.session_comparison import compare_sessions
from opscope.analysis.timeline.values import HostTime
from opscope.analysis.timeline.windows import Step, TraceWindow
from opscope.ingest.kineto_file import keep_sidecars
from opscope.model.benchmark import Verdict
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep

NOISE = [10.0, 10.2, 9.9, 10.1, 10.0, 9.8, 10.1, 10.0, 10.3, 9.9]


@cases("times", "warmup")
def test_warm_up_is_recognized(times, warmup):
    listed = [[one] if one != "noise" else NOISE for one in times]
    assert warmup_count([time for some in listed for time in some]) == warmup


def samples(host, device=None, place=StepPlace.BEFORE, stretch=0, count=1):
    device = device or [None] * len(host)
    return [
        UnrecordedStep(StepKind.PERIOD, place, stretch, step, count, *clocks)
        for step, clocks in enumerate(zip(host, device, strict=True))
    ]


# The host's and the device's clock, whether the program uses a device; what is said.
CASES = {
    "waits for the device in every step": ([90, *[12] * 9], [90, *[11] * 9], True, (12, "host")),
    "runs ahead of the device": ([90, *[3] * 9], [90, *[11] * 9], True, (11, "device")),
    "lets the device work off its queue": ([90, *[12] * 9], [90, *[7] * 9], True, (12, "host")),
    "is blocked by a full queue now and then": ([90, *[1, 1, 40] * 3], [90, *[14] * 9], True, (14, "device")),
    "has no device": ([90, *[12] * 9], None, False, (12, "host")),
    "has a device no event was taken of": ([90, *[12] * 9], None, True, None),
    "has a first step only": ([90], [90], True, None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_slower_clock_is_the_steps(case):
    host, device, has_device, expected = case
    time = unrecorded_time(samples(host, device), has_device=has_device)
    assert (None if time is None else (time.median, str(time.clock))) == expected


def test_a_loop_that_ran_ahead_for_half_of_its_samples_took_as_long_as_the_device():
    """Then the host waited for a full queue: its median is the device's, and its samples are of two kinds."""
    host = [6.5, *[0.3] * 19, *[6.5] * 21]
    time = unrecorded_time(samples(host, [6.4] * len(host)), has_device=True)
    assert time.clock is StepClockKind.DEVICE
    assert time.low == time.high == 6.4


def test_the_median_has_an_interval_from_six_samples_on():
    time = unrecorded_time(samples([90, *range(10, 20)]), has_device=False)
    assert (time.median, time.low, time.high, time.samples, time.warmup_samples) == (14.5, 11, 18, 10, 1)
    assert time.coverage == pytest.approx(0.9785, abs=1e-4)
    assert (time.clock, time.place, time.least_host_ns) == (StepClockKind.HOST, StepPlace.BEFORE, 10)
    few = unrecorded_time(samples([90, 10, 12, 14]), has_device=False)
    assert (few.low, few.high, few.has_interval) == (10, 14, False)


def test_samples_of_several_steps_are_divided():
    assert unrecorded_time(samples([90, *[40] * 8], count=4), has_device=False).median == 10


def test_every_stretch_warms_up_and_places_are_not_mixed_without_need():
    before = samples([90, *[10] * 6])
    after = samples([90, *[14] * 20], place=StepPlace.AFTER, stretch=1)
    assert unrecorded_time([*before, *after], has_device=False).median == 10
    few = unrecorded_time([*before[:3], *after], has_device=False)
    assert (few.median, few.samples, few.warmup_samples, few.place) == (14, 22, 2, None)
    assert unrecorded_time(after, has_device=False).place is StepPlace.AFTER


def time_of(median, low, high):
    return UnrecordedTime(median, low, high, 10, 0.97, 1, StepClockKind.DEVICE, StepKind.PERIOD)


@cases("busy_ns", "fraction")
def test_the_busy_share_of_the_unrecorded_step(busy_ns, fraction):
    step = MeasuredStep(0, 25.0, busy_ns, time_of(10.0, 9.5, 10.5))
    assert step.busy_fraction == fraction
    assert (step.host_stretch, step.recorder_idle_ns) == (2.5, 15.0)


def test_nothing_follows_from_a_recorded_step_alone():
    step = MeasuredStep(0, 25.0, 5.0)
    assert (step.host_stretch, step.busy_fraction, step.recorder_idle_ns) == (None, None, None)
    assert MeasuredStep(0, 25.0, 5.0, time_of(26.0, 25.5, 26.5)).recorder_idle_ns == 0.0


def session_of(steps, *, partly=False):
    session = Session()
    session.replace_rows("steps", [{"trace_id": 0, "step": one, "duration_ns": 20 + one} for one in range(3)])
    if partly:
        session.add_findings([Finding("capture.partial_collection", Severity.INFO, "…", trace_id=0)])
    keep_sidecars(session, {0: sidecar(unrecorded_steps=tuple(steps))})
    return session


WINDOWS = {0: TraceWindow(0, 63, (Step(0, 0, 20, 20), Step(1, 20, 41, 41), Step(2, 41, 63, 63)))}


@pytest.mark.parametrize(("partly", "busy_ns"), [(False, 4.0), (True, None)])
def test_a_sessions_steps(partly, busy_ns):
    hosts = [HostTime(0, 3, 21.0, 4.0, 18.0, 2.0)]
    session = session_of(samples([90, *[7] * 8]), partly=partly)
    (step,) = measured_steps(session, WINDOWS, hosts)
    assert (step.trace_id, step.recorded_ns, step.busy_ns, step.unrecorded_ns.median) == (0, 21.0, busy_ns, 7)
    assert step.host_stretch == 3.0


def test_two_recordings_are_compared_by_it():
    quick, slow, alone = (session_of(samples(one)) for one in ([90, *[7] * 8], [90, *[14] * 8], []))
    change = compare_sessions(quick, slow).unrecorded
    assert (change.reference_ns, change.candidate_ns, change.ratio) == (7, 14, 2.0)
    assert change.verdict is Verdict.SLOWER
    assert compare_sessions(quick, alone).unrecorded is None
