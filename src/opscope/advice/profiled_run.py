"""What the rules look at: one profiled run, with the questions and the words that several rules share.

Times of rules are per step and trace, so that they compare with a step. A session without recorded steps
counts as one. A rule's function is registered by `finds` and yields `Advice`, nothing where all is well.

A CUDA graph holds launches alone, always the same. What makes the host wait, copies from or to pageable
memory or takes memory from the driver within it cannot be captured; with other kernels or shapes in another
step it would be another graph. Copies of inputs at the start of a step and questions at its end stand outside
of it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import msgspec

from opscope.advice.attention_pattern import ComposedAttention, composed_attention
from opscope.advice.kernel_times import Rates
from opscope.advice.rules import Rule, RuleBook, rule_book
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.roofline import CallEfficiency
from opscope.analysis.step_model import Gain, GraphChange, StepModel
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.records import OF_DRIVER_MEMORY, names_of
from opscope.analysis.timeline.values import HostTime, IdleCause, trace_name
from opscope.analysis.watched_steps import UNWATCHED, Dataflow, HostLine, dataflow, has_unseen, host_lines
from opscope.hardware.devices import cuda_capability
from opscope.model.finding import Applicability, ApplicabilityStatus, Blocker
from opscope.model.queries import sql, summed
from opscope.model.schema import Attribution
from opscope.model.session import Session
from opscope.operators.arguments import parse_arguments
from opscope.operators.products import MatrixProduct, matrix_product
from opscope.units import counted, format_duration, format_fraction

_SHOWN = 5
_MOSTLY = 0.8  # of a function's operators that one it calls may launch
# Operators with weights: what a module does, and a function of tensors does not.
LAYERS = re.compile(
    r"aten::(linear|addmm|.*convolution|conv\d?d?|.*(layer|batch|group|instance|rms)_norm|embedding"
    r"|lstm|gru|rnn|.*_fused_(lstm|gru)|.*scaled_dot_product)"
)
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|(^|[:_ ])\w*[Bb]ackward", re.ASCII)
# What is in the name of an operator or annotation wherever a query has rows.
_TOLD_BY = {
    "attention_contexts": "softmax",
    "capture:growing": "aten::cat",
    "image_calls": "conv|batch_norm|group_norm|upsample|max_pool2d",
}


Effect = Callable[[GraphChange], object]


class Advice(msgspec.Struct, frozen=True):
    """What one rule found; fields that are None are as the rule has them."""

    message: str  # one sentence, with the numbers
    # What it rests on; keys carry their unit
    evidence: Mapping[str, Any] = msgspec.field(default_factory=dict)
    effect: Effect | None = None  # what the change does to the recorded steps; None where that cannot be told
    basis: str | None = None  # how its effect, or the gain, was estimated
    best: Effect | None = None  # the same at best, where kernels may be chosen that nothing is known of
    worst: Effect | None = None  # the same at worst
    suggestion: str | None = None
    change: str | None = None  # as the rule's; empty for none
    trace_id: int | None = None
    gain: Gain | None = None  # what a step gets shorter, where that does not follow from an effect
    error: float | None = None  # as the rule's `gain_error`
    # Another rule whose words are taken where a program without PyTorch was recorded
    like: Rule | None = None
    # Whether the change can be made; what is blocked has no gain
    applicability: Applicability = Applicability()
    is_sure: bool = True  # whether it surely helps; else it may bring nothing
    needs_number: bool = False  # without one it is no change to try: such lines have helped nobody


class ProfiledRun(msgspec.Struct, frozen=True, dict=True):
    session: Session
    summary: Summary
    step: StepModel | None = None  # of the middle rank; None if no trace tells
    book: RuleBook = msgspec.field(default_factory=rule_book)
    _records: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)

    @cached_property
    def calls(self) -> tuple[CallEfficiency, ...]:
        """The distinct calls with device time, without those of before the recording window."""
        calls = (one for one in self.summary.efficiency.calls if one.roofline.device_ns > 0)
        return tuple(one for one in calls if one.attribution != Attribution.BEFORE_WINDOW)

    @cached_property
    def kernels(self) -> Mapping[str, KernelFacts]:
        return {kernel.name: kernel.facts for kernel in self.summary.kernels if kernel.facts is not None}

    @cached_property
    def rates(self) -> Rates:
        return Rates(self.summary.efficiency.limits, self.sm_count, self.book)

    @cached_property
    def sm_count(self) -> int | None:
        """Multiprocessors, where all devices have as many."""
        counts = {device.sm_count for device in self.summary.devices}
        return counts.pop() if len(counts) == 1 else None

    @cached_property
    def capability(self) -> tuple[int, int] | None:
        """Least compute capability of the devices; None if one is unknown, or of another vendor's device."""
        known = [cuda_capability(one.name, one.compute_capability) or "" for one in self.summary.devices]
        if not all("." in one for one in known):
            return None
        found = (one.partition(".") for one in known)
        return min(((int(major), int(minor)) for major, _, minor in found), default=None)

    @property
    def of_rank(self) -> str:
        """Whose step is simulated, where several traces were recorded."""
        if self.step is None or len(self.summary.traces) == 1:
            return ""
        trace_id = self.step.trace.trace_id
        return f"; of {trace_name(self.summary.ranks[trace_id], trace_id)}, as if others changed alike"

    def simulated(self, host: HostTime) -> HostTime:
        """The host's time with the recorder's part as it is simulated, so that a report tells one figure.

        Of several ranks all are told as estimated: one is simulated.
        """
        step = self.step
        if step is None or host.recorder_ns is None or len(self.summary.traces) > 1:
            return host
        basis = "steps of the same run, timed without the profiler"
        if step.timed is None:
            factor = f"{step.host.recorder:g} times as much as " if step.host.recorder != 1 else ""
            basis = f"{factor}{host.recorder_basis}"
        return msgspec.structs.replace(host, recorder_ns=step.recorder_ns, recorder_basis=basis)

    @cached_property
    def unrecorded_share(self) -> float:
        """Host time without the profiler over that with it; 1 if unknown."""
        return 1.0 if self.step is None else self.step.unrecorded_share

    @cached_property
    def launch_host_ns(self) -> float:
        """Host time of one more operator that launches a kernel: as of most of this program's own."""
        if self.step is not None and self.step.launch_ns is not None:
            return self.step.launch_ns
        limits = self.summary.efficiency.limits
        measured_ns = None if limits is None else limits.operator_call_ns
        return measured_ns or self.book.number("operator_host_ns")

    @cached_property
    def step_count(self) -> int:
        """Recorded steps of all traces; a trace without steps counts as one."""
        with_steps = {step.trace_id for step in self.summary.steps}
        without = {device.trace_id for device in self.summary.devices} - with_steps
        return max(1, len(self.summary.steps) + len(without))

    @property
    def has_steps(self) -> bool:
        return bool(self.summary.steps)

    @cached_property
    def names(self) -> set[str]:
        found = self.session.query("SELECT DISTINCT coalesce(name, '') FROM annotations")
        return {name for (name,) in found}.union(one.name for one in self.summary.operators)

    @cached_property
    def attention(self) -> tuple[ComposedAttention, ...]:
        return composed_attention(self.records("attention_contexts"))

    @cached_property
    def has_backward(self) -> bool:
        return any(_BACKWARD.search(one.name) for one in self.summary.operators)

    @property
    def has_model(self) -> bool:
        """Whether layers ran, or what was differentiated: else the program is functions of tensors."""
        return self.has_backward or any(LAYERS.match(one.name) for one in self.summary.operators)

    @cached_property
    def is_compiled(self) -> bool:
        return any(
            one.name.startswith(("Torch-Compiled Region", "CompiledFunction", "triton_"))
            for one in self.summary.operators
        )

    @property
    def is_recurrent(self) -> bool:
        own = (one.self_device_ns for one in self.summary.operators if "_rnn" in one.name)
        return 2 * sum(own) > self.summary.device_time_ns

    @cached_property
    def watched(self) -> Dataflow:
        """What was watched of the program before it was recorded; of one rank alone it would not do."""
        step = self.step
        if step is None or self.summary.engine is not None or len(self.summary.devices) > 1:
            return UNWATCHED
        return dataflow(self.session, step.trace.trace_id, self.left_out)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The same, where nothing escaped that, and the recorded steps do what the watched one did."""
        watched, step = self.watched, self.step
        is_seen = step and watched.steps and not has_unseen(self.session, step.trace.trace_id)
        return watched if is_seen else UNWATCHED

    @cached_property
    def host_lines(self) -> tuple[HostLine, ...]:
        return host_lines(self.session, self.watched) if self.watched.steps else ()

    @cached_property
    def held(self) -> dict[int, tuple[str | None, str | None]]:
        """Calls that no CUDA graph can hold: of each its operator or name, and its line."""
        waits = [(one.call_ids, one.operator or one.name, one.line) for one in self.summary.timeline.waits]
        waits += [(row["call_ids"], row["name"], None) for row in self.allocations]
        return {call_id: (name, line) for call_ids, name, line in waits for call_id in call_ids}

    def callers_of(self, call_ids: Iterable[int]) -> list[int]:
        """The operator of each of these runtime calls that has one."""
        return [one for (one,) in self.session.query(_CALLERS_SQL, [[*call_ids]])]

    @cached_property
    def line_to_capture(self) -> HostLine | None:
        """Where a step cannot be captured, the line that the host spends most in of those that can be.

        Nothing that it calls waits, differs from step to step, or works on tensors of the host.
        """
        steps, lines = self.watched.steps, self.host_lines
        held = sorted(self.callers_of(self.held))
        launching = {row["name"] for step in steps for row in step if row and row["total_device_ns"]}
        others = {one.operator for one in differing(self)}

        def stays(row: Mapping[str, Any]) -> bool:
            is_of_host = not row["total_device_ns"] and row["name"] in launching
            holds = bisect_left(held, row["operator_id"]) < bisect_right(held, row["last_descendant_id"])
            return is_of_host or holds or row["name"] in others

        launches, blocked = [0] * len(lines), [False] * len(lines)
        for place in reversed(range(len(lines))):
            stretches = self.watched.recorded.lines[place].operators
            rows = [row for step in steps for a, b in stretches for row in step[a:b] if row]
            launches[place] += sum(row["total_device_ns"] > 0 for row in rows)
            blocked[place] |= any(map(stays, rows))
            if (caller := lines[place].caller) >= 0:
                launches[caller] += launches[place]
                blocked[caller] |= blocked[place]
        free = [
            line
            for line, count, is_blocked in zip(lines, launches, blocked, strict=True)
            if not is_blocked and count >= _LEAST_LAUNCHES * line.times * len(steps)
        ]
        return max(free, key=attrgetter("fraction"), default=None)

    @cached_property
    def function_to_compile(self) -> str | None:
        """The innermost function that launches most of what no module does, if that is more."""
        parts = self.watched.recorded.parts
        counts = {one.name: sum(end - begin for begin, end in one.operators) for one in parts}
        functions = [one.name for one in parts if not one.is_module]
        most = max((counts[one] for one in functions), default=0)
        of_modules = sum(counts[one.name] for one in parts if one.is_module)
        if most <= of_modules * (3 if self.has_backward else 1):  # gradients take twice as much
            return None
        return min((one for one in functions if counts[one] > _MOSTLY * most), key=counts.__getitem__)

    def records(self, name: str) -> list[dict[str, Any]]:
        """Rows of one of this package's queries, asked once; not to be changed.

        A query of what happens in steps has as parameter those that are no part of a mean step.
        """
        if name not in self._records:
            # To plan a long query takes some milliseconds, on however few rows.
            is_told = any(map(re.compile(_TOLD_BY.get(name, "")).search, ("", *self.names)))
            text = sql(__package__, name)
            self._records[name] = (
                self.session.records(text, [self.left_out] if "$1" in text else []) if is_told else []
            )
        return self._records[name]

    @cached_property
    def left_out(self) -> list[list[int | None]]:
        """Trace and number of the steps that are no part of a mean step."""
        return [list(one) for one in sorted(self.summary.timeline.left_out)]

    @cached_property
    def allocations(self) -> list[dict[str, Any]]:
        """Functions of the driver that take or give back memory in steps, as `allocations.sql` has them."""
        return self.session.records(
            sql(__package__, "allocations"), [self.left_out, names_of(self.session, *OF_DRIVER_MEMORY)]
        )

    def per_step(self, total_ns: float) -> float:
        """A sum over the whole recording, per step: what was launched outside of steps counts in none."""
        return total_ns * self.stepped_fraction / self.step_count

    @cached_property
    def stepped_fraction(self) -> float:
        """Of the device time of operators, the part launched within steps; 1 where there are no steps."""
        launched_ns = self.summary.device_time_ns - self.summary.unattributed_ns.get("before_window", 0)
        if not self.has_steps or not launched_ns:
            return 1.0
        return float(sum(step.device_ns for step in self.summary.steps) / launched_ns)

    def share(self, total_ns: float) -> float:
        return total_ns / self.summary.device_time_ns if self.summary.device_time_ns else 0.0

    def is_minor(self, total_ns: float, rule: Rule) -> bool:
        return self.share(total_ns) < rule.threshold("least_fraction")

    def idle_fraction(self, cause: IdleCause) -> float:
        return self.idle_ns(cause) / self.window_ns if self.window_ns else 0.0

    @cached_property
    def window_ns(self) -> int:
        """The windows of all devices that did anything in theirs."""
        return sum(partition.span_ns for partition in self.summary.timeline.in_use)

    def idle_ns(self, cause: IdleCause) -> int:
        return sum(one.idle_by_cause.get(cause, 0) for one in self.summary.timeline.in_use)

    @property
    def period(self) -> str:
        """What a figure is of that was divided by the step count: where no steps were recorded, one trace."""
        if self.has_steps:
            return "per step"
        return "in all" if self.step_count == 1 else "per trace"

    def time(self, total_ns: float) -> str:
        """A time of the whole recording as `1.20 ms per step`, or in all where no steps were recorded."""
        return f"{format_duration(self.per_step(total_ns))} {self.period}"

    def times(self, total: float, noun: str) -> str:
        """A count of the whole recording as `4 copies per step`."""
        return f"{counted(self.per_step(total), noun)} {self.period}"

    def device_share(self, total_ns: float) -> str:
        """`12.0 % of device time`."""
        return f"{format_fraction(self.share(total_ns))} of device time"

    def device_time(self, total_ns: float) -> str:
        """`12.0 % of device time (1.20 ms per step)`."""
        return f"{self.device_share(total_ns)} ({self.time(total_ns)})"

    def evidence(self, device_ns: float, **more: Any) -> dict[str, Any]:
        return {"device_fraction": self.share(device_ns), "device_ns": device_ns, **more}

    def call_evidence(self, calls: Sequence[CallEfficiency], **more: Any) -> dict[str, Any]:
        ranked = sorted(calls, key=lambda call: (-call.roofline.device_ns, call.call_id))
        return self.evidence(
            time_of(ranked),
            calls=sum(call.calls for call in ranked),
            call_ids=[call.call_id for call in ranked],
            operators=operators_of(ranked),
            kernels=list(dict.fromkeys(kernel for call in ranked for kernel in call.kernels[:1]))[:_SHOWN],
            **more,
        )


Finder = Callable[[ProfiledRun, Rule], Iterable[Advice]]
FINDERS: dict[str, Finder] = {}


def finds(function: Finder) -> Finder:
    """Registers the function that looks for a rule's evidence: `tf32_off` for `advice.tf32_off`."""
    FINDERS[f"advice.{function.__name__}"] = function
    return function


def listed(items: Sequence[str], shown: int = _SHOWN) -> str:
    """`a, b and c`, cut after some."""
    if len(items) > shown:
        return f"{', '.join(items[:shown])} and {len(items) - shown} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def time_of(calls: Iterable[CallEfficiency]) -> int:
    return sum(call.roofline.device_ns for call in calls)


def calls_taking(calls: Iterable[CallEfficiency], after_ns: Mapping[int, float]) -> Effect:
    """The effect of distinct calls that take other device times, by call id."""
    before_ns = {call.call_id: call.roofline.device_ns for call in calls}
    factors = {call_id: ns / before_ns[call_id] for call_id, ns in after_ns.items()}
    return lambda change: change.scale_calls(factors)


def operators_of(calls: Iterable[CallEfficiency]) -> list[str]:
    """Their operators, most device time first."""
    time_ns = summed((call.operator, call.roofline.device_ns) for call in calls)
    return sorted(time_ns, key=lambda name: (-time_ns[name], name))


def product_of(call: CallEfficiency) -> MatrixProduct | None:
    return matrix_product(parse_arguments(call.operator, shapes=call.shapes, types=call.types))


# Of a step's launches, at each end: what prepares inputs, and what follows the model (loss, sampling).
_EDGE = 0.05
# Of the steps: what happens in fewer is a log, or memory taken once.
_USUAL = 0.5
_LEAST_LAUNCHES = 8  # of a line, each time: with fewer a graph spares the host little
_CALLERS_SQL = """SELECT operator_id FROM runtime_calls
WHERE operator_id IS NOT NULL AND list_contains(?::BIGINT[], runtime_call_id)"""


def capture_of(run: ProfiledRun) -> Applicability:
    """Whether a step can be captured; unknown without two steps to compare and nothing in the way."""
    if run.summary.engine is not None:
        return Applicability()  # an engine captures what it knows to be the same
    inside = run.session.query(sql(__package__, "capture:inside"), [[*run.held], run.left_out, _EDGE])
    blockers = [
        Blocker(operator, line, count / run.step_count)
        for (operator, line), count in Counter(run.held[call_id] for (call_id,) in inside).most_common()
        if count >= _USUAL * run.step_count
    ]
    if found := tuple(blockers) or differing(run):
        return Applicability(ApplicabilityStatus.BLOCKED, found)
    # One step of each trace is compared with nothing.
    is_known = len(run.summary.steps) > len({one.trace_id for one in run.summary.steps})
    return Applicability(ApplicabilityStatus.APPLICABLE if is_known else ApplicabilityStatus.UNKNOWN)


def differing(run: ProfiledRun) -> tuple[Blocker, ...]:
    """Operators that launch other kernels, or for other shapes, in one step than in another.

    A loop that generates has other shapes for each token, also within one step.
    """
    rows = run.records("capture:differing") or run.records("capture:growing")
    return tuple(Blocker(one["operator"], None, one["per_step"]) for one in rows)


def in_the_way(run: ProfiledRun, found: Applicability) -> str:
    """Each blocker with how often and where; of steps that differ, the operators that do."""
    if found.blocked_by and run.has_steps and found.blocked_by == differing(run):
        return f"steps differ in {listed([one.operator or 'launches' for one in found.blocked_by], 3)}"

    def told(one: Blocker) -> str:
        # Without steps those at the edges, outside of a graph, are calls too.
        times = f" {counted(one.per_step, 'time')} {run.period}" if run.has_steps else ""
        return f"{one.operator or 'launches'}{times}{f' at {one.line}' if one.line else ''}"

    return listed([told(one) for one in found.blocked_by], 3)
