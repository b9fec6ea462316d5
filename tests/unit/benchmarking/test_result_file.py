import json

import msgspec
import pytest

from case_tables import cases
from fakes import benchmark_result
from opscope.benchmarking import benchmark_sweep
from opscope.errors import InputError
from opscope.model import benchmark
from opscope.model.finding import Finding, Severity


@pytest.fixture
def result():
    row = benchmark.BenchmarkRow(
        name="torch",
        status=benchmark.Status.OK,
        samples_ns=(1.5, 2.5),
        sample_rounds=(0, 1),
        interval_ns=(1.5, 2.5),
        verdict=benchmark.Verdict.SAME,
        check=benchmark.OutputCheck(0.0, 1e-5, 3, 0, "torch"),
    )
    found = Finding("bench.x", Severity.INFO, "x", evidence={"n": 1})
    options = benchmark.BenchmarkOptions(clock=benchmark.Clock.WALL)
    return benchmark_result(row, shape=(2, 3), options=options, created="now", findings=(found,))


def test_saving_and_loading_is_identity(tmp_path, result):
    path = benchmark_sweep.save_benchmark(tmp_path / "r.json", result)
    assert benchmark_sweep.load_benchmark(path) == result
    assert benchmark_sweep.load_results(path) == (result,)
    assert benchmark_sweep.is_result_file(path)
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_an_existing_file_is_refused_unless_forced_and_folders_are_made(tmp_path, result):
    path = benchmark_sweep.save_benchmark(tmp_path / "r.json", result)
    with pytest.raises(InputError, match="--force"):
        benchmark_sweep.save_benchmark(path, result)
    benchmark_sweep.save_benchmark(path, msgspec.structs.replace(result, suite="add"), force=True)
    assert benchmark_sweep.load_results(path)[0].suite == "add"
    assert benchmark_sweep.save_benchmark(tmp_path / "absent" / "r.json", result).is_file()
    with pytest.raises(InputError, match="cannot be written"):
        benchmark_sweep.save_benchmark(tmp_path, result, force=True)


@cases("content", "message")
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        benchmark_sweep.load_benchmark(path)
    assert benchmark_sweep.is_result_file(path) is (message not in {"no JSON", "not a benchmark result"})


def test_unknown_fields_of_the_same_schema_are_ignored(tmp_path, result):
    document = {**benchmark_sweep.result_document(result), "later": 1}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    assert benchmark_sweep.load_benchmark(path) == result
