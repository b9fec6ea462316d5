from __future__ import annotations

import pytest

from opscope.model.benchmark import Status, Verdict
from opscope.report.benchmark import median_cell, rate_cell, ratio_text, verdict_cell
from opscope.report.document import Strong
from opscope.units import format_mean_count, format_percent


@pytest.mark.parametrize(
    ("median_ns", "interval_ns", "text"),
    [
        (131_200, (131_100, 131_300), "131.2 ± 0.1 µs"),
        (131_200, (119_200, 143_200), "131 ± 12 µs"),
        (1_390_000, (1_380_000, 1_400_000), "1.39 ± 0.01 ms"),
        (999_950, (999_000, 1_001_000), "1.000 ± 0.001 ms"),
        (131_200, (131_200, 131_200), "131 ± 0 µs"),
        (131_200, (131_199.999, 131_200.001), "131.20 ± <0.01 µs"),
        (57_600, (50_000, 28_000_000), "58 ± 13975 µs"),
        (850, (840, 860), "850 ± 10 ns"),
        (2_500_000_000, None, "2.50 s"),
        (None, None, "–"),
    ],
)
def test_a_median_has_the_digits_its_interval_leaves(row, median_ns, interval_ns, text: str) -> None:
    assert median_cell(row("x", median_ns, interval_ns=interval_ns)) == text


@pytest.mark.parametrize(
    ("ratio", "verdict", "text"),
    [
        (9.83, Verdict.SLOWER, "9.83× slower"),
        (10.63, Verdict.SLOWER, "10.6× slower"),
        (0.5, Verdict.FASTER, "2.00× faster"),
        (1.0031, Verdict.SAME, "same 1.003×"),
        (0.98, Verdict.AMBIGUOUS, "ambiguous 0.980×"),
        (3.2, None, "3.20×"),
    ],
)
def test_ratios_read_as_words(ratio: float, verdict: Verdict | None, text: str) -> None:
    assert ratio_text(ratio, verdict) == text


def test_the_verdict_of_a_row_that_was_not_timed_is_its_status(row) -> None:
    assert verdict_cell(row("x", None, status=Status.WRONG), "torch") == Strong("wrong")
    assert verdict_cell(row("x", None, status=Status.CHECKED), "torch") == "correct, not timed"
    assert verdict_cell(row("torch", ratio=1.0), "torch") == "reference"
    assert verdict_cell(row("x"), "torch") == "–"


def test_a_rate_is_that_of_the_ceiling_that_binds(row) -> None:
    assert rate_cell(row("x", 1_000_000, ceiling="copy", flop_per_s=8.12e14)) == "537 GB/s"
    assert rate_cell(row("x", 1_000_000, ceiling="matrix_bfloat16", flop_per_s=8.12e14)) == "812 TFLOP/s"
    assert rate_cell(row("x", None)) == "–"


def test_small_shares_never_read_as_none() -> None:
    assert [format_percent(share) for share in (0.971, 0.0148, 0.0004, 0.0)] == [
        "97 %",
        "1.5 %",
        "<0.1 %",
        "0 %",
    ]


def test_counts() -> None:
    assert [format_mean_count(count) for count in (1, 8.0, 2.3333, None)] == ["1", "8", "2.3", "–"]
