"""Whether the changes of a first screen came true. Times are milliseconds of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Numbered changes of a first screen.
FIRST_SCREEN = 3
NEAR = 0.3
WIDEST_INTERVAL = 3.0
MISSED_SHARE = 0.1


@dataclass(frozen=True)
class Shown:
    """A change of the first screen; `is_unknown` where something stands in the way of a number."""

    change: str
    gain_ms: float
    interval_ms: tuple[float, float] | None = None
    is_unknown: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it is shown as a number: known to within a factor of 3, with nothing in the way."""
        low, high = self.interval_ms or (1.0, 1.0)
        return not self.is_unknown and 0 < high <= WIDEST_INTERVAL * low


def verdict(shown: Shown, gains_ms: Mapping[str, float | None]) -> str:
    """`right`, `wrong`, `unknown` (shown as that), `not measured`; `impossible` counts as wrong."""
    if shown.change not in gains_ms:
        return "not measured"
    true_ms = gains_ms[shown.change]
    if true_ms is None:
        return "impossible"
    if not shown.is_number:
        return "unknown"
    low, high = shown.interval_ms or (shown.gain_ms, shown.gain_ms)
    is_near = abs(shown.gain_ms - true_ms) <= NEAR * abs(true_ms)
    return "right" if is_near or low <= true_ms <= high else "wrong"


def misses(shown: Sequence[Shown], gains_ms: Mapping[str, float | None], step_ms: float) -> list[str]:
    """Changes worth more than a tenth of the step that the first screen does not name."""
    named = {one.change for one in shown}
    return [
        change
        for change, gain in gains_ms.items()
        if gain is not None and gain > MISSED_SHARE * step_ms and change not in named
    ]
