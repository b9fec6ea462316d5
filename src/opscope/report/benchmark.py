"""A BenchmarkResult as a Document: the table of implementations, what explains it, and what was left out.

Every figure comes from the result; what was not measured stands under "Not measured" with its reason. Why an
implementation takes its time is said only where rows hold the evidence: kernels by the profiler, shares of a
measured ceiling, bytes and memory. Imports no renderer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from opscope import units
from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.benchmarking.suites import Suite
from opscope.model.benchmark import (
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    Clock,
    DeviceState,
    Interval,
    Status,
    Verdict,
    reciprocal,
)
from opscope.model.finding import Finding
from opscope.model.queries import grouped, summed
from opscope.report import document as doc
from opscope.report.document import Code, Inline, Text, joined
from opscope.report.json_encoding import Keys, encode


def problem_title(
    suite: str, shape: Sequence[int] | None, dtype: str | None, *more: str, parameters: Mapping[str, str]
) -> str:
    """`gelu 8192 × 8192, float32, approximate=tanh`."""
    sizes = "" if shape is None else " " + " × ".join(map(str, shape))
    swept = [f"{name}={value}" for name, value in parameters.items() if name != "dtype"]
    return ", ".join([f"{suite}{sizes}", *([dtype] if dtype else []), *more, *swept])


_UNITS = ((units.NS_PER_S, "s"), (units.NS_PER_MS, "ms"), (units.NS_PER_US, "µs"), (1, "ns"))
_STATUS_WORDS = {
    Status.OK: "ok",
    Status.CHECKED: "correct, not timed",
    Status.WRONG: "wrong",
    Status.UNAVAILABLE: "unavailable",
    Status.FAILED: "failed",
    Status.OUT_OF_MEMORY: "out of memory",
    Status.NO_RESULT: "returns nothing",
    Status.MUTATES_INPUTS: "changes its inputs",
    Status.INTERRUPTED: "interrupted",
}


def median_cell(row: BenchmarkRow) -> str:
    return median_text(row.median_ns, row.interval_ns, is_exact=row.inner_repeats > 1)


def median_text(median_ns: float | None, interval_ns: Interval | None, *, is_exact: bool) -> str:
    """`131.2 ± 0.1 µs`: the median and half the width of its interval, with digits that mean something."""
    if median_ns is None:
        return units.UNKNOWN
    factor, unit = next(
        ((factor, unit) for factor, unit in _UNITS if abs(median_ns) >= 0.9995 * factor), _UNITS[-1]
    )
    median = median_ns / factor
    digits = _decimals(median) if unit != "ns" or is_exact else 0
    if interval_ns is None:
        return f"{median:.{digits}f} {unit}"
    low, high = interval_ns
    half = (high - low) / 2 / factor
    if 0 < half < 10.0**-digits:
        # A little less than the exponent, so that 0.0999999 counts as 0.1.
        digits = min(digits + 2, max(digits, math.ceil(-math.log10(half) - 1e-3)))
    if half > median:
        digits = min(digits, _decimals(half))
    least = 10.0**-digits
    width = f"<{least:.{digits}f}" if 0 < half < least / 2 else f"{half:.{digits}f}"
    return f"{median:.{digits}f} ± {width} {unit}"


def _decimals(value: float) -> int:
    return len(units.significant(value).partition(".")[2])


def ratio_text(ratio: float, verdict: Verdict | None) -> str:
    """`9.8× slower`, `1.61× faster`, `same 1.003×`, `ambiguous 1.02×`; `1.02×` where there is no verdict."""
    if verdict is Verdict.SLOWER:
        return f"{units.format_ratio(ratio)} slower"
    if verdict is Verdict.FASTER:
        return f"{units.format_ratio(1 / ratio)} faster"
    near = f"{ratio:.3f}×" if 0.5 < ratio < 2 else units.format_ratio(ratio)
    return near if verdict is None else f"{verdict} {near}"


def verdict_cell(row: BenchmarkRow, reference: str) -> doc.Text:
    """The verdict with its ratio; "reference" for the reference; the status of a row that has none."""
    if row.status is not Status.OK and row.verdict is None:
        status = _STATUS_WORDS[row.status]
        return status if row.status in {Status.CHECKED, Status.UNAVAILABLE} else doc.Strong(status)
    if row.name == reference:
        return "reference"
    if row.ratio is None:
        return units.UNKNOWN
    said = ratio_text(row.ratio, row.verdict)
    return doc.Strong(said) if row.verdict in {Verdict.FASTER, Verdict.SLOWER} else said


def rate_cell(row: BenchmarkRow) -> str:
    """FLOP per second where the matrix ceiling binds, else bytes per second."""
    is_matrix = row.ceiling is not None and row.ceiling.startswith("matrix")
    if row.flop_per_s is not None and (is_matrix or row.bytes_per_s is None):
        return units.format_flop_rate(row.flop_per_s)
    return units.format_byte_rate(row.bytes_per_s)


_CLOCKS = {
    Clock.CUDA_EVENT: "CUDA events on the device around each call",
    Clock.CUDA_GRAPH: "CUDA events around the replay of a CUDA graph of the call: no launch overhead",
    Clock.WALL: "host wall clock around each call, the device synchronized before and after",
}
_CACHES = {
    CacheState.COLD: "L2 flushed before each call (cold)",
    CacheState.HOT: "L2 as the previous call left it (hot)",
    CacheState.UNCONTROLLED: "CPU caches not controlled; inputs rotate",
}


def benchmark_document(
    result: BenchmarkResult | BenchmarkSweep, *, extra: Sequence[Sequence[doc.Section]] = ()
) -> doc.Document:
    """The report on a result, or on a sweep of several; `extra` are further sections of each point."""
    if isinstance(result, BenchmarkSweep):
        return _sweep_document(result, extra)
    *before, findings = _benchmark_sections(result)
    conditions = doc.Section("Conditions", (_condition_facts(result),))
    shown = doc.sections(*before, *chain.from_iterable(extra), findings, conditions)
    return doc.Document(benchmark_title(result), (_headline(result),), shown)


def _headline(result: BenchmarkResult) -> doc.FactList:
    wrong = [doc.Code(row.name) for row in result.rows if row.status in _WRONG]
    missing = sum(row.status is not Status.OK and row.status not in _WRONG for row in result.rows)
    return doc.facts(
        ("Result", _fastest(result)),
        ("Why", next(iter(explanations(result)), None)),
        ("Wrong or failed", doc.joined(wrong) if wrong else None),
        ("Not measured", f"{missing} of {len(result.rows)}, see below" if missing else None),
        ("Based on", _based_on([result])),
        ("Complete", None if result.complete else _INTERRUPTED),
    )


_WRONG = frozenset((Status.WRONG, Status.MUTATES_INPUTS, Status.FAILED, Status.OUT_OF_MEMORY))


def _benchmark_sections(result: BenchmarkResult) -> tuple[doc.Section, doc.Section, doc.Section, doc.Section]:
    return (
        doc.Section("Result", (benchmark_table(result),)),
        doc.Section("Why", (doc.BulletList(explanations(result)),)),
        doc.Section("Not measured", (doc.BulletList(_not_measured(result)),)),
        doc.Section("Findings", (doc.FindingList(_further_findings(result)),)),
    )


def benchmark_title(result: BenchmarkResult) -> str:
    return problem_title(result.suite, result.shape, result.dtype, parameters=result.parameters)


def _condition_facts(result: BenchmarkResult) -> doc.FactList:
    checks = [row.check for row in result.rows if row.check is not None]
    tolerances = sorted({check.tolerance for check in checks})
    references = ", ".join(dict.fromkeys(check.reference for check in checks))
    checked: str | None = None if result.options.check else "outputs were not compared"
    if checks:
        stated = " or ".join(f"{tolerance:.0e}" for tolerance in tolerances)
        checked = f"against {references}; largest relative error {stated}"
    rate = {"flop": units.format_flop_rate}
    ceilings = [
        f"{one.name} {rate.get(one.unit, units.format_byte_rate)(one.per_s)}"
        + (f" ({one.how})" if one.how else "")
        for one in result.ceilings
    ]
    states = map(_state, filter(None, (result.device_state_before, result.device_state_after)))
    return doc.facts(
        ("Clock", f"{_CLOCKS[result.clock]}; {_CACHES[result.cache_state]}"),
        ("Samples", _samples([result])),
        ("Reference", doc.Code(result.reference)),
        ("Check", checked),
        ("Ceilings", "; ".join(ceilings)),
        ("Clocks", " → ".join(dict.fromkeys(filter(None, states)))),
    )


def _samples(results: Sequence[BenchmarkResult]) -> str | None:
    count = _sample_counts(results)
    if count is None:
        return None
    text = f"{count} of each, interleaved in random order; ± is half the 95 % interval of the median"
    other: dict[str, None] = {}
    for result in results:
        # Rows whose ratio is visibly not that of the medians: these are of all samples.
        reference_ns = next((row.median_ns for row in result.rows if row.name == result.reference), None)
        other |= {
            row.name: None
            for row in result.rows
            if row.ratio and row.median_ns and reference_ns
            if abs(row.ratio * reference_ns / row.median_ns - 1) > 0.02
        }
    return text if not other else f"{text}; ratios are of the rounds both sides have ({', '.join(other)})"


def _based_on(results: Sequence[BenchmarkResult]) -> str:
    count = _sample_counts(results)
    return ", ".join([*map(_device, results[:1]), *([f"{count} samples of each"] if count else [])])


def _sample_counts(results: Sequence[BenchmarkResult]) -> str | None:
    counts = [len(row.samples_ns) for result in results for row in result.rows if row.samples_ns]
    if not counts:
        return None
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


_INTERRUPTED = doc.Strong("no: interrupted; what was finished is shown")


def _device(result: BenchmarkResult) -> str:
    environment, name = result.environment, result.device
    index = name.partition(":")[2]
    if name.startswith("cuda") and environment.gpu:
        number = int(index) if index.isdigit() and int(index) < len(environment.gpu) else 0
        name = f"{environment.gpu[number].name} ({name})"
    elif name == "cpu" and environment.cpu:
        name = f"{environment.cpu} (cpu)"
    versions = (
        ("torch", environment.torch), ("CUDA", environment.cuda_runtime), ("Triton", environment.triton),
    )  # fmt: skip
    return ", ".join([name, *(f"{label} {version}" for label, version in versions if version)])


def _state(state: DeviceState) -> str:
    most = "" if state.max_sm_clock_mhz is None else f" of {state.max_sm_clock_mhz}"
    parts = (
        None if state.sm_clock_mhz is None else f"{state.sm_clock_mhz}{most} MHz",
        None if state.temperature_c is None else f"{state.temperature_c} °C",
        None if state.power_w is None else f"{state.power_w:.0f} W",
        *state.throttle_reasons,
    )
    return ", ".join(part for part in parts if part is not None)


def benchmark_table(result: BenchmarkResult) -> doc.Table:
    rows = [row for row in result.rows if row.status is not Status.UNAVAILABLE]
    ceilings = {row.ceiling for row in rows if row.ceiling is not None}

    def of_ceiling(row: BenchmarkRow) -> str:
        if row.ceiling_fraction is None:
            return units.UNKNOWN
        # Its name where rows have different ones.
        return units.format_percent(row.ceiling_fraction) + (f" {row.ceiling}" if len(ceilings) > 1 else "")

    return doc.table(
        rows,
        doc.identifier("Implementation", "name"),
        doc.number("Median", median_cell),
        doc.words("Verdict", lambda row: verdict_cell(row, result.reference)),
        doc.number("Kernels", "kernels_launched", units.format_mean_count, spare=2, if_known=True),
        doc.number("Rate", rate_cell, spare=3, if_known=True),
        doc.number(
            f"Of {min(ceilings)} ceiling" if len(ceilings) == 1 else "Of ceiling", of_ceiling, if_known=True
        ),
        doc.number("Memory", "peak_memory_bytes", spare=4, if_known=True),
        doc.number("Error", "max_relative_error", "{:.1e}".format, spare=1, if_known=True),
    )


def _fastest(result: BenchmarkResult) -> doc.Text | None:
    if not any(row.verdict for row in result.rows):
        return None
    faster = [(row.ratio, row) for row in result.rows if row.verdict is Verdict.FASTER and row.ratio]
    reference = doc.Code(result.reference)
    if not faster:
        names = doc.joined(doc.Code(row.name) for row in result.rows if row.verdict is Verdict.AMBIGUOUS)
        if names:
            return ("No clear winner: ", *names, " may be faster than ", reference, " or slower.")
        return ("Nothing here is faster than ", reference, ".")
    ratio, best = min(faster, key=itemgetter(0))
    _, slowest = best.ratio_interval or (ratio, ratio)
    as_fast = [
        doc.Code(row.name)
        for _, row in faster
        if row is not best and row.ratio_interval is not None and row.ratio_interval[0] < slowest
    ]
    if as_fast:
        names = doc.joined([doc.Code(best.name), *as_fast])
        return ("No clear winner: ", *names, " are faster than ", reference, ".")
    known = ""
    if best.ratio_interval is not None:
        low, high = reciprocal(best.ratio_interval)
        known = f" (95 % interval {low:.3g}–{high:.3g})"
    gain = doc.Strong(f"{units.format_ratio(1 / ratio)} faster")
    return (doc.Code(best.name), " is the fastest: ", gain, " than ", reference, f"{known}.")


def _not_measured(result: BenchmarkResult) -> tuple[doc.Text, ...]:
    """Why rows were not timed, or do not count, and what to do about it; rows of one reason together."""
    lacking = (row for row in result.rows if row.status is not Status.OK)
    by_reason = grouped(((row.status, row.reason or ""), row) for row in lacking)
    told: list[doc.Text] = []
    for (status, reason), rows in by_reason.items():
        names = doc.joined([doc.Code(row.name) for row in rows])
        if status is Status.CHECKED:
            errors = [row.max_relative_error for row in rows if row.max_relative_error is not None]
            error = f"; largest relative error {max(errors):.1e}" if errors else ""
            told.append((*names, ": ", f"{reason or 'checked, not timed'}{error}"))
        else:
            word = doc.Strong(str(status).replace("_", " "))
            told.append((*names, ": ", word, f"; {reason}" if reason else ""))
    return tuple(told)


def _further_findings(result: BenchmarkResult) -> tuple[Finding, ...]:
    """The findings without those that only repeat why an implementation was not measured."""
    said = {row.name for row in result.rows if row.status is not Status.OK}
    return tuple(finding for finding in result.findings if finding.evidence.get("implementation") not in said)


def kernel_use_section(result: BenchmarkResult) -> doc.Section:
    """Under "Kernels": what each implementation is and costs around its samples, then what it launches."""
    rows = [row for row in result.rows if row.first_call_ns is not None or row.profile is not None]
    calls = doc.table(
        rows,
        doc.identifier("Implementation", "name"),
        doc.words("What it is", lambda row: row.note or row.engine),
        doc.number("Built in", "build_ns"),
        doc.number("First call", "first_call_ns"),
        doc.number("Calls in a row", "call_ns"),
        doc.number("By the profiler", "device_ns"),
        doc.number("By the clock", "median_ns"),
    )
    profiles = [(row.name, row.profile.kernels) for row in rows if row.profile]
    nothing = doc.Paragraph("No kernels were recorded: that takes a GPU, and profiling switched on.")
    kernels = []
    for name, uses in profiles:
        shown = doc.table(
            uses,
            doc.identifier("Kernel", "title"),
            doc.number("Launches", "launches", units.format_mean_count),
            doc.number("Device time", "device_ns"),
            doc.number("Grid", "grid", units.format_extent),
            doc.number("Block", "block", units.format_extent),
            doc.number("Registers", "registers_per_thread", units.format_mean_count),
            doc.number("Shared memory", "shared_memory_bytes"),
            doc.identifier("Operator", "operator"),
            doc.identifier("Source", "source_file"),
        )
        none = doc.Paragraph("It launched nothing on the device.")
        kernels.append(doc.Section(name, (shown if uses else none,)))
    return doc.Section("Kernels", doc.blocks(calls, None if profiles else nothing), tuple(kernels))


def _sweep_document(sweep: BenchmarkSweep, extra: Sequence[Sequence[doc.Section]]) -> doc.Document:
    shown = list(_scaling_sections(sweep)) if sweep.points else []
    for point, further in zip(sweep.points, extra, strict=False):
        shown += [replace(each, title=f"{each.title}: {point_label(sweep, point)}") for each in further]
    timed = ([row for row in point.rows if row.median_ns] for point in sweep.points)
    wins = Counter(min(rows, key=lambda row: row.median_ns or 0.0).name for rows in timed if rows)
    swept = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in sweep.parameters.items())
    headline = doc.facts(
        *(
            ("Fastest", (doc.Code(name), f" at {count} of {units.counted(wins.total(), 'point')}"))
            for name, count in wins.most_common(3)
        ),
        ("Swept", swept),
        ("Without a result", units.counted(len(sweep.failures), "point") if sweep.failures else None),
        ("Based on", _based_on(sweep.points)),
        ("Complete", None if sweep.complete else _INTERRUPTED),
    )
    of_one = _condition_facts(sweep.points[0]).facts if sweep.points else ()
    # Conditions that hold for every point; the others are each point's own.
    conditions = doc.facts(
        *(fact for fact in of_one if fact[0] in ("Clock", "Reference", "Check")),
        ("Samples", _samples(sweep.points)),
    )
    failed = doc.Section("Points without a result", (doc.BulletList(sweep.failures),))
    told = doc.sections(*shown, failed, doc.Section("Conditions", (conditions,)))
    return doc.Document(sweep.suite, (headline,), told)


def point_label(sweep: BenchmarkSweep, point: BenchmarkResult) -> str:
    """`n=1024`: the swept parameters of a point."""
    of = point.parameters
    return ", ".join(f"{name}={of[name]}" for name in sweep.parameters if name in of)


def _scaling_sections(sweep: BenchmarkSweep) -> tuple[doc.Section, ...]:
    points = sweep.points
    if len(points) == 1:
        first, *others = _benchmark_sections(points[0])
        return doc.sections(replace(first, title=benchmark_title(points[0])), *others)
    swept = [name for name in sweep.parameters if name in points[0].parameters]
    # What was not measured and why, said once where it holds for every point.
    labeled = [(point_label(sweep, point), point) for point in points]
    reasons = grouped((text, label) for label, point in labeled for text in _not_measured(point))
    told = (
        text if len(labels) == len(points) else (f"{'; '.join(labels)}: ", *doc.inlines(text))
        for text, labels in reasons.items()
    )
    # Each kind of finding once for each implementation, where it came first, and where it came again.
    found = grouped(
        ((one.code, one.evidence.get("implementation")), (label, one))
        for label, point in labeled
        for one in _further_findings(point)
    )
    findings = [
        replace(
            finding,
            message=f"{first_at}: {finding.message}"
            + (f" Likewise at {'; '.join(label for label, _ in again)}." if again else ""),
        )
        for (first_at, finding), *again in found.values()
    ]
    return doc.sections(
        doc.Section(f"Scaling of {points[0].suite}", tuple(_tables(points, swept))),
        doc.Section("Not measured", (doc.BulletList(tuple(told)),)),
        doc.Section("Findings", (doc.FindingList(tuple(findings)),)),
    )


def _tables(points: Sequence[BenchmarkResult], swept: Sequence[str]) -> Iterator[doc.Block]:
    absent = BenchmarkRow(name="", status=Status.UNAVAILABLE)
    rows = {(id(point), row.name): row for point in points for row in point.rows}
    names = [
        name
        for name in dict.fromkeys(name for _, name in rows)
        if any(row.median_ns for (_, of), row in rows.items() if of == name)
    ]

    def value(point: BenchmarkResult, *, name: str) -> str:
        return str(point.parameters.get(name, units.UNKNOWN))

    def median(point: BenchmarkResult, *, name: str) -> str:
        return median_cell(rows.get((id(point), name), absent))

    def ratio(point: BenchmarkResult, *, name: str) -> str:
        row = rows.get((id(point), name), absent)
        if row.ratio is None:
            is_ok = row.status is Status.OK
            return units.UNKNOWN if is_ok else doc.plain(verdict_cell(row, point.reference))
        near = {Verdict.SAME: "≈", Verdict.AMBIGUOUS: "?"}.get(row.verdict) if row.verdict else None
        return f"{near} {row.ratio:.2f}×" if near else units.format_ratio(row.ratio)

    parameters = [doc.number(name, partial(value, name=name)) for name in swept]
    yield doc.table(
        points,
        *parameters,
        *(doc.number(name, partial(median, name=name)) for name in names),
        caption="Median",
    )
    if others := [name for name in names if any(name != point.reference for point in points)]:
        caption = ("Time relative to ", doc.Code(points[0].reference), " (≈ same, ? ambiguous)")
        ratios = [doc.number(name, partial(ratio, name=name)) for name in others]
        yield doc.table(points, *parameters, *ratios, caption=caption)


def suite_list_document(suites: Sequence[Suite]) -> doc.Document:
    def parameters(suite: Suite) -> str:
        return ", ".join(f"{name}={'|'.join(values)}" for name, values in suite.parameters.items())

    shown = doc.table(
        suites,
        doc.identifier("Suite", "name"),
        doc.words("Compares", "summary"),
        doc.words("Shape", "shape_names", " ".join),
        doc.words("Parameters", lambda suite: parameters(suite) or units.UNKNOWN),
    )
    names = doc.facts(*((suite.name, doc.joined(map(doc.Code, suite.implementations))) for suite in suites))
    how = doc.Paragraph("Sizes, dtype and parameters are swept over by --param, e.g. --param rows=1024,8192.")
    told = (doc.Section("", (shown, how)), doc.Section("Implementations", (names,)))
    return doc.Document("Suites of opscope bench", sections=told)


def suite_list_json(suites: Sequence[Suite]) -> dict[str, Any]:
    keys = Keys(
        "name summary shape_names default_shape dtypes reference implementations parameters",
        default_shape=lambda suite: {"cpu": suite.cpu_shape, "cuda": suite.cuda_shape},
    )
    return {"suites": encode(suites, {Suite: keys})}


# From this share of a ceiling on, the ceiling decides the time.
_AT_CEILING = 0.85
# Beyond this share the data cannot have come from the memory the ceiling was measured in.
_ABOVE_CEILING = 1.05


def explanations(result: BenchmarkResult) -> tuple[Text, ...]:
    rows = [row for row in result.rows if row.median_ns is not None]
    reference = next((row for row in rows if row.name == result.reference), None)
    said: list[Text] = []
    if reference is not None:
        said += _same(reference, [row for row in rows if row.verdict is Verdict.SAME])
        said += _kernel_counts(reference, rows)
    said += _ceilings(rows)
    for row in rows:
        if row.verdict is Verdict.AMBIGUOUS and row.verdict_reason:
            said.append((Code(row.name), f" is ambiguous: {row.verdict_reason}."))
    return tuple(said)


def _same(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    alike = [row for row in rows if _kernels(row) and _kernels(row) == _kernels(reference)]
    if alike:
        kernels = "kernel" if reference.kernels_launched == 1 else "kernels"
        yield (*_listed([reference, *alike]), f" launch the same {kernels}: ", *_titles(reference), ".")
    for row in rows:
        if row in alike:
            continue
        pair = [reference, row]
        other: tuple[Inline, ...] = ()
        if _kernels(row) and _kernels(reference):
            other = (" launches another kernel (", *_titles(row), "), but")
        why = f"{row.verdict_reason}."
        is_at_one = row.ceiling is not None and row.ceiling == reference.ceiling
        if is_at_one and all(_AT_CEILING <= (one.ceiling_fraction or 0) <= _ABOVE_CEILING for one in pair):
            moving = f"so moving {units.format_bytes(row.min_bytes)} sets the time, not the arithmetic."
            binds = moving if row.ceiling == "copy" else "so the matrix products set the time."
            why = f"both are at {_shares(pair)} of the {row.ceiling} ceiling, {binds}"
        elif (
            row.min_bytes is not None and row.min_bytes == reference.min_bytes and row.bytes_per_s is not None
        ):
            rate = units.format_bytes(row.bytes_per_s)
            why = f"both move {units.format_bytes(row.min_bytes)} a call, at {rate}/s."
        yield (Code(row.name), *other, " takes the same time as ", Code(reference.name), f": {why}")


def _kernel_counts(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Many kernels against few, where that goes with the time."""
    for row in rows:
        few, many = sorted((reference, row), key=lambda one: one.kernels_launched or 0)
        if not few.kernels_launched or not many.kernels_launched:
            continue
        # Rows whose time differs by less are not worth a sentence about their number of kernels.
        is_more = many.kernels_launched >= 2 * few.kernels_launched
        if not is_more or row.verdict is not (Verdict.SLOWER if many is row else Verdict.FASTER):
            continue
        each = memory = ""
        if many.device_ns is not None:
            each = f", of {units.format_duration(many.device_ns / many.kernels_launched)} each on average"
        if (many.peak_memory_bytes or 0) > (few.peak_memory_bytes or inf):
            peaks = units.format_bytes(many.peak_memory_bytes), units.format_bytes(few.peak_memory_bytes)
            memory = f", {peaks[0]} at the peak against {peaks[1]}"
        yield (
            Code(many.name),
            f" launches {units.format_mean_count(many.kernels_launched)} kernels where ",
            Code(few.name),
            f" launches {units.format_mean_count(few.kernels_launched)}{each}: "
            f"intermediate results pass through memory{memory}.",
        )


def _ceilings(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Rows with nothing left to gain but from other bytes or fewer operations; and those beyond that."""
    at_one = (
        (row.ceiling, row)
        for row in rows
        if row.status is Status.OK and _AT_CEILING <= (row.ceiling_fraction or 0) <= _ABOVE_CEILING
    )
    for ceiling, near in grouped(at_one).items():
        verb = "runs" if len(near) == 1 else "run"
        of_products = "as fast as torch's own matrix products."
        meaning = "as fast as a copy in this memory." if ceiling == "copy" else of_products
        yield (
            *_listed(near),
            f" {verb} at {_shares(near)} of the {ceiling} ceiling measured in this run: {meaning}",
        )
    cached = [row for row in rows if (row.ceiling_fraction or 0) > _ABOVE_CEILING and row.ceiling == "copy"]
    if cached:
        verb = "exceeds" if len(cached) == 1 else "exceed"
        yield (
            *_listed(cached),
            f" {verb} the copy ceiling ({_shares(cached)}): part of the data stays in a cache, "
            "which is faster than the memory that was measured.",
        )


def _kernels(row: BenchmarkRow) -> Counter[str]:
    if row.profile is None:
        return Counter()
    calls = row.profile.calls
    return summed((use.name, round(use.launches * calls)) for use in row.profile.kernels)


def _listed(rows: Sequence[BenchmarkRow]) -> tuple[Inline, ...]:
    return joined((Code(row.name) for row in rows), last=" and ")


def _titles(row: BenchmarkRow) -> tuple[Inline, ...]:
    uses = row.profile.kernels if row.profile is not None else ()
    return joined([Code(use.title) for use in uses[:3]]) + ((", …",) if len(uses) > 3 else ())


def _shares(rows: Sequence[BenchmarkRow]) -> str:
    fractions = sorted(row.ceiling_fraction for row in rows if row.ceiling_fraction is not None)
    low, high = units.format_percent(fractions[0]), units.format_percent(fractions[-1])
    return low if low == high else f"{low.removesuffix(' %')}–{high}"
