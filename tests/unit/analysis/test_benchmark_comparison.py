"""Two benchmark results: verdicts, gates, and rows without a counterpart."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from fakes import ON_A_GPU, benchmark_result
from opscope.analysis.comparison_rules import (
    Timing,
    compare_benchmarks,
    gate_reasons,
    ratio_interval,
    resampled_means,
    resampled_medians,
    time_change,
)
from opscope.model.benchmark import (
    BenchmarkRow,
    CacheState,
    CallProfile,
    Clock,
    DeviceState,
    KernelUse,
    Status,
    Verdict,
)
from opscope.model.comparison import ComparisonOptions, Presence
from opscope.model.sidecar import Environment, GpuInfo

ENVIRONMENT = Environment(
    python="3.12", platform="Linux", opscope="0", torch="2.11.0",
    gpu=(GpuInfo("NVIDIA H200", "9.0", 132, 150_109_880_320),),
)  # fmt: skip


def row(name, median_ns, *, seed=0, count=60, **fields):
    noise = random.Random(f"{name}{seed}")
    samples = tuple(median_ns * (1 + noise.gauss(0, 0.004)) for _ in range(count))
    return BenchmarkRow(
        **{"name": name, "status": Status.OK, "samples_ns": samples, "median_ns": median_ns, **fields}
    )


def failed(name, status=Status.WRONG):
    return BenchmarkRow(name=name, status=status, reason="max relative error 0.3")


def launching(*names):
    uses = tuple(KernelUse(name, f"{name}<…>", "kernel", 1, 10) for name in names)
    return {"profile": CallProfile(3, len(names), 10, uses), "kernels_launched": float(len(names))}


def result(*rows, **fields):
    return benchmark_result(*rows, **{"shape": (8, 8), "environment": ENVIRONMENT, **ON_A_GPU, **fields})


def compare(reference, candidate):
    return compare_benchmarks([reference], [candidate])


def named(comparison, name):
    return next(row for _, row in comparison.rows if row.name == name)


def codes(comparison):
    return [finding.code for finding in comparison.findings]


BEFORE = result(row("torch", 100e3), row("triton", 80e3), row("old", 50e3))
AFTER = result(row("torch", 100e3, seed=1), row("triton", 90e3, seed=1), row("new", 50e3))


def test_rows_are_matched_by_name_and_judged():
    comparison = compare(BEFORE, AFTER)
    triton = named(comparison, "triton")
    assert triton.time.verdict is Verdict.SLOWER
    assert triton.time.ratio == pytest.approx(1.125, rel=0.005)
    low, high = triton.time.reference_interval_ns or (0, 0)
    assert low < (triton.time.reference_ns or 0) < high
    assert named(comparison, "torch").time.verdict is Verdict.SAME
    assert named(comparison, "old").presence is Presence.REMOVED
    assert named(comparison, "new").presence is Presence.ADDED
    assert comparison.verdict is Verdict.SLOWER
    assert comparison.verdict_reason == "1 slower, 1 same, 1 added, 1 removed"


def test_points_of_a_sweep_are_matched_and_the_rest_is_listed():
    def point(n):
        return result(row("torch", 100), shape=None, parameters={"n": n})

    comparison = compare_benchmarks([point(1), point(2), point(2)], [point(2), point(4)])
    assert [change.point.parameters for change in comparison.points] == [(("n", "2"),)]
    assert [one.parameters for one in comparison.only_in_reference] == [(("n", "1"),), (("n", "2"),)]
    assert [one.parameters for one in comparison.only_in_candidate] == [(("n", "4"),)]


@pytest.mark.parametrize(
    "fields", [{"dtype": "bfloat16"}, {"device": "cpu"}, {"shape": (4, 4)}, {"suite": "add"}]
)
def test_another_problem_does_not_match(fields):
    comparison = compare(BEFORE, result(row("torch", 100), **fields))
    assert (comparison.points, comparison.verdict) == ((), None)
    assert gate_reasons(comparison)


def test_a_row_that_is_wrong_now_fails_the_gate_and_one_that_is_right_again_does_not():
    comparison = compare(BEFORE, result(row("torch", 100e3), failed("triton"), row("old", 50e3)))
    triton = named(comparison, "triton")
    assert triton.is_broken
    assert triton.status_note == "ok → wrong: max relative error 0.3"
    assert (triton.time.verdict, triton.time.candidate_ns) == (None, None)
    assert gate_reasons(comparison) == ("gelu, triton was ok and is wrong",)
    comparison = compare(result(failed("triton")), result(row("triton", 10)))
    assert gate_reasons(comparison) == ()


@pytest.mark.parametrize("fields", [{"clock": Clock.CUDA_GRAPH}, {"cache_state": CacheState.HOT}])
def test_other_clocks_or_caches_get_no_verdict(fields):
    comparison = compare(result(row("torch", 100)), result(row("torch", 200), **fields))
    torch = named(comparison, "torch")
    assert torch.time.verdict is Verdict.AMBIGUOUS
    assert torch.time.ratio == pytest.approx(2, rel=0.01)
    assert codes(comparison) == ["compare.clocks_incomparable"]
    assert gate_reasons(comparison) == ()


def test_other_clocks_throttling_and_interruption_are_findings():
    fast, slow = (DeviceState(0, sm_clock_mhz=clock) for clock in (1980, 1400))
    reference = result(row("torch", 100, throttled=(1,)), device_state_after=fast, complete=False)
    comparison = compare(reference, result(row("torch", 100), device_state_after=slow))
    assert codes(comparison) == ["compare.clocks_differ", "compare.incomplete", "compare.throttled"]


def test_other_kernels_are_told():
    comparison = compare(
        result(row("torch", 100, **launching("a", "b"))), result(row("torch", 100, **launching("b")))
    )
    torch = named(comparison, "torch")
    assert (torch.reference_launches, torch.candidate_launches) == (2, 1)
    assert (torch.kernels_removed, torch.kernels_added) == (("a<…>",), ())


RESAMPLERS = [resampled_means, resampled_medians]


def timing(value, spread=0.005, count=20, seed=1):
    samples = value * (1 + spread * np.random.default_rng(seed).standard_normal(count))
    return Timing(float(np.median(samples)), tuple(map(float, samples)))


@pytest.mark.parametrize("resampled", RESAMPLERS)
@pytest.mark.parametrize(
    "count", [6, *(pytest.param(one, marks=pytest.mark.exhaustive(few=False)) for one in (10, 30))]
)
def test_intervals_of_equal_populations_hold_one_as_often_as_they_say(resampled, count):
    random = np.random.default_rng(5)
    trials = 200
    hits = 0
    for _ in range(trials):
        low, high = ratio_interval(resampled, 0, *(1 + 0.02 * random.standard_normal((2, count))))
        hits += low <= 1 <= high
    assert hits / trials >= 0.92


@pytest.mark.parametrize("resampled", RESAMPLERS)
def test_an_interval_narrows_with_samples_and_sides_may_differ_in_size(resampled):
    random = np.random.default_rng(5)
    widths = []
    for count in (8, 200):
        low, high = ratio_interval(resampled, 0, *(1 + 0.02 * random.standard_normal((2, count))))
        widths.append(high - low)
    assert widths[1] < widths[0] / 2
    first, second = np.full(6, 2.0), np.full(50, 1.0)
    assert ratio_interval(resampled, 0, first, second) == pytest.approx((2.0, 2.0))


def test_a_time_that_is_sometimes_zero_has_an_open_interval():
    low, high = ratio_interval(resampled_means, 0, np.full(6, 1.0), np.array([0, 0, 0, 0, 0, 1.0]))
    assert low > 0
    assert high == float("inf")


def change(reference, candidate, **options):
    return time_change(reference, candidate, resampled_medians, ComparisonOptions(), **options)


SAME, AMBIGUOUS = Verdict.SAME, Verdict.AMBIGUOUS
CLOCKS = "timed by different clocks"
CHANGES = {
    "slower": (change(timing(100), timing(110, seed=2)), Verdict.SLOWER, "× slower"),
    "faster": (change(timing(110, seed=2), timing(100)), Verdict.FASTER, "95 % CI 1."),
    "noise": (change(timing(100, 0.2), timing(105, 0.2, seed=2)), AMBIGUOUS, "is established"),
    "close": (change(timing(100, count=50), timing(100.5, count=50, seed=2)), SAME, "within 2.0 % of 1"),
    "equal": (change(timing(100, 0.5), timing(100, 0.5)), SAME, "equal to the nanosecond"),
    "few": (change(timing(100, count=5), timing(200, count=5, seed=2)), AMBIGUOUS, "5 samples, 6 needed"),
    "clocks": (change(timing(100), timing(200, seed=2), incomparable=CLOCKS), AMBIGUOUS, CLOCKS),
    "absent": (change(None, timing(100)), None, "only in the candidate"),
    "no time": (change(Timing(0.0, (0.0,) * 6), timing(100, count=6)), None, "no time in the reference"),
}


@pytest.mark.parametrize(("found", "verdict", "words"), CHANGES.values(), ids=CHANGES)
def test_a_verdict_says_what_it_rests_on(found, verdict, words):
    assert found.verdict is verdict
    assert words in (found.reason or "")


def test_sides_mirror_each_other_and_what_cannot_be_judged_has_no_interval():
    found = {name: row[0] for name, row in CHANGES.items()}
    slower = found["slower"].ratio_interval or ()
    assert found["faster"].ratio_interval == tuple(1 / end for end in reversed(slower))
    assert found["few"].ratio_interval is None
    assert found["clocks"].ratio == pytest.approx(2, rel=0.02)
    assert found["absent"].ratio is found["no time"].ratio is None


def test_some_faster_and_some_slower_is_ambiguous_as_a_whole():
    comparison = compare(result(row("a", 100), row("b", 100)), result(row("a", 150), row("b", 50)))
    assert comparison.verdict is Verdict.AMBIGUOUS
    assert comparison.verdict_reason == "1 slower, 1 faster"


def test_a_slower_row_within_the_threshold_passes_the_gate():
    comparison = compare(result(row("torch", 100)), result(row("torch", 110)))
    assert gate_reasons(comparison)
    (point,) = comparison.points
    slightly = replace(point.rows[0], time=replace(point.rows[0].time, ratio=1.015))
    assert slightly.time.verdict is Verdict.SLOWER
    within = replace(comparison, points=(replace(point, rows=(slightly,)),))
    assert gate_reasons(within) == ()
