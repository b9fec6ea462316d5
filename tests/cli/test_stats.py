"""What `opscope stats` writes; its reports on real nsys exports are what Python computes from their tables.

Nothing of opscope computes the expectation: rows are read with sqlite3, and the figures are those of the
standard library's `statistics`, rounded as nsys prints them.
"""

from __future__ import annotations

import json
import re
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Values = dict[str, list[int]]

_KERNELS = """
SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k
JOIN StringIds s ON s.id = k.demangledName"""
_CALLS = (
    "SELECT s.value, r.end - r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId"
)
_COPIES = """
SELECT '[CUDA memcpy ' || o.label || ']', m.end - m.start, m.bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY m
JOIN ENUM_CUDA_MEMCPY_OPER o ON o.id = m.copyKind"""
_SETS = "SELECT '[CUDA memset]', end - start, bytes FROM CUPTI_ACTIVITY_KIND_MEMSET"


@pytest.fixture(params=["mock", "mfu_2gpu_before"])
def export(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "traces" / "nsys" / f"{request.param}.sqlite"


def by_name(rows: Iterable[tuple[Any, ...]], column: int = 1) -> Values:
    values: Values = defaultdict(list)
    for row in rows:
        values[row[0]].append(row[column])
    return values


def deviation(values: list[int]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def time_rows(values: Values, count: str, name: str) -> list[dict[str, Any]]:
    whole = sum(map(sum, values.values()))
    return [
        {
            "Time (%)": round(100 * sum(mine) / whole, 1),
            "Total Time (ns)": sum(mine),
            count: len(mine),
            "Avg (ns)": round(statistics.fmean(mine), 1),
            "Med (ns)": round(statistics.median(mine), 1),
            "Min (ns)": min(mine),
            "Max (ns)": max(mine),
            "StdDev (ns)": round(deviation(mine), 1),
            name: label,
        }
        for label, mine in values.items()
    ]


def size_rows(values: Values) -> list[dict[str, Any]]:
    figures: dict[str, Callable[[list[int]], float]] = {
        "Total (MB)": sum, "Avg (MB)": statistics.fmean, "Med (MB)": statistics.median, "Min (MB)": min,
        "Max (MB)": max, "StdDev (MB)": deviation,
    }  # fmt: skip
    return [
        {
            **{column: round(of(mine) / 1e6, 3) for column, of in figures.items()},
            "Count": len(mine),
            "Operation": label,
        }
        for label, mine in values.items()
    ]


def expected(path: Path) -> dict[str, list[dict[str, Any]]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        sets = connection.execute(_SETS).fetchall() if "CUPTI_ACTIVITY_KIND_MEMSET" in tables else []
        memory = [*connection.execute(_COPIES), *sets]
        kernels = by_name(connection.execute(_KERNELS))
        calls = by_name((re.sub(r"_v\d{4,5}$", "", name), ns) for name, ns in connection.execute(_CALLS))
    merged = time_rows({**kernels, **by_name(memory)}, "Instances", "Operation")
    for row in merged:
        row["Category"] = "MEMORY_OPER" if row["Operation"].startswith("[CUDA mem") else "CUDA_KERNEL"
    return {
        "cuda_api_sum": time_rows(calls, "Num Calls", "Name"),
        "cuda_gpu_kern_sum": time_rows(kernels, "Instances", "Name"),
        "cuda_gpu_mem_time_sum": time_rows(by_name(memory), "Count", "Operation"),
        "cuda_gpu_mem_size_sum": size_rows(by_name(memory, 2)),
        "cuda_gpu_sum": merged,
    }


def test_every_value_of_every_report(opscope: Any, export: Path) -> None:
    document = opscope("stats", export, "--report", "all", "--json").json
    wanted = expected(export)
    assert set(document) == set(wanted)
    for report, rows in wanted.items():
        label = "Name" if "Name" in rows[0] else "Operation"
        found = {row[label]: row for row in document[report]}
        assert found == {row[label]: row for row in rows}, report
        total = next(iter(document[report][0]), "Time (%)").replace("Time (%)", "Total Time (ns)")
        assert [row[total] for row in document[report]] == sorted((row[total] for row in rows), reverse=True)
    assert sum(len(rows) for rows in wanted.values()) > 10


def test_json_is_by_report_with_nsys_columns(opscope, trace: Path) -> None:
    document = opscope("stats", trace, "--report", "cuda_gpu_kern_sum", "cuda_api_sum", "--json").json
    assert list(document) == ["cuda_gpu_kern_sum", "cuda_api_sum"]
    assert list(document["cuda_gpu_kern_sum"][0]) == [
        "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)",
        "StdDev (ns)", "Name",
    ]  # fmt: skip
    assert document["cuda_api_sum"][0]["Num Calls"] > 0


def test_a_report_is_written_to_a_file(opscope, trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / "stats.json", tmp_path / "stats.md"]
    outcome = opscope("stats", trace, "--csv", "-o", files[0], "-o", files[1])
    assert outcome.out.startswith("Time (%),")
    assert outcome.err.splitlines() == [f"Wrote {file}" for file in files]
    assert "cuda_gpu_sum" in json.loads(files[0].read_text())
    assert files[1].read_text().startswith("# Statistics of ")
