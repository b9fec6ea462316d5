from collections import Counter

from fakes import FakeTimer, scripted
from opscope.benchmarking.problem import Implementation, Problem
from opscope.benchmarking.run import Run, RunRow, throttled_samples, with_ratio, with_samples
from opscope.model.benchmark import BenchmarkOptions, DeviceState, Verdict
from opscope.model.sidecar import Environment

SECOND_NS = 1_000_000_000
COOL = DeviceState(at_ns=0)
HOT = DeviceState(at_ns=1, throttle_reasons=("sw_thermal",))


def row(name, bodies, **facts):
    return RunRow(Implementation(name, lambda: None), True, bodies=bodies, **facts)


class FakeClock:
    """A host clock that moves only when told."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns

    def call(self, duration_ns):
        """A call that takes so long by it."""
        return lambda: setattr(self, "ns", self.ns + duration_ns)


def options(**changes):
    return BenchmarkOptions(**{"min_samples": 5, "max_samples": 50, "precision": 0.0, **changes})


def uneven():
    """Durations whose median is never known to within 0."""
    number = 0
    while True:
        number += 1
        yield 100_000 + number * 7919 % 1009


def sampling(rows, chosen, *, timer=None, read_state=lambda: None, clock=None, on_change=lambda result: None):
    problem = Problem("p", "cpu", lambda seed: (), (), "a")
    environment = Environment(python="3", platform="Linux", opscope="0")
    timer = timer or FakeTimer(uneven())
    run = Run(problem, chosen, environment, timer, read_state, on_change, now_ns=clock or FakeClock())
    run.rows = rows
    return run


def rounds_of(one):
    return [number for number, _ in one.samples]


def idle():
    pass


def test_each_round_samples_every_series_once_in_random_order():
    called = []
    all_series = [row(name, [lambda name=name: called.append(name)]) for name in "abc"]
    sampling(all_series, options(max_samples=100)).sample(all_series)
    rounds = [tuple(called[begin : begin + 3]) for begin in range(0, 300, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) == 6
    first = Counter(order[0] for order in rounds)
    assert min(first.values()) > 15
    assert all(rounds_of(series) == list(range(100)) for series in all_series)


def test_all_series_use_the_same_inputs_in_an_order_of_the_seed():
    def order(seed):
        called = []
        all_series = [row(name, [lambda name=name: called.append(name)]) for name in "abc"]
        sampling(all_series, options(seed=seed)).sample(all_series)
        return called

    assert order(1) == order(1)
    assert order(1) != order(2)
    used = {"a": [], "b": []}
    all_series = [row(name, [lambda name=name, k=k: used[name].append(k) for k in range(3)]) for name in used]
    sampling(all_series, options(max_samples=7)).sample(all_series)
    assert used["a"] == used["b"] == [0, 1, 2, 0, 1, 2, 0]


def test_samples_are_per_call_and_all_kept():
    series = row("a", [idle], calls=4)
    sampling([series], options(max_samples=6), timer=FakeTimer([400, 404, 9999, 402, 400, 401])).sample(
        [series]
    )
    assert with_samples(series).samples_ns == (100.0, 101.0, 2499.75, 100.5, 100.0, 100.25)


def test_sampling_ends_when_every_median_is_precise_enough():
    all_series = [row("a", [idle]), row("b", [idle])]
    sampling(all_series, options(precision=0.01, max_samples=1000)).sample(all_series)
    assert [len(series.samples) for series in all_series] == [7, 7]  # five cannot give a 95 % interval


def test_one_imprecise_series_keeps_all_going():
    noisy = iter(range(1, 10_000))
    current = []

    def durations():
        while True:
            yield 1000 if current.pop() == "quiet" else 1000 + 90 * (next(noisy) * 7919 % 13)

    all_series = [row(name, [lambda name=name: current.append(name)]) for name in ("quiet", "noisy")]
    sampling(all_series, options(precision=0.001), timer=FakeTimer(durations())).sample(all_series)
    assert [len(series.samples) for series in all_series] == [50, 50]


def test_a_series_without_time_left_leaves_after_the_minimum_and_the_others_go_on():
    clock = FakeClock()
    all_series = [row("slow", [clock.call(SECOND_NS // 4)]), row("fast", [clock.call(SECOND_NS // 50)])]
    sampling(all_series, options(time_budget_s=1.0), clock=clock).sample(all_series)
    assert len(all_series[0].samples) == 5  # four would be the budget, five are the least
    assert len(all_series[1].samples) == 50
    assert rounds_of(all_series[0]) == rounds_of(all_series[1])[:5]


def test_the_time_around_samples_counts_against_the_budget():
    clock = FakeClock()

    reports = []

    def slow(result):
        reports.append(result)
        clock.ns += SECOND_NS

    series = row("a", [clock.call(SECOND_NS // 10)])
    run = sampling([series], options(time_budget_s=3.0, max_samples=1000), on_change=slow, clock=clock)
    run.sample([series])
    assert len(reports) == 1  # the next would be due after forty times what this one took
    assert len(series.samples) == 20
    assert run.in_samples_ns == 2 * SECOND_NS


def test_samples_between_reads_of_which_one_throttles_are_marked():
    clock = FakeClock()
    series = row("a", [clock.call(30_000_000)])
    run = sampling(
        [series],
        options(max_samples=10, time_budget_s=9.0),
        read_state=scripted([COOL, COOL, HOT, COOL, COOL, COOL, COOL]),
        clock=clock,
    )
    run.sample([series])
    assert [number for number, _ in run.states] == [0, 2, 4, 6, 8, 10, 10]
    assert throttled_samples(rounds_of(series), run.states) == (2, 3, 4, 5)


OPTIONS = BenchmarkOptions()


def sampled(name, samples):
    return with_samples(row(name, (), samples=samples))


def test_ratios_are_of_rounds_that_hold_both():
    reference = sampled("reference", [(number, 100) for number in range(10)])
    # From round 10 on the machine is twice as slow, and only the candidate is still sampled.
    candidate = sampled("a", [(number, 90 if number < 10 else 180) for number in range(40)])
    found = with_ratio(candidate, reference, OPTIONS)
    assert found.median_ns == 180
    assert (found.ratio, found.ratio_interval) == (0.9, (0.9, 0.9))
    assert found.verdict is Verdict.FASTER
    assert "over 10 rounds" in found.verdict_reason
    found = with_ratio(sampled("a", [(0, 1), (1, 1)]), sampled("reference", [(2, 1), (3, 1)]), OPTIONS)
    assert (found.ratio, found.verdict) == (None, None)
    reference = sampled("reference", [(0, 1), (1, 2)])
    found = with_ratio(reference, reference, OPTIONS)
    assert (found.ratio, found.ratio_interval, found.verdict) == (1.0, (1.0, 1.0), None)
    row = sampled("a", [(0, 5)])
    assert (row.samples_ns, row.median_ns, row.interval_ns) == ((5.0,), None, None)
