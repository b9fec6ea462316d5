"""A BenchmarkResult as a Document: the table of implementations, what explains it, and what was left out.

Every figure comes from the result; what was not measured stands under "Not measured" with its reason.
Imports no renderer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from opscope.analysis.benchmark_scaling import growth_exponent
from opscope.benchmarking.implementation_code import ImplementationCode
from opscope.benchmarking.suites import Suite
from opscope.benchmarking.sweep import BenchmarkSweep
from opscope.kernels.code import CodeKind
from opscope.model.benchmark import (
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    Ceiling,
    DeviceState,
    Interval,
    KernelUse,
    Status,
    Verdict,
)
from opscope.model.finding import Finding
from opscope.model.measurement import Clock
from opscope.report.benchmark_explanation import explanations, joined
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    CodeBlock,
    Column,
    Document,
    FactList,
    FindingList,
    Inline,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    numeric,
    plain,
)
from opscope.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_byte_rate,
    format_bytes,
    format_duration,
    format_extent,
    format_flop_rate,
)

__all__ = [
    "UNKNOWN",
    "benchmark_document",
    "benchmark_sections",
    "benchmark_table",
    "benchmark_title",
    "ceiling_cell",
    "ceiling_text",
    "code_json",
    "code_sections",
    "condition_facts",
    "count_cell",
    "error_cell",
    "further_findings",
    "interval_text",
    "kernel_use_section",
    "median_cell",
    "not_measured",
    "percent",
    "rate_cell",
    "ratio_text",
    "samples_facts",
    "suite_list_document",
    "suite_list_json",
    "sweep_benchmark_document",
    "times",
    "verdict_cell",
]


UNKNOWN = "–"
_UNITS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))
_STATUS_WORDS = {
    Status.OK: "ok",
    Status.CHECKED: "right, not timed",
    Status.WRONG: "wrong",
    Status.UNAVAILABLE: "unavailable",
    Status.FAILED: "failed",
    Status.OUT_OF_MEMORY: "out of memory",
    Status.NO_RESULT: "returns nothing",
    Status.MUTATES_INPUTS: "changes its inputs",
    Status.INTERRUPTED: "interrupted",
}
_MOST_EXTRA_DIGITS = 2


def median_cell(row: BenchmarkRow) -> str:
    """`131.2 ± 0.1 µs`: the median and half the width of its interval, with digits that mean something."""
    if row.median_ns is None:
        return UNKNOWN
    factor, unit = next(
        ((factor, unit) for factor, unit in _UNITS if abs(row.median_ns) >= 0.9995 * factor), _UNITS[-1]
    )
    median = row.median_ns / factor
    digits = _digits(median) if unit != "ns" or row.inner_repeats > 1 else 0
    if row.interval_ns is None:
        return f"{median:.{digits}f} {unit}"
    low, high = row.interval_ns
    half = (high - low) / 2 / factor
    if 0 < half < 10.0**-digits:
        # A little less than the exponent, so that 0.0999999 counts as 0.1.
        digits = min(digits + _MOST_EXTRA_DIGITS, max(digits, math.ceil(-math.log10(half) - 1e-3)))
    if half > median:
        digits = min(digits, _digits(half))
    least = 10.0**-digits
    width = f"<{least:.{digits}f}" if 0 < half < least / 2 else f"{half:.{digits}f}"
    return f"{median:.{digits}f} ± {width} {unit}"


def _digits(value: float) -> int:
    """Decimals that keep three significant digits."""
    magnitude = abs(value)
    return 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2


def times(factor: float) -> str:
    """`10.6×`, `1.03×`, `0.954×`: three significant digits, and hundredths beside one."""
    digits = 0 if factor >= 100 else 1 if factor >= 10 else 2 if factor >= 1 else 3
    return f"{factor:.{digits}f}×"


def ratio_text(ratio: float, verdict: Verdict | None) -> str:
    """`9.8× slower`, `1.61× faster`, `same 1.003×`, `ambiguous 1.02×`; `1.02×` where there is no verdict."""
    if verdict is Verdict.SLOWER:
        return f"{times(ratio)} slower"
    if verdict is Verdict.FASTER:
        return f"{times(1 / ratio)} faster"
    near = f"{ratio:.3f}×" if 0.5 < ratio < 2 else times(ratio)
    return near if verdict is None else f"{verdict} {near}"


def verdict_cell(row: BenchmarkRow, reference: str) -> Text:
    """The verdict with its ratio; "reference" for the reference; the status of a row that has none."""
    if row.status is not Status.OK and row.verdict is None:
        words = _STATUS_WORDS[row.status]
        return words if row.status in {Status.CHECKED, Status.UNAVAILABLE} else Strong(words)
    if row.name == reference:
        return "reference"
    if row.ratio is None:
        return UNKNOWN
    words = ratio_text(row.ratio, row.verdict)
    return Strong(words) if row.verdict in {Verdict.FASTER, Verdict.SLOWER} else words


def count_cell(count: float | None) -> str:
    """A number of launches: `1`, `8`, `2.3` where calls differ."""
    return UNKNOWN if count is None else f"{count:.0f}" if count == int(count) else f"{count:.1f}"


def rate_cell(row: BenchmarkRow) -> str:
    """FLOP per second where the matrix ceiling binds, else bytes per second."""
    is_matrix = row.ceiling is not None and row.ceiling.startswith("matrix")
    if row.flop_per_s is not None and (is_matrix or row.bytes_per_s is None):
        return format_flop_rate(row.flop_per_s)
    return format_byte_rate(row.bytes_per_s)


def ceiling_cell(row: BenchmarkRow, *, is_named: bool) -> str:
    """`97 %`, with the ceiling's name where rows have different ones."""
    if row.ceiling_fraction is None:
        return UNKNOWN
    share = percent(row.ceiling_fraction)
    return f"{share} {row.ceiling}" if is_named else share


def percent(fraction: float) -> str:
    """A fraction in percent, with a decimal only where it is small."""
    if fraction < 0.0005:
        return "<0.1 %" if fraction > 0 else "0 %"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def error_cell(row: BenchmarkRow) -> str:
    """The largest relative error, two digits."""
    return UNKNOWN if row.max_relative_error is None else f"{row.max_relative_error:.1e}"


def ceiling_text(ceiling: Ceiling) -> str:
    """`copy 4.28 TB/s (…)`."""
    rate = format_flop_rate(ceiling.per_s) if ceiling.unit == "flop" else format_byte_rate(ceiling.per_s)
    return f"{ceiling.name} {rate}" + (f" ({ceiling.how})" if ceiling.how else "")


def interval_text(interval: Interval) -> str:
    """`1.60–1.62`."""
    low, high = interval
    return f"{low:.3g}–{high:.3g}"


_CLOCKS = {
    Clock.CUDA_EVENT: "CUDA events on the device around each call",
    Clock.CUDA_GRAPH: "CUDA events around the replay of a CUDA graph of the call: launches cost nothing",
    Clock.WALL: "wall clock of the host around each call, the device idle before and after",
}
_CACHES = {
    CacheState.COLD: "L2 overwritten before each (cold)",
    CacheState.HOT: "L2 as the call before left it (hot)",
    CacheState.UNCONTROLLED: "CPU caches as they come; inputs rotate",
}


def benchmark_document(result: BenchmarkResult, *, extra: Sequence[Section] = ()) -> Document:
    """The report on one result.

    Args:
        result: What was measured.
        extra: Further sections, put before the findings: kernels, generated code.
    """
    *sections, findings = benchmark_sections(result)
    parts = [section for section in (*sections, *extra, findings) if section is not None]
    return Document(benchmark_title(result), (FactList(condition_facts(result)),), tuple(parts))


def benchmark_sections(result: BenchmarkResult) -> tuple[Section | None, ...]:
    """Table, explanations, what was not measured, findings; None for each that has nothing to say."""
    fastest = _fastest(result)
    said = explanations(result)
    left = not_measured(result)
    findings = further_findings(result)
    return (
        Section("", (benchmark_table(result), *([Paragraph(fastest)] if fastest else []))),
        Section("Why", (BulletList(said),)) if said else None,
        Section("Not measured", (BulletList(left),)) if left else None,
        Section("Findings", (FindingList(findings),)) if findings else None,
    )


def benchmark_title(result: BenchmarkResult) -> str:
    """`gelu 8192 × 8192, float32, approximate=tanh`."""
    shape = "" if result.shape is None else " " + " × ".join(map(str, result.shape))
    named = [f"{name}={value}" for name, value in result.parameters.items() if name != "dtype"]
    return ", ".join([f"{result.suite}{shape}", *([result.dtype] if result.dtype else []), *named])


def condition_facts(result: BenchmarkResult) -> tuple[tuple[str, Text], ...]:
    """What the figures were measured on, by and against."""
    facts: list[tuple[str, Text]] = [("Device", _device(result)), ("Clock", _clock(result))]
    facts += samples_facts([result])
    facts.append(("Reference", Code(result.reference)))
    facts += _check(result)
    if result.ceilings:
        facts.append(("Ceilings", "; ".join(map(ceiling_text, result.ceilings))))
    facts += _device_states(result)
    if not result.complete:
        facts.append(("Complete", Strong("no: interrupted; what was finished is shown")))
    return tuple(facts)


def _device(result: BenchmarkResult) -> str:
    environment = result.environment
    index = result.device.partition(":")[2]
    gpus = environment.gpu
    if result.device.startswith("cuda") and gpus:
        number = int(index) if index.isdigit() and int(index) < len(gpus) else 0
        name = f"{gpus[number].name} ({result.device})"
    else:
        name = f"{environment.cpu} (cpu)" if environment.cpu and result.device == "cpu" else result.device
    versions = [
        ("torch", environment.torch),
        ("CUDA", environment.cuda_runtime),
        ("Triton", environment.triton),
    ]
    return ", ".join([name, *(f"{label} {version}" for label, version in versions if version)])


def _clock(result: BenchmarkResult) -> str:
    return f"{_CLOCKS[result.clock]}; {_CACHES[result.cache_state]}"


def samples_facts(results: Sequence[BenchmarkResult]) -> Iterator[tuple[str, Text]]:
    """How many samples the medians of some results rest on, and what ± means."""
    counts = [len(row.samples_ns) for result in results for row in result.rows if row.samples_ns]
    if not counts:
        return
    low, high = min(counts), max(counts)
    number = str(low) if low == high else f"{low} to {high}"
    yield (
        "Samples",
        f"{number} of each, taken in turns in random order; ± is half the 95 % interval of the median",
    )


def _check(result: BenchmarkResult) -> Iterator[tuple[str, Text]]:
    checks = [row.check for row in result.rows if row.check is not None]
    if not checks:
        if not result.options.check:
            yield "Check", "outputs were not compared"
        return
    tolerances = sorted({check.tolerance for check in checks})
    stated = " or ".join(f"{tolerance:.0e}" for tolerance in tolerances)
    references = ", ".join(dict.fromkeys(check.reference for check in checks))
    yield "Check", f"against {references}; largest relative error {stated}"


def _device_states(result: BenchmarkResult) -> Iterator[tuple[str, Text]]:
    states = [state for state in (result.device_state_before, result.device_state_after) if state is not None]
    words = [text for text in map(_state, states) if text]
    if words:
        yield "Clocks", " → ".join(dict.fromkeys(words))


def _state(state: DeviceState) -> str:
    parts = []
    if state.sm_clock_mhz is not None:
        most = "" if state.max_sm_clock_mhz is None else f" of {state.max_sm_clock_mhz}"
        parts.append(f"{state.sm_clock_mhz}{most} MHz")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} °C")
    if state.power_w is not None:
        parts.append(f"{state.power_w:.0f} W")
    return ", ".join([*parts, *state.throttle_reasons])


def benchmark_table(result: BenchmarkResult) -> Table:
    """One row per implementation that ran; columns no row fills are left out."""
    rows = [row for row in result.rows if row.status is not Status.UNAVAILABLE]
    ceilings = {row.ceiling for row in rows if row.ceiling is not None}
    share = f"Of {ceilings.copy().pop()} ceiling" if len(ceilings) == 1 else "Of ceiling"
    columns: list[tuple[Column, list[Text], bool]] = [
        (Column("Implementation"), [Code(row.name) for row in rows], True),
        (numeric("Median"), [median_cell(row) for row in rows], True),
        (Column("Verdict"), [verdict_cell(row, result.reference) for row in rows], True),
        (
            numeric("Kernels"),
            [count_cell(row.kernels_launched) for row in rows],
            _has(rows, "kernels_launched"),
        ),
        (numeric("Rate"), [rate_cell(row) for row in rows], _has(rows, "bytes_per_s", "flop_per_s")),
        (
            numeric(share),
            [ceiling_cell(row, is_named=len(ceilings) > 1) for row in rows],
            bool(ceilings),
        ),
        (
            numeric("Memory"),
            [format_bytes(row.peak_memory_bytes) for row in rows],
            _has(rows, "peak_memory_bytes"),
        ),
        (numeric("Error"), [error_cell(row) for row in rows], _has(rows, "max_relative_error")),
    ]
    kept = [(column, cells) for column, cells, is_kept in columns if is_kept]
    return Table(tuple(column for column, _ in kept), tuple(zip(*(cells for _, cells in kept), strict=True)))


def _has(rows: Sequence[BenchmarkRow], *fields: str) -> bool:
    return any(getattr(row, field) is not None for row in rows for field in fields)


def _fastest(result: BenchmarkResult) -> Text | None:
    faster = [row for row in result.rows if row.verdict is Verdict.FASTER and row.ratio is not None]
    if not any(row.verdict for row in result.rows):
        return None
    if not faster:
        return ("Nothing here is faster than ", Code(result.reference), ".")
    best = min(faster, key=lambda row: row.ratio or 0.0)
    assert best.ratio is not None
    parts: tuple[Inline, ...] = (
        Code(best.name),
        " is the fastest: ",
        Strong(f"{times(1 / best.ratio)} faster"),
    )
    interval = best.ratio_interval
    # The interval is of the ratio to the reference; said the other way round, its ends change places.
    known = (
        "" if interval is None else f" (95 % interval {interval_text((1 / interval[1], 1 / interval[0]))})"
    )
    return (*parts, " than ", Code(result.reference), f"{known}.")


def not_measured(result: BenchmarkResult) -> tuple[Text, ...]:
    """Why rows were not timed, or do not count, and what to do about it; rows of one reason together."""
    by_reason: dict[tuple[Status, str], list[BenchmarkRow]] = {}
    for row in result.rows:
        if row.status is not Status.OK:
            by_reason.setdefault((row.status, row.reason or ""), []).append(row)
    return tuple(_reason(status, reason, rows) for (status, reason), rows in by_reason.items())


def further_findings(result: BenchmarkResult) -> tuple[Finding, ...]:
    """The findings without those that only repeat why an implementation was not measured."""
    said = {row.name for row in result.rows if row.status is not Status.OK}
    return tuple(finding for finding in result.findings if finding.evidence.get("implementation") not in said)


def _reason(status: Status, reason: str, rows: Sequence[BenchmarkRow]) -> Text:
    names = joined([Code(row.name) for row in rows])
    if status is Status.CHECKED:
        errors = [row.max_relative_error for row in rows if row.max_relative_error is not None]
        error = f"; largest relative error {max(errors):.1e}" if errors else ""
        return (*names, ": ", f"{reason or 'checked, not timed'}{error}")
    return (*names, ": ", Strong(str(status).replace("_", " ")), f"; {reason}" if reason else "")


def kernel_use_section(result: BenchmarkResult) -> Section:
    """Under "Kernels": what each implementation is and costs around its samples, then what it launches."""
    rows = [row for row in result.rows if row.first_call_ns is not None or row.profile is not None]
    blocks: list[Block] = [_calls(rows)] if rows else []
    if not any(row.profile for row in rows):
        blocks.append(Paragraph("No kernels were recorded: that takes a GPU, and profiling switched on."))
    return Section("Kernels", tuple(blocks), tuple(_kernels(row) for row in rows if row.profile))


def _calls(rows: Sequence[BenchmarkRow]) -> Table:
    columns = (
        Column("Implementation"),
        Column("What it is"),
        *map(numeric, ("Built in", "First call", "Calls in a row", "By the profiler", "By the clock")),
    )
    return Table(columns, tuple(map(_call, rows)))


def _call(row: BenchmarkRow) -> tuple[Text, ...]:
    return (
        Code(row.name),
        row.note or str(row.engine),
        format_duration(row.build_ns),
        format_duration(row.first_call_ns),
        format_duration(row.call_ns),
        format_duration(row.device_ns),
        format_duration(row.median_ns),
    )


def _kernels(row: BenchmarkRow) -> Section:
    assert row.profile is not None
    if not row.profile.kernels:
        return Section(row.name, (Paragraph("It launched nothing on the device."),))
    return Section(row.name, (_table(row.profile.kernels),))


def _table(kernels: tuple[KernelUse, ...]) -> Table:
    columns = (
        Column("Kernel"),
        *map(numeric, ("Launches", "Device time", "Grid", "Block", "Registers", "Shared memory")),
        Column("Operator"),
        Column("Source"),
    )
    return Table(columns, tuple(map(_row, kernels)))


def _row(use: KernelUse) -> tuple[Text, ...]:
    return (
        Code(use.title),
        count_cell(use.launches),
        format_duration(use.device_ns),
        format_extent(use.grid),
        format_extent(use.block),
        count_cell(use.registers_per_thread),
        format_bytes(use.shared_memory_bytes),
        "–" if use.operator is None else Code(use.operator),
        "–" if use.source_file is None else Code(use.source_file),
    )


_TITLES = {
    CodeKind.PTX: "PTX",
    CodeKind.SASS: "Machine code (SASS)",
    CodeKind.TRITON: "Triton and torch.compile",
}


def code_sections(codes: Sequence[ImplementationCode]) -> tuple[Section, ...]:
    """One section per kind of code, with one per implementation in it."""
    return tuple(
        Section(
            _TITLES[kind],
            sections=tuple(
                Section(code.implementation, tuple(_blocks(code))) for code in codes if code.kind is kind
            ),
        )
        for kind in dict.fromkeys(code.kind for code in codes)
    )


def _blocks(code: ImplementationCode) -> Iterator[Block]:
    if code.reason is not None:
        yield Paragraph(f"No code: {code.reason}")
    for text in code.texts:
        yield Paragraph(Code(text.title, is_whole=True))
        yield CodeBlock(text.text, text.language)


def code_json(codes: Sequence[ImplementationCode]) -> list[dict[str, Any]]:
    """Each implementation's texts of each kind, or the reason there are none."""
    return [
        {
            "implementation": code.implementation,
            "kind": str(code.kind),
            "texts": [text._asdict() for text in code.texts],
            "reason": code.reason,
        }
        for code in codes
    ]


# Conditions that hold for every point; the others are each point's own.
_COMMON_FACTS = ("Device", "Clock", "Reference", "Check")


def sweep_benchmark_document(sweep: BenchmarkSweep, *, extra: Sequence[Sequence[Section]] = ()) -> Document:
    """The report on a sweep.

    Args:
        sweep: What was measured.
        extra: Further sections of each point: kernels, generated code.
    """
    sections: list[Section] = []
    for name in dict.fromkeys(point.suite for point in sweep.points):
        points = [point for point in sweep.points if point.suite == name]
        sections += _suite_sections(sweep, points)
    for point, further in zip(sweep.points, extra, strict=False):
        sections += [replace(each, title=f"{each.title}: {point_label(sweep, point)}") for each in further]
    if sweep.failures:
        sections.append(Section("Points without a result", (BulletList(sweep.failures),)))
    return Document(sweep.suite, (FactList(_facts(sweep)),), tuple(sections))


def point_label(sweep: BenchmarkSweep, point: BenchmarkResult) -> str:
    """`n=1024`: the swept parameters of a point; its suite where nothing was swept."""
    values = [f"{name}={point.parameters[name]}" for name in sweep.parameters if name in point.parameters]
    return ", ".join(values) or point.suite


def _facts(sweep: BenchmarkSweep) -> tuple[tuple[str, Text], ...]:
    swept = [f"{name}: {', '.join(map(str, values))}" for name, values in sweep.parameters.items()]
    facts: list[tuple[str, Text]] = [("Swept", "; ".join(swept))] if swept else []
    if sweep.points:
        facts += [fact for fact in condition_facts(sweep.points[0]) if fact[0] in _COMMON_FACTS]
        facts += samples_facts(sweep.points)
    if not sweep.complete:
        facts.append(("Complete", Strong("no: interrupted; what was finished is shown")))
    return tuple(facts)


def _suite_sections(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> Iterator[Section]:
    if len(points) == 1:
        first, *others = benchmark_sections(points[0])
        assert first is not None
        yield replace(first, title=benchmark_title(points[0]))
        yield from (section for section in others if section is not None)
        return
    swept = [name for name in sweep.parameters if name in points[0].parameters]
    yield Section(f"Scaling of {points[0].suite}", tuple(_tables(points, swept)))
    reasons = _reasons(sweep, points)
    if reasons:
        yield Section("Not measured", (BulletList(reasons),))
    findings = _findings(sweep, points)
    if findings:
        yield Section("Findings", (FindingList(findings),))


def _tables(points: Sequence[BenchmarkResult], swept: Sequence[str]) -> Iterator[Block]:
    names = [
        name
        for name in _names(points)
        if any(_benchmark_sweep_row(point, name).median_ns for point in points)
    ]
    yield _benchmark_sweep_table(points, swept, names, lambda point, row: median_cell(row), caption="Median")
    others = [name for name in names if any(name != point.reference for point in points)]
    if others:
        caption: Text = (
            "Time over that of ",
            Code(points[0].reference),
            " (≈ the same, ? ambiguous)",
        )
        yield _benchmark_sweep_table(points, swept, others, _ratio_cell, caption=caption)
    growth = _growth_table(points, swept, names)
    if growth is not None:
        yield growth


def _benchmark_sweep_table(
    points: Sequence[BenchmarkResult],
    swept: Sequence[str],
    names: Sequence[str],
    cell: Callable[[BenchmarkResult, BenchmarkRow], Text],
    *,
    caption: Text,
) -> Table:
    columns = (*map(numeric, swept), *map(numeric, names))
    rows: list[tuple[Text, ...]] = []
    for point in points:
        cells: list[Text] = [str(point.parameters.get(name, UNKNOWN)) for name in swept]
        cells += [cell(point, _benchmark_sweep_row(point, name)) for name in names]
        rows.append(tuple(cells))
    return Table(columns, tuple(rows), caption)


def _ratio_cell(point: BenchmarkResult, row: BenchmarkRow) -> Text:
    if row.ratio is None:
        return plain(verdict_cell(row, point.reference)) if row.status is not Status.OK else UNKNOWN
    if row.verdict is Verdict.SAME:
        return f"≈ {row.ratio:.2f}×"
    if row.verdict is Verdict.AMBIGUOUS:
        return f"? {row.ratio:.2f}×"
    return times(row.ratio)


def _growth_table(
    points: Sequence[BenchmarkResult], swept: Sequence[str], names: Sequence[str]
) -> Table | None:
    exponents = {name: [growth_exponent(points, name, parameter) for parameter in swept] for name in names}
    told = [
        index
        for index in range(len(swept))
        if any(values[index] is not None for values in exponents.values())
    ]
    if not told:
        return None
    columns = (Column("Time grows as"), *(numeric(swept[index]) for index in told))
    rows: list[tuple[Text, ...]] = []
    for name, values in exponents.items():
        powers: list[Text] = [_power(swept[index], values[index]) for index in told]
        rows.append((Code(name), *powers))
    return Table(columns, tuple(rows))


def _power(parameter: str, exponent: float | None) -> str:
    return UNKNOWN if exponent is None else f"{parameter}^{exponent:.2f}"


def _names(points: Sequence[BenchmarkResult]) -> list[str]:
    return list(dict.fromkeys(row.name for point in points for row in point.rows))


def _benchmark_sweep_row(point: BenchmarkResult, name: str) -> BenchmarkRow:
    absent = BenchmarkRow(name=name, status=Status.UNAVAILABLE)
    return next((row for row in point.rows if row.name == name), absent)


def _reasons(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> tuple[Text, ...]:
    """What was not measured and why; what holds for every point is said once."""
    at: dict[str, tuple[Text, list[str]]] = {}
    for point in points:
        for text in not_measured(point):
            at.setdefault(plain(text), (text, []))[1].append(point_label(sweep, point))
    return tuple(_at_points(text, labels, len(points)) for text, labels in at.values())


def _at_points(text: Text, labels: Sequence[str], count: int) -> Text:
    if len(labels) == count:
        return text
    parts: tuple[Any, ...] = text if isinstance(text, tuple) else (text,)
    return (f"{'; '.join(labels)}: ", *parts)


def _findings(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> tuple[Finding, ...]:
    """Each kind of finding once for each implementation, where it came first, and where it came again."""
    found: dict[tuple[str, str | None], tuple[Finding, list[str]]] = {}
    for point in points:
        for finding in further_findings(point):
            key = (finding.code, finding.evidence.get("implementation"))
            found.setdefault(key, (finding, []))[1].append(point_label(sweep, point))
    return tuple(_at_labels(finding, labels) for finding, labels in found.values())


def _at_labels(finding: Finding, labels: Sequence[str]) -> Finding:
    again = f" Likewise at {'; '.join(labels[1:])}." if len(labels) > 1 else ""
    return replace(finding, message=f"{labels[0]}: {finding.message}{again}")


def suite_list_document(suites: Sequence[Suite]) -> Document:
    """One row per suite, and each one's implementations."""
    columns = (Column("Suite"), Column("Compares"), Column("Shape"), Column("Parameters"))
    rows = tuple(
        (Code(suite.name), suite.summary, " ".join(suite.shape_names), _options(suite)) for suite in suites
    )
    names = FactList(tuple((suite.name, _suite_list_names(suite.implementations)) for suite in suites))
    how = Paragraph("Sizes, dtype and parameters are swept over by --param, e.g. --param rows=1024,8192.")
    return Document(
        "Suites of opscope bench",
        sections=(Section("", (Table(columns, rows), how)), Section("Implementations", (names,))),
    )


def suite_list_json(suites: Sequence[Suite]) -> dict[str, Any]:
    """All suites with what can be chosen of each."""
    return {
        "suites": [
            {
                "name": suite.name,
                "summary": suite.summary,
                "shape_names": list(suite.shape_names),
                "default_shape": {"cpu": list(suite.cpu_shape), "cuda": list(suite.cuda_shape)},
                "dtypes": list(suite.dtypes),
                "reference": suite.reference,
                "implementations": list(suite.implementations),
                "parameters": {name: list(parameter.values) for name, parameter in suite.parameters.items()},
            }
            for suite in suites
        ]
    }


def _options(suite: Suite) -> str:
    named = [f"{name}={'|'.join(parameter.values)}" for name, parameter in suite.parameters.items()]
    return ", ".join(named) or "–"


def _suite_list_names(names: Sequence[str]) -> Text:
    return joined([Code(name) for name in names])
