"""Public fakes for tests of code that uses opscope: no device, no clock, no recording needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opscope.errors import MeasurementError
from opscope.model.measurement import Clock

__all__ = ["FakeTimer"]


class FakeTimer:
    """A `Timer` that calls the function and reports scripted durations.

    Args:
        samples_ns: What `measure` returns, in order; warm-up calls take from it too.
        clock: The clock it claims to be.
    """

    def __init__(self, samples_ns: Iterable[int], clock: Clock = Clock.WALL) -> None:
        self.clock = clock
        self.calls = 0
        self._samples_ns = iter(samples_ns)

    def measure(self, fn: Callable[[], object]) -> int:
        """The next scripted duration, in nanoseconds, after one call of `fn`.

        Raises:
            MeasurementError: The script has run out.
        """
        fn()
        self.calls += 1
        try:
            return next(self._samples_ns)
        except StopIteration:
            raise MeasurementError(f"the scripted samples ran out at call {self.calls}") from None
