"""Whether shown changes came true: shown gains against gains measured in turns. Times are milliseconds of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NEAR = 0.3
WIDEST_INTERVAL = 3.0
MISSED_SHARE = 0.1


@dataclass(frozen=True)
class Shown:
    """A change of the first screen."""

    change: str
    gain_ms: float
    interval_ms: tuple[float, float] | None = None


def verdict(shown: Shown, true_gain_ms: float | None) -> str:
    """`right`, `wrong`, or `impossible` where the change cannot be made (no true gain), which counts as wrong."""
    if true_gain_ms is None:
        return "impossible"
    if true_gain_ms > 0 and abs(shown.gain_ms - true_gain_ms) <= NEAR * true_gain_ms:
        return "right"
    if shown.interval_ms is None:
        return "wrong"
    low, high = shown.interval_ms
    narrow = 0 < low and high <= WIDEST_INTERVAL * low
    return "right" if narrow and low <= true_gain_ms <= high else "wrong"


def misses(shown: list[Shown], true_gains_ms: Mapping[str, float | None], step_ms: float) -> list[str]:
    """Changes worth more than a tenth of the step that the first screen does not name."""
    named = {one.change for one in shown}
    return [
        change
        for change, gain in true_gains_ms.items()
        if gain is not None and gain > MISSED_SHARE * step_ms and change not in named
    ]
