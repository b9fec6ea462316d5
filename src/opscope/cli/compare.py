"""`opscope compare`: compare two benchmark results, two recordings, or reports of Nsight Compute."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope import api
from opscope.analysis.comparison_rules import gate_reasons, no_verdict
from opscope.benchmarking.benchmark_sweep import is_result_file
from opscope.cli import console
from opscope.cli.app import EXIT_INCONCLUSIVE, EXIT_REGRESSION
from opscope.errors import InputError
from opscope.model.comparison import ComparisonOptions
from opscope.report.comparison import comparison_document, comparison_json
from opscope.report.ncu import ncu_json, side_by_side
from opscope.toolchain.ncu_report import is_report


def compare(
    reference: Annotated[str, Parameter(name="REFERENCE")],
    candidate: Annotated[str, Parameter(name="CANDIDATE")],
    /,
    *further: Annotated[str, Parameter(name="FURTHER")],
    fail_on: Literal["slower"] | None = None,
    threshold: Annotated[float, Parameter(validator=Number(gt=0, lt=1))] = 0.02,
    top: console.Top = 20,
    report: console.Showing = console.SHOWING,
) -> int:
    """Compare two benchmark results, two recordings, or versions of kernels in reports of Nsight Compute.

    Example: opscope compare before.json.gz after.json.gz --fail-on slower

    Exit codes: 3 if --fail-on found something, 4 if there is too little data for a verdict.

    Args:
        reference: A result of `opscope bench --save`, a trace, a folder of rank files or a saved session.
        candidate: The result or recording to judge, of the same kind.
        further: More reports of Nsight Compute (.ncu-rep), each a column of the table.
        fail_on: Exit with 3 if something is slower: a benchmark row whose interval lies above 1 and whose
            ratio exceeds 1 + threshold, or that is no longer ok; for recordings the total, or an operator
            with at least 1 % of the reference's time (intervals need 6 steps on both sides). Ambiguous
            results never fail; benchmarks without a common row always do. Exit with 4 if fewer than 6 steps
            left nothing to judge.
        threshold: Times whose ratio lies within 1 ± this count as the same.
    """
    files = (reference, candidate, *further)
    console.check_outputs(report.output, force=report.force, inputs=files)
    if all(map(is_report, files)):
        analyses = {one: api.ncu(one) for one in files}
        report.show(
            lambda: {one: ncu_json(of) for one, of in analyses.items()},
            lambda: side_by_side(f"{len(files)} reports", analyses, 0),
        )
        return 0
    if further:
        raise InputError(
            "more than two are given", hint="Only reports of Nsight Compute (.ncu-rep) may be more"
        )
    with ExitStack() as opened:
        first, second = (
            one if is_result_file(one) else opened.enter_context(console.open_source([one]))
            for one in (reference, candidate)
        )
        with console.status("Comparing"):
            comparison = api.compare(first, second, ComparisonOptions(threshold=threshold))
    failures = gate_reasons(comparison) if fail_on is not None else ()
    inconclusive = no_verdict(comparison) if fail_on is not None and not failures else None
    report.show(
        lambda: comparison_json(comparison, fail_on=fail_on, failures=failures, inconclusive=inconclusive),
        lambda: comparison_document(comparison, top=report.rows(top)),
    )
    for failure in failures:
        console.say(f"fails --fail-on {fail_on}: {failure}")
    if inconclusive:
        console.say(f"no verdict: {inconclusive}")
    return EXIT_REGRESSION if failures else EXIT_INCONCLUSIVE if inconclusive else 0
