"""Unions of intervals: how long at least one was open.

Kernels of one stream may overlap under programmatic dependent launch, so busy time is always a union, never a
sum of durations.
"""

from __future__ import annotations

import numpy as np

from opscope.attribution.nesting import Int64

__all__ = ["union_length"]


def union_length(start_ns: Int64, end_ns: Int64) -> int:
    """Length of the union of the intervals `[start_ns, end_ns)`, in nanoseconds; order is irrelevant."""
    if not len(start_ns):
        return 0
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    covered_until = np.maximum.accumulate(end_ns)
    fresh = end_ns - start_ns
    fresh[1:] = end_ns[1:] - np.maximum(start_ns[1:], covered_until[:-1])
    return int(np.maximum(fresh, 0).sum())
