"""Advice on loops of the program: the same operators round after round, on parts of what one call takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from opscope.advice.profiled_run import LAYERS, Advice, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.step_model import Gain
from opscope.units import counted, format_duration

_LONGEST = 400  # operators of a round that are looked for
_READS = {"aten::item", "aten::to", "aten::select"}
_READ_AT_ONCE = "values = results.tolist()   # of the whole tensor, before the loop: one copy"


@finds
def loop(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    step, summary = run.step, run.summary
    # One step alone may be a program's whole loop; an engine's own is not its user's to change.
    if run.step_count < 2 or not summary.is_of_torch or summary.engine is not None:
        return
    if step is None or not step.is_host_bound:
        return
    rows = run.session.records(_OPERATORS_SQL, [step.trace.trace_id])
    found = _longest([row["name"] for row in rows], *map(rule.threshold, ("least_operators", "least_rounds")))
    if found is None:
        return
    start, period, rounds = found
    inside, one_round = rows[start : start + period * rounds], rows[start : start + period]
    device_ns = sum(row["total_device_ns"] for row in inside)
    host_ns = inside[-1]["end_ns"] - inside[0]["start_ns"]
    if not device_ns or host_ns < rule.threshold("least_fraction") * step.recorded_host_ns:
        return
    # All but one round goes, as far as the device leaves the step shorter.
    gain_ns = min(host_ns * (1 - 1 / rounds) * run.unrecorded_share, step.step_ns - step.device_ns)
    names = list(dict.fromkeys(row["name"] for row in one_round if row["total_device_ns"]))
    yield Advice(
        f"{counted(rounds, 'round')} of the same {period} operators ({listed(names, 4)}) follow each other "
        f"in a step: {format_duration(host_ns)} on the host as recorded, {format_duration(device_ns)} of "
        "work for the device.",
        {
            "rounds": rounds,
            "operators": names,
            "calls": len(inside),
            "host_ns": host_ns,
            "device_ns": device_ns,
        },
        change=_READ_AT_ONCE if {"aten::item"} <= {*names} <= _READS else None,
        gain=Gain(gain_ns, 0.0, gain_ns),
        is_sure=False,
    )


def _longest(
    names: Sequence[str], least_operators: float, least_rounds: float
) -> tuple[int, int, int] | None:
    """The longest stretch that repeats itself: where it begins, operators of a round, rounds.

    A layer is like no other: what follows from it, and what weights it has, is not its neighbor's.
    """
    kinds = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    kinds |= {name: 0 for name in kinds if LAYERS.match(name)}
    ids = np.array([kinds[name] or -place for place, name in enumerate(names, 1)], dtype=np.int64)
    best, longest = None, 0
    for period in range(int(least_operators), min(_LONGEST, int(len(ids) // least_rounds)) + 1):
        is_same = np.concatenate(([False], ids[period:] == ids[:-period], [False]))
        starts, ends = np.flatnonzero(is_same[1:] != is_same[:-1]).reshape(-1, 2).T
        if not len(starts):
            continue
        place = int((ends - starts).argmax())
        length = int(ends[place] - starts[place]) + period
        if length // period >= least_rounds and length > longest:
            best, longest = (int(starts[place]), period, length // period), length
    return best


# The outermost operators of the last step, in order, on the thread that calls most; without the optimizer's.
_OPERATORS_SQL = """
WITH of_step AS (
        SELECT thread_id, name, start_ns, start_ns + duration_ns AS end_ns, total_device_ns FROM operators o
        WHERE trace_id = $1 AND parent_id IS NULL AND starts_with(name, 'aten::')
            AND step = (SELECT max(step) FROM operators WHERE trace_id = $1)
            AND NOT EXISTS (FROM annotations a WHERE a.trace_id = $1 AND a.side = 'host'
                AND starts_with(a.name, 'Optimizer.') AND a.start_ns <= o.start_ns
                AND o.start_ns < a.start_ns + a.duration_ns))
FROM of_step WHERE thread_id = (SELECT mode(thread_id) FROM of_step) ORDER BY start_ns"""
