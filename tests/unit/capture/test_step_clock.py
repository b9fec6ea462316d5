"""Timing steps without a profiler: what is a sample and what is none; with fakes of both clocks."""

import pytest

torch = pytest.importorskip("torch")

from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.capture.recording import AttachedProfilers, attached_profilers  # noqa: E402
from opscope.capture.step_clock import MOST_SAMPLES, StepClock, cycle_of, time_calls  # noqa: E402
from opscope.model.sidecar import StepKind, StepPlace  # noqa: E402

pytestmark = pytest.mark.torch


class FakeWorld:
    """A host's clock and a device's, in nanoseconds; taking a mark takes `cost_ns` of the host."""

    def __init__(self, cost_ns=0):
        self.host_ns = 0
        self.device_ns = 0
        self.cost_ns = cost_ns
        self.waits = 0
        self.profilers = AttachedProfilers()

    def clock(self):
        clock = StepClock(record=self.record, now_ns=lambda: self.host_ns, profilers=self.profilers)
        clock.start()
        return clock

    def record(self):
        self.host_ns += self.cost_ns
        return FakeEvent(self, self.device_ns)

    def step(self, host_ns, device_ns):
        self.host_ns += host_ns
        self.device_ns = max(self.device_ns, self.host_ns) + device_ns


class FakeEvent:
    def __init__(self, world, time_ns):
        self.world, self.time_ns = world, time_ns

    def synchronize(self):
        self.world.waits += 1

    def elapsed_time(self, end):
        return (end.time_ns - self.time_ns) / 1e6


@pytest.fixture
def world():
    return FakeWorld()


@pytest.fixture(autouse=True)
def torch_is_as_before():
    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    before = [getattr(torch.autograd.profiler, name) for name in names]
    yield
    assert [getattr(torch.autograd.profiler, name) for name in names] == before


def run(world, clock, steps, first=0, times_ns=(1_000_000, 3_000_000)):
    for step in range(first, first + steps):
        clock.mark(step)
        world.step(*times_ns)
    clock.mark(first + steps)


def stopped(world, steps, **more):
    """A clock that has seen so many steps."""
    clock = world.clock()
    run(world, clock, steps, **more)
    clock.stop()
    return clock


@pytest.mark.parametrize(
    ("long", "cycle"),
    [(range(5, 60, 6), (6, 5)), ((*range(5, 60, 6), 31), (6, 5)), ((7, 20, 41), None), ((), None)],
    ids=["every sixth", "and a stray one", "now and then", "none"],
)
def test_steps_of_which_every_so_many_is_long_come_in_cycles(long, cycle):
    assert cycle_of({step: 200 if step in long else 20 for step in range(60)}) == cycle


@pytest.mark.parametrize("is_of_device", [True, False], ids=["the device's", "a host's that runs ahead"])
def test_cycles_are_those_of_the_device_where_there_is_one(world, is_of_device):
    clock, found = world.clock(), []
    world.profilers._note(is_attached=True)
    world.profilers._note(is_attached=False)
    for step in range(40):
        clock.mark(step)
        found.append(clock.cycle())
        is_long = step % 6 == 5
        world.host_ns += 900 if is_long else 10
        world.device_ns += 150 if not is_of_device else 650 if is_long else 50
    clock.stop()
    assert {*found} == {None, (6, 5)} if is_of_device else {None}


def test_a_sample_runs_from_step_start_to_step_start_on_both_clocks(world):
    clock = stopped(world, 3)
    assert world.waits == 0
    taken = clock.read()
    assert [(one.step, one.step_count, one.host_ns, one.device_ns) for one in taken[1:]] == [
        (step, 1, 1_000_000, 3_000_000) for step in (1, 2)
    ]
    assert {(one.kind, one.place, one.stretch) for one in taken} == {(StepKind.PERIOD, StepPlace.BEFORE, 0)}
    assert world.waits == 1
    assert clock.read() == ()


def test_a_few_steps_begin_when_the_device_has_nothing_left_to_do(world):
    """The host runs ahead, and the step behind the wait shows how fast it is by itself."""
    clock = stopped(world, 60)
    assert world.waits == 5
    alone = [one for one in clock.read() if one.kind is StepKind.ALONE]
    assert [(one.step_count, one.host_ns) for one in alone] == [(1, 1_000_000)] * 5
    assert clock.sample_count == 55


def test_nothing_is_timed_while_any_profiler_is_attached_or_where_steps_were_not_marked(world):
    clock = world.clock()
    run(world, clock, 2)
    world.profilers._note(is_attached=True)
    run(world, clock, 5, first=2)
    world.profilers._note(is_attached=False)
    run(world, clock, 2, first=7)
    run(world, clock, 2, first=20)  # those between were not marked
    clock.stop()
    steps = [(one.place, one.stretch, one.step) for one in clock.read()]
    before, after = StepPlace.BEFORE, StepPlace.AFTER
    assert steps == [
        (before, 0, 0),
        (before, 0, 1),
        (after, 1, 7),
        (after, 1, 8),
        (after, 2, 20),
        (after, 2, 21),
    ]


def test_a_profiler_that_comes_and_goes_within_a_step_breaks_it(world):
    clock = world.clock()
    clock.mark(0)
    world.profilers._note(is_attached=True)
    world.profilers._note(is_attached=False)
    world.step(1, 1)
    clock.mark(1)
    clock.stop()
    assert clock.read() == ()


def test_each_step_is_a_sample_or_has_several_where_the_host_runs_ahead():
    clock = stopped(FakeWorld(cost_ns=8_000), 50, times_ns=(386_000, 0))
    assert {(one.step_count, one.host_ns) for one in clock.read()} == {(1, 386_000)}
    clock = stopped(FakeWorld(cost_ns=40_000), 120, times_ns=(75_000, 10_000_000))
    assert len(clock.read()) >= 16


def test_the_latest_are_kept_before_a_recording_and_the_first_after_it(world):
    clock = world.clock()
    run(world, clock, MOST_SAMPLES + 5)
    world.profilers._note(is_attached=True)
    world.profilers._note(is_attached=False)
    assert not clock.is_full
    run(world, clock, MOST_SAMPLES + 5, first=200)
    assert clock.is_full
    clock.stop()
    steps = [one.step for one in clock.read()]
    assert (steps[0], steps[MOST_SAMPLES], len(steps)) == (5, 200, 2 * MOST_SAMPLES)


def test_samples_of_a_broken_device_are_dropped(world):
    clock = stopped(world, 2)

    def fail(self):
        raise RuntimeError("an illegal memory access was encountered")

    broken = type("Broken", (FakeEvent,), {"synchronize": fail})
    clock._samples[-1][2].__class__ = broken
    assert clock.read() == ()


@pytest.mark.parametrize("is_warming_up", [True, False])
def test_profilers_of_torch_are_seen_in_their_warmup_too(is_warming_up):
    clock = StepClock()
    clock.start()
    profiler = torch.profiler.profile(schedule=lambda step: torch.profiler.ProfilerAction.WARMUP)
    if not is_warming_up:
        profiler = torch.profiler.profile()
    for step in range(3):
        clock.mark(step)
    with profiler:
        assert attached_profilers.is_attached
        for step in range(3, 9):
            clock.mark(step)
    assert not attached_profilers.is_attached
    for step in range(9, 12):
        clock.mark(step)
    clock.stop()
    covered = [range(one.step, one.step + one.step_count) for one in clock.read()]
    assert all(steps.stop <= 2 or steps.start >= 9 for steps in covered)
    assert covered


def work():
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_a_function_is_called_until_there_are_enough_samples_but_not_beside_a_profiler():
    assert time_calls(work, 0) == ()
    taken = time_calls(work, 4)
    assert len(taken) == 7
    assert {(one.place, one.device_ns) for one in taken} == {(StepPlace.BEFORE, None)}
    assert len(time_calls(work, MOST_SAMPLES)) == MOST_SAMPLES
    with torch.profiler.profile():
        assert time_calls(lambda: 1 / 0, 4) == ()


def test_of_a_long_wait_the_last_steps_are_timed(tmp_path):
    with Profiler(tmp_path, wait=MOST_SAMPLES + 30, warmup=0, active=1) as profiler:
        for _ in range(profiler.total_steps):
            if not profiler.pass_step():
                profiler.step()
    steps = [one.step for one in profiler.cycles[0].sidecar.unrecorded_steps]
    assert steps == list(range(30, MOST_SAMPLES + 30))


def test_a_sidecar_that_was_taken_away_stays_away(tmp_path):
    with Profiler(tmp_path, warmup=0, active=1) as profiler:
        for _ in range(20):
            work()
            profiler.step()
            for sidecar in tmp_path.glob("*.opscope.json"):
                sidecar.unlink()
    assert not list(tmp_path.glob("*.opscope.json"))
