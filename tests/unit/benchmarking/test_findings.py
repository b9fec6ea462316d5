from types import SimpleNamespace

import pytest

from opscope.benchmarking.findings import benchmark_findings
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, Clock, DeviceState, Status


def row(name="reference", *, median_us=100.0, **facts):
    median_ns = median_us * 1e3
    defaults = {
        "status": Status.OK,
        "samples_ns": (median_ns,) * 20,
        "median_ns": median_ns,
        "ratio": 1.0,
        "call_ns": median_ns,
    }
    return BenchmarkRow(name=name, **{**defaults, **facts})


def findings(*rows, clock=Clock.CUDA_EVENT, **facts):
    """Of a run of which so much is known."""
    run = SimpleNamespace(
        timer=SimpleNamespace(clock=clock, resolution_ns=500.0),
        options=BenchmarkOptions(),
        problem=SimpleNamespace(reference="reference"),
        **{"states": (), "unread": None, "ready": (), "lost": None, "ceilings_error": None},
        is_interrupted=False,
    )
    return list(benchmark_findings(rows, SimpleNamespace(**{**vars(run), **facts})))


def states(*clocks_mhz):
    return [(number, DeviceState(at_ns=number, sm_clock_mhz=mhz)) for number, mhz in enumerate(clocks_mhz)]


def bad(status):
    return BenchmarkRow(name="bad", status=status, reason="so it is")


def spread(step_ns):
    return row(samples_ns=tuple(100_000.0 + step_ns * number for number in range(20)))


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([row(device_ns=98_000.0), row("other")], {"states": states(345, 1980, 1965)}),
        ([row(call_ns=140_000.0)], {}),  # less than half as long again
        ([row(median_us=12, call_ns=16_900.0)], {}),  # not 5 µs
        ([row(call_ns=None)], {}),
        ([row(median_us=4, inner_repeats=3, call_ns=22_000.0)], {"clock": Clock.WALL}),  # knows no launches
        ([row(median_us=2, inner_repeats=5, call_ns=None)], {}),
        ([row(outliers=(1,))], {}),
    ],
)
def test_a_healthy_run_is_silent(rows, facts):
    assert findings(*rows, **facts) == []


THROTTLED = [(0, DeviceState(at_ns=0, throttle_reasons=("sw_power_cap",)))]
LAUNCHED = row(median_us=4, inner_repeats=3, call_ns=22_000.0, kernels_launched=3.0)
CASES = [
    ([LAUNCHED], {}, "launch_bound", "info", "22.0 µs a call; the GPU works 4.0 µs of that"),
    ([row(device_ns=5e4)], {}, "profile_differs", "info", "cold cache"),
    ([row(device_ns=1.4e5)], {}, "profile_differs", "info", "at the same time"),
    ([row()], {"states": states(345, 1980, 1500)}, "unstable_clocks", "warning", "between 1500 and 1980 MHz"),
    ([row(throttled=(1, 2, 3)), row("other")], {"states": THROTTLED},
     *("throttled", "warning", "(sw_power_cap) around 3 of 40 samples")),
    ([row()], {"unread": "pip install it"}, "clocks_unknown", "info", "pip install it"),
    ([row(median_us=2, inner_repeats=2, call_ns=None)], {}, "near_resolution", "warning",
     "reference 4000 ns"),
    ([row(outliers=(1, 2))], {}, "outliers", "info", "reference 10 %"),
    ([row(samples_ns=(1e5, 1e5, 1e5))], {}, "few_samples", "warning", "reference 75 %"),
    ([spread(200)], {}, "budget_missed", "info", "less precisely than ±0.2 %"),
    ([spread(5_000)], {}, "budget_missed", "warning", "less precisely than ±0.2 %"),
    ([row(), bad(Status.WRONG)], {}, "wrong_result", "error", "gets no verdict: so it is."),
    ([row(), bad(Status.MUTATES_INPUTS)], {}, "mutates_inputs", "error", "bad changes its inputs: so it is."),
    ([row(), bad(Status.NO_RESULT)], {}, "no_result", "error", "bad returns no tensor: so it is."),
    ([row(), bad(Status.FAILED)], {}, "failed", "warning", "bad failed: so it is."),
    ([row(), bad(Status.OUT_OF_MEMORY)], {}, "out_of_memory", "warning", "ran out of memory: so it is."),
    ([row(), bad(Status.UNAVAILABLE)], {}, "unavailable", "info", "left out on this machine: so it is."),
    ([row("other", ratio=None)], {}, "no_reference", "warning", "not among the implementations"),
    ([BenchmarkRow(name="reference", status=Status.CHECKED), row("other", ratio=None)], {},
     *("no_reference", "warning", "its status is checked")),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "facts", "code", "severity", "words"), CASES)
def test_what_is_unusual_is_told(rows, facts, code, severity, words):
    (finding,) = findings(*rows, **facts)
    assert (finding.code, finding.severity) == (f"bench.{code}", severity)
    assert words in finding.message
    assert finding.evidence.get("kernels_launched") == (3.0 if code == "launch_bound" else None)


def test_what_invalidates_figures_comes_first():
    wrong = BenchmarkRow(name="bad", status=Status.WRONG, reason="off by one")
    gone = BenchmarkRow(name="gone", status=Status.UNAVAILABLE, reason="no GPU")
    found = findings(row(), gone, wrong, lost="'bad' ended it", is_interrupted=True)
    assert [one.code for one in found] == [
        "bench.device_lost",
        "bench.wrong_result",
        "bench.interrupted",
        "bench.unavailable",
    ]
