"""Hardware counters for people: the kernels of a report in one table, each in detail, and what to change.

A counter that was not collected reads "not collected".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opscope.analysis.counters import (
    AlikeLaunches,
    CountedCall,
    CountedKernel,
    CounterAnalysis,
    CounterLimit,
    Match,
    alike_launches,
    counter_book,
    unmeasured,
)
from opscope.hardware.architectures import WARP_SIZE
from opscope.model.finding import Finding
from opscope.model.queries import summed
from opscope.model.schema import Attribution
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, parsed, versions
from opscope.report.operators import shape_texts
from opscope.toolchain.ncu_report import (
    NO_STALL,
    QUANTITIES,
    GlobalAccess,
    KernelCounters,
    Occupancy,
    Quantity,
)
from opscope.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_extent,
    format_fraction,
    format_share,
)

_ABSENT = "not collected"
_STALLS_SHOWN = 3
_CHANGES, _NAMED = 3, 3
_RESOURCES = {"shared_memory": "shared memory", "threads": "block size"}


def ncu_document(analysis: CounterAnalysis, *, top: int | None = 10) -> doc.Document:
    groups = alike_launches(analysis.kernels)
    shown = groups[:top]
    read = doc.facts(
        ("Report", doc.Code(str(analysis.report.source))),
        *(("Recording", doc.Code(source)) for source in analysis.recordings),
    )
    return doc.Document(
        "Hardware counters",
        (_opening(analysis, groups),),
        doc.sections(
            doc.Section("Kernels", _kernels(analysis, shown, len(groups))),
            doc.Section("What to change", (doc.FindingList(analysis.findings),)),
            doc.Section("Each kernel", sections=tuple(_details(group, analysis) for group in shown)),
            doc.Section("What was read", (read,)),
        ),
    )


_NO_LIMIT = "unknown: the report lacks the share of compute or of memory (ncu --set basic collects them)"


def _opening(analysis: CounterAnalysis, groups: Sequence[AlikeLaunches]) -> doc.FactList:
    whole_ns = sum(one.duration_ns for one in groups)
    shares = [f"{name} {format_share(ns, whole_ns)}" for name, ns in _limits(groups).most_common() if ns]
    longest: doc.Text | None = None
    for kernel, launches, ns in groups[:1]:
        times = f", {counted(launches, 'launch')}" if launches > 1 else ""
        limited = f", limited by {limit}" if (limit := _limit(kernel)) else ""
        longest = (doc.Code(kernel.decoded.title), f": {format_duration(ns)}{times}{limited}")
    titles = {one.counters.index: one.decoded.title for one in analysis.kernels}
    changes: list[tuple[str, doc.Text]] = []
    for rank, one in enumerate(analysis.findings[:_CHANGES], 1):
        named = dict.fromkeys(titles[at] for at in one.evidence["launches"])
        share = format_fraction(one.evidence["time_fraction"])
        kernels = doc.joined(map(doc.Code, named), most=_NAMED)
        changes.append((f"Change {rank}", (*kernels, f" ({share} of the time): {_advice(one)}")))
    devices = dict.fromkeys(
        (one.name or "a device the report does not name")
        + (f" (compute capability {one.compute_capability})" if one.compute_capability else "")
        for one in (kernel.counters.device for kernel in analysis.kernels)
    )
    failed = dict.fromkeys(doc.Code(one.decoded.title) for one in unmeasured(analysis.kernels))
    all_of, untimed = len(analysis.kernels), sum(one.counters.duration_ns is None for one in analysis.kernels)
    missing = f"; {untimed} without a time" if 0 < untimed < all_of else ""
    lost = (*doc.joined(failed, most=_NAMED), ": profiling failed, so that no change can be told")
    return doc.facts(
        ("Defect", lost if failed else None),
        ("Kernels", f"{counted(all_of, 'launch')}, {format_duration(whole_ns)} in all{missing}"),
        ("Time limited by", ", ".join(shares) or _NO_LIMIT),
        ("Longest", longest),
        *changes,
        ("Based on", ", ".join(devices)),
    )


def _advice(finding: Finding) -> str:
    return (finding.suggestion or finding.message).partition(". ")[0].rstrip(".")


def _limit(kernel: CountedKernel) -> str | None:
    """In words, with the unit that sets the share of the compute side; None where counters lack."""
    limit, unit = kernel.limit, kernel.counters.busiest_unit
    if limit is CounterLimit.COMPUTE and unit:
        return f"compute ({unit.upper()})"
    return limit and ("DRAM" if limit is CounterLimit.DRAM else limit.replace("_", " "))


def _kernels(analysis: CounterAnalysis, shown: Sequence[AlikeLaunches], of: int) -> tuple[doc.Block, ...]:
    def operator(group: AlikeLaunches) -> doc.Text | None:
        names = group.longest.operators
        return None if not names else doc.Code(names[0]) if len(names) == 1 else f"{len(names)} operators"

    def fraction(title: str, quantity: Quantity, spare: int) -> doc.Field:
        return doc.number(
            title, lambda group: format_fraction(group.longest.counters.ratio(quantity)), spare=spare
        )

    has_recording, other = bool(analysis.recordings), len(analysis.report.other_results)
    are_alike = any(one.launches > 1 for one in shown)
    table = doc.table(
        shown,
        doc.number("#", "longest.counters.index", str),
        doc.identifier("Kernel", "longest.decoded.title"),
        doc.words("Operator", operator) if has_recording else None,
        doc.number("Launches", "launches", format_count) if are_alike else None,
        doc.number("Time", lambda one: one.duration_ns or None, format_duration),
        doc.number("DRAM", "longest.counters.dram_bytes", spare=3),
        doc.number("Of minimum", "longest.traffic_ratio", "{:.2f} ×".format) if has_recording else None,
        fraction("Compute", Quantity.SM_FRACTION, 1),
        fraction("Memory", Quantity.MEMORY_FRACTION, 2),
        fraction("Occupancy", Quantity.OCCUPANCY, 0),
        doc.words("Limited by", lambda group: _limit(group.longest)),
    )
    lost: list[doc.Text] = [
        (
            f"launch {one.counters.index} (",
            doc.Code(one.decoded.title),
            f", {one.match.meaning if one.match else ''})",
        )
        for one in analysis.kernels
        if one.match in (Match.NOT_RECORDED, Match.AMBIGUOUS)
    ]
    told = doc.blocks(
        doc.Paragraph("Launches alike are one row: the time of all, the rest of the longest.")
        if are_alike
        else None,
        doc.Paragraph(f"The longest {len(shown)} of {of}.") if len(shown) < of else None,
        doc.Paragraph(f"{other} results are not kernel launches (ranges, graphs) and are not shown.")
        if other
        else None,
        doc.Paragraph(
            "Times are ncu's: it runs a kernel alone, once per group of counters, and unless told otherwise "
            "empties the caches before each and holds the base clock, so they are not those of the program."
        ),
        doc.Paragraph(("Without a certain call in the recording: ", *doc.joined(lost, "; "), "."))
        if lost
        else None,
    )
    return (table, *told)


def _limits(groups: Sequence[AlikeLaunches]) -> Counter[str]:
    limits = ((_limit(one.longest), one.duration_ns) for one in groups)
    return summed((limit, ns) for limit, ns in limits if limit and ns)


def side_by_side(name: str, analyses: Mapping[str, CounterAnalysis], least_bytes: int) -> doc.Document:
    """The launches of each version of a call: sums of all, and what the longest is; 0 is no known least."""

    def rows(analysis: CounterAnalysis) -> tuple[tuple[str, str], ...]:
        def moved(quantity: Quantity) -> str:
            counts = [one.counters.count(quantity) for one in analysis.kernels]
            if None in counts or not counts:
                return _ABSENT
            total = sum(filter(None, counts))
            ratio = f", {total / least_bytes:.2f} × the least" if least_bytes else ""
            return f"{format_bytes(total)}{ratio}"

        times = [one.counters.duration_ns or 0 for one in analysis.kernels]
        longest = max(analysis.kernels, key=lambda one: one.counters.duration_ns or 0, default=None)
        if longest is None:
            return (("Time", "no kernel"),)
        counters = longest.counters
        return (
            ("Time", f"{format_duration(sum(times))}, {counted(len(times), 'kernel')}"),
            ("DRAM", moved(Quantity.DRAM_BYTES)),
            ("Through L2", moved(Quantity.L2_BYTES)),
            ("Longest kernel", longest.decoded.title),
            ("Limited by", _limit(longest) or _ABSENT),
            ("Occupancy", _occupancy(counters)),
            ("Registers", format_count(counters.registers_per_thread)),
            ("Tensor cores", format_fraction(counters.ratio(Quantity.TENSOR_FRACTION))),
            ("Warp stalls", _stalls(counters)),
            ("Stalled at", _stall_lines(counters) or "no line numbers"),
        )

    columns = {name: dict(rows(analysis)) for name, analysis in analyses.items()}
    table = doc.table(
        list(dict.fromkeys(title for of in columns.values() for title in of)),
        doc.words("", str),
        *(doc.words(name, of.get) for name, of in columns.items()),
    )
    least = f"The call moves at least {format_bytes(least_bytes)}: inputs read once, results written once."
    changes = (
        doc.Section(f"What to change in {one}", (doc.FindingList(of.findings),))
        for one, of in analyses.items()
    )
    return doc.Document(
        f"Hardware counters of {name}",
        doc.blocks(table, doc.Paragraph(least) if least_bytes else None),
        doc.sections(*changes),
    )


def _stalls(counters: KernelCounters) -> str:
    book, stalls = counter_book()["stalls"], []
    reasons = [item for item in counters.stall_fractions.items() if item[0] not in NO_STALL]
    for reason, share in reasons[:_STALLS_SHOWN]:
        meaning = f"{book[reason]['meaning']} ({reason})" if reason in book else reason
        stalls.append(f"{meaning} {format_fraction(share)}")
    return ", ".join(stalls) or _ABSENT


def _stall_lines(counters: KernelCounters) -> str:
    shown = counters.stall_lines[:_STALLS_SHOWN]
    lines = (
        f"{Path(one.file).name}:{one.line} ({one.reason}) {format_fraction(one.fraction)}" for one in shown
    )
    return ", ".join(lines)


def _details(group: AlikeLaunches, analysis: CounterAnalysis) -> doc.Section:
    kernel, counters = group.longest, group.longest.counters
    threads = counters.ratio(Quantity.THREADS_PER_INSTRUCTION)
    accesses = [*_access("loads", counters.loads), *_access("stores", counters.stores)]
    time = format_duration(counters.duration_ns)
    if group.launches > 1:
        time += f", the longest of {group.launches:,} launches ({format_duration(group.duration_ns)} in all)"
    if kernel.recorded_ns is not None:
        recorded = format_duration(kernel.recorded_ns)
        time += f"; {recorded} recorded (median of {counted(kernel.launches, 'launch')})"
    peaks = [
        f"{name} {format_fraction(counters.ratio(quantity))}"
        for name, quantity in _PEAKS
        if quantity in counters.values
    ]
    launch = (
        f"grid {format_extent(counters.grid)}, block {format_extent(counters.block)}, "
        f"{format_count(counters.registers_per_thread)} registers per thread, "
        f"{format_bytes(counters.shared_memory_bytes)} shared memory per block"
    )
    known = doc.facts(
        ("Kernel", doc.Code(kernel.name)),
        ("Operator", _call(kernel) if analysis.recordings else None),
        ("Launch", launch),
        ("Time", time),
        ("Device memory", _traffic(kernel)),
        ("Share of peak", ", ".join(peaks) or _ABSENT),
        ("Coalescing", "; ".join(accesses) or _ABSENT),
        ("Bank conflicts", _conflicts(counters)),
        (
            "Divergence",
            _ABSENT if threads is None else f"{threads:.1f} of {WARP_SIZE} threads active per instruction",
        ),
        ("Occupancy", _occupancy(counters)),
        ("Warp stalls", _stalls(counters)),
        ("Stalled at", _stall_lines(counters)),
    )
    # What limits it, and what to do about that.
    found = next((one for one in analysis.findings if counters.index in one.evidence["launches"]), None)
    limited = f"Limited by {limit}." if (limit := _limit(kernel)) else ""
    meaning = doc.Meaning(f"{limited} {_advice(found)}." if found else limited)
    return doc.Section(f"Launch {counters.index}: {kernel.decoded.title}", doc.blocks(known, meaning))


_PEAKS = (
    ("compute", Quantity.SM_FRACTION),
    ("memory system", Quantity.MEMORY_FRACTION),
    ("device memory", Quantity.DRAM_FRACTION),
    ("L2", Quantity.L2_FRACTION),
    ("L1", Quantity.L1_FRACTION),
    ("tensor cores", Quantity.TENSOR_FRACTION),
)


def _call(kernel: CountedKernel) -> doc.Text:
    meaning = f" ({kernel.match.meaning})" if kernel.match not in (None, Match.SAME_CALL) else ""
    if kernel.call is None:
        return f"{', '.join(kernel.operators) or 'unknown'}{meaning}"
    attribution = kernel.call.attribution
    without = "no operator" if attribution is None else f"none: {Attribution(attribution).meaning}"
    operator: doc.Inline = doc.Code(kernel.call.operator) if kernel.call.operator else without
    shapes = ", ".join(shape_texts(kernel.call.shapes) or ())
    return (operator, f" on {shapes}" if shapes else "", meaning)


def _traffic(kernel: CountedKernel) -> str:
    counters = kernel.counters
    if counters.dram_bytes is None:
        return _ABSENT
    read, written, l2 = map(counters.count, _TRAFFIC)
    parts = [] if read is None else [f"{format_bytes(read)} read"]
    parts += [] if written is None else [f"{format_bytes(written)} written"]
    split = f" ({', '.join(parts)})" if parts else ""
    through = "" if l2 is None else f"; {format_bytes(l2)} through L2"
    least = "" if kernel.match is None else f"; not compared with the minimum: {kernel.no_ratio_reason}"
    if kernel.traffic_ratio is not None:
        least = f"; {kernel.traffic_ratio:.2f} × the minimum of {format_bytes(kernel.min_bytes)}"
    return f"{format_bytes(counters.dram_bytes)}{split}{through}{least}"


_TRAFFIC = (Quantity.DRAM_READ_BYTES, Quantity.DRAM_WRITTEN_BYTES, Quantity.L2_BYTES)


def _access(name: str, access: GlobalAccess) -> Iterator[str]:
    if access.requests == 0:
        yield f"no {name}"
    elif access.sectors_per_request is not None:
        ideal = access.ideal_sectors_per_request
        needed = "" if ideal is None else f", {ideal:.1f} would suffice"
        yield f"{name} touch {access.sectors_per_request:.1f} sectors per request{needed}"


def _conflicts(counters: KernelCounters) -> str:
    shared = counters.shared
    if shared.wavefronts == 0:
        return "shared memory is not used"
    if shared.conflict_fraction is None:
        return _ABSENT
    return (
        f"{format_count(shared.excess)} of {format_count(shared.wavefronts)} passes through shared memory "
        f"({format_fraction(shared.conflict_fraction)})"
    )


def _occupancy(counters: KernelCounters) -> str:
    occupancy = counters.occupancy
    if occupancy.theoretical is None and occupancy.achieved is None:
        return _ABSENT
    limiters = " and ".join(_RESOURCES.get(name, name) for name in occupancy.limiters)
    limited = f", limited by {limiters}" if limiters and (occupancy.theoretical or 0) < 1 else ""
    waves = "" if occupancy.waves is None else f"; {occupancy.waves:.2f} waves"
    return (
        f"{format_fraction(occupancy.achieved)} of {format_fraction(occupancy.theoretical)} possible"
        f"{limited}{waves}"
    )


NCU_SCHEMA_VERSION = 5


def ncu_json(analysis: CounterAnalysis) -> dict[str, Any]:
    keys = Keys("report=report.source recordings other_results=report.other_results kernels findings")
    return {**versions(NCU_SCHEMA_VERSION), **keys.record(analysis, _KEYS)}


_RECORDED = Keys(
    "match match_meaning=match.meaning operators launches launches_per_step median_duration_ns=recorded_ns "
    "call"
)


_KEYS: dict[type, Keys] = {
    CountedKernel: Keys(
        "launch=counters.index name title=decoded.title family=decoded.family "
        "mangled_name=counters.mangled_name device=counters.device grid=counters.grid block=counters.block "
        "registers_per_thread=counters.registers_per_thread shared_memory_bytes=counters.shared_memory_bytes "
        "*quantities global_loads=counters.loads global_stores=counters.stores "
        "bank_conflict_fraction=counters.shared.conflict_fraction occupancy=counters.occupancy "
        "stall_fractions stall_lines=counters.stall_lines limited_by=limit recorded min_bytes traffic_ratio "
        "no_traffic_ratio_because=no_ratio_reason sections=counters.sections "
        "replay_passes=counters.replay_passes not_collected",
        quantities=lambda kernel: {quantity: kernel.counters.values.get(quantity) for quantity in QUANTITIES},
        stall_fractions=lambda kernel: kernel.counters.stall_fractions or None,
        recorded=lambda kernel: None if kernel.match is None else _RECORDED.record(kernel, _KEYS),
        not_collected=lambda kernel: [
            {"quantity": quantity, "metrics": metric.names, "section": metric.section}
            for quantity, metric in kernel.counters.not_collected.items()
        ],
    ),
    GlobalAccess: Keys("sectors_per_request ideal_sectors_per_request"),
    Occupancy: Keys(
        "theoretical achieved limited_by=limiters blocks_per_sm_by waves",
        blocks_per_sm_by=lambda occupancy: occupancy.block_limits or None,
    ),
    CountedCall: Keys(
        "operator overload attribution shapes types concrete calls activities_per_call "
        "flop_count=cost.flop_count read_bytes=cost.read_bytes written_bytes=cost.written_bytes "
        "min_bytes=cost.min_bytes evidence=cost.evidence reason=cost.reason",
        shapes=parsed("shapes"),
        types=parsed("types"),
        concrete=parsed("concrete"),
    ),
}
