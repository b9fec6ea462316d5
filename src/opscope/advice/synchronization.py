"""Advice on calls within a step by which the host waits for the device and then leaves it without work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, per_step, period
from opscope.analysis.timeline.values import WaitingCall

__all__ = ["RULES"]

# DistributedDataParallel times its own first ten iterations and every hundredth with events.
# Source: measureDifference in torch/csrc/distributed/c10d/reducer_cuda.cpp, PyTorch 2.11.
_OF_LIBRARIES = frozenset({("DistributedDataParallel.forward", "cudaEventSynchronize")})


def host_sync(case: Case, rule: Rule) -> Iterator[Advice]:
    """Waits that leave the device idle, by place."""
    pinned = case.book.rules["advice.pageable_copy"]
    span_ns = sum(partition.span_ns for partition in case.summary.timeline.partitions)
    waits = [
        wait
        for wait in case.summary.timeline.waits
        if (wait.operator, wait.name) not in _OF_LIBRARIES
        and span_ns
        and wait.idle_ns >= rule.threshold("least_idle_fraction") * span_ns
    ]
    waits.sort(key=lambda wait: (-wait.idle_ns, wait.name, wait.line or ""))
    for wait in waits[: int(rule.threshold("places"))]:
        yield Advice(
            f"{_what(wait)} waits for the device {counted(wait.calls / case.step_count, 'time')}"
            f" {period(case)} "
            f"and leaves it idle for {per_step(case, wait.idle_ns)}.",
            {
                "call": wait.name,
                "operator": wait.operator,
                "line": wait.line,
                "calls": wait.calls,
                "host_wait_ns": wait.host_ns,
                "idle_ns": wait.idle_ns,
            },
            Saving(waiting_ns=wait.idle_ns / case.step_count * case.unrecorded_share),
            f"the {per_step(case, wait.idle_ns)} in which the device stood still because of it, less the "
            "recorder's part, as far as a step is longer than its longer side",
            suggestion=pinned.suggestion if _is_upload(wait) else None,
            change=pinned.change if _is_upload(wait) else None,
        )


RULES: Mapping[str, RuleFunction] = {"advice.host_sync": host_sync}


def _is_upload(wait: WaitingCall) -> bool:
    """Whether it waits because it copies from host memory that is not pinned."""
    return wait.copy is not None and "(Pageable -> Device)" in wait.copy


def _what(wait: WaitingCall) -> str:
    calls = f"{wait.name}, {wait.copy}" if wait.copy else wait.name
    name = f"{wait.operator} ({calls})" if wait.operator else calls
    return f"{name} at {wait.line}" if wait.line else name
