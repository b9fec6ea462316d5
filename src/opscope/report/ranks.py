"""What is said of the ranks of a job together: their clocks, who is waited for, what holds them up.

Of many ranks those are told that others wait for most.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from opscope.analysis.job_model import JobPath
from opscope.analysis.job_outlook import JobOutlook, WhatIf, WhatIfKind
from opscope.analysis.pipeline import PipelineStage
from opscope.analysis.straggler import RankStep
from opscope.analysis.summary import Summary
from opscope.report.document import Block, BulletList, Text, joined, number, table
from opscope.report.json_encoding import Keys, encode
from opscope.units import counted, format_duration, format_fraction

_RANKS = 5
_STEPS = 6
_PARTS = 3
_STAGES = 16


def rank_blocks(summary: Summary) -> Iterator[Block]:
    """The ranks together; nothing of a single one."""
    collectives, ranks = summary.collectives, _most_awaited(summary)
    steps = sorted({one.step for one in collectives.rank_steps if one.step is not None})[:_STEPS]
    if ranks and steps:
        found = {(one.trace_id, one.step): one.awaited_ns for one in collectives.rank_steps}
        others = max(1, len(collectives.ranks) - 1)

        def waited(skew: Any, *, step: int) -> str:
            return format_duration(found.get((skew.trace_id, step), 0) / others)

        yield table(
            ranks,
            number("Rank", "rank"),
            number("Came last", lambda one: f"{one.last_count:,} of {one.collectives:,}"),
            *(
                number(f"Step {step}", partial(waited, step=step), spare=place > 1)
                for place, step in enumerate(steps)
            ),
            caption="How long each of the other ranks waited for it, on average, by step.",
        )
    points = tuple(_points(summary))
    if points:
        yield BulletList(points)
    if collectives.stages:
        shown = sorted(collectives.stages, key=lambda one: -one.bubble_ns)[:_STAGES]
        yield table(
            sorted(shown, key=lambda one: one.trace_id),
            number("Rank", "rank"),
            number("Sends and receives", "transfers"),
            number("Bubble per step", lambda one: format_duration(one.bubble_ns / one.steps)),
            number("Of the step", "bubble_fraction", format_fraction),
            number("Ideal schedule", "ideal_fraction", format_fraction, spare=True),
            caption="Pipeline bubbles: the device computes nothing and waits in a send or a receive.",
        )


def _most_awaited(summary: Summary) -> list[Any]:
    skews = sorted(summary.collectives.skews, key=lambda one: (-one.awaited_ns, one.trace_id))
    return [one for one in skews if one.awaited_ns][:_RANKS]


def _points(summary: Summary) -> Iterator[Text]:
    clocks, outlook = summary.collectives.clocks, summary.job_outlook
    if len(clocks) > 1:
        offsets = [one.offset_ns for one in clocks.values()]
        apart, error_ns = max(offsets) - min(offsets), max(one.error_ns for one in clocks.values())
        yield (
            f"Clocks of {counted(len(clocks), 'rank')} are {format_duration(apart)} apart; "
            f"aligned by the ends of their collectives they agree to {format_duration(error_ns)}."
        )
    if outlook is None:
        return
    for trace_id, fraction in [*outlook.path_by_trace.items()][:1]:
        mine = [one for one in outlook.path if one.trace_id == trace_id][:_PARTS]
        yield (
            f"The critical path across ranks runs through rank {summary.ranks[trace_id]} for "
            f"{format_fraction(fraction)} of the recorded step: ",
            *joined(
                [f"{one.kind} {one.name or ''}".rstrip() + f" ({format_duration(one.ns)})" for one in mine]
            ),
            ".",
        )
    for one in outlook.what_ifs:
        gain = format_duration(one.gain.ns)
        if one.gain.ns <= 0:
            continue
        if one.kind is WhatIfKind.RANK_AS_MEDIAN:
            yield (
                f"If rank {one.rank} were as fast as the median of the others, a step would take {gain} less."
            )
        else:
            data = one.name if one.process_group is None else f"{one.name} of group {one.process_group}"
            yield (
                f"If all transfers of {data} overlapped with computation, a step would take {gain} "
                "less; ranks would still wait for the last one."
            )


def rank_records(summary: Summary, *, each: bool) -> dict[str, Any]:
    """`clocks`, `rank_steps`, `pipeline` and `job` of `analyze --json`; `each`: of all ranks."""
    collectives, ranks = summary.collectives, summary.ranks
    told = {one.trace_id for one in _most_awaited(summary)}
    keys = {
        JobOutlook: Keys(
            "ranks simulated_ranks=simulated step_ns critical_path what_if=what_ifs",
            critical_path=lambda outlook: outlook.path[: 2 * _RANKS],
        ),
        JobPath: Keys("rank kind name ns_per_step=ns fraction", rank=lambda one: ranks[one.trace_id]),
        PipelineStage: Keys(
            "rank transfers bubble_ns_per_step bubble_fraction ideal_fraction",
            bubble_ns_per_step=lambda stage: stage.bubble_ns / stage.steps,
        ),
        RankStep: Keys("... -trace_id"),
        WhatIf: Keys(
            "change=kind rank process_group name gain_ns_per_step=gain.ns gain_interval_ns_per_step",
            gain_interval_ns_per_step=lambda one: (one.gain.low_ns, one.gain.high_ns),
        ),
    }
    parts = {
        "clocks": [
            {"rank": collectives.ranks[trace_id], **encode(clock)}
            for trace_id, clock in sorted(collectives.clocks.items())
        ],
        "rank_steps": [one for one in collectives.rank_steps if each or one.trace_id in told],
        "pipeline": collectives.stages or None,
        "job": summary.job_outlook,
    }
    return encode(parts, keys)  # type: ignore[no-any-return]
