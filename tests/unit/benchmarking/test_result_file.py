from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from case_tables import cases
from fakes import benchmark_result
from opscope.benchmarking.benchmark_sweep import (
    BenchmarkSweep,
    is_result_file,
    load_benchmark,
    load_results,
    result_document,
    save_benchmark,
)
from opscope.errors import InputError
from opscope.model.benchmark import (
    BenchmarkOptions,
    BenchmarkResult,
    BenchmarkRow,
    Clock,
    OutputCheck,
    Status,
    Verdict,
)
from opscope.model.finding import Finding, Severity


@pytest.fixture
def result() -> BenchmarkResult:
    row = BenchmarkRow(
        name="torch",
        status=Status.OK,
        samples_ns=(1.5, 2.5),
        sample_rounds=(0, 1),
        interval_ns=(1.5, 2.5),
        verdict=Verdict.SAME,
        check=OutputCheck(0.0, 1e-5, 3, 0, "torch"),
    )
    found = Finding("bench.x", Severity.INFO, "x", evidence={"n": 1})
    options = BenchmarkOptions(clock=Clock.WALL)
    return benchmark_result(row, shape=(2, 3), options=options, created="now", findings=(found,))


def test_saving_and_loading_is_identity(tmp_path: Path, result: BenchmarkResult) -> None:
    path = save_benchmark(tmp_path / "r.json", result)
    assert load_benchmark(path) == result
    assert load_results(path) == (result,)
    assert is_result_file(path)
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_a_sweep_is_saved_with_its_points(tmp_path: Path, result: BenchmarkResult) -> None:
    sweep = BenchmarkSweep(suite="gelu", parameters={"n": (1, 2)}, points=(result, result), complete=False)
    path = save_benchmark(tmp_path / "r.json", sweep)
    assert load_benchmark(path) == sweep
    assert load_results(path) == (result, result)


def test_an_existing_file_is_refused_unless_forced_and_folders_are_made(
    tmp_path: Path, result: BenchmarkResult
) -> None:
    path = save_benchmark(tmp_path / "r.json", result)
    with pytest.raises(InputError, match="--force"):
        save_benchmark(path, result)
    save_benchmark(path, msgspec.structs.replace(result, suite="add"), force=True)
    assert load_results(path)[0].suite == "add"
    assert save_benchmark(tmp_path / "absent" / "r.json", result).is_file()
    with pytest.raises(InputError, match="cannot be written"):
        save_benchmark(tmp_path, result, force=True)


@cases("content", "message")
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_benchmark(path)
    assert is_result_file(path) is (message not in {"no JSON", "not a benchmark result"})


def test_unknown_fields_of_the_same_schema_are_ignored(tmp_path: Path, result: BenchmarkResult) -> None:
    document: dict[str, Any] = {**result_document(result), "later": 1}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    assert load_benchmark(path) == result
