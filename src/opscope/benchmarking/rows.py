"""Rows of a result: what the samples of an implementation say. Pure functions; imports no torch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from opscope.benchmarking.sampling import Lane
from opscope.benchmarking.statistics import judge, median_interval, outliers, ratio_interval
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, Ceiling

__all__ = ["with_ceiling", "with_ratio", "with_samples"]

_NS_PER_S = 1_000_000_000
_FEWEST_SAMPLES = 2


def with_samples(row: BenchmarkRow, lane: Lane, throttled: tuple[int, ...] = ()) -> BenchmarkRow:
    """The row with a lane's samples and, from two on, their median and its interval."""
    samples_ns = lane.samples_ns
    row = replace(row, inner_repeats=lane.calls, samples_ns=samples_ns, sample_rounds=lane.rounds)
    if len(samples_ns) < _FEWEST_SAMPLES:
        return row
    interval = median_interval(samples_ns)
    return replace(
        row,
        outliers=outliers(samples_ns),
        throttled=throttled,
        median_ns=interval.median_ns,
        interval_ns=interval.bounds_ns,
    )


def with_ratio(row: BenchmarkRow, reference: BenchmarkRow, options: BenchmarkOptions) -> BenchmarkRow:
    """The row with its ratio to the reference and the verdict, over the rounds that hold both.

    Args:
        row: With samples.
        reference: With samples; may be the row itself.
        options: Seed of the bootstrap and width of "same".
    """
    if row.name == reference.name:
        return replace(row, ratio=1.0, ratio_interval=(1.0, 1.0))
    theirs = dict(zip(reference.sample_rounds, reference.samples_ns, strict=True))
    ours = dict(zip(row.sample_rounds, row.samples_ns, strict=True))
    pairs = [(ours[number], theirs[number]) for number in ours if number in theirs]
    pairs = [pair for pair in pairs if min(pair) > 0]
    if len(pairs) < _FEWEST_SAMPLES:
        return row
    candidate_ns, reference_ns = zip(*pairs, strict=True)
    # Each name has its own seed, so that a candidate's interval does not depend on who else is measured.
    seed = zlib.crc32(row.name.encode()) ^ (options.seed & 0xFFFFFFFF)
    ratio = ratio_interval(candidate_ns, reference_ns, seed=seed)
    verdict, reason = judge(ratio, options.same_within)
    return replace(
        row, ratio=ratio.ratio, ratio_interval=ratio.bounds, verdict=verdict, verdict_reason=reason
    )


def with_ceiling(
    row: BenchmarkRow,
    *,
    min_bytes: int | None,
    flop_count: int | None,
    ceilings: Sequence[Ceiling],
    matrix_ceiling: str | None,
) -> BenchmarkRow:
    """The row with its rates, and the fraction it reaches of the ceiling whose time floor is longer."""
    row = replace(row, min_bytes=min_bytes, flop_count=flop_count)
    if not row.median_ns:
        return row
    rates = {"copy": min_bytes, matrix_ceiling: flop_count}
    floors_ns = _floors_ns(rates, ceilings)
    binding = max(floors_ns, key=lambda name: floors_ns[name], default=None)
    return replace(
        row,
        bytes_per_s=_per_s(min_bytes, row.median_ns),
        flop_per_s=_per_s(flop_count, row.median_ns),
        ceiling=binding,
        ceiling_fraction=None if binding is None else floors_ns[binding] / row.median_ns,
    )


def _floors_ns(amounts: Mapping[str | None, int | None], ceilings: Sequence[Ceiling]) -> dict[str, float]:
    """Least time that each ceiling allows for its amount of bytes or operations."""
    return {
        ceiling.name: amount / ceiling.per_s * _NS_PER_S
        for ceiling in ceilings
        if (amount := amounts.get(ceiling.name)) and ceiling.per_s > 0
    }


def _per_s(amount: int | None, duration_ns: float) -> float | None:
    return None if amount is None else amount / duration_ns * _NS_PER_S
