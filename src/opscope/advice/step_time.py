"""How long a step takes, and how much shorter a change makes it.

A step lasts as long as the slower of its two sides: the device that runs its kernels one after the other, or
the host that launches them; on top comes what both wait for. So a change is worth what it takes from the
slower side, and never more than the distance to the other. The host's side is counted without what recording
added to it. That part is an estimate, so a gain is the mean of three: with it as estimated, less and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from opscope.advice.rules import RuleBook
from opscope.analysis.timeline.values import HostTime

__all__ = ["Saving", "StepTime", "slowest", "step_times", "typical"]


class Saving(msgspec.Struct, frozen=True):
    """What a change takes out of one step; negative where it adds.

    Attributes:
        device_ns: Busy time of the device.
        launches: Launches, each with the gap before its kernel.
        host_ns: Time of the host, theirs included.
        waiting_ns: Time in which the device stood still because the host waited for it.
    """

    device_ns: float = 0.0
    launches: float = 0.0
    host_ns: float = 0.0
    waiting_ns: float = 0.0


class StepTime(msgspec.Struct, frozen=True):
    """A mean step of one trace.

    Attributes:
        busy_ns: Busy time of the device.
        gap_ns: Time of the device between two kernels that are both launched already.
        host_ns: What the host needs to launch a step, the recorder left out; None if unknown.
        host_error_ns: How far that may be off.
        recorded_host_ns: The same as recorded.
        launches: Launches of a step.
        recorded_ns: A step as recorded.
        recorder_ns: What recording added to the host's time; None if unknown.
        recorder_basis: How that was estimated.
        trace_id: Of the trace; None if of no trace.
    """

    busy_ns: float
    gap_ns: float = 0.0
    host_ns: float | None = None
    host_error_ns: float = 0.0
    recorded_host_ns: float | None = None
    launches: float = 0.0
    recorded_ns: float | None = None
    recorder_ns: float | None = None
    recorder_basis: str | None = None
    trace_id: int | None = None

    @property
    def device_ns(self) -> float:
        """The device's side: its work and the gaps between kernels that no host can close."""
        return self.busy_ns + self.launches * self.gap_ns

    @property
    def limit_ns(self) -> float:
        """The longer of the two sides."""
        return max(self.device_ns, self.host_ns or 0.0)

    @property
    def waiting_ns(self) -> float:
        """What a step takes beyond the longer side, the recorder left out: where one side waits."""
        if self.recorded_ns is None:
            return 0.0
        return max(0.0, self.recorded_ns - (self.recorder_ns or 0.0) - self.limit_ns)

    @property
    def total_ns(self) -> float:
        """A step without the recorder."""
        return self.limit_ns + self.waiting_ns

    @property
    def most_host_ns(self) -> float | None:
        """The host's side if its estimate is too low by its error; None if unknown."""
        return None if self.host_ns is None else self.host_ns + self.host_error_ns

    @property
    def is_host_bound(self) -> bool:
        """Whether the host is the slower side."""
        return self.host_ns is not None and self.host_ns > self.device_ns

    def gain_ns(self, saving: Saving) -> float | None:
        """What a step gets shorter; None if the host's side is unknown."""
        if self.host_ns is None:
            return None
        waited_ns = min(max(0.0, saving.waiting_ns), self.waiting_ns)
        errors = (-self.host_error_ns, 0.0, self.host_error_ns)
        gains = [self._side_gain_ns(max(0.0, self.host_ns + error), saving) for error in errors]
        return waited_ns + sum(gains) / len(gains)

    def _side_gain_ns(self, host_ns: float, saving: Saving) -> float:
        """What the longer side gets shorter, if the host's is so long."""
        device_after_ns = self.device_ns - saving.device_ns - saving.launches * self.gap_ns
        host_after_ns = host_ns - saving.host_ns
        return max(self.device_ns, host_ns) - max(device_after_ns, host_after_ns, 0.0)


def step_times(
    hosts: Iterable[HostTime], waiting_ns: Mapping[int, float], book: RuleBook
) -> dict[int, StepTime]:
    """The mean step of each trace, by its id; without those that tell none.

    Args:
        hosts: What the timeline says of each trace.
        waiting_ns: Exposed time per step in which a trace's device only waited for other ranks, by trace id.
            It is no work of its own, and goes as soon as they are faster.
        book: Its shared numbers.
    """
    return {
        host.trace_id: _step_time(host, waiting_ns.get(host.trace_id, 0.0), book)
        for host in hosts
        if host.steps > 0 and host.step_ns > 0
    }


def slowest(steps: Iterable[StepTime]) -> StepTime | None:
    """The step whose longer side is the longest; None without any."""
    return max(steps, key=lambda step: step.limit_ns, default=None)


def typical(steps: Iterable[StepTime]) -> StepTime | None:
    """The step of the middle rank, by the longer side; the slower of two. None without any."""
    ordered = sorted(steps, key=lambda step: step.limit_ns)
    return ordered[len(ordered) // 2] if ordered else None


def _step_time(host: HostTime, waiting_ns: float, book: RuleBook) -> StepTime:
    has_host = host.launches > 0 and host.launch_path_ns > 0
    recorder_ns = host.recorder_ns if has_host else None
    return StepTime(
        busy_ns=max(0.0, host.device_busy_ns - waiting_ns),
        gap_ns=book.number("kernel_gap_ns"),
        host_ns=max(0.0, host.launch_path_ns - (recorder_ns or 0.0)) if has_host else None,
        host_error_ns=(recorder_ns or 0.0) * book.number("recorder_error"),
        recorded_host_ns=host.launch_path_ns if has_host else None,
        launches=host.launches,
        recorded_ns=host.step_ns,
        recorder_ns=recorder_ns,
        recorder_basis=host.recorder_basis,
        trace_id=host.trace_id,
    )
