from types import SimpleNamespace

import pytest

from case_tables import cases
from fakes import FakeTimer
from opscope.benchmarking import timer
from opscope.benchmarking.timer import LaunchHiding, benchmark_timer, take_samples
from opscope.errors import InputError, MeasurementError
from opscope.model.benchmark import CacheState, Clock

CYCLES_PER_NS = 2.0


FLUSH_NS = 80_000


L2_BYTES = 50_000_000


class FakeStream:
    """What a GPU's stream was given, and the little of torch that gives it."""

    def __init__(self, l2_bytes=L2_BYTES, free_bytes=10**12):
        self.queued: list[tuple[str, int]] = []
        self.busy_ns = 0
        self.buffer_bytes = 0
        self.int32 = "int32"
        self._l2_bytes = l2_bytes
        self._free_bytes = free_bytes
        self.cuda = SimpleNamespace(
            _sleep=self._sleep,
            Event=lambda enable_timing: FakeEvent(self),
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=self._l2_bytes),
        )

    def empty(self, count, dtype, device):
        self.buffer_bytes = 4 * count
        if self.buffer_bytes > self._free_bytes:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
        return SimpleNamespace(zero_=lambda: self._queue("flush", FLUSH_NS))

    def _sleep(self, cycles):
        self._queue("hold", round(cycles / CYCLES_PER_NS))

    def _queue(self, what, duration_ns):
        self.queued.append((what, duration_ns))
        self.busy_ns += duration_ns


class FakeEvent:
    def __init__(self, stream):
        self._stream = stream
        self.at_ns = 0

    def record(self):
        self.at_ns = self._stream.busy_ns

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at_ns - self.at_ns) / 1e6


@pytest.fixture
def make_hiding(monkeypatch):
    def make(cache_state=CacheState.COLD, **facts):
        stream = FakeStream(**facts)
        monkeypatch.setattr(timer, "require_torch", lambda: stream)
        hiding = LaunchHiding("cuda:0", cache_state)
        stream.queued.clear()
        return hiding, stream

    return make


def call():
    pass


def test_a_call_longer_than_the_flush_is_held_before_it_for_ten_milliseconds_at_most(make_hiding):
    def queued(duration_ns):
        hiding, stream = make_hiding()
        hiding.learn(call, duration_ns, was_hidden=True)
        hiding.precede(call)
        return stream.queued

    assert queued(20_000) == [("flush", FLUSH_NS)]
    (what, hold_ns), (then, _) = queued(200_000)
    assert (what, then) == ("hold", "flush")
    assert 200_000 < hold_ns + FLUSH_NS < 500_000
    assert queued(10**9)[0] == ("hold", 10_000_000)


def test_a_hold_grows_when_it_was_too_short_but_not_for_ever(make_hiding):
    hiding, stream = make_hiding()
    hiding.learn(call, 200_000, was_hidden=True)
    holds = []
    for _ in range(10):
        hiding.precede(call)
        holds.append(stream.queued[-2][1])
        hiding.learn(call, 250_000, was_hidden=False)
    assert holds[1] > holds[0]
    assert holds[-1] == holds[-2] <= 6 * 200_000


def test_the_flush_is_larger_than_any_cache_or_there_is_no_room_for_it(make_hiding):
    assert make_hiding(l2_bytes=50_000_000)[1].buffer_bytes == 256 * 2**20
    assert make_hiding(l2_bytes=2**30)[1].buffer_bytes == 2**32
    with pytest.raises(MeasurementError, match="no room for the 256 MiB"):
        make_hiding(free_bytes=10**6)


def test_a_hot_cache_is_made_by_an_untimed_call(make_hiding):
    hiding, stream = make_hiding(CacheState.HOT)
    before_it = []

    def fn():
        before_it.append(list(stream.queued))

    hiding.learn(fn, 10_000, was_hidden=True)
    hiding.precede(fn)
    assert len(before_it) == 1
    assert [what for what, _ in before_it[0]] == ["hold"]  # long enough to queue the call twice
    assert before_it[0][0][1] > 20_000


@pytest.mark.parametrize(
    ("clock", "why"), [(Clock.CUDA_EVENT, "needs a CUDA device, not 'cpu'"), (Clock.CUDA_GRAPH, "no longer")]
)
def test_clocks_that_cannot_be_used_are_refused(clock, why):
    with pytest.raises(InputError, match=why):
        benchmark_timer("cpu", clock, CacheState.COLD)


@cases("duration_ns", "least", "budget_ns", "count")
def test_the_sample_count_follows_from_the_time_budget(duration_ns, least, budget_ns, count):
    assert len(take_samples(call, FakeTimer([duration_ns] * 100), 0, least, 50, budget_ns)) == count
