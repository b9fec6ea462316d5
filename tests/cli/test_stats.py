"""What `opscope stats` writes; its reports on real nsys exports are what Python computes from their tables.

Nothing of opscope computes the expectation: rows are read with sqlite3, and the figures are those of the
standard library's `statistics`, rounded as nsys prints them.
"""

import re
import shutil
import sqlite3
import statistics
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from fakes import ExportBuilder
from opscope.api import load
from opscope.cli import main
from opscope.toolchain import nsys as running

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


def by_name(rows, column=1):
    values = defaultdict(list)
    for row in rows:
        values[row[0]].append(row[column])
    return values


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


FIGURES = {
    "Avg": statistics.fmean, "Med": statistics.median, "Min": min, "Max": max, "StdDev": deviation,
}  # fmt: skip


def time_rows(values, count, name):
    whole = sum(map(sum, values.values()))
    return [
        {
            "Time (%)": round(100 * sum(mine) / whole, 1), "Total Time (ns)": sum(mine), count: len(mine),
            **{f"{column} (ns)": round(of(mine), 1) for column, of in FIGURES.items()}, name: label,
        }
        for label, mine in values.items()
    ]  # fmt: skip


def size_rows(values):
    figures = {"Total": sum, **FIGURES}
    return [
        {
            **{f"{column} (MB)": round(of(mine) / 1e6, 3) for column, of in figures.items()},
            "Count": len(mine), "Operation": label,
        }
        for label, mine in values.items()
    ]  # fmt: skip


def expected(path):
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


@pytest.mark.parametrize("name", ["mock", "mfu_2gpu_before"])
def test_every_value_of_every_report(opscope, shared, name):
    export = shared / "traces" / "nsys" / f"{name}.sqlite"
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


STAND_IN = """
import os, shutil, sys
(output,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--output=")]
shutil.copy(os.environ["NSYS_EXPORT"], output)
"""


@pytest.fixture
def report(tmp_path, monkeypatch, stand_in):
    """A report in the current folder, and nsys on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "find_cuda_tool", shutil.which)
    stand_in("nsys", STAND_IN)
    export = ExportBuilder().launch(1).kernel("add(int, float *, float *)", 10, 500).copy(600, 40)
    monkeypatch.setenv("NSYS_EXPORT", str(export.write(tmp_path / "made_elsewhere.sqlite")))
    Path("r.nsys-rep").write_text("report")
    return "r.nsys-rep"


def test_every_verb_exports_a_report_for_itself(report, capsys):
    assert main(["stats", report]) == 0
    assert "CUDA_KERNEL  add(int, float *, float *)" in capsys.readouterr().out
    with load(report) as session:
        assert session.query("SELECT source, format FROM traces") == [(report, "nsys")]
    assert not Path("r.sqlite").exists()
