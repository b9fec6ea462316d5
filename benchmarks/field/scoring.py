"""Whether the changes of a first screen came true. Times are milliseconds of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Numbered changes of a first screen.
FIRST_SCREEN = 3
NEAR = 0.3
MISSED_SHARE = 0.1


class Shown(NamedTuple):
    """A change of the first screen: with a gain, or None where it says "unknown, try it"."""

    change: str
    gain_ms: float | None = None
    interval_ms: tuple[float, float] | None = None


class Measured(NamedTuple):
    """What a change took off a step: the median of the rounds, the least and the most of one."""

    gain_ms: float
    low_ms: float
    high_ms: float


def verdict(shown: Shown, gains: Mapping[str, Measured | None]) -> str:
    """`right`, `wrong`, `undecided` where rounds differ by more than the gain, `unknown` (shown as that).

    `impossible` counts as wrong; what nobody measured is `not measured`.
    """
    if shown.gain_ms is None:
        return "unknown"
    if shown.change not in gains:
        return "not measured"
    true = gains[shown.change]
    if true is None:
        return "impossible"
    low, high = shown.interval_ms or (shown.gain_ms, shown.gain_ms)
    is_near = abs(shown.gain_ms - true.gain_ms) <= NEAR * abs(true.gain_ms)
    if is_near or low <= true.gain_ms <= high:
        return "right"
    is_within = true.low_ms <= high and low <= true.high_ms
    is_noise = is_within and true.high_ms - true.low_ms > shown.gain_ms
    return "undecided" if is_noise else "wrong"


def misses(shown: Sequence[Shown], gains: Mapping[str, Measured | None], step_ms: float) -> list[str]:
    """Changes worth more than a tenth of the step, and something in every round, that no change names."""
    named, least = {one.change for one in shown}, MISSED_SHARE * step_ms
    return [
        change
        for change, gain in gains.items()
        if gain is not None and gain.gain_ms > least and gain.low_ms > 0 and change not in named
    ]
