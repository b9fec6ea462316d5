"""What rounds and processes say together: the exact interval, and the scatter between processes in it."""

import math

import numpy as np
import pytest

from opscope.model.trial import TrialVerdict
from opscope.trials.pooling import LOOKS, is_decided, noise_of, pooled, signed_rank_interval


def test_the_interval_of_signed_ranks_is_exact():
    # Of eight differences P(W = 0) = 1/256, both sides 0.8 %: the extremes alone lie outside of 99 %.
    assert signed_rank_interval(range(8)) == (3.5, 0.0, 7.0)
    assert signed_rank_interval(range(7))[1:] == (-math.inf, math.inf)
    middle, low, high = signed_rank_interval([0.1] * 16)
    assert (middle, low, high) == pytest.approx((0.1, 0.1, 0.1))


def test_arms_are_told_apart_within_a_process_as_seldom_or_often_as_they_should():
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        rounds = draw.standard_t(3, 128) * 0.02
        looks = [signed_rank_interval(rounds[:count]) for count in LOOKS]
        wrong += any(low > 0 or high < 0 for _, low, high in looks)
    assert wrong <= 0.05 * 300
    found = [signed_rank_interval(draw.normal(0.03, 0.02, 32)).low > 0 for _ in range(100)]
    assert sum(found) >= 99


def test_a_process_looks_at_some_rounds_only():
    assert is_decided([-0.5] * 8)
    assert is_decided([0.001, -0.001] * 4)
    assert not is_decided([-0.5] * 9)
    assert not is_decided([-0.1, 0.1] * 8)


def processes(ratio, count, seed=0):
    """Ratios that differ by 1.4 % between processes and by 1 % between rounds."""
    draw = np.random.default_rng(seed)
    return [
        (math.log(ratio) + draw.normal(0, 0.014) + draw.normal(0, 0.01, 16)).tolist() for _ in range(count)
    ]


def test_the_program_against_itself_is_the_same():
    verdicts = [pooled(processes(1.0, 2, seed)).verdict for seed in range(200)]
    assert verdicts.count(TrialVerdict.SAME) >= 196


@pytest.mark.parametrize(("common", "own"), [(0.0, 0.014), (0.01, 0.01), (0.0, 0.003)])
def test_changes_say_together_how_far_processes_of_a_program_are_apart(common, own):
    """Two processes of twelve rounds of eight equal changes, which share what the program is apart."""
    draw, verdicts, halves = np.random.default_rng(2), [], []
    for _ in range(100):
        base = draw.normal(0, common, 2)
        arms = [
            [(away + draw.normal(0, own) + draw.normal(0, 0.01, 12)).tolist() for away in base]
            for _ in range(8)
        ]
        noise = noise_of(arms)
        found = [pooled(one, noise) for one in arms]
        verdicts += [one.verdict for one in found]
        halves += [math.log(one.interval[1] / one.interval[0]) / 2 for one in found]
    assert verdicts.count(TrialVerdict.SAME) >= 0.985 * len(verdicts)
    assert sum(one in {TrialVerdict.FASTER, TrialVerdict.SLOWER} for one in verdicts) <= 0.01 * len(verdicts)
    assert 0.015 < np.median(halves) < (0.027 if own > 0.005 else 0.022)


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
def test_few_rounds_borrow_the_noise_of_other_changes(heavy):
    """Two processes of four rounds of six changes, the last a fifth faster; blocks differ by 5 %."""
    draw, verdicts, found = np.random.default_rng(1), [], []
    for _ in range(200):
        arms = [[] for _ in range(6)]
        for _ in range(2):
            blocks = 0.05 * (draw.standard_t(3, (4, 8)) / 1.7 if heavy else draw.normal(0, 1, (4, 8)))
            for number, arm in enumerate(arms):
                away = draw.normal(0, 0.014) + (math.log(0.8) if number == 5 else 0.0)
                arm.append((away + blocks[:, number] - blocks[:, 6:].mean(axis=1)).tolist())
        noise = noise_of(arms)
        *equal, faster = (pooled(one, noise).verdict for one in arms)
        verdicts += equal
        found.append(faster)
    assert found.count(TrialVerdict.FASTER) >= 198
    assert sum(one in {TrialVerdict.FASTER, TrialVerdict.SLOWER} for one in verdicts) <= 0.025 * len(verdicts)


@pytest.mark.parametrize(("ratio", "verdict"), [(0.93, TrialVerdict.FASTER), (1.07, TrialVerdict.SLOWER)])
def test_what_is_apart_by_more_than_processes_is_told(ratio, verdict):
    verdicts = [pooled(processes(ratio, 2, seed)).verdict for seed in range(100)]
    assert verdicts.count(verdict) >= 95


def test_one_process_and_few_rounds_tell_less():
    def width(rounds):
        low, high = pooled(rounds).interval
        return math.log(high / low)

    two, one = processes(1.0, 2), processes(1.0, 1)
    assert width(two) < width(one) < width([one[0][:2]])
    # That two processes agree does not make the third agree; that they differ counts.
    assert width([[0.0] * 16] * 2) > 0.04
    assert width([[-0.1] * 16, [0.1] * 16]) > 4 * width([[0.0] * 16] * 2)
