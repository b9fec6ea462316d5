"""Whether the changes of a first screen came true. Times are milliseconds of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Changes of a first screen that have a gain.
FIRST_SCREEN = 3
NEAR = 0.3
MISSED_SHARE = 0.1


class Shown(NamedTuple):
    """A change of the first screen: with a gain, or None where it says "unknown, try it"."""

    change: str
    gain_ms: float | None = None
    interval_ms: tuple[float, float] | None = None


class Measured(NamedTuple):
    """What a change took off a step: the median of the rounds, and an interval of that median."""

    gain_ms: float
    low_ms: float
    high_ms: float


def verdict(shown: Shown, gains: Mapping[str, Measured | None]) -> str:
    """`right`: near the true gain, or that lies in the shown interval; else `undecided` or `wrong`.

    `undecided`: another value of the measured interval would make it right. `impossible` counts as wrong;
    what is shown as unknown is `unknown`, and what nobody measured is `not measured`.
    """
    if shown.gain_ms is None:
        return "unknown"
    if shown.change not in gains:
        return "not measured"
    true = gains[shown.change]
    if true is None:
        return "impossible"
    # True gains that the shown one is near to, and those of its interval.
    near = sorted((shown.gain_ms / (1 + NEAR), shown.gain_ms / (1 - NEAR)))
    right = [near, shown.interval_ms or near]
    if any(low <= true.gain_ms <= high for low, high in right):
        return "right"
    could_be = any(true.low_ms <= high and low <= true.high_ms for low, high in right)
    return "undecided" if could_be else "wrong"


def misses(shown: Sequence[Shown], gains: Mapping[str, Measured | None], step_ms: float) -> list[str]:
    """Changes worth more than a tenth of the step, and surely something, that no change names."""
    # In 16 bits one way or the other.
    named = {one.change.replace("bf16_weights", "bf16") for one in shown}
    least = MISSED_SHARE * step_ms
    return [
        change
        for change, gain in gains.items()
        if gain is not None and gain.gain_ms > least and gain.low_ms > 0 and change not in named
    ]
