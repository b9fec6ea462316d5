"""What recording adds to the host's time: recorded host events times what one costs.

A recorded operator, runtime call or Python frame takes the thread it happens on a little longer. What each
costs was measured on the host of an NVIDIA H200 (torch 2.11); another processor may need half or twice as
much, so this is an estimate, and says so. `benchmarks/gpu_recorder_cost.py` measures it anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opscope.analysis.timeline.host import Host

__all__ = [
    "CALL_NS",
    "FRAME_NS",
    "OPERATOR_NS",
    "SHAPED_OPERATOR_NS",
    "HostEvents",
    "RecorderEstimate",
    "count_host_events",
    "estimate_recorder",
]

# A kernel launch in a loop of 100,001, recorded by CUPTI: 324 ms for 250 ms without it.
CALL_NS = 740
# What is left per operator with shapes: GPT-2 generating, 120 ms for 84 ms with 16,260 operators and 4,970
# calls, gives 1,990; BERT's forward, 6.2 ms of host time for 3.1 ms with 1,147 operators and 171 calls, gives
# 2,600.
SHAPED_OPERATOR_NS = 2100
# With them, training steps of an encoder and of convolutions come out 12 to 15 % too high, an encoder's
# forward 54 %, views that launch nothing 84 % (`benchmarks/results/h200_recorder_cost.json`): programs that
# run much else between their operators pay more for each. Without shapes: 11 % too low to exact.
OPERATOR_NS = 1200
# Those steps took 0.49 to 0.52 µs more per frame with stacks; loops that do nothing but call, 0.23 to 0.26.
FRAME_NS = 500
_UNCERTAINTY = "within a third on that host, a factor of two on others"


@dataclass(frozen=True)
class HostEvents:
    """Host events recorded on the launching threads of a trace, in all of its steps together."""

    shaped_operators: int = 0
    operators: int = 0
    calls: int = 0
    frames: int = 0


@dataclass(frozen=True)
class RecorderEstimate:
    """Time that the recording added to a step, and how it was estimated."""

    ns: float
    basis: str


def estimate_recorder(events: HostEvents, steps: int, *, most_ns: float) -> RecorderEstimate | None:
    """What recording added to each of the steps; None if nothing was recorded.

    Args:
        events: What was recorded in them.
        steps: How many there are.
        most_ns: What it cannot exceed.
    """
    terms = (
        (events.shaped_operators, "operators with shapes", SHAPED_OPERATOR_NS),
        (events.operators, "operators", OPERATOR_NS),
        (events.calls, "runtime calls", CALL_NS),
        (events.frames, "Python frames", FRAME_NS),
    )
    parts = [term for term in terms if term[0]]
    if not parts or steps < 1:
        return None
    estimate_ns = sum(count * cost_ns for count, _, cost_ns in parts) / steps
    text = " + ".join(f"{count / steps:,.0f} {what} × {cost_ns / 1e3:g} µs" for count, what, cost_ns in parts)
    bound = ", bounded by what the step leaves" if estimate_ns > most_ns else ""
    return RecorderEstimate(
        min(estimate_ns, max(most_ns, 0.0)),
        f"{text} per step, as measured on the host of an H200{bound}; {_UNCERTAINTY}",
    )


def count_host_events(host: Host, start_ns: int, end_ns: int) -> HostEvents:
    """Events of the launching threads that began in `[start_ns, end_ns)`."""
    counts = np.zeros(4, dtype=np.int64)
    for thread in host.threads.values():
        began = thread.operators["start_ns"]
        inside = (began >= start_ns) & (began < end_ns)
        shaped = int(thread.operators["has_shapes"][inside].sum())
        counts += (shaped, int(inside.sum()) - shaped, 0, 0)
        for column, events in ((2, thread.calls), (3, thread.frames)):
            counts[column] += ((events["start_ns"] >= start_ns) & (events["start_ns"] < end_ns)).sum()
    return HostEvents(*counts.tolist())
