"""How long steps take, and which of them stand out."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from opscope.analysis.timeline.values import StepStatistics
from opscope.model.session import Session

__all__ = ["Step", "read_steps", "step_statistics"]

Step = tuple[int, int, int]  # number, start, end

_STEPS_SQL = (
    "SELECT trace_id, step, start_ns, start_ns + duration_ns FROM steps ORDER BY trace_id, start_ns, step"
)
# Below this number the quartiles are the values themselves, and none can lie beyond them.
_LEAST_STEPS = 4
_FENCE = 1.5  # Source: J. W. Tukey, Exploratory Data Analysis, 1977


def read_steps(session: Session) -> dict[int, tuple[Step, ...]]:
    """The steps of each trace, by start."""
    rows = session.query(_STEPS_SQL)
    return {
        trace_id: tuple((step, start_ns, end_ns) for _, step, start_ns, end_ns in group)
        for trace_id, group in groupby(rows, key=lambda row: row[0])
    }


def step_statistics(trace_id: int, steps: tuple[Step, ...]) -> StepStatistics | None:
    """Statistics of a trace's steps; None if there are none."""
    if not steps:
        return None
    durations = np.array([end_ns - start_ns for _, start_ns, end_ns in steps], dtype=np.int64)
    return StepStatistics(
        trace_id=trace_id,
        count=len(steps),
        mean_ns=int(durations.sum()) // len(steps),
        median_ns=int(np.median(durations)),
        min_ns=int(durations.min()),
        max_ns=int(durations.max()),
        outliers=_outliers(steps, durations.astype(np.float64)),
    )


def _outliers(
    steps: tuple[Step, ...], durations: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[int, ...]:
    if len(steps) < _LEAST_STEPS:
        return ()
    low, high = np.quantile(durations, (0.25, 0.75))
    reach = _FENCE * (high - low)
    beyond = (durations < low - reach) | (durations > high + reach)
    return tuple(step for (step, _, _), is_beyond in zip(steps, beyond.tolist(), strict=True) if is_beyond)
