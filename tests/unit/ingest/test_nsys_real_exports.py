"""The exports of two real runs: an inference of a few calls, and two processes that train under emit_nvtx.

What is expected is found out again from the export's own tables, one event at a time.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.provenance import read_provenance
from opscope.api import load
from opscope.model.session import Session


@pytest.fixture(scope="module")
def mfu(shared: Path) -> Path:
    return shared / "traces" / "nsys" / "mfu_2gpu_before.sqlite"


@pytest.fixture(scope="module")
def session(mfu: Path) -> Iterator[Session]:
    with load(mfu) as session:
        yield session


def owners(connection: sqlite3.Connection) -> dict[tuple[int, int], str]:
    """Innermost range that PyTorch named as an operator, by process and correlation id."""
    events: dict[int, list[tuple[int, int, Any]]] = defaultdict(list)
    for thread, start, end, text in connection.execute(
        "SELECT globalTid, start, end, text FROM NVTX_EVENTS WHERE domainId = 0 AND text NOT LIKE 'FSDP::%' "
        "AND text NOT LIKE 'nccl:%'"
    ):
        # At one moment a range ends before a call, and begins before it.
        events[thread] += [(start, 1, text), (end, 0, None)]
    for thread, start, correlation in connection.execute(
        "SELECT globalTid, start, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        events[thread].append((start, 2, correlation))
    found = {}
    for thread, mine in events.items():
        open_ranges: list[str] = []
        for _, kind, what in sorted(mine, key=lambda event: event[:2]):
            if kind == 0:
                open_ranges.pop()
            elif kind == 1:
                open_ranges.append(what)
            elif open_ranges:
                found[thread >> 24, what] = re.sub(r", (seq|op_id) = .*", "", open_ranges[-1])
    return found


def test_each_activity_belongs_to_the_innermost_operator_of_its_launch(mfu: Path, session: Session) -> None:
    with closing(sqlite3.connect(f"{mfu.as_uri()}?mode=ro", uri=True)) as connection:
        found = owners(connection)
        expected: Counter[tuple[int, str | None]] = Counter()
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            for process, correlation, duration_ns in connection.execute(
                f"SELECT globalPid, correlationId, end - start FROM CUPTI_ACTIVITY_KIND_{table}"
            ):
                expected[process >> 24 & 0xFFFFFF, found.get((process >> 24, correlation))] += duration_ns
    rows = session.query(
        """SELECT t.properties->>'process', o.name, sum(a.duration_ns)::BIGINT FROM device_activities a
        JOIN traces t ON t.trace_id = a.trace_id LEFT JOIN operators o ON o.operator_id = a.operator_id
        GROUP BY ALL"""
    )
    assert {(int(process), name): duration_ns for process, name, duration_ns in rows} == dict(expected)
    assert len(expected) == 28


def test_every_law_holds(shared: Path, session: Session) -> None:
    assert all(check.holds for check in session.check())
    with load(shared / "traces" / "nsys" / "mock.sqlite") as small:
        assert all(check.holds for check in small.check())
        assert small.query("SELECT count(*), sum(duration_ns) FROM device_activities") == [(3, 5_761)]


def test_names_are_those_that_tables_of_releases_know(session: Session) -> None:
    provenance = read_provenance(session)
    assert provenance.hit_rates["2.11.0"] == 1.0
    assert session.query(
        """SELECT DISTINCT p.units FROM kernel_symbols s JOIN kernel_provenance p USING (name_id)
        WHERE s.mangled_name LIKE '%CatArrayBatchedCopy%'"""
    ) == [(["aten/src/ATen/native/cuda/Shape.cu"],)]
