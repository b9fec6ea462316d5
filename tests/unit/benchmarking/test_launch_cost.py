"""Costs of launches, with a device that is only pretended: batches, what a sample is divided by."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from contextlib import nullcontext  # noqa: E402

from opscope.benchmarking import device_limits as launch_cost  # noqa: E402


@pytest.fixture
def pretended(monkeypatch):
    """A device that notes what is asked of it."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: events.append(f"kernel of {cycles}"))
    return events


def test_a_launch_is_a_batch_over_its_number_and_begins_with_an_idle_device(pretended, monkeypatch):
    clock = itertools.count(0, 500_000)  # each batch lasts 0.5 ms by this clock
    monkeypatch.setattr(launch_cost.time, "perf_counter_ns", lambda: next(clock))
    found = launch_cost.launch_time("cuda:0")
    assert (found.name, found.sample_count) == ("launch", 61)
    assert (found.low_ns, found.median_ns, found.high_ns) == (2500, 2500, 2500)
    batches = [list(group) for key, group in itertools.groupby(pretended, key="wait".__eq__) if not key]
    assert [len(batch) for batch in batches] == [200] * 66
    assert set(batches[0]) == {"kernel of 0"}


def test_batches_fit_into_the_queue_twice():
    # A hot sample queues the batch twice behind a kernel that waits.
    assert 2 * launch_cost._BATCH < 1000


def test_an_operator_call_is_timed_the_same_way(pretended, monkeypatch):
    zeros = torch.zeros

    def zeros_on_the_cpu(*shape, device):
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", zeros_on_the_cpu)
    found = launch_cost.operator_call_time("cuda:0")
    assert 0 < found.low_ns <= found.median_ns <= found.high_ns
    assert "add_" in found.how


def test_the_interval_of_kernels_is_device_time_over_their_number(pretended, monkeypatch):
    class Timer:
        def __init__(self, device, cache_state):
            self.cache_state = cache_state

        def measure(self, fn):
            fn()
            return 300_000

    monkeypatch.setattr(launch_cost, "CudaEventTimer", Timer)
    found = launch_cost.kernel_interval("cuda:0")
    assert (found.name, found.median_ns, found.sample_count) == ("kernel_interval", 1500, 61)
    assert len(pretended) == 66 * 200
