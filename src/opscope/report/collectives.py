"""What is said of collectives across ranks: a row for each process group and name, and who came last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from opscope.analysis.collectives import CollectiveTotal
from opscope.analysis.links import LinkEvidence, LinkKind
from opscope.analysis.summary import Summary
from opscope.report import document as doc
from opscope.report.ranks import rank_blocks
from opscope.units import (
    UNKNOWN,
    format_byte_rate,
    format_bytes,
    format_duration,
    format_fraction,
    format_share,
)

_SHOWN = 3
_LEAST_SHARE = 0.1


def collective_blocks(summary: Summary) -> tuple[doc.Block, ...]:
    """The collectives that ranks share; nothing where there are none."""
    totals = summary.collectives.totals
    if not totals:
        return tuple(rank_blocks(summary))

    def group(one: CollectiveTotal) -> str:
        name = one.group_description or one.process_group or UNKNOWN
        kind = "" if one.parallelism is None else f", {_PARALLELISMS[one.parallelism.kind]}"
        return f"{name}{kind} ({one.ranks} ranks)"

    def of_link(one: CollectiveTotal) -> str:
        if one.link is None or one.link_fraction is None:
            return UNKNOWN
        named = "best seen" if one.link.evidence is LinkEvidence.BEST_SEEN else _LINKS[one.link.kind]
        return f"{format_fraction(one.link_fraction)} ({named})"

    def last(one: CollectiveTotal) -> str:
        return UNKNOWN if one.last_rank is None else f"rank {one.last_rank}: {one.last_count} of {one.calls}"

    shown = doc.table(
        totals,
        doc.words("Group", group),
        doc.words("Collective", "name"),
        doc.number("Calls", "calls"),
        doc.number("Bytes", "size_bytes", format_bytes, spare=True),
        doc.number("Waiting", "wait_ns", format_duration),
        doc.number("Transfer", "transfer_ns", format_duration),
        doc.number("Exposed", "exposed_ns", format_duration, spare=True),
        doc.number("Bus bandwidth", "bus_bytes_per_s", format_byte_rate),
        doc.number("Of link", of_link, spare=True),
        doc.words("Last", last),
        caption=(
            "Waiting and exposed: all ranks together. Transfer: from the arrival of the last rank "
            "on. Bus bandwidth: what each rank's link carried meanwhile."
        ),
    )
    points: list[doc.Text] = []
    for one in totals:
        least_ns = _LEAST_SHARE * sum(part.ns for part in one.meanwhile)
        told: list[Sequence[doc.Inline]] = []
        for part in one.meanwhile[:_SHOWN]:
            time = format_duration(part.ns)
            if part.ns >= least_ns and part.name is None:
                told.append((f"idle for {time} (its host was late)",))
            elif part.ns >= least_ns:
                told.append(("in ", doc.Code(part.name or ""), f" for {time}"))
        if told:
            parts = [word for part in told for word in (", ", *part)][1:]
            points.append((f"While others waited in {one.name}, the last rank's device was ", *parts, "."))
    # Whether ranks wait for one another or for data.
    wait_ns = sum(one.wait_ns or 0 for one in totals)
    in_them_ns = wait_ns + sum((one.transfer_ns or 0) * one.ranks for one in totals)
    late, meaning = Counter[int](), None
    for one in totals:
        if one.last_rank is not None:
            late[one.last_rank] += one.last_count
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
