"""What is said of collectives across ranks: a row for each process group and name, and who came last."""

from __future__ import annotations

from typing import Any

from opscope.analysis.collectives import CollectiveTotal, Meanwhile
from opscope.analysis.links import LinkEvidence, LinkKind
from opscope.analysis.straggler import RankDifference, Straggler
from opscope.analysis.summary import Summary
from opscope.report.document import Block, BulletList, Code, Inline, blocks, number, table, words
from opscope.report.json_encoding import Keys, encode
from opscope.report.meanings import collectives_meaning
from opscope.report.ranks import rank_blocks
from opscope.units import UNKNOWN, format_byte_rate, format_bytes, format_duration, format_fraction

__all__ = ["collective_blocks", "collective_records", "straggler_record"]

_SHOWN = 3
_LEAST_SHARE = 0.1


def collective_blocks(summary: Summary) -> tuple[Block, ...]:
    """The collectives that ranks share; nothing where there are none."""
    totals = summary.collectives.totals
    if not totals:
        return tuple(rank_blocks(summary))
    shown = table(
        totals,
        words("Group", _group),
        words("Collective", "name"),
        number("Calls", "calls"),
        number("Bytes", "size_bytes", format_bytes, spare=True),
        number("Waiting", "wait_ns", format_duration),
        number("Transfer", "transfer_ns", format_duration),
        number("Exposed", "exposed_ns", format_duration, spare=True),
        number("Bus bandwidth", "bus_bytes_per_s", format_byte_rate),
        number("Of link", _of_link, spare=True),
        words("Last", _last),
        caption=(
            "Waiting and exposed: all ranks together. Transfer: from the arrival of the last rank "
            "on. Bus bandwidth: what each rank's link carried meanwhile."
        ),
    )
    points = [text for one in totals if (text := _meanwhile(one))]
    meanwhile = BulletList(tuple(points)) if points else None
    return blocks(shown, meanwhile, *rank_blocks(summary), collectives_meaning(summary))


def _of_link(one: CollectiveTotal) -> str:
    if one.link is None or one.link_fraction is None:
        return UNKNOWN
    named = "best seen" if one.link.evidence is LinkEvidence.BEST_SEEN else _LINKS[one.link.kind]
    return f"{format_fraction(one.link_fraction)} ({named})"


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.PCIE: "PCIe"}


def _group(one: CollectiveTotal) -> str:
    name = one.group_description or one.process_group or UNKNOWN
    kind = "" if one.parallelism is None else f", {_PARALLELISMS[one.parallelism.kind]}"
    return f"{name}{kind} ({one.ranks} ranks)"


_PARALLELISMS = {
    "context": "context parallel",
    "data": "data parallel",
    "expert": "expert parallel",
    "pipeline": "pipeline parallel",
    "tensor": "tensor parallel",
}


def _last(one: CollectiveTotal) -> str:
    return UNKNOWN if one.last_rank is None else f"rank {one.last_rank}: {one.last_count} of {one.calls}"


def _meanwhile(one: CollectiveTotal) -> tuple[Inline, ...] | None:
    whole = sum(part.ns for part in one.meanwhile)
    told = [part for part in one.meanwhile[:_SHOWN] if part.ns >= _LEAST_SHARE * whole]
    if not told:
        return None
    parts: list[Inline] = []
    for index, part in enumerate(told):
        parts += [", " if index else "", *_part(part)]
    return (f"While others waited in {one.name}, the last rank's device was ", *parts, ".")


def _part(part: Meanwhile) -> tuple[Inline, ...]:
    time = format_duration(part.ns)
    if part.name is None:
        return (f"idle for {time} (its host was late)",)
    return ("in ", Code(part.name), f" for {time}")


def collective_records(summary: Summary, *, each: bool) -> list[dict[str, Any]]:
    """`collectives` of `analyze --json`: summed by process group and name, or every one."""
    found: list[dict[str, Any]] = encode(
        summary.collectives.each if each else summary.collectives.totals, _KEYS
    )
    return found


def straggler_record(summary: Summary) -> dict[str, Any] | None:
    """`straggler` of `analyze --json`."""
    return None if summary.straggler is None else _KEYS[Straggler].record(summary.straggler, _KEYS)


_KEYS: dict[type, Keys] = {
    CollectiveTotal: Keys(
        "process_group description=group_description parallelism parallelism_evidence name sequence calls "
        "bytes=size_bytes ranks last_rank wait_ns transfer_ns exposed_ns algorithm_bytes_per_s "
        "bus_bytes_per_s link link_fraction last_rank_was_doing=meanwhile",
        parallelism=lambda total: total.parallelism and total.parallelism.kind,
        parallelism_evidence=lambda total: total.parallelism and total.parallelism.evidence,
    ),
    RankDifference: Keys(
        "name extra_ns_per_step extra_device_ns_per_step=device_ns extra_host_ns_per_step=host_ns "
        "extra_calls_per_step=calls",
        extra_ns_per_step=lambda one: max(one.device_ns, one.host_ns),
    ),
    Straggler: Keys("rank kind lag_ns_per_step late_steps steps operators=differences"),
}
