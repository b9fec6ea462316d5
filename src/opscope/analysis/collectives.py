"""Collectives across ranks: how long ranks waited and data moved, who came last and why, what differs.

A collective ends on all ranks together and cannot begin to move data before the last has arrived, so the last
to arrive has the shortest kernel, and a rank's kernel takes longer than that by the time it waited. That
compares durations, never clocks. What the last rank did meanwhile is read on its own clock: the first to wait
had arrived as long before the common end as its kernel took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from opscope.analysis.arrays import NOTHING, Spans, merge, overlap, total
from opscope.analysis.communication import (
    POINT_TO_POINT,
    PipelineStage,
    RankClock,
    RankLink,
    align,
    find_bubbles,
    link_of,
)
from opscope.analysis.session_limits import common_spec
from opscope.analysis.straggler import RankStep
from opscope.analysis.timeline.host import SessionRecords
from opscope.analysis.timeline.records import WorkKind
from opscope.analysis.timeline.values import RankSkew, SkewEvidence
from opscope.hardware.devices import DeviceSpec
from opscope.model.finding import Finding, Severity
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.collective_costs import bus_factor, message_bytes
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names.decoder import decode
from opscope.units import counted, format_bytes

# Transfers of one collective differ from rank to rank by a few percent; by less, nobody is called last.
_CLEARLY_LAST = 0.1
_NAMED_RANKS = 4
_MISMATCHES = 5


class CollectiveKernel(msgspec.Struct, frozen=True):
    trace_id: int
    activity_id: int
    kernel: str
    step: int | None
    device: int
    start_ns: int  # on the clock of its trace
    duration_ns: int
    collective: str | None  # its name as recorded; None where it was not, so for all below
    members: str | None  # the process group by name and ranks
    group_name: str | None
    group_description: str | None
    group_size: int | None
    sequence: int | None  # the group's own count of operations
    in_element_count: int | None  # elements that the rank gives
    element_count: int | None  # the larger of what it gives and gets
    data_type: str | None

    @property
    def title(self) -> str | None:
        """Which collective, by the record or else by the kernel's name."""
        return self.collective or decode(self.kernel).collective

    @property
    def size_bytes(self) -> int | None:
        """Of the message; None if unknown."""
        return message_bytes(self.data_type, self.element_count)


class MatchedCollective(msgspec.Struct, frozen=True, dict=True):
    kernels: tuple[CollectiveKernel, ...]  # of each rank, by trace
    ranks: tuple[int | None, ...]  # their ranks
    exposed_ns: int  # time in which nothing but communication ran on a rank's device, summed over the ranks

    @property
    def is_complete(self) -> bool:
        """Whether every rank of its group was recorded; else the last to arrive may not be among them."""
        size = self.kernels[0].group_size
        return size is None or size <= len(self.kernels)

    @property
    def transfer_ns(self) -> int | None:
        """From the arrival of the last rank to the end; None if that rank may not be recorded."""
        return min(one.duration_ns for one in self.kernels) if self.is_complete else None

    @property
    def wait_ns(self) -> int | None:
        least = self.transfer_ns
        return None if least is None else sum(one.duration_ns - least for one in self.kernels)

    @cached_property
    def last(self) -> int | None:
        """Place in `kernels` of the rank that clearly came last; None if none did."""
        if not self.is_complete:
            return None
        durations = [one.duration_ns for one in self.kernels]
        place = durations.index(min(durations))
        return place if max(durations) - durations[place] > _CLEARLY_LAST * durations[place] else None

    @property
    def algorithm_bytes_per_s(self) -> float | None:
        """Bytes of the message per second while data moved; None if the size is unknown."""
        size_bytes, transfer_ns = self.kernels[0].size_bytes, self.transfer_ns
        return None if size_bytes is None or not transfer_ns else size_bytes / transfer_ns * 1e9

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bytes per second on each rank's link while data moved; None if size or pattern are unknown."""
        first, rate = self.kernels[0], self.algorithm_bytes_per_s
        factor = bus_factor(first.title or "", first.group_size or len(self.kernels))
        return None if factor is None or rate is None else factor * rate


class Meanwhile(msgspec.Struct, frozen=True):
    """What the device of a rank did while the others waited for it; `name` is None of an idle device."""

    name: str | None
    ns: int


class Parallelism(msgspec.Struct, frozen=True):
    """What a process group is for (`data`, `tensor`, `pipeline`, …), and how that is known."""

    kind: str
    evidence: str


class CollectiveTotal(msgspec.Struct, frozen=True):
    """Collectives of one process group and name. Times are sums of all of them; None where any is unknown."""

    members: str | None  # the process group by name and ranks
    process_group: str | None
    group_description: str | None
    parallelism: Parallelism | None
    name: str
    sequence: int | None
    ranks: int  # ranks that recorded them
    calls: int
    size_bytes: int | None  # their messages together
    last_rank: int | None  # the rank that most often came last; None if none clearly did
    last_count: int  # how often it did
    wait_ns: int | None
    transfer_ns: int | None
    exposed_ns: int
    algorithm_bytes_per_s: float | None  # their messages by the time that moved them
    bus_bytes_per_s: float | None  # bytes on each link by the time that moved them
    link: RankLink | None = None  # what each link carries at most; None if unknown
    # What the rank that came last did while others waited for it, the most first
    meanwhile: tuple[Meanwhile, ...] = ()

    @property
    def link_fraction(self) -> float | None:
        """What part of the link's rate the bus bandwidth is; None where either is unknown."""
        if self.link is None or self.bus_bytes_per_s is None:
            return None
        return self.bus_bytes_per_s / self.link.bytes_per_s


class JobCollectives(msgspec.Struct, frozen=True, dict=True):
    ranks: Mapping[int, int | None]
    matched: tuple[MatchedCollective, ...] = ()  # in the order of their first rank
    evidence: SkewEvidence = SkewEvidence.ORDER  # how they were matched
    findings: tuple[Finding, ...] = ()  # sizes that differ, and ranks that lack a collective
    # What the last rank of each matched one did while others waited, by place in `matched`
    meanwhile: Mapping[int, tuple[Meanwhile, ...]] = msgspec.field(default_factory=dict)
    spec: DeviceSpec | None = None  # the GPU of all ranks; None if they differ or it is unknown
    stages: tuple[PipelineStage, ...] = ()  # those of pipelines, and what they wait
    # What ran the model tells of its only process group, `data` or `tensor`; None if nothing
    purpose: str | None = None

    @property
    def activities(self) -> list[dict[int, int]]:
        """Activities that are one collective each, by trace id."""
        return [{one.trace_id: one.activity_id for one in each.kernels} for each in self.matched]

    @cached_property
    def totals(self) -> tuple[CollectiveTotal, ...]:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for place, one in enumerate(self.matched):
            groups[one.kernels[0].members, one.kernels[0].title].append(place)
        return tuple(
            sorted(
                map(self._total, groups.values()),
                key=lambda one: ((one.wait_ns or 0) + (one.transfer_ns or 0), one.exposed_ns),
                reverse=True,
            )
        )

    @property
    def each(self) -> tuple[CollectiveTotal, ...]:
        return tuple(self._total([place]) for place in range(len(self.matched)))

    @cached_property
    def clocks(self) -> dict[int, RankClock]:
        """The clock of each rank against one of them, by trace id; where it shares collectives."""
        return align(
            {one.trace_id: one.start_ns + one.duration_ns for one in each.kernels} for each in self.matched
        )

    @cached_property
    def _groups(self) -> dict[str | None, tuple[RankLink | None, Parallelism | None]]:
        by_members: dict[str | None, list[MatchedCollective]] = defaultdict(list)
        for one in self.matched:
            by_members[one.kernels[0].members].append(one)
        found = {}
        for members, mine in by_members.items():
            last = mine[-1].kernels
            link = link_of(self.spec, [one.device for one in last], [one.bus_bytes_per_s for one in mine])
            purpose = _parallelism(last[0].group_description, {one.kernels[0].title or "" for one in mine})
            if purpose is None and self.purpose is not None and len(by_members) == 1:
                purpose = Parallelism(self.purpose, "inferred")
            found[members] = link, purpose
        return found

    def _total(self, places: Sequence[int]) -> CollectiveTotal:
        found = [self.matched[place] for place in places]
        first = found[0].kernels[0]
        link, parallelism = self._groups[first.members]
        last = Counter(one.ranks[one.last] for one in found if one.last is not None)
        rank, count = max(last.items(), key=lambda item: (item[1], -(item[0] or 0)), default=(None, 0))
        transfer_ns = _sum(one.transfer_ns for one in found)
        size_bytes = _sum(one.kernels[0].size_bytes for one in found)
        rates = [(one.bus_bytes_per_s, one.transfer_ns or 0) for one in found]
        bus = sum((rate or 0.0) * ns for rate, ns in rates) / transfer_ns if transfer_ns else None
        done = Counter[str | None]()
        for place in places:
            done.update({one.name: one.ns for one in self.meanwhile.get(place, ())})
        return CollectiveTotal(
            members=first.members,
            process_group=first.group_name,
            group_description=first.group_description,
            parallelism=parallelism,
            name=first.title or "",
            sequence=first.sequence if len(found) == 1 else None,
            ranks=len({trace.trace_id for one in found for trace in one.kernels}),
            calls=len(found),
            size_bytes=size_bytes,
            last_rank=rank,
            last_count=count,
            wait_ns=_sum(one.wait_ns for one in found),
            transfer_ns=transfer_ns,
            exposed_ns=sum(one.exposed_ns for one in found),
            algorithm_bytes_per_s=size_bytes / transfer_ns * 1e9
            if size_bytes is not None and transfer_ns
            else None,
            bus_bytes_per_s=None if any(rate is None for rate, _ in rates) else bus,
            link=link,
            meanwhile=tuple(Meanwhile(name, ns) for name, ns in done.most_common()),
        )

    @cached_property
    def rank_steps(self) -> tuple[RankStep, ...]:
        """How each rank arrived in each step, by step and trace."""
        found: dict[tuple[int | None, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for one in self.matched:
            least = min(one.kernels, key=lambda kernel: (kernel.duration_ns, kernel.trace_id))
            waits = [kernel.duration_ns - least.duration_ns for kernel in one.kernels]
            for kernel, wait_ns in zip(one.kernels, waits, strict=True):
                of_rank = found[kernel.step, kernel.trace_id]
                of_rank[0] += 1
                of_rank[2] += wait_ns
            of_last = found[least.step, least.trace_id]
            of_last[1] += max(waits) > _CLEARLY_LAST * least.duration_ns
            of_last[3] += sum(waits)
        order = sorted(found, key=lambda key: (-1 if key[0] is None else key[0], key[1]))
        return tuple(
            RankStep(trace_id, self.ranks[trace_id], step, *found[step, trace_id]) for step, trace_id in order
        )

    @cached_property
    def skews(self) -> tuple[RankSkew, ...]:
        """How each rank arrived, compared with the others; empty unless collectives could be matched."""
        found: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for one in self.rank_steps:
            of_step = (one.collectives, one.last_count, one.waiting_ns, one.awaited_ns)
            found[one.trace_id] = [sum(pair) for pair in zip(found[one.trace_id], of_step, strict=True)]
        return tuple(
            RankSkew(trace_id, self.ranks[trace_id], count, last, waiting_ns, awaited_ns, self.evidence)
            for trace_id, (count, last, waiting_ns, awaited_ns) in sorted(found.items())
        )


def read_collectives(session: Session, records: SessionRecords) -> JobCollectives:
    """The collectives (of steps, where there are any) that traces of different, known ranks share."""
    ranks, windows = {trace.trace_id: trace.rank for trace in records.traces}, records.windows
    if len(ranks) < 2 or None in ranks.values() or len(set(ranks.values())) < len(ranks):
        return JobCollectives(ranks)
    numbers = {trace_id: window.numbers for trace_id, window in windows.items() if window.steps}
    names = session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'kernel'")
    communication = [name_id for name_id, name in names if kernel_category(decode(name)) == "communication"]
    found = [
        one
        for row in session.query(sql(__package__, "collectives:kernels"), [communication])
        for one in (CollectiveKernel(*row),)
        if one.title is not None and (one.trace_id not in numbers or one.step in numbers[one.trace_id])
    ]
    # Between two ranks the others do not take part, and one side may rightly take longer.
    kernels = [one for one in found if one.title not in POINT_TO_POINT]
    pairwise = [one for one in found if one.title in POINT_TO_POINT]
    by_sequence = [one for one in kernels if one.sequence is not None]
    if by_sequence:
        runs = _matched((one, (one.members, one.title, one.sequence)) for one in by_sequence)
        evidence, findings = SkewEvidence.SEQUENCE, _differences(_by_sequence(by_sequence), ranks)
    else:
        runs, differing = _in_order(kernels)
        evidence, findings = SkewEvidence.ORDER, _differences(_by_order(differing), ranks)
    # When kernels that do not communicate ran.
    computing = {}
    for device in (device for trace in records.traces for device in trace.devices):
        mine = device.is_kernel & (device.work == WorkKind.COMPUTE)
        computing[device.trace_id, device.device] = merge((device.start_ns[mine], device.end_ns[mine]))
    exposed = _exposed(runs, computing)
    matched = tuple(
        MatchedCollective(
            tuple(run),
            tuple(ranks[one.trace_id] for one in run),
            sum(exposed[one.activity_id] for one in run),
        )
        for run in runs
    )
    done = _meanwhile(session, matched, communication)
    step_times = {
        trace_id: [step.end_ns - step.start_ns for step in window.steps]
        for trace_id, window in windows.items()
    }
    return JobCollectives(
        ranks,
        matched,
        evidence,
        findings,
        done,
        common_spec(session),
        find_bubbles(pairwise, ranks, computing, step_times),
        session.scalar(sql(__package__, "collectives:purpose")),
    )


def _in_order(
    kernels: Sequence[CollectiveKernel],
) -> tuple[list[list[CollectiveKernel]], list[dict[int, list[CollectiveKernel]]]]:
    """Collectives by place in group and step, where all ranks launched the same; and where they did not."""
    stepped = sorted((one for one in kernels if one.step is not None), key=_place)
    together: dict[Hashable, dict[int, list[CollectiveKernel]]] = defaultdict(dict)
    for (members, step, trace_id), run in groupby(stepped, key=_place):
        together[members, step][trace_id] = list(run)
    keyed, differing = [], []
    for place, runs in together.items():
        if len({tuple(map(_signature, run)) for run in runs.values()}) == 1:
            keyed += [(one, (place, number)) for run in runs.values() for number, one in enumerate(run)]
        else:
            differing.append(runs)
    return _matched(keyed), differing


def _signature(kernel: CollectiveKernel) -> tuple[str | None, int | None]:
    return kernel.title, kernel.in_element_count


def _place(kernel: CollectiveKernel) -> tuple[str, int, int]:
    return kernel.members or "", kernel.step or 0, kernel.trace_id


def _matched(keyed: Iterable[tuple[CollectiveKernel, Hashable]]) -> list[list[CollectiveKernel]]:
    """Kernels of one collective each; only what occurs once on each rank that has it, and on several."""
    found: dict[Hashable, list[CollectiveKernel]] = defaultdict(list)
    for kernel, key in keyed:
        found[key].append(kernel)
    return [run for run in found.values() if len({one.trace_id for one in run}) == len(run) > 1]


def _exposed(
    runs: Sequence[Sequence[CollectiveKernel]], computing: Mapping[tuple[int, int], Spans]
) -> dict[int, int]:
    """How long no other kernel ran beside each of these, by activity."""
    by_device: dict[tuple[int, int], list[CollectiveKernel]] = defaultdict(list)
    for run in runs:
        for one in run:
            by_device[one.trace_id, one.device].append(one)
    found: dict[int, int] = {}
    for device, mine in by_device.items():
        start_ns = np.array([one.start_ns for one in mine], dtype=np.int64)
        duration_ns = np.array([one.duration_ns for one in mine], dtype=np.int64)
        exposed_ns = duration_ns - overlap(computing.get(device, NOTHING), start_ns, start_ns + duration_ns)
        found |= dict(zip((one.activity_id for one in mine), exposed_ns.tolist(), strict=True))
    return found


def _meanwhile(
    session: Session, matched: Sequence[MatchedCollective], communication: Sequence[int]
) -> dict[int, tuple[Meanwhile, ...]]:
    """What the last rank's device did between the first arrival of another rank and its own."""
    late = [(place, one.kernels[one.last]) for place, one in enumerate(matched) if one.last is not None]
    if not late:
        return {}
    waited = {place: max(one.duration_ns for one in matched[place].kernels) for place, _ in late}
    asked = [
        (place, one.trace_id, one.device, one.start_ns + one.duration_ns - waited[place], one.start_ns)
        for place, one in late
    ]
    parameters = [*map(list, zip(*asked, strict=True)), list(communication)]
    busy: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
    for place, *rest in session.query(sql(__package__, "collectives:meanwhile"), parameters):
        busy[place].append(tuple(rest))
    found = {}
    for place, one in late:
        done: Counter[str | None] = Counter()
        for name, start_ns, end_ns in busy[place]:
            done[name] += end_ns - start_ns
        edges = np.array([rest for _, *rest in busy[place]], dtype=np.int64).reshape(-1, 2)
        done[None] = waited[place] - one.duration_ns - total(merge((edges[:, 0], edges[:, 1])))
        found[place] = tuple(Meanwhile(name, ns) for name, ns in done.most_common() if ns > 0)
    return found


# Where ranks should have launched the same: what it is, the kernel of each trace, and traces that lack it.
_Place = tuple[str | None, str, Mapping[int, CollectiveKernel], list[int]]


def _by_sequence(kernels: Sequence[CollectiveKernel]) -> Iterator[_Place]:
    """Each number of a group; a rank lacks what lies between two of its own, or after its last one."""
    by_group: dict[Any, dict[int, dict[int, CollectiveKernel]]] = defaultdict(lambda: defaultdict(dict))
    for one in kernels:
        by_group[one.members, one.title][one.sequence or 0][one.trace_id] = one
    for (_, title), numbers in by_group.items():
        traces = sorted({trace_id for found in numbers.values() for trace_id in found})
        own = {one: [number for number, found in numbers.items() if one in found] for one in traces}
        for number, found in sorted(numbers.items()):
            absent = [one for one in traces if one not in found and min(own[one]) < number < max(own[one])]
            yield title, f"number {number}", found, absent
        ends = {one: max(own[one]) for one in traces}
        latest = Counter(ends.values()).most_common(1)[0][0]
        hung = [one for one in traces if ends[one] < latest]
        if hung and len(traces) > 2:
            after = f"number after {min(ends[one] for one in hung)}, where others went on to {latest}"
            yield title, after, {}, hung


def _by_order(differing: Sequence[Mapping[int, Sequence[CollectiveKernel]]]) -> Iterator[_Place]:
    """The first place of a group and step at which ranks launched other collectives, sizes or fewer."""
    for runs in differing:
        for place in range(max(map(len, runs.values()))):
            here = {one: run[place] for one, run in runs.items() if place < len(run)}
            odd, absent = _odd(here), [one for one, run in runs.items() if place >= len(run)]
            if odd or absent:
                first = next(kernel for one, kernel in here.items() if one not in odd)
                where = f"collective {place + 1} of step {first.step}"
                yield first.title, where, here, [] if odd else absent
                break


def _odd(kernels: Mapping[int, CollectiveKernel]) -> list[int]:
    signatures = {one: _signature(kernel) for one, kernel in kernels.items()}
    usual = Counter(signatures.values()).most_common(1)[0][0] if signatures else None
    return [one for one, signature in signatures.items() if signature != usual]


def _differences(places: Iterable[_Place], ranks: Mapping[int, int | None]) -> tuple[Finding, ...]:
    mismatched, missing = [], []
    for title, where, kernels, absent in places:
        if odd := _odd(kernels):
            usual = next(kernel for one, kernel in kernels.items() if one not in odd)
            message = (
                f"{title}, {where}: {_named(odd, ranks)} of {counted(len(kernels), 'rank')} launched "
                f"{_what(kernels[odd[0]])} where the others launched {_what(usual)}."
            )
            evidence = {"ranks": [ranks[one] for one in odd], "where": where}
            advice = (
                "Ranks of a collective must pass the same number of elements: check how their inputs differ."
            )
            mismatched.append(
                Finding("collectives.mismatch", Severity.ERROR, message, advice, evidence=evidence)
            )
        if absent:
            message = f"{title}: {_named(absent, ranks)} recorded no {where}, which other ranks took part in."
            evidence = {"ranks": [ranks[one] for one in absent], "where": where}
            advice = "A rank that skips a collective makes the others hang."
            missing.append(Finding("collectives.missing", Severity.ERROR, message, advice, evidence=evidence))
    return (*mismatched[:_MISMATCHES], *missing[:_MISMATCHES])


def _what(kernel: CollectiveKernel) -> str:
    size = kernel.size_bytes
    if kernel.in_element_count is None:
        return f"{kernel.title}"
    told = f" ({format_bytes(size)})" if size is not None else ""
    return f"{kernel.title} of {counted(kernel.in_element_count, 'element')}{told}"


def _named(traces: Sequence[int], ranks: Mapping[int, int | None]) -> str:
    names = [str(ranks[one]) for one in traces[:_NAMED_RANKS]]
    more = f" and {len(traces) - _NAMED_RANKS} more" if len(traces) > _NAMED_RANKS else ""
    return f"rank{'s' if len(traces) > 1 else ''} {', '.join(names)}{more}"


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(one or 0 for one in found)


# What frameworks call their groups: DeviceMesh ("mesh_tp"), Megatron ("TENSOR_MODEL_PARALLEL_GROUP").
_DESCRIBED = (
    ("expert", ("expert", "_ep", "ep_")),
    ("pipeline", ("pipeline", "_pp", "pp_")),
    ("context", ("context", "sequence", "_cp", "cp_", "_sp")),
    ("tensor", ("tensor", "_tp", "tp_", "model_parallel_group")),
    ("data", ("data", "_dp", "dp_", "fsdp", "hsdp", "replicate", "shard")),
)


def _parallelism(description: str | None, names: set[str]) -> Parallelism | None:
    """What a group is for, by its description, else by what it exchanges; None if neither tells."""
    text = (description or "").lower()
    for kind, words in _DESCRIBED:
        if text in {one.strip("_") for one in words} or any(word in text for word in words):
            return Parallelism(kind, "name_pattern")
    patterns = {name.lower().replace("_", "") for name in names}
    if any("alltoall" in one for one in patterns):
        return Parallelism("expert", "inferred")
    if any("reducescatter" in one for one in patterns) and any("allgather" in one for one in patterns):
        return Parallelism("data", "inferred")
    return None
