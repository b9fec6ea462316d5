from dataclasses import replace
from types import SimpleNamespace

import pytest

from opscope.benchmarking import inputs
from opscope.benchmarking.inputs import bodies, calls_per_sample, make_input_sets
from opscope.benchmarking.problem import Implementation, Problem
from opscope.model.benchmark import CacheState

MB = 1_000_000


def problem_of(make_inputs):
    return Problem("p", "cpu", make_inputs, (Implementation("a", lambda: abs),), "a")


@pytest.mark.parametrize(
    ("set_bytes", "count"), [(300 * MB, 1), (100 * MB, 1), (50 * MB, 2), (10 * MB, 10), (4_000, 64), (0, 1)]
)
def test_sets_fill_the_cache_twice(monkeypatch, set_bytes, count):
    pytest.importorskip("torch")
    monkeypatch.setattr(inputs, "_CPU_CACHE_BYTES", 50 * MB)
    monkeypatch.setattr(inputs, "min_bytes", lambda *_: set_bytes)
    assert len(make_input_sets(problem_of(lambda seed: ()), 0, CacheState.COLD)) == count


@pytest.mark.parametrize(("free_bytes", "count"), [(400 * MB, 10), (140 * MB, 3), (0, 1)])
def test_sets_of_a_gpu_take_a_quarter_of_its_free_memory(torch, monkeypatch, free_bytes, count):
    device = SimpleNamespace(L2_cache_size=50 * MB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(inputs, "min_bytes", lambda *_: 10 * MB)
    problem = replace(problem_of(lambda seed: ()), device="cuda:0")
    assert len(make_input_sets(problem, 0, CacheState.COLD)) == count


def test_each_set_has_a_seed_of_its_own_and_a_hot_cache_needs_one_set(torch):
    seeds = []

    def make(seed):
        seeds.append(seed)
        return (torch.ones(1000),)

    assert len(make_input_sets(problem_of(make), 7, CacheState.UNCONTROLLED)) == 64
    assert seeds == list(range(8, 72))
    assert len(make_input_sets(problem_of(lambda _: (torch.ones(10),)), 0, CacheState.HOT)) == 1


def test_sets_that_do_not_fit_are_done_without_but_no_error_is_taken_for_that(torch):

    def make(seed):
        if seed > 3:
            raise MemoryError
        return (torch.ones(10),)

    assert len(make_input_sets(problem_of(make), 0, CacheState.COLD)) == 3

    def make(seed):
        return (torch.ones(10),) if seed == 1 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        make_input_sets(problem_of(make), 0, CacheState.COLD)


def test_short_calls_are_repeated_equally_often_for_all_but_those_longer_by_far():
    assert calls_per_sample([3_000, 2_600, 9_000], resolution_ns=500) == [4, 4, 4]
    assert calls_per_sample([20_000, 30_000], resolution_ns=500) == [1, 1]
    assert calls_per_sample([], resolution_ns=500) == []
    assert calls_per_sample([2_500, 5_000_000], resolution_ns=500) == [4, 1]


def test_a_sample_goes_on_with_the_next_sets():
    seen = []
    made = bodies(seen.append, [(0,), (1,), (2,)], 2)
    assert len(made) == 3
    for body in made:
        body()
    assert seen == [0, 1, 1, 2, 2, 0]
