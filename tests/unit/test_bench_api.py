"""`opscope.bench` and `opscope.compare`, as a program calls them."""

import pytest

import opscope

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

QUICK = {
    "device": "cpu",
    "time_budget_s": 0.01,
    "min_samples": 3,
    "max_samples": 10,
    "warmup_s": 0.0,
    "ceilings": False,
}


def square(x):
    return x * x


def make_inputs(n):
    return torch.randn(n)


def test_functions_are_benchmarked_and_nothing_is_printed(capfd):
    seen = []
    result = opscope.bench(torch.square, square, inputs=torch.randn(16), on_change=seen.append, **QUICK)
    assert isinstance(result, opscope.BenchmarkResult)
    assert [row.name for row in result.rows] == ["square", "square (2)"]
    assert result.row("square (2)").ratio is not None
    assert seen[-1] == result
    assert capfd.readouterr().out == ""


def test_mappings_name_the_rows():
    functions = {"theirs": torch.square, "mine": square}
    result = opscope.bench(functions, inputs=(torch.ones(4),), reference="mine", name="squares", **QUICK)
    assert isinstance(result, opscope.BenchmarkResult)
    assert (result.suite, result.reference) == ("squares", "mine")


def test_a_suite_is_benchmarked_by_name():
    result = opscope.bench("gelu", shape=(4, 8), dtype="bf16", implementations=["torch"], **QUICK)
    assert isinstance(result, opscope.BenchmarkResult)
    assert (result.shape, result.dtype, [row.name for row in result.rows]) == ((4, 8), "bfloat16", ["torch"])


def test_a_point_that_cannot_be_made_is_an_error():
    with pytest.raises(opscope.MeasurementError, match="n=-1: "):
        opscope.bench(square, inputs=make_inputs, params={"n": [4, -1]}, **QUICK)


def test_results_are_compared_with_each_other_and_with_files(tmp_path):
    from opscope.benchmarking.benchmark_sweep import save_benchmark

    result = opscope.bench(square, inputs=torch.ones(4), **QUICK)
    assert isinstance(result, opscope.BenchmarkResult)
    file = save_benchmark(tmp_path / "r.json", result)
    comparison = opscope.compare(file, result)
    assert [row.time.verdict for point in comparison.points for row in point.rows] == ["same"]
    assert comparison.reference_source == str(file)


def test_a_benchmark_and_a_recording_are_not_compared(tmp_path):
    result = opscope.bench(square, inputs=torch.ones(4), **QUICK)
    with pytest.raises(opscope.InputError, match="cannot be compared with a recording"):
        opscope.compare(result, opscope.example_trace())
