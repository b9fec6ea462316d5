"""How often verdicts are right on simulated noise: the same thing twice is `same`, 3 % more is found."""

import msgspec
import numpy as np
import pytest

from fakes import FakeTimer
from opscope.benchmarking.problem import Implementation, Problem
from opscope.benchmarking.run import Run, with_ratio, with_samples
from opscope.model.benchmark import BenchmarkOptions, Verdict
from opscope.model.sidecar import Environment

RUNS = 20
ENVIRONMENT = Environment(python="3", platform="Linux", opscope="0")
CALL_NS = 100_000
OPTIONS = BenchmarkOptions(time_budget_s=60.0, min_samples=20, max_samples=300, precision=0.002)

LENGTH = 2 * OPTIONS.max_samples


def alone(random, draw):
    return lambda: iter(draw())


def gaussian(random, part):
    return alone(random, lambda: 1 + part * random.standard_normal(LENGTH))


def quiet(random):
    return np.ones(LENGTH), gaussian(random, 0.001)


def noisy(random):
    return np.ones(LENGTH), gaussian(random, 0.03)


def drifting(random):
    return np.linspace(1.0, 1.3, LENGTH), gaussian(random, 0.005)


def throttled(random):
    """Clocks drop by a fifth at some time."""
    step = np.where(np.arange(LENGTH) < random.integers(30, LENGTH), 1.0, 1.25)
    return step, gaussian(random, 0.005)


def bimodal(random):
    """One call in six takes a tenth longer, whichever side."""
    return np.ones(LENGTH), alone(
        random, lambda: 1 + 0.1 * (random.random(LENGTH) < 1 / 6) + 0.003 * random.standard_normal(LENGTH)
    )


def heavy_tailed(random):
    return np.ones(LENGTH), alone(random, lambda: 1 + random.exponential(0.02, LENGTH))


def autocorrelated(random):
    """Each side has a slow disturbance of its own."""

    def draw():
        factor, state = [], 0.0
        for shock in random.normal(0, 0.004, LENGTH):
            state = 0.7 * state + shock
            factor.append(1 + state)
        return np.array(factor)

    return np.ones(LENGTH), alone(random, draw)


NOISES = [quiet, drifting, throttled, bimodal, autocorrelated]
# Sampled to the end, which takes a second.
SLOW = (noisy, heavy_tailed)
NOISES += [pytest.param(one, marks=pytest.mark.exhaustive) for one in SLOW]


def simulated_verdict(noise, seed, true_ratio):
    """The verdict of one run on a candidate that takes `true_ratio` times as long."""
    common, own = noise(np.random.default_rng(seed))
    sides = {"reference": own(), "candidate": own()}
    called = []

    def durations():
        for factor in common:
            side = called.pop()
            scale = true_ratio if side == "candidate" else 1.0
            yield round(CALL_NS * scale * factor * next(sides[side]))

    problem = Problem(
        "p", "cpu", print, tuple(Implementation(name, lambda: None) for name in sides), "reference"
    )
    options = msgspec.structs.replace(OPTIONS, seed=seed)
    run = Run(problem, options, ENVIRONMENT, FakeTimer(durations()), lambda: None, lambda result: None)
    for row in run.rows:
        row.is_prepared, row.bodies = True, [lambda name=row.name: called.append(name)]
    run.sample(run.rows)
    reference, candidate = map(with_samples, run.rows)
    verdict = with_ratio(candidate, reference, options).verdict
    assert verdict is not None
    return verdict


def rate(noise, true_ratio, verdict):
    return sum(simulated_verdict(noise, seed, true_ratio) is verdict for seed in range(RUNS)) / RUNS


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, Verdict.SAME), (1.03, Verdict.SLOWER)])
@pytest.mark.parametrize("noise", NOISES)
def test_the_same_is_the_same_and_three_percent_more_are_found(noise, ratio, verdict):
    assert rate(noise, ratio, verdict) >= 0.95


def test_too_much_noise_is_ambiguous_rather_than_a_difference():
    def wild(random):
        return np.ones(LENGTH), gaussian(random, 0.15)

    verdicts = [simulated_verdict(wild, seed, 1.0) for seed in range(RUNS)]
    assert verdicts.count(Verdict.AMBIGUOUS) >= 0.9 * RUNS
