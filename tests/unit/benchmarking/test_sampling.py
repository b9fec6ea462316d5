from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from opscope.benchmarking.sampling import Lane, Sampling
from opscope.model.benchmark import BenchmarkOptions, DeviceState, Status
from opscope.testing import FakeMonitor, FakeTimer

SECOND_NS = 1_000_000_000
COOL = DeviceState(at_ns=0)
HOT = DeviceState(at_ns=1, throttle_reasons=("sw_thermal",))


class FakeClock:
    """A host clock that moves only when told."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Recorder:
    """A watcher that notes what it is told, and lets the others go on or not."""

    def __init__(self, *, others_go_on: bool = True) -> None:
        self.failures: list[tuple[str, Status, str]] = []
        self.reports = 0
        self._others_go_on = others_go_on

    def failed(self, lane, failure) -> bool:
        self.failures.append((lane.name, failure.status, failure.reason))
        return self._others_go_on

    def progressed(self) -> None:
        self.reports += 1


def options(**changes) -> BenchmarkOptions:
    return BenchmarkOptions(**{"min_samples": 5, "max_samples": 50, "precision": 0.0, **changes})


def uneven() -> Iterator[int]:
    """Durations whose median is never known to within 0."""
    number = 0
    while True:
        number += 1
        yield 100_000 + number * 7919 % 1009


def sampling(lanes, chosen, *, timer=None, watcher=None, states=(), clock=None) -> Sampling:
    return Sampling(
        lanes,
        timer or FakeTimer(uneven()),
        chosen,
        watcher or Recorder(),
        read_state=FakeMonitor(states).read,
        now_ns=clock or FakeClock(),
    )


def idle() -> None:
    pass


def test_each_round_samples_every_lane_once_in_random_order():
    called: list[str] = []
    lanes = [Lane(name, [lambda name=name: called.append(name)]) for name in "abc"]
    sampling(lanes, options(max_samples=100)).run()
    rounds = [tuple(called[begin : begin + 3]) for begin in range(0, 300, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) == 6
    first = Counter(order[0] for order in rounds)
    assert min(first.values()) > 15
    assert all(lane.rounds == tuple(range(100)) for lane in lanes)


def test_the_seed_decides_the_order():
    def order(seed: int) -> list[str]:
        called: list[str] = []
        lanes = [Lane(name, [lambda name=name: called.append(name)]) for name in "abc"]
        sampling(lanes, options(seed=seed)).run()
        return called

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_all_lanes_use_the_same_inputs_in_a_round():
    used: dict[str, list[int]] = {"a": [], "b": []}
    lanes = [Lane(name, [lambda name=name, k=k: used[name].append(k) for k in range(3)]) for name in used]
    sampling(lanes, options(max_samples=7)).run()
    assert used["a"] == used["b"] == [0, 1, 2, 0, 1, 2, 0]


def test_samples_are_per_call_and_all_kept():
    lane = Lane("a", [idle], calls=4)
    sampling([lane], options(max_samples=6), timer=FakeTimer([400, 404, 9999, 402, 400, 401])).run()
    assert lane.samples_ns == (100.0, 101.0, 2499.75, 100.5, 100.0, 100.25)


def test_sampling_ends_when_every_median_is_precise_enough():
    lanes = [Lane("a", [idle]), Lane("b", [idle])]
    sampling(lanes, options(precision=0.01, max_samples=1000)).run()
    assert [len(lane.samples) for lane in lanes] == [7, 7]  # five cannot give a 95 % interval


def test_one_imprecise_lane_keeps_all_going():
    noisy = iter(range(1, 10_000))
    current: list[str] = []

    def durations() -> Iterator[int]:
        while True:
            yield 1000 if current.pop() == "quiet" else 1000 + 90 * (next(noisy) * 7919 % 13)

    lanes = [Lane(name, [lambda name=name: current.append(name)]) for name in ("quiet", "noisy")]
    sampling(lanes, options(precision=0.001), timer=FakeTimer(durations())).run()
    assert [len(lane.samples) for lane in lanes] == [50, 50]


def test_a_lane_without_time_left_leaves_after_the_minimum_and_the_others_go_on():
    clock = FakeClock()

    def take(duration_ns: int) -> None:
        clock.ns += duration_ns

    lanes = [Lane("slow", [lambda: take(SECOND_NS // 4)]), Lane("fast", [lambda: take(SECOND_NS // 50)])]
    sampling(lanes, options(time_budget_s=1.0), clock=clock).run()
    assert len(lanes[0].samples) == 5  # four would be the budget, five are the least
    assert len(lanes[1].samples) == 50
    assert lanes[0].rounds == lanes[1].rounds[:5]


def test_the_time_around_samples_counts_against_the_budget():
    clock = FakeClock()

    class Slow(Recorder):
        def progressed(self) -> None:
            super().progressed()
            clock.ns += SECOND_NS

    watcher = Slow()
    lane = Lane("a", [lambda: setattr(clock, "ns", clock.ns + SECOND_NS // 10)])
    run = sampling([lane], options(time_budget_s=3.0, max_samples=1000), watcher=watcher, clock=clock)
    run.run()
    assert watcher.reports == 1  # the next would be due after forty times what this one took
    assert len(lane.samples) == 20
    assert (run.in_samples_ns, run.elapsed_ns) == (2 * SECOND_NS, 3 * SECOND_NS)


def test_an_error_ends_its_lane_only():
    calls = iter(range(100))

    def fails_later() -> None:
        if next(calls) == 3:
            raise ValueError("broken")

    watcher = Recorder()
    lanes = [Lane("good", [idle]), Lane("bad", [fails_later])]
    sampling(lanes, options(), watcher=watcher).run()
    assert watcher.failures == [("bad", Status.FAILED, "ValueError while it was sampled: broken")]
    assert [len(lane.samples) for lane in lanes] == [50, 3]


def test_exhausted_memory_ends_its_lane_only():
    def greedy() -> None:
        raise MemoryError

    watcher = Recorder()
    lanes = [Lane("good", [idle]), Lane("greedy", [greedy])]
    sampling(lanes, options(), watcher=watcher).run()
    assert [failure[1] for failure in watcher.failures] == [Status.OUT_OF_MEMORY]
    assert len(lanes[0].samples) == 50


def test_nothing_goes_on_without_the_device():
    def breaks() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    lanes = [Lane("good", [idle]), Lane("bad", [breaks])]
    sampling(lanes, options(), watcher=Recorder(others_go_on=False)).run()
    assert len(lanes[0].samples) <= 1


def test_an_interruption_leaves_whole_samples():
    calls = iter(range(100))

    def interrupted() -> None:
        if next(calls) == 10:
            raise KeyboardInterrupt

    clock = FakeClock()
    lanes = [Lane("a", [interrupted]), Lane("b", [lambda: setattr(clock, "ns", clock.ns + 5)])]
    run = sampling(lanes, options(), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert len(lanes[0].samples) == 10
    assert len(lanes[1].samples) in {10, 11}
    assert run.elapsed_ns == 5 * len(lanes[1].samples)


def test_samples_between_reads_of_which_one_throttles_are_marked():
    clock = FakeClock()
    lane = Lane("a", [lambda: setattr(clock, "ns", clock.ns + 30_000_000)])
    run = sampling(
        [lane],
        options(max_samples=10, time_budget_s=9.0),
        states=[COOL, COOL, HOT, COOL, COOL, COOL, COOL],
        clock=clock,
    )
    run.run()
    assert [number for number, _ in run.states] == [0, 2, 4, 6, 8, 10, 10]
    assert run.throttled(lane) == (2, 3, 4, 5)


def test_nothing_is_throttled_where_nothing_can_be_read():
    lane = Lane("a", [idle])
    run = sampling([lane], options())
    run.run()
    assert run.states == []
    assert run.throttled(lane) == ()


def test_reads_are_rare():
    clock = FakeClock()
    monitor = FakeMonitor([COOL])
    lane = Lane("a", [lambda: setattr(clock, "ns", clock.ns + 1_000_000)])
    Sampling(
        [lane],
        FakeTimer(uneven()),
        options(max_samples=500, time_budget_s=9.0),
        Recorder(),
        read_state=monitor.read,
        now_ns=clock,
    ).run()
    assert monitor.reads == 12  # each 50 ms, and at both ends
