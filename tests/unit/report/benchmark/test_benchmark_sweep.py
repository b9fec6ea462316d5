from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.model.benchmark import BenchmarkResult, Status, Verdict
from opscope.model.finding import Finding, Severity
from opscope.report.benchmark import sweep_benchmark_document
from opscope.report.markdown import render_markdown

POINTS = ((1024, 1e5, 1e6), (2048, 4e5, 2e6), (4096, 16e5, 4e6))


@pytest.fixture
def sweep(row, result) -> Callable[..., BenchmarkSweep]:
    def make(**fields: object) -> BenchmarkSweep:
        points = tuple(
            result(
                row("torch", median_ns),
                row("x", other_ns, ratio=other_ns / median_ns, verdict=Verdict.SLOWER),
                row("cuda", None, status=Status.UNAVAILABLE, reason="no GPU"),
                shape=None,
                parameters={"n": n},
                findings=(Finding("bench.outliers", Severity.INFO, f"At {n}."),),
            )
            for n, median_ns, other_ns in POINTS
        )
        return BenchmarkSweep(
            suite="mine.py", parameters={"n": tuple(n for n, *_ in POINTS)}, points=points, **fields
        )

    return make


def test_medians_and_ratios_stand_by_point(sweep) -> None:
    text = render_markdown(sweep_benchmark_document(sweep()))
    assert "| 1024 | 100.0 ± 0.1 µs | 1.000 ± 0.001 ms |" in text
    assert "| 1024 | 10.0× |" in text
    assert "| 4096 | 2.50× |" in text


def test_growth_is_a_power_of_the_parameter(sweep) -> None:
    text = render_markdown(sweep_benchmark_document(sweep()))
    assert "| `torch` | n^2.00 |" in text
    assert "| `x` | n^1.00 |" in text


def test_what_holds_at_every_point_is_said_once(sweep) -> None:
    text = render_markdown(sweep_benchmark_document(sweep()))
    assert text.count("no GPU") == 1
    assert "n=1024: At 1024. Likewise at n=2048; n=4096." in text


def test_failures_and_interruption_are_shown(sweep) -> None:
    text = render_markdown(sweep_benchmark_document(sweep(failures=("n=8192: no memory",), complete=False)))
    assert "n=8192: no memory" in text
    assert "interrupted" in text


def test_groups_of_one_point_get_their_whole_report(row, result) -> None:
    points: tuple[BenchmarkResult, ...] = tuple(
        result(row("torch"), row("x", ratio=1.0, verdict=Verdict.SAME), suite=suite) for suite in ("a", "b")
    )
    text = render_markdown(
        sweep_benchmark_document(BenchmarkSweep(suite="f.py", parameters={}, points=points))
    )
    assert "## a 8192 × 8192, float32" in text
    assert "## b 8192 × 8192, float32" in text
    assert text.count("`x` takes the same time as `torch`") == 2


def test_a_sweep_without_points_is_still_a_report() -> None:
    text = render_markdown(
        sweep_benchmark_document(BenchmarkSweep(suite="f", parameters={"n": (1,)}, complete=False))
    )
    assert "n: 1" in text
