"""What is said of the ranks of a job: their collectives, and who is waited for."""

from __future__ import annotations

from functools import partial
from typing import Any

from opscope.analysis.collectives import CollectiveTotal, LinkEvidence, LinkKind, RankStep
from opscope.analysis.summary import Summary
from opscope.model.queries import summed
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, encode
from opscope.units import UNKNOWN, format_duration, format_fraction, format_share

_RANKS = 5


def collective_blocks(summary: Summary) -> tuple[doc.Block, ...]:
    """The collectives that ranks share; nothing where there are none."""
    totals = summary.collectives.totals

    def group(one: CollectiveTotal) -> str:
        name = one.group_description or one.process_group or UNKNOWN
        kind = "" if one.parallelism is None else f", {_PARALLELISMS[one.parallelism.kind]}"
        return f"{name}{kind} ({one.ranks} ranks)"

    def of_link(one: CollectiveTotal) -> str:
        if one.link is None or one.link_fraction is None:
            return UNKNOWN
        named = "best seen" if one.link.evidence is LinkEvidence.BEST_SEEN else _LINKS[one.link.kind]
        return f"{format_fraction(one.link_fraction)} ({named})"

    shown = doc.table(
        totals,
        doc.words("Group", group),
        doc.words("Collective", "name"),
        doc.number("Calls", "calls"),
        doc.number("Bytes", "size_bytes", spare=True),
        doc.number("Waiting", "wait_ns"),
        doc.number("Transfer", "transfer_ns"),
        doc.number("Exposed", "exposed_ns", spare=True),
        doc.number("Bus bandwidth", "bus_bytes_per_s"),
        doc.number("Of link", of_link, spare=True),
        doc.words(
            "Last",
            lambda one: (
                None if one.last_rank is None else f"rank {one.last_rank}: {one.last_count} of {one.calls}"
            ),
        ),
        caption=(
            "Waiting and exposed: all ranks together. Transfer: from the arrival of the last rank "
            "on. Bus bandwidth: what each rank's link carried meanwhile."
        ),
    )
    points: list[doc.Text] = []
    for one in totals:
        least_ns = 0.1 * sum(part.ns for part in one.meanwhile)
        told: list[doc.Text] = [
            f"idle for {format_duration(part.ns)} (its host was late)"
            if part.name is None
            else ("in ", doc.Code(part.name), f" for {format_duration(part.ns)}")
            for part in one.meanwhile[:3]
            if part.ns >= least_ns
        ]
        if told:
            parts = doc.joined(told)
            points.append((f"While others waited in {one.name}, the last rank's device was ", *parts, "."))
    # Whether ranks wait for one another or for data.
    wait_ns = sum(one.wait_ns or 0 for one in totals)
    in_them_ns = wait_ns + sum((one.transfer_ns or 0) * one.ranks for one in totals)
    late = summed((one.last_rank, one.last_count) for one in totals if one.last_rank is not None)
    meaning = None
    if in_them_ns:
        share = format_share(wait_ns, in_them_ns)
        text = f"{share} of the time in collectives is waiting; the rest moves data."
        if 2 * wait_ns > in_them_ns and late:
            rank = late.most_common(1)[0][0]
            text = f"{share} of the time in collectives is waiting for the last rank, most often rank {rank}."
        meaning = doc.Meaning(text)
    return doc.blocks(shown, doc.BulletList(tuple(points)), *rank_blocks(summary), meaning)


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.PCIE: "PCIe"}
_PARALLELISMS = {
    "context": "context parallel",
    "data": "data parallel",
    "expert": "expert parallel",
    "pipeline": "pipeline parallel",
    "tensor": "tensor parallel",
}


def rank_blocks(summary: Summary) -> tuple[doc.Block, ...]:
    """The ranks together; nothing of a single one."""
    collectives, others = summary.collectives, max(1, len(summary.collectives.ranks) - 1)
    awaited_ns = {(one.trace_id, one.step): one.awaited_ns for one in collectives.rank_steps}
    steps = sorted({one.step for one in collectives.rank_steps if one.step is not None})[:6]

    def waited(skew: Any, *, step: int) -> str:
        return format_duration(awaited_ns.get((skew.trace_id, step), 0) / others)

    ranks = doc.table(
        _most_awaited(summary) if steps else (),
        doc.number("Rank", "rank"),
        doc.number("Came last", lambda one: f"{one.last_count:,} of {one.collectives:,}"),
        *(
            doc.number(f"Step {step}", partial(waited, step=step), spare=place > 1)
            for place, step in enumerate(steps)
        ),
        caption="How long each of the other ranks waited for it, on average, by step.",
    )
    return doc.blocks(ranks)


def _most_awaited(summary: Summary) -> list[Any]:
    skews = sorted(summary.collectives.skews, key=lambda one: (-one.awaited_ns, one.trace_id))
    return [one for one in skews if one.awaited_ns][:_RANKS]


def rank_steps(summary: Summary, *, each: bool) -> list[dict[str, Any]]:
    """`rank_steps` of `analyze --json`; `each`: of all ranks."""
    told = {one.trace_id for one in _most_awaited(summary)}
    steps = [one for one in summary.collectives.rank_steps if each or one.trace_id in told]
    return encode(steps, {RankStep: Keys("... -trace_id")})  # type: ignore[no-any-return]
