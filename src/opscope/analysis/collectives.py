"""Collectives across ranks: how long ranks waited and data moved, who came last and why, what differs.

A collective ends on all ranks together and cannot begin to move data before the last has arrived, so the last
to arrive has the shortest kernel, and a rank's kernel takes longer than that by the time it waited. That
compares durations, never clocks. What the last rank did meanwhile is read on its own clock: the first to wait
had arrived as long before the common end as its kernel took.

A group whose ranks name different devices is taken for one of one host, joined by NVLink where every such
device has it, else by PCIe; where a number returns, the network is unknown.

A rank is waited for in a step if there the others wait for it more than for anybody else. One that is late
once, by however much, is no straggler: its collective tells that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from opscope.analysis.arrays import NOTHING, Spans, merge, overlap
from opscope.analysis.launch_quality import common_spec
from opscope.analysis.timeline.host import SessionRecords
from opscope.analysis.timeline.records import WorkKind
from opscope.analysis.timeline.values import RankSkew, SkewEvidence
from opscope.hardware.devices import DeviceSpec
from opscope.ingest import wording
from opscope.model.finding import Finding
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session
from opscope.operators.collective_costs import bus_factor, message_bytes
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import TextEnum
from opscope.units import counted, format_bytes


class LinkKind(TextEnum):
    NVLINK = "nvlink"
    PCIE = "pcie"
    UNKNOWN = "unknown"


class LinkEvidence(TextEnum):
    DATA_SHEET = "data_sheet"
    BEST_SEEN = "best_seen"


class RankLink(msgspec.Struct, frozen=True):
    """What each rank's link carries at most, in each direction."""

    kind: LinkKind
    bytes_per_s: float
    evidence: LinkEvidence


def link_of(spec: DeviceSpec | None, devices: Sequence[int], seen: Iterable[float | None]) -> RankLink | None:
    """The link of a group; None where neither its kind nor a rate is known."""
    if spec is not None and len(set(devices)) == len(devices):
        if spec.nvlink_bytes_per_s is not None:
            return RankLink(LinkKind.NVLINK, spec.nvlink_bytes_per_s, LinkEvidence.DATA_SHEET)
        if spec.pcie_bytes_per_s is not None:
            return RankLink(LinkKind.PCIE, spec.pcie_bytes_per_s, LinkEvidence.DATA_SHEET)
    best = max((one for one in seen if one is not None), default=None)
    return None if best is None else RankLink(LinkKind.UNKNOWN, best, LinkEvidence.BEST_SEEN)


# As NCCL's metadata and kernel names have them; `coalesced`: several in one kernel.
POINT_TO_POINT = frozenset(("send", "recv", "SendRecv", "coalesced"))


_NAMED_RANKS = 4
_MISMATCHES = 5

finding = partial(wording.finding, package=__package__)


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
        return self.collective or decode(self.kernel).collective

    @property
    def size_bytes(self) -> int | None:
        return message_bytes(self.data_type, self.element_count)


_duration_ns = attrgetter("duration_ns")


def transfer_ns(kernels: Sequence[CollectiveKernel]) -> int | None:
    """Of one collective, from the arrival of the last rank to the end; None if that may not be recorded."""
    size = kernels[0].group_size
    return min(map(_duration_ns, kernels)) if size is None or size <= len(kernels) else None


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
    """Collectives of several ranks, in the order of their first kernels; kernels of each come by trace."""

    ranks: Mapping[int, int | None]
    matched: tuple[tuple[CollectiveKernel, ...], ...] = ()
    evidence: SkewEvidence = SkewEvidence.ORDER  # how they were matched
    findings: tuple[Finding, ...] = ()  # sizes that differ, and ranks that lack a collective
    rank_steps: tuple[RankStep, ...] = ()  # how each rank arrived in each step, by step and trace
    each: tuple[CollectiveTotal, ...] = ()  # in the order of `matched`
    totals: tuple[CollectiveTotal, ...] = ()  # by process group and name, the longest first

    @cached_property
    def skews(self) -> tuple[RankSkew, ...]:
        """How each rank arrived, compared with the others; empty unless collectives could be matched."""
        by_trace = grouped((one.trace_id, one) for one in self.rank_steps)
        return tuple(
            RankSkew(
                trace_id,
                self.ranks[trace_id],
                sum(one.collectives for one in mine),
                sum(one.last_count for one in mine),
                sum(one.waiting_ns for one in mine),
                sum(one.awaited_ns for one in mine),
                self.evidence,
            )
            for trace_id, mine in sorted(by_trace.items())
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
    by_sequence = [one for one in kernels if one.sequence is not None]
    if by_sequence:
        matched = _matched((one, (one.members, one.title, one.sequence)) for one in by_sequence)
        evidence, findings = SkewEvidence.SEQUENCE, _differences(_by_sequence(by_sequence), ranks)
    else:
        matched, differing = _in_order(kernels)
        evidence, findings = SkewEvidence.ORDER, _differences(_by_order(differing), ranks)
    # When kernels that do not communicate ran.
    computing = {
        (device.trace_id, device.device): merge((device.start_ns[mine], device.end_ns[mine]))
        for trace in records.traces
        for device in trace.devices
        for mine in [device.is_kernel & (device.work == WorkKind.COMPUTE)]
    }
    exposed = _exposed(matched, computing)
    rows = [
        (place, one.trace_id, ranks[one.trace_id], one.step, one.duration_ns, exposed[one.activity_id],
         of[0].size_bytes, bus_factor(of[0].title or "", of[0].group_size or len(of)),
         transfer_ns(of) is not None)
        for place, of in enumerate(matched)
        for one in of
    ]  # fmt: skip
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 9
    steps = session.query(sql(__package__, "collectives:rank_steps"), columns[:5])
    done = _meanwhile(session, matched, communication)
    purpose = session.scalar(sql(__package__, "collectives:purpose"))
    # By group and name.
    keys = [(kernels[0].members, kernels[0].title) for kernels in matched]
    parts = {key: part for part, key in enumerate(dict.fromkeys(keys))}
    each = tuple(_totals(session, columns, range(len(matched)), matched, done))
    by_name = _totals(session, columns, [parts[key] for key in keys], matched, done)
    links = _links(matched, [one.bus_bytes_per_s for one in each], common_spec(session), purpose)

    def linked(one: CollectiveTotal) -> CollectiveTotal:
        link, parallelism = links[one.members]
        return msgspec.structs.replace(one, link=link, parallelism=parallelism)

    def rank(one: CollectiveTotal) -> tuple[int, int]:
        return (one.wait_ns or 0) + (one.transfer_ns or 0), one.exposed_ns

    return JobCollectives(
        ranks,
        tuple(map(tuple, matched)),
        evidence,
        findings,
        tuple(RankStep(*row) for row in steps),
        tuple(map(linked, each)),
        tuple(map(linked, sorted(by_name, key=rank, reverse=True))),
    )


def _totals(
    session: Session,
    columns: list[list[Any]],
    part_of: Sequence[int],
    matched: Sequence[Sequence[CollectiveKernel]],
    done: Mapping[int, Sequence[tuple[str | None, int]]],
) -> Iterator[CollectiveTotal]:
    """Collectives summed up by part, which `part_of` tells by place; `done` is what last ranks did."""
    places = grouped((part, place) for place, part in enumerate(part_of))
    figures = [columns[0], [part_of[place] for place in columns[0]], *columns[1:3], *columns[4:]]
    for row in session.records(sql(__package__, "collectives:totals"), figures):
        mine = places[row.pop("part")]
        first = matched[mine[0]][0]
        meanwhile = summed(each for place in mine for each in done.get(place, ()))
        yield CollectiveTotal(
            members=first.members,
            process_group=first.group_name,
            group_description=first.group_description,
            parallelism=None,
            name=first.title or "",
            sequence=first.sequence if len(mine) == 1 else None,
            meanwhile=tuple(Meanwhile(name, ns) for name, ns in meanwhile.most_common()),
            **row,
        )


def _links(
    matched: Sequence[Sequence[CollectiveKernel]],
    rates: Sequence[float | None],
    spec: DeviceSpec | None,
    purpose: str | None,
) -> dict[str | None, tuple[RankLink | None, Parallelism | None]]:
    """What joins the ranks of each process group, and what the group is for, by its members.

    `purpose` is what ran the model tells of its only process group, `data` or `tensor`; None.
    """
    by_members = grouped((kernels[0].members, place) for place, kernels in enumerate(matched))
    found = {}
    for members, places in by_members.items():
        last = matched[places[-1]]
        link = link_of(spec, [one.device for one in last], [rates[place] for place in places])
        titles = {matched[place][0].title or "" for place in places}
        parallelism = _parallelism(last[0].group_description, titles)
        if parallelism is None and purpose is not None and len(by_members) == 1:
            parallelism = Parallelism(purpose, "inferred")
        found[members] = link, parallelism
    return found


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
    found = grouped((key, kernel) for kernel, key in keyed)
    return [run for run in found.values() if len({one.trace_id for one in run}) == len(run) > 1]


def _exposed(
    runs: Sequence[Sequence[CollectiveKernel]], computing: Mapping[tuple[int, int], Spans]
) -> dict[int, int]:
    by_device = grouped(((one.trace_id, one.device), one) for run in runs for one in run)
    found: dict[int, int] = {}
    for device, mine in by_device.items():
        start_ns, duration_ns = np.array([(one.start_ns, one.duration_ns) for one in mine], dtype=np.int64).T
        exposed_ns = duration_ns - overlap(computing.get(device, NOTHING), start_ns, start_ns + duration_ns)
        found |= dict(zip((one.activity_id for one in mine), exposed_ns.tolist(), strict=True))
    return found


def _meanwhile(
    session: Session, matched: Sequence[Sequence[CollectiveKernel]], communication: Sequence[int]
) -> Mapping[int, Sequence[tuple[str | None, int]]]:
    """What the last rank's device did, in ns, between the first arrival of another rank and its own.

    By place of the collective, where the last rank is known and clearly came last.
    """
    asked = []
    for place, kernels in enumerate(matched):
        last = min(kernels, key=_duration_ns)
        waited_ns = max(map(_duration_ns, kernels)) - last.duration_ns
        # Transfers of one collective differ from rank to rank by a few percent; by less, nobody is called
        # last.
        if transfer_ns(kernels) is not None and waited_ns > 0.1 * last.duration_ns:
            asked.append((place, last.trace_id, last.device, last.start_ns - waited_ns, last.start_ns))
    parameters = [*([list(column) for column in zip(*asked, strict=True)] or [[]] * 5), list(communication)]
    rows = session.query(sql(__package__, "collectives:meanwhile"), parameters)
    return grouped((place, (name, ns)) for place, name, ns in rows)


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
                yield first.title, f"collective {place + 1} of step {first.step}", here, [] if odd else absent
                break


def _odd(kernels: Mapping[int, CollectiveKernel]) -> list[int]:
    signatures = {one: _signature(kernel) for one, kernel in kernels.items()}
    usual = Counter(signatures.values()).most_common(1)[0][0] if signatures else None
    return [one for one, signature in signatures.items() if signature != usual]


def _differences(places: Iterable[_Place], ranks: Mapping[int, int | None]) -> tuple[Finding, ...]:
    mismatched, missing = [], []

    def told(title: str | None, where: str, traces: Sequence[int]) -> dict[str, Any]:
        of = [ranks[one] for one in traces]
        more = f" and {len(of) - _NAMED_RANKS} more" if len(of) > _NAMED_RANKS else ""
        return {
            "evidence": {"ranks": of, "where": where},
            "title": title,
            "named": f"rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of[:_NAMED_RANKS]))}{more}",
        }

    for title, where, kernels, absent in places:
        if odd := _odd(kernels):
            usual = next(kernel for one, kernel in kernels.items() if one not in odd)
            launched: dict[str, Any] = {
                "odd": _what(kernels[odd[0]]),
                "usual": _what(usual),
                "count": len(kernels),
            }
            mismatched.append(finding("collectives.mismatch", **told(title, where, odd), **launched))
        if absent:
            missing.append(finding("collectives.missing", **told(title, where, absent)))
    return (*mismatched[:_MISMATCHES], *missing[:_MISMATCHES])


def _what(kernel: CollectiveKernel) -> str:
    if kernel.in_element_count is None:
        return f"{kernel.title}"
    told = f" ({format_bytes(kernel.size_bytes)})" if kernel.size_bytes is not None else ""
    return f"{kernel.title} of {counted(kernel.in_element_count, 'element')}{told}"


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


class RankStep(msgspec.Struct, frozen=True):
    """How one rank arrived at the collectives of one step."""

    trace_id: int
    rank: int | None
    step: int | None
    collectives: int  # those of the step that were matched
    last_count: int  # of those, how often it was clearly the last
    waiting_ns: int  # time its kernels waited for others
    awaited_ns: int  # time the kernels of others waited for it, summed over them


class RankDifference(msgspec.Struct, frozen=True):
    """What an operator has in a step of one rank beyond the median of the other ranks."""

    name: str
    device_ns: float
    host_ns: float
    calls: float


class Straggler(msgspec.Struct, frozen=True):
    trace_id: int
    rank: int | None
    lag_ns_per_step: float  # what every other rank waits for it, or more
    awaited_fraction: float  # of all waiting, what is for this rank
    late_steps: int  # steps in which the others waited for it more than for anybody else, and for long
    steps: int  # steps in which collectives were matched
    differences: tuple[RankDifference, ...] = ()  # what takes it longer than the others, the most first


# Of a step: what all others wait.
_LEAST_LAG_FRACTION = 0.05


def find_straggler(
    session: Session,
    skews: Sequence[RankSkew],
    rank_steps: Sequence[RankStep],
    durations: Sequence[tuple[int, int]],
    left_out: Collection[tuple[int, int | None]] = (),
) -> Straggler | None:
    """The rank for which the others wait in most collectives.

    None as well where not all ranks of the job were recorded: the last one may be another. `durations`
    are trace and ns of each step, `left_out` trace and number of those that count for none.
    """
    if not durations or len(skews) <= 1:
        return None
    world = session.scalar("SELECT max(world_size) FROM traces") or 0
    steps = Counter(trace_id for trace_id, _ in durations)
    step_ns = sum(duration_ns for _, duration_ns in durations) / len(durations)
    caused_ns = sum(skew.awaited_ns for skew in skews)
    late = max(skews, key=lambda skew: skew.awaited_ns)
    others = [skew for skew in skews if skew is not late]
    awaited = late.awaited_ns / max(1, caused_ns)
    # By chance each rank comes last equally often.
    if world > len(skews) or awaited < 0.7:
        return None
    by_step = grouped((one.step, one) for one in rank_steps if (one.trace_id, one.step) not in left_out)
    count, late_steps = len(by_step), Counter[int]()
    for ranks in by_step.values():
        # Whom others waited for most, where each of them waited so long on the mean.
        awaited_most = max(ranks, key=lambda one: one.awaited_ns)
        if awaited_most.awaited_ns >= _LEAST_LAG_FRACTION * step_ns * (len(ranks) - 1) > 0:
            late_steps[awaited_most.trace_id] += 1
    if count and late_steps[late.trace_id] <= count / 2:
        return None
    least = min(others, key=lambda skew: skew.waiting_ns)
    lag_ns = least.waiting_ns / max(1, steps.get(least.trace_id, 0))
    if lag_ns < _LEAST_LAG_FRACTION * step_ns:
        return None
    ids = [skew.trace_id for skew in (late, *others)]
    counts = [max(1, steps.get(one, 0)) for one in ids]
    parameters = [late.trace_id, ids, counts, [list(one) for one in sorted(left_out)]]
    rows = session.query(sql(__package__, "collectives:beyond_others"), parameters)
    # Of what the others wait: an operator that takes the late rank longer by less explains nothing.
    least_ns = 0.02 * lag_ns
    differences = tuple(RankDifference(*row) for row in rows if max(row[1:3]) >= least_ns)
    return Straggler(late.trace_id, late.rank, lag_ns, awaited, late_steps[late.trace_id], count, differences)
