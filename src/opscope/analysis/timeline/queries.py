"""The queries of this package: one `.sql` file each, whose head comment says what a row is."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from opscope.analysis import queries
from opscope.attribution.nesting import Int64
from opscope.model.session import Session

__all__ = ["Columns", "by_thread", "columns", "distinct", "sql"]

Columns = dict[str, npt.NDArray[Any]]


sql = partial(queries.sql, package="opscope.analysis.timeline")


def columns(session: Session, name: str, parameters: Any = None) -> Columns:
    """The columns that `NAME.sql` selects, as arrays; none of them may hold NULL."""
    found = session.connection.execute(sql(name), parameters or []).fetchnumpy()
    return {column: np.asarray(values) for column, values in found.items()}


def by_thread(found: Columns) -> dict[int, Columns]:
    """Rows by their `thread_id`, in the order in which they came."""
    thread = found["thread_id"]
    if np.any(thread[1:] < thread[:-1]):
        order = np.argsort(thread, kind="stable")
        found = {name: column[order] for name, column in found.items()}
        thread = found["thread_id"]
    bounds = [*np.flatnonzero(np.diff(thread, prepend=-1)).tolist(), len(thread)]
    return {
        int(thread[low]): {name: column[low:high] for name, column in found.items()}
        for low, high in pairwise(bounds)
    }


def distinct(values: Int64) -> Int64:
    """Every value once, ascending."""
    values = np.sort(values)  # numpy's own unique hashes first, and takes ten times as long
    is_new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]
