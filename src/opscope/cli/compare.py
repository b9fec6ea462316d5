"""`opscope compare`: compare two benchmark results, or two recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.analysis.comparison_rules import gate_reasons, no_verdict
from opscope.analysis.session_comparison import compare_sessions
from opscope.cli.app import EXIT_INCONCLUSIVE, EXIT_REGRESSION
from opscope.cli.console import (
    All,
    Merge,
    Parts,
    Top,
    check_outputs,
    markdown,
    open_source,
    say,
    say_wrote,
    show,
    status,
    write_page,
)
from opscope.errors import InputError
from opscope.model.comparison import BenchmarkComparison, ComparisonOptions, FailOn, SessionComparison
from opscope.model.files import write_text
from opscope.report.comparison import (
    benchmark_comparison_document,
    comparison_document,
    session_comparison_document,
)
from opscope.report.document import Document
from opscope.report.html.result_charts import comparison_charts

_READING = Parts()
_BENCHMARK = "a benchmark result"
_RECORDING = "a recording"


def compare(
    reference: Annotated[str, Parameter(name="REFERENCE")],
    candidate: Annotated[str, Parameter(name="CANDIDATE")],
    /,
    *,
    json: bool = False,
    fail_on: FailOn | None = None,
    threshold: Annotated[float, Parameter(validator=Number(gt=0, lt=1))] = 0.02,
    merge: Merge = False,
    top: Top = 20,
    all: All = False,  # noqa: A002 - the option's name
    reading: Parts = _READING,
    output: Path | None = None,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Compare two benchmark results, or two recordings.

    Example: opscope compare before.json.gz after.json.gz --fail-on slower

    Exit codes: 3 if --fail-on finds what it looks for, 4 if it has no verdict.

    Args:
        reference: What `opscope bench --save` wrote, a trace, a folder of rank files or a saved session.
        candidate: The same kind of thing, to be judged.
        json: Print one JSON document and nothing else.
        fail_on: Exit with 3 if something is slower: a benchmark row whose interval lies above 1 and whose
            ratio exceeds 1 + threshold, or that is not ok any more; of recordings likewise the total, or an
            operator with at least 1 % of the reference's time (an interval takes 6 steps on both sides).
            faster: the other way round. different: either, or other launches, kernels, operators, statuses or
            rows, which are exact. What is ambiguous never fails; benchmarks without a common row always do.
            Exit with 4 if nothing failed because there was too little to judge by: fewer than 6 steps.
        threshold: Times whose ratio lies within 1 ± this are the same.
        merge: Read traces of a folder together that are not of one job too.
        top: Operators (or rows of each benchmark) to list.
        all: List everything instead.
        reading: How much of the report is printed.
        output: Also write the report to this Markdown file.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite existing files.
    """
    check_outputs([output, html], force=force, inputs=(reference, candidate))
    options = ComparisonOptions(threshold=threshold)
    comparison = _compare(reference, candidate, options, merge=merge)
    failures = gate_reasons(comparison, fail_on) if fail_on is not None else ()
    inconclusive = no_verdict(comparison) if fail_on is not None and not failures else None
    document = _document(comparison, None if all else reading.rows(top))
    show(
        lambda: comparison_document(
            comparison, fail_on=fail_on, failures=failures, inconclusive=inconclusive
        ),
        lambda: document,
        json=json,
        reading=reading,
    )
    if output is not None:
        say_wrote([write_text(output, markdown(document))], on_stderr=json)
    if html is not None:
        say_wrote([write_page(html, document, comparison_charts(comparison))], on_stderr=json)
    for failure in failures:
        say(f"fails --fail-on {fail_on}: {failure}")
    if inconclusive:
        say(f"no verdict: {inconclusive}")
    return EXIT_REGRESSION if failures else EXIT_INCONCLUSIVE if inconclusive else 0


def _compare(
    reference: str, candidate: str, options: ComparisonOptions, *, merge: bool
) -> BenchmarkComparison | SessionComparison:
    from opscope.benchmarking.result_file import is_result_file  # noqa: PLC0415 - benchmarks alone

    kinds = [_BENCHMARK if is_result_file(one) else _RECORDING for one in (reference, candidate)]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"{reference} is {kinds[0]}, {candidate} is {kinds[1]}: they cannot be compared",
            hint="Give two benchmark results, or two recordings",
        )
    if kinds[0] == _BENCHMARK:
        return _compare_results(reference, candidate, options)
    with (
        open_source([reference], merge=merge) as first,
        open_source([candidate], merge=merge) as second,
        status("Comparing"),
    ):
        return compare_sessions(first, second, options)


def _compare_results(reference: str, candidate: str, options: ComparisonOptions) -> BenchmarkComparison:
    from opscope.analysis.benchmark_comparison import compare_benchmarks  # noqa: PLC0415 - benchmarks alone
    from opscope.benchmarking.result_file import load_results  # noqa: PLC0415

    return compare_benchmarks(
        load_results(reference),
        load_results(candidate),
        options,
        reference_source=reference,
        candidate_source=candidate,
    )


def _document(comparison: BenchmarkComparison | SessionComparison, top: int | None) -> Document:
    if isinstance(comparison, BenchmarkComparison):
        return benchmark_comparison_document(comparison, top=top)
    return session_comparison_document(comparison, top=top)
