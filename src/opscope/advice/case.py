"""What the rules look at: one Session and its Summary, with the questions that several rules ask of them.

Times of rules are per step and trace, so that they compare with a step. A session without recorded steps
counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from opscope.advice.attention_pattern import ComposedAttention, composed_attention
from opscope.advice.queries import sql
from opscope.advice.rates import Rates
from opscope.advice.rule_book import RuleBook, rule_book
from opscope.advice.step_time import Saving, StepTime, step_times, typical
from opscope.analysis.efficiency import CallEfficiency
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.model.finding import Severity
from opscope.model.session import Session

__all__ = ["Advice", "Case"]

_EARLY = "before_window"
_OTHER_VENDOR = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Advice:
    """What one rule found; what is None is the rule's own.

    Attributes:
        message: One sentence, with the numbers.
        evidence: What it rests on; keys carry their unit.
        saving: What the change takes out of a step; None where that cannot be told.
        basis: How the saving, or the gain, was estimated.
        gain_ns: What a step gets shorter, where that does not follow from a saving.
    """

    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    saving: Saving | None = None
    basis: str | None = None
    suggestion: str | None = None
    change: str | None = None
    severity: Severity | None = None
    trace_id: int | None = None
    gain_ns: float | None = None


@dataclass(frozen=True)
class Case:
    """One Session with its Summary."""

    session: Session
    summary: Summary
    book: RuleBook = field(default_factory=rule_book, repr=False)
    _records: dict[str, list[dict[str, Any]]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def calls(self) -> tuple[CallEfficiency, ...]:
        """The distinct calls with device time, without those of before the recording window."""
        calls = self.summary.efficiency.calls
        return tuple(call for call in calls if call.roofline.device_ns > 0 and call.attribution != _EARLY)

    @cached_property
    def kernels(self) -> Mapping[str, KernelFacts]:
        """What is known of each kernel, by name."""
        return {kernel.name: kernel.facts for kernel in self.summary.kernels if kernel.facts is not None}

    @cached_property
    def rates(self) -> Rates:
        """What the device can be expected to reach."""
        return Rates(self.summary.efficiency.limits, self.sm_count, self.book)

    @cached_property
    def sm_count(self) -> int | None:
        """Multiprocessors, where all devices have as many."""
        counts = {device.sm_count for device in self.summary.devices}
        return counts.pop() if len(counts) == 1 else None

    @cached_property
    def capability(self) -> tuple[int, int] | None:
        """Least compute capability of the devices; None if one is unknown, or of another vendor's device."""
        found = []
        for device in self.summary.devices:
            major, dot, minor = (device.compute_capability or "").partition(".")
            # AMD's gfx90a reports 9.0, which is no compute capability of CUDA.
            if not dot or _OTHER_VENDOR.search(device.name or ""):
                return None
            found.append((int(major), int(minor)))
        return min(found, default=None)

    @cached_property
    def steps(self) -> Mapping[int, StepTime]:
        """The mean step of each trace, by its id."""
        timeline = self.summary.timeline
        waiting_ns = {skew.trace_id: skew.waiting_ns for skew in timeline.skews}
        exposed_ns = {one.trace_id: one.exposed_communication_ns for one in timeline.partitions}
        return step_times(
            timeline.host,
            {
                host.trace_id: min(waiting_ns.get(host.trace_id, 0), exposed_ns.get(host.trace_id, 0))
                / max(1, host.steps)
                for host in timeline.host
            },
            self.book,
        )

    @cached_property
    def step(self) -> StepTime | None:
        """The mean step of the middle rank; None if no trace tells."""
        return typical(self.steps.values())

    @cached_property
    def unrecorded_share(self) -> float:
        """Host time without the recorder over that with it; 1 if unknown."""
        step = self.step
        if step is None or not step.recorded_host_ns or step.host_ns is None:
            return 1.0
        return step.host_ns / step.recorded_host_ns

    @cached_property
    def device_ns(self) -> int:
        """All device time."""
        return self.summary.device_time_ns

    @cached_property
    def step_count(self) -> int:
        """Recorded steps of all traces; a trace without steps counts as one."""
        steps = len(self.summary.steps)
        with_steps = {step.trace_id for step in self.summary.steps}
        active = {device.trace_id for device in self.summary.devices}
        return max(1, steps + len(active - with_steps))

    @cached_property
    def has_steps(self) -> bool:
        """Whether profiler steps were recorded."""
        return bool(self.summary.steps)

    @cached_property
    def program(self) -> Mapping[str, Any]:
        """Facts of the recorded program, as `program.sql` has them."""
        return self.records("program")[0]

    @cached_property
    def attention(self) -> tuple[ComposedAttention, ...]:
        """Attention composed of single operators."""
        return composed_attention(self.records("attention_contexts"))

    @property
    def has_backward(self) -> bool:
        """Whether anything was differentiated within the recording."""
        return bool(self.program["backward_operators"])

    @property
    def is_compiled(self) -> bool:
        """Whether code of torch.compile ran."""
        return bool(self.program["compiled_operators"])

    def per_step(self, total_ns: float) -> float:
        """A sum over the whole recording, per step: what was launched outside of steps counts in none."""
        return total_ns * float(self.program["stepped_fraction"] or 0.0) / self.step_count

    def share(self, total_ns: float) -> float:
        """A device time as a share of all device time."""
        return total_ns / self.device_ns if self.device_ns else 0.0

    def time_of(self, calls: Iterable[CallEfficiency]) -> int:
        """Device time of calls."""
        return sum(call.roofline.device_ns for call in calls)

    def idle_fraction(self, cause: IdleCause | None = None) -> float:
        """Idle time as a share of the devices' spans: of one cause, or all."""
        partitions = self.summary.timeline.partitions
        span_ns = sum(partition.span_ns for partition in partitions)
        idle_ns = sum(
            partition.idle_ns if cause is None else partition.idle_by_cause.get(cause, 0)
            for partition in partitions
        )
        return idle_ns / span_ns if span_ns else 0.0

    def idle_per_step(self, cause: IdleCause) -> float:
        """Idle time of one cause, per step and trace."""
        return (
            sum(partition.idle_by_cause.get(cause, 0) for partition in self.summary.timeline.partitions)
            / self.step_count
        )

    def records(self, name: str) -> list[dict[str, Any]]:
        """Rows of one of this package's queries, asked once; not to be changed."""
        if name not in self._records:
            self._records[name] = self.session.records(sql(name))
        return self._records[name]
