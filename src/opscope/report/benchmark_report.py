"""A BenchmarkResult as a Document: the table of implementations, what explains it, and what was left out.

Every figure comes from the result; what was not measured stands under "Not measured" with its reason.
Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, CacheState, DeviceState, Status, Verdict
from opscope.model.finding import Finding
from opscope.model.measurement import Clock
from opscope.report.benchmark_cells import (
    ceiling_cell,
    ceiling_text,
    count_cell,
    error_cell,
    interval_text,
    median_cell,
    rate_cell,
    times,
    verdict_cell,
)
from opscope.report.benchmark_explanation import explanations, joined
from opscope.report.document import (
    BulletList,
    Code,
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
)
from opscope.units import format_bytes

__all__ = [
    "benchmark_document",
    "benchmark_sections",
    "benchmark_table",
    "benchmark_title",
    "condition_facts",
    "further_findings",
    "not_measured",
    "samples_facts",
]

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
