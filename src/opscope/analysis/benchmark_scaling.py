"""How the time of implementations grows with a swept parameter, from the medians of a sweep.

Pure arithmetic on results; None where a sweep cannot tell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from opscope.model.benchmark import BenchmarkResult

__all__ = ["growth_exponent"]


def growth_exponent(points: Sequence[BenchmarkResult], name: str, parameter: str) -> float | None:
    """The k of `time ∝ parameter**k`, by least squares of the logarithms, other parameters held constant.

    Points that agree in all other parameters form a group with a level of its own; the slope is common.

    Args:
        points: Results of one sweep; those without a median of the implementation do not count.
        name: The implementation.
        parameter: A parameter with positive numbers as values.
    """
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        value, median_ns = point.parameters.get(parameter), _median_ns(point, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if median_ns is None or value is None or not is_number or value <= 0:
            continue
        others = tuple(sorted((k, str(v)) for k, v in point.parameters.items() if k != parameter))
        groups[others].append((math.log(value), math.log(median_ns)))
    return _common_slope(list(groups.values()))


def _median_ns(point: BenchmarkResult, name: str) -> float | None:
    return next((row.median_ns for row in point.rows if row.name == name and row.median_ns), None)


def _common_slope(groups: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    products = squares = 0.0
    for group in groups:
        mean_x = sum(x for x, _ in group) / len(group)
        mean_y = sum(y for _, y in group) / len(group)
        products += sum((x - mean_x) * (y - mean_y) for x, y in group)
        squares += sum((x - mean_x) ** 2 for x, _ in group)
    return products / squares if squares > 0 else None
