from __future__ import annotations

import pytest

from opscope.benchmarking.findings import RunFacts, benchmark_findings
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, DeviceState, Status
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Clock


def row(name: str = "reference", *, median_us: float = 100.0, **facts) -> BenchmarkRow:
    median_ns = median_us * 1e3
    defaults = {
        "status": Status.OK,
        "samples_ns": (median_ns,) * 20,
        "median_ns": median_ns,
        "ratio": 1.0,
        "call_ns": median_ns,
    }
    return BenchmarkRow(name=name, **{**defaults, **facts})


def findings(*rows: BenchmarkRow, clock: Clock = Clock.CUDA_EVENT, **facts) -> list[Finding]:
    given = {"resolution_ns": 500.0, "options": BenchmarkOptions(), "reference": "reference", **facts}
    return list(benchmark_findings(rows, RunFacts(clock=clock, **given)))


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_a_healthy_run_is_silent():
    states = [DeviceState(at_ns=number, sm_clock_mhz=mhz) for number, mhz in enumerate((345, 1980, 1965))]
    assert findings(row(device_ns=98_000.0), row("other"), states=states) == []


def test_a_call_the_host_takes_longer_for_is_launch_bound():
    finding = only(findings(row(median_us=4, inner_repeats=3, call_ns=22_000.0, kernels_launched=3.0)))
    assert finding.code == "bench.launch_bound"
    assert "22.0 µs a call, of which the GPU works 4.0 µs" in finding.message
    assert finding.evidence["kernels_launched"] == 3.0


@pytest.mark.parametrize(
    "facts",
    [
        {"median_us": 100, "call_ns": 140_000.0},  # less than half as long again
        {"median_us": 12, "call_ns": 16_900.0},  # not 5 µs
        {"median_us": 100, "call_ns": None},
    ],
)
def test_a_little_more_host_time_is_not_launch_bound(facts):
    assert findings(row(**facts)) == []


def test_the_wall_clock_knows_no_launches():
    assert findings(row(median_us=4, inner_repeats=3, call_ns=22_000.0), clock=Clock.WALL) == []


@pytest.mark.parametrize(("device_us", "words"), [(50.0, "cold cache"), (140.0, "at the same time")])
def test_a_profile_that_disagrees_with_the_timer_is_told(device_us, words):
    finding = only(findings(row(device_ns=device_us * 1e3)))
    assert finding.code == "bench.profile_differs"
    assert words in finding.message


def test_clocks_that_move_are_told():
    states = [DeviceState(at_ns=number, sm_clock_mhz=mhz) for number, mhz in enumerate((345, 1980, 1500))]
    finding = only(findings(row(), states=states))
    assert finding.code == "bench.unstable_clocks"
    assert "between 1500 and 1980 MHz" in finding.message


def test_throttled_samples_are_counted_with_their_reasons():
    states = [DeviceState(at_ns=0, throttle_reasons=("sw_power_cap",))]
    finding = only(findings(row(throttled=(1, 2, 3)), row("other"), states=states))
    assert finding.code == "bench.throttled"
    assert "(sw_power_cap) around 3 of 40 samples" in finding.message


def test_unread_clocks_are_told():
    finding = only(findings(row(), unread="pip install 'opscope[nvml]'"))
    assert (finding.code, finding.severity) == ("bench.clocks_unknown", Severity.INFO)


def test_samples_near_the_timers_resolution_are_told():
    finding = only(findings(row(median_us=2, inner_repeats=2, call_ns=None)))
    assert finding.code == "bench.near_resolution"
    assert "reference 4000 ns" in finding.message
    assert findings(row(median_us=2, inner_repeats=5, call_ns=None)) == []


def test_many_outliers_are_told_few_are_not():
    assert only(findings(row(outliers=(1, 2)))).code == "bench.outliers"
    assert findings(row(outliers=(1,))) == []


def test_few_samples_say_what_they_cover():
    finding = only(findings(row(samples_ns=(1e5, 1e5, 1e5))))
    assert finding.code == "bench.few_samples"
    assert "reference 75 %" in finding.message


@pytest.mark.parametrize(("step_ns", "severity"), [(200, Severity.INFO), (5_000, Severity.WARNING)])
def test_a_missed_precision_is_told(step_ns, severity):
    samples = tuple(100_000.0 + step_ns * number for number in range(20))
    finding = only(findings(row(samples_ns=samples)))
    assert (finding.code, finding.severity) == ("bench.budget_missed", severity)
    assert "less precisely than ±0.2 %" in finding.message


@pytest.mark.parametrize(
    ("status", "severity"),
    [
        (Status.WRONG, Severity.ERROR),
        (Status.MUTATES_INPUTS, Severity.ERROR),
        (Status.NO_RESULT, Severity.ERROR),
        (Status.FAILED, Severity.WARNING),
        (Status.OUT_OF_MEMORY, Severity.WARNING),
        (Status.UNAVAILABLE, Severity.INFO),
    ],
)
def test_what_is_not_measured_is_told_with_its_reason(status, severity):
    bad = BenchmarkRow(name="bad", status=status, reason="so it is")
    finding = only(findings(row(), bad))
    assert finding.severity is severity
    assert finding.message.endswith(": so it is.")
    assert finding.message.startswith("bad ")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ([], "not among the implementations"),
        ([BenchmarkRow(name="reference", status=Status.CHECKED)], "its status is checked"),
    ],
)
def test_a_missing_reference_is_told(reference, words):
    finding = only(findings(*reference, row("other", ratio=None)))
    assert finding.code == "bench.no_reference"
    assert words in finding.message


def test_what_invalidates_figures_comes_first():
    bad = BenchmarkRow(name="bad", status=Status.WRONG, reason="off by one")
    gone = BenchmarkRow(name="gone", status=Status.UNAVAILABLE, reason="no GPU")
    found = findings(row(), gone, bad, lost="'bad' ended it", is_interrupted=True)
    assert [one.code for one in found] == [
        "bench.device_lost",
        "bench.wrong_result",
        "bench.interrupted",
        "bench.unavailable",
    ]
