from __future__ import annotations

import csv
import io
import json
from pathlib import Path


def test_json_is_by_report_with_nsys_columns(opscope, trace: Path) -> None:
    document = opscope("stats", trace, "--report", "cuda_gpu_kern_sum", "cuda_api_sum", "--json").json
    assert list(document) == ["cuda_gpu_kern_sum", "cuda_api_sum"]
    assert list(document["cuda_gpu_kern_sum"][0]) == [
        "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)",
        "StdDev (ns)", "Name",
    ]  # fmt: skip
    assert document["cuda_api_sum"][0]["Num Calls"] > 0


def test_csv_separates_reports_by_an_empty_line(opscope, trace: Path) -> None:
    out = opscope("stats", trace, "--report", "all", "--csv").out
    first = out.split("\n\n")[0]
    rows = list(csv.DictReader(io.StringIO(first)))
    assert rows[0]["Name"].startswith("cuda")
    assert out.count("Time (%)") == 4


def test_a_report_is_written_to_a_file(opscope, trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / "stats.json", tmp_path / "stats.md"]
    outcome = opscope("stats", trace, "--csv", "-o", files[0], "-o", files[1])
    assert outcome.out.startswith("Time (%),")
    assert outcome.err.splitlines() == [f"Wrote {file}" for file in files]
    assert "cuda_gpu_sum" in json.loads(files[0].read_text())
    assert files[1].read_text().startswith("# Statistics of ")
