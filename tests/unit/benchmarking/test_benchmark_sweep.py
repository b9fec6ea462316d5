from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.benchmark_sweep import sweep_of  # noqa: E402
from opscope.benchmarking.problem import BenchmarkRequest  # noqa: E402
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch

MARKED = """
import opscope
import torch

def make_inputs(n):
    return torch.ones(n)

@opscope.benchmark(params={"n": [1, 2]})
def slow(x):
    return x * x

@opscope.benchmark
def fast(x, *, block=1):
    return x.square()

@opscope.benchmark(group="other", inputs=torch.ones(3))
def alone(x):
    return x
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file_of_sweep.py"
    path.write_text(MARKED)
    return path


def request(**fields: Any) -> BenchmarkRequest:
    return BenchmarkRequest(device="cpu", **fields)


def test_a_suite_without_parameters_is_one_point() -> None:
    sweep = sweep_of(["square"], request(shape=(4, 4)))
    assert not sweep.has_several
    problem = sweep.points[0].make()
    assert (problem.name, problem.shape, problem.dtype) == ("square", (4, 4), "float32")


def test_a_suite_is_swept_over_its_sizes_dtype_and_options() -> None:
    swept = {"rows": (2, 4), "dtype": ("bf16",), "approximate": ("tanh", "none")}
    sweep = sweep_of(["gelu"], request(shape=(8, 16), parameters=swept))
    assert [point.label for point in sweep.points] == [
        "rows=2, dtype=bf16, approximate=tanh",
        "rows=2, dtype=bf16, approximate=none",
        "rows=4, dtype=bf16, approximate=tanh",
        "rows=4, dtype=bf16, approximate=none",
    ]
    problem = sweep.points[-1].make()
    assert (problem.shape, problem.dtype) == ((4, 16), "bfloat16")
    assert problem.parameters["approximate"] == "none"
    assert problem.parameters["rows"] == 4


def test_functions_are_one_problem_with_the_first_as_reference() -> None:
    sweep = sweep_of([torch.square, {"mine": lambda x: x * x}], request(inputs=torch.ones(3)))
    problem = sweep.points[0].make()
    assert [one.name for one in problem.implementations] == ["square", "mine"]
    assert problem.reference == "square"
    assert sweep_of([torch.square, torch.abs], request(reference="abs")).points[0]


def test_groups_of_a_file_are_joined_and_swept_by_their_marks(file: Path) -> None:
    sweep = sweep_of([str(file)], request())
    assert [point.label for point in sweep.points] == [
        f"{file.name} n=1", f"{file.name} n=2", f"{file.name}:other",
    ]  # fmt: skip
    assert [point.make().name for point in sweep.points] == [file.name, file.name, f"{file.name}:other"]
    assert sweep.has_several


def test_parameters_and_names_hold_for_the_groups_they_belong_to(file: Path) -> None:
    sweep = sweep_of([str(file)], request(parameters={"n": (5,)}, implementations=("fast",)))
    (point,) = sweep.points
    assert [one.name for one in point.make().implementations] == ["slow", "fast"]
    assert len(sweep_of([str(file)], request(parameters={"block": (1, 2)})).points) == 5


@pytest.mark.parametrize(
    ("targets", "fields", "message"),
    [
        (["nonsense"], {}, "'nonsense' is not a suite. Use gelu, square"),
        (["gelu", "add"], {}, "stands beside other targets"),
        (["gelu", torch.abs], {}, "cannot be mixed"),
        ([], {}, "nothing to benchmark"),
        (["gelu"], {"parameters": {"n": (1,)}}, "has no parameter 'n'. It has rows, columns, dtype"),
        (["gelu"], {"parameters": {"rows": ("x",)}}, "rows=x is not a size"),
        (["gelu"], {"shape": (3,)}, "sizes"),
        (["gelu"], {"implementations": ("x",)}, "'x' is not an implementation of 'gelu'. Use naive, torch"),
        (["gelu"], {"inputs": "a.py:f"}, "makes its own inputs"),
        (["{file}"], {"shape": (3,)}, "'shape' belongs to suites"),
        (["{file}"], {"options": {"approximate": "tanh"}}, "'approximate' belongs to suites"),
        (["{file}"], {"implementations": ("x",)}, "has no function 'x'. It has: slow, fast, alone"),
        (["{file}"], {"reference": "x"}, "has no function 'x'"),
        (["{file}"], {"parameters": {"m": (1,)}}, "nothing takes the parameter 'm'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_measured(
    file: Path, targets: list[Any], fields: dict[str, Any], message: str
) -> None:
    named = [target.format(file=file) if isinstance(target, str) else target for target in targets]
    with pytest.raises(InputError) as caught:
        sweep_of(named, request(**fields))
    assert message in str(caught.value)
