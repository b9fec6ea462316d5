"""Steps that begin the program: what happens once made them longer than the steps after them.

Of the first steps each is one of start-up if it is slower than is usual of those after it that do the same
work, and at least half of that is time in calls and ranges that come once, beyond what they have of
them. Such a step is left out of what is said of a mean step, and of no sum. The first step that is none ends
the search, and the last one is never left out. Where a single step was recorded, or none, nothing tells what
recurs: the time in such calls is told alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from opscope.analysis.columns import Arrays, columns
from opscope.analysis.cuda_calls import COME_ONCE, CallRole, names_of
from opscope.analysis.timeline.spans import merge, overlap
from opscope.analysis.timeline.values import StartUp
from opscope.benchmarking.statistics import usual_and_limit
from opscope.model.queries import sql
from opscope.model.session import Session

if TYPE_CHECKING:
    from opscope.analysis.timeline.device_windows import Step

# Code is made, and communicators: once, as patterns of whole names.
_MAKING = (
    r"(?i)torch-compiled region.*|.*(?:dynamo|inductor|compile_inner|compile_fx|frame_compile"
    r"|backward_compile|autotun|triton.*compil).*|(?:cublas|cudnn|nccl)\w*(?:Create|Init)\w*"
)
# What calls of compiled functions hold: TorchScript, Triton, inductor.
_COMPILED = (
    r"fallback_function|prim::.*|DifferentiableGraph.*|TensorExpr.*|aten::_autocast_to_\w+|triton_.*"
    r"|Torch-Compiled Region.*|(?:## Call )?Compiled(?:Fx|Function).*"
)
_LONG_SILENCE_NS = 10_000_000
# Shorter launches load nothing: they take 3 to 10 µs.
_LONG_LAUNCH_NS = 100_000
_LEAST_ONCE = 0.5  # of what the step takes beyond the usual
# A step that launches much less than the one before does not do the same work, and tells nothing of it.
_SAME_WORK = 0.5
_KERNELS_SQL = "SELECT step, coalesce(max(kernel_count), 0) FROM steps WHERE trace_id = ? GROUP BY step"
_NAMES = 3
_LEAST_OF_NAME = 0.05  # of the time in all such calls


def find_start_ups(
    session: Session, trace_id: int, steps: Sequence[Step], span_ns: tuple[int, int]
) -> tuple[StartUp, ...]:
    """The steps of a trace that begin the program, by start.

    The span is from the first event to the end of the last.
    """
    bounds = [(step.start_ns, step.end_ns) for step in steps]
    if len(steps) < 2:
        start_ns, end_ns = (bounds or [span_ns])[0]
        (once,) = _once(session, trace_id, [(start_ns, end_ns)], recurs=False)
        number = steps[0].number if steps else None
        return _told(once, [], StartUp(trace_id, number, end_ns - start_ns, None, 0))
    found: list[StartUp] = []
    of_steps: list[_Once] = []
    durations = [end_ns - start_ns for start_ns, end_ns in bounds]
    kernels = dict(session.query(_KERNELS_SQL, [trace_id]))
    for place, step in enumerate(steps[:-1]):
        least = _SAME_WORK * kernels[step.number]
        later = [other for other in range(place + 1, len(steps)) if kernels[steps[other].number] >= least]
        usual_ns, limit_ns = usual_and_limit([durations[other] for other in later] or durations)
        if not later or durations[place] <= limit_ns:
            break
        of_steps = of_steps or _once(session, trace_id, bounds, recurs=True)
        one = StartUp(trace_id, step.number, durations[place], round(usual_ns), 0)
        told = _told(of_steps[place], [of_steps[other] for other in later], one)
        if not told or told[0].once_ns < _LEAST_ONCE * (durations[place] - usual_ns):
            break
        found += told
    return tuple(found)


def first_calls(session: Session, trace_id: int) -> Arrays:
    """Silences of the host before first calls of compiled functions, by start: they were compiled then."""
    parameters = {"trace": trace_id, "long": _LONG_SILENCE_NS, "compiled": _COMPILED}
    return columns(session, sql(__package__, "timeline:first_calls"), parameters)


class _Once(NamedTuple):
    """Time of one step in what comes once: in all, and by name, where one may lie in another."""

    whole_ns: int
    by_name_ns: dict[str, int]


def _told(mine: _Once, others: Sequence[_Once], one: StartUp) -> tuple[StartUp, ...]:
    """A step with its time in what comes once, beyond what is usual of others; nothing if that is none."""

    def beyond(own_ns: int, others_ns: list[int]) -> int:
        return max(0, own_ns - round(float(np.median(others_ns or [0]))))

    once_ns = beyond(mine.whole_ns, [other.whole_ns for other in others])
    named = [
        (beyond(ns, [other.by_name_ns.get(name, 0) for other in others]), name)
        for name, ns in mine.by_name_ns.items()
    ]
    longest = sorted((-ns, name) for ns, name in named if ns >= max(1, _LEAST_OF_NAME * once_ns))[:_NAMES]
    return (replace(one, once_ns=once_ns, names=tuple(name for _, name in longest)),) if once_ns else ()


def _once(session: Session, trace_id: int, bounds: Sequence[tuple[int, int]], *, recurs: bool) -> list[_Once]:
    """What comes once, in each interval; of launches and the recorder, only what steps tell to recur."""
    parameters = {
        "trace": trace_id,
        "calls": names_of(session, *COME_ONCE),
        # The first launch of a kernel loads it.
        "launches": names_of(session, CallRole.LAUNCHES) if recurs else [],
        "long": _LONG_LAUNCH_NS,
        "ranges": _MAKING,
        "recurs": recurs,
    }
    parts = [columns(session, sql(__package__, "timeline:once"), parameters), first_calls(session, trace_id)]
    found = {key: np.concatenate([part[key] for part in parts]) for key in ("name", "start_ns", "end_ns")}
    starts, ends = (np.array(bound, dtype=np.int64) for bound in zip(*bounds, strict=True))
    spans = {
        str(name): merge((found["start_ns"][mine], found["end_ns"][mine]))
        for name in sorted(set(found["name"]))
        for mine in [found["name"] == name]
    }
    whole_ns = overlap(merge(*spans.values()), starts, ends).tolist()
    named_ns = {name: overlap(span, starts, ends).tolist() for name, span in spans.items()}
    return [
        _Once(ns, {name: of_name[place] for name, of_name in named_ns.items()})
        for place, ns in enumerate(whole_ns)
    ]
