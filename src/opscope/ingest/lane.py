"""A lane: one connection that runs the statements of one trace, one after the other.

Two lanes fill a Session's tables side by side. Each sees what the other has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from opscope.attribution.nesting import Int64
from opscope.ingest.statements import statements

__all__ = ["Columns", "Lane"]

Columns = dict[str, npt.NDArray[Any]]


class Lane:
    """Runs statements of `kineto.sql`.

    Args:
        connection: Used by this lane alone while it runs.
        trace_id: Trace the statements are about.
        thread_keys: Keys of the trace's host threads, as staged.
        thread_ids: Their ids in the Session.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        trace_id: int,
        thread_keys: npt.NDArray[np.uint64],
        thread_ids: Int64,
    ) -> None:
        self._connection = connection
        self._trace_id = trace_id
        self._sql = statements("opscope.ingest", "kineto.sql")
        order = np.argsort(thread_keys)
        self._thread_keys, self._thread_ids = thread_keys[order], thread_ids[order]
        self._threads = {"thread_key": thread_keys, "thread_id": thread_ids}

    def run(self, statement: str, **values: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement with its placeholders filled in."""
        return self._connection.execute(self._sql[statement].format(trace_id=self._trace_id, **values))

    def insert(self, table: str, id_column: str) -> None:
        """Run the statement that fills a table and numbers its new rows."""
        self.run(table, first_id=self.next_id(table, id_column))

    def next_id(self, table: str, id_column: str) -> int:
        """The first id that no row of a table has."""
        rows = self._connection.execute(f"SELECT coalesce(max({id_column}) + 1, 0) FROM {table}").fetchall()
        return int(rows[0][0])

    def arrays(self, statement: str, **values: Any) -> Columns:
        """The columns a statement selects; `thread_key`, if among them, also as `thread`, our own id.

        Rows with a `row_id` come in its order; scans by several threads return them in any.
        """
        columns: Columns = self.run(statement, **values).fetchnumpy()
        if "row_id" in columns and np.any(np.diff(columns["row_id"]) < 0):
            order = np.argsort(columns["row_id"], kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
        if "thread_key" in columns and len(self._thread_keys):
            columns["thread"] = self._thread_ids[np.searchsorted(self._thread_keys, columns["thread_key"])]
        elif "thread_key" in columns:
            columns["thread"] = np.empty(0, dtype=np.int64)
        return columns

    @contextmanager
    def relations(self, **relations: Columns) -> Iterator[None]:
        """Arrays as tables of these names, and the threads as `thread_links`, for the block."""
        relations["thread_links"] = self._threads
        for name, columns in relations.items():
            self._connection.register(name, columns)
        try:
            yield
        finally:
            for name in relations:
                self._connection.unregister(name)
