"""Where in the program something happened: the operator it called, its own Python function, a range it named.

Frames name the line at which a function begins, so a line here is the function's, not that of a call in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opscope.analysis.timeline.host import Host
from opscope.analysis.timeline.queries import sql
from opscope.attribution.nesting import Forest, enclosing, nest
from opscope.model.session import Session

__all__ = [
    "NamedRanges",
    "called_operators",
    "named_ranges",
    "program_functions",
]


@dataclass(frozen=True)
class NamedRanges:
    """Nested host ranges on some threads."""

    ranges: Forest
    names: tuple[str, ...]

    def at(self, thread_id: Sequence[int], time_ns: Sequence[int]) -> list[str | None]:
        """Name of the innermost range open at each moment on its thread; None where none is."""
        threads, times = np.array(thread_id, dtype=np.int64), np.array(time_ns, dtype=np.int64)
        found = enclosing(self.ranges, threads, times).tolist()
        return [self.names[index] if index >= 0 else None for index in found]


def program_functions(session: Session, hosts: Iterable[Host], titles: Mapping[str, str]) -> NamedRanges:
    """Calls of the program's own functions, titled; none where stacks were not recorded."""
    rows = session.query(
        "SELECT thread_id, start_ns, duration_ns, frame_id, name FROM frames "
        "WHERE list_contains(?::VARCHAR[], name) AND list_contains(?::INTEGER[], thread_id)",
        [list(titles), [thread for host in hosts for thread in host.threads]],
    )
    return _nested([(*row[:4], titles[row[4]]) for row in rows])


def named_ranges(hosts: Iterable[Host]) -> NamedRanges:
    """Ranges that the program, or a library, named; steps are the recorder's."""
    return _nested(
        [
            (thread, start_ns, end_ns - start_ns, number, name)
            for host in hosts
            for thread, events in host.threads.items()
            for number, start_ns, end_ns, name in zip(
                *(events.annotations[column].tolist() for column in ("id", "start_ns", "end_ns", "name")),
                strict=True,
            )
        ]
    )


def _nested(rows: list[tuple[int, int, int, int, str]]) -> NamedRanges:
    """Ranges of rows of thread, start, duration, id and name."""
    numbers = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    forest = nest(*(np.ascontiguousarray(column) for column in numbers.T))
    return NamedRanges(forest, tuple(rows[index][4] for index in forest.order.tolist()))


def called_operators(session: Session, operator_ids: Iterable[int]) -> dict[int, str]:
    """By operator id, the name of what the program called: see `called_operators.sql`."""
    wanted = sorted(set(operator_ids))
    if not wanted:
        return {}
    return {leaf: name for leaf, name in session.query(sql("called_operators"), [wanted]) if name}
