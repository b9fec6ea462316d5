"""What a request becomes: points of a sweep, and what running them keeps."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fakes import benchmark_result  # noqa: E402
from opscope.benchmarking import benchmark_sweep  # noqa: E402
from opscope.benchmarking.problem import Problem  # noqa: E402
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


def test_values_are_integers_floats_or_words_and_each_counts_once():
    assert benchmark_sweep.parse_parameters(["n=1024,4096", "scale=0.5, 1e3", "mode=tanh,erf"]) == {
        "n": (1024, 4096),
        "scale": (0.5, 1000.0),
        "mode": ("tanh", "erf"),
    }
    assert benchmark_sweep.parse_parameters(["n=4,4,8"]) == {"n": (4, 8)}


@pytest.mark.parametrize("text", ["n", "n=", "=3", "n=1,,2", "3n=1", "a b=1"])
def test_what_is_no_parameter_is_refused_with_the_form(text):
    with pytest.raises(InputError, match="NAME=VALUE"):
        benchmark_sweep.parse_parameters([text])


def result_of(problem, *, complete=True):
    parameters = dict(problem.parameters)
    return benchmark_result(suite=problem.name, parameters=parameters, reference="f", complete=complete)


def three_points(*values):
    def point(n):
        problem = Problem("f.py", "cpu", lambda seed: (), (), "f", parameters={"n": n})
        return benchmark_sweep.Point(f"n={n}", lambda: problem)

    return benchmark_sweep.Sweep("f.py", tuple(map(point, values)), {"n": values})


def test_an_interruption_of_a_point_or_outside_the_engine_keeps_what_there_is():
    def interrupted(problem, on_change):
        return result_of(problem, complete=problem.parameters["n"] == 1)

    found = benchmark_sweep.run_sweep(three_points(1, 2, 3), interrupted)
    assert [point.complete for point in found.points] == [True, False]
    assert not found.complete

    def interrupted(problem, on_change):
        on_change(result_of(problem, complete=False))
        raise KeyboardInterrupt

    found = benchmark_sweep.run_sweep(three_points(1, 2), interrupted)
    assert (len(found.points), found.complete) == (1, False)


FUNCTIONS = Path(__file__).with_name("swept_functions.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file_of_sweep.py"
    path.write_text(FUNCTIONS)
    return path


def sweep_on_cpu(targets, **fields):
    return benchmark_sweep.sweep_of(targets, **{"device": "cpu", **fields})


def test_a_suite_is_swept_over_its_sizes_dtype_and_options():
    swept = {"shape": ("8x16",), "rows": (2, 4), "dtype": ("bf16",), "approximate": ("tanh", "none")}
    sweep = sweep_on_cpu(["gelu"], parameters=swept)
    assert [point.label for point in sweep.points] == [
        "rows=2, approximate=tanh",
        "rows=2, approximate=none",
        "rows=4, approximate=tanh",
        "rows=4, approximate=none",
    ]
    problem = sweep.points[-1].make()
    assert (problem.shape, problem.dtype) == ((4, 16), "bfloat16")
    assert problem.parameters["approximate"] == "none"
    assert problem.parameters == {"rows": 4, "approximate": "none"}
    assert list(sweep.parameters) == ["rows", "approximate"]


def test_functions_are_swept_over_what_they_or_their_inputs_take(file):
    targets, swept = [f"{file}:{name}" for name in ("slow", "fast", "alone")], {"n": (5,), "block": (1, 2)}
    sweep = sweep_on_cpu(targets, parameters=swept, implementations=("fast",))
    assert [point.label for point in sweep.points] == ["n=5, block=1", "n=5, block=2"]
    problem = sweep.points[1].make()
    assert (problem.name, problem.parameters) == (file.name, {"n": 5, "block": 2})
    assert [one.name for one in problem.implementations] == ["slow", "fast"]


@pytest.mark.parametrize(
    ("targets", "fields", "message"),
    [
        (["gelu", "add"], {}, "stands beside other targets"),
        (["gelu", torch.abs], {}, "cannot be mixed"),
        ([], {}, "nothing to benchmark"),
        (["gelu"], {"inputs": "a.py:f"}, "makes its own inputs"),
        (["{file}:slow"], {"device": "interpreter"}, "Triton's interpreter is for suites"),
        (["{file}:slow"], {"parameters": {"dtype": ("bf16",)}}, "nothing takes the parameter 'dtype'"),
        (
            ["{file}:slow", "{file}:fast"],
            {"implementations": ("x",)},
            "has no function 'x'. It has: slow, fast",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_measured(file, targets, fields, message):
    named = [target.format(file=file) if isinstance(target, str) else target for target in targets]
    with pytest.raises(InputError) as caught:
        sweep_on_cpu(named, **fields)
    assert message in str(caught.value)
