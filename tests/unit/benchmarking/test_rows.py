from __future__ import annotations

from opscope.benchmarking.sampling import Lane, with_ceiling, with_ratio, with_samples
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, Ceiling, Status, Verdict

OPTIONS = BenchmarkOptions()


def sampled(name: str, samples: list[tuple[int, int]]) -> BenchmarkRow:
    return with_samples(BenchmarkRow(name=name, status=Status.OK), Lane(name, (), samples=samples))


def test_one_sample_has_no_median():
    row = sampled("a", [(0, 5)])
    assert (row.samples_ns, row.median_ns, row.interval_ns) == ((5.0,), None, None)


def test_ratios_use_only_rounds_that_hold_both():
    reference = sampled("reference", [(number, 100) for number in range(10)])
    # From round 10 on the machine is twice as slow, and only the candidate is still sampled.
    candidate = sampled("a", [(number, 90 if number < 10 else 180) for number in range(40)])
    row = with_ratio(candidate, reference, OPTIONS)
    assert row.median_ns == 180
    assert (row.ratio, row.ratio_interval) == (0.9, (0.9, 0.9))
    assert row.verdict is Verdict.FASTER
    assert "over 10 rounds" in row.verdict_reason


def test_without_common_rounds_there_is_no_ratio():
    row = with_ratio(sampled("a", [(0, 1), (1, 1)]), sampled("reference", [(2, 1), (3, 1)]), OPTIONS)
    assert (row.ratio, row.verdict) == (None, None)


def test_samples_of_no_duration_give_no_ratio():
    row = with_ratio(sampled("a", [(0, 0), (1, 0)]), sampled("reference", [(0, 1), (1, 1)]), OPTIONS)
    assert row.ratio is None


def test_the_reference_has_ratio_one_and_no_verdict():
    reference = sampled("reference", [(0, 1), (1, 2)])
    row = with_ratio(reference, reference, OPTIONS)
    assert (row.ratio, row.ratio_interval, row.verdict) == (1.0, (1.0, 1.0), None)


def test_a_row_without_samples_has_costs_but_no_rates():
    row = with_ceiling(
        BenchmarkRow(name="a", status=Status.FAILED),
        min_bytes=8,
        flop_count=None,
        ceilings=(Ceiling("copy", 1e9, "bytes", ""),),
        matrix_ceiling=None,
    )
    assert (row.min_bytes, row.bytes_per_s, row.ceiling) == (8, None, None)


def test_a_ceiling_without_an_amount_does_not_bind():
    row = with_ceiling(
        sampled("a", [(0, 100), (1, 100)]),
        min_bytes=50,
        flop_count=None,
        ceilings=(Ceiling("copy", 1e9, "bytes", ""), Ceiling("matrix_tf32", 1e9, "flop", "")),
        matrix_ceiling="matrix_tf32",
    )
    assert (row.ceiling, row.ceiling_fraction) == ("copy", 0.5)
