from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.user_problem import (  # noqa: E402
    check_parameters,
    group_of_functions,
    group_problem,
)
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


def square(x: Any) -> Any:
    return x * x


def scaled(x: Any, *, factor: int = 1) -> Any:
    return x * factor


def ones(n: int) -> Any:
    return torch.ones(n)


def problem_of(inputs: Any, asked: str | None = None, function: Any = square, **parameters: Any) -> Any:
    return group_problem(group_of_functions({"f": function}, inputs=inputs), parameters, "cpu", asked)


def test_an_inputs_function_gets_what_it_names() -> None:
    seen: dict[str, Any] = {}

    def make_inputs(n: int, device: Any, dtype: Any, seed: int) -> Any:
        seen.update(device=device, dtype=dtype, seed=seed)
        return torch.randn(n, device=device, dtype=dtype)

    problem = problem_of(make_inputs, "bf16", n=5)
    (tensor,) = problem.make_inputs(7)
    assert seen == {"device": torch.device("cpu"), "dtype": torch.bfloat16, "seed": 7}
    assert (tensor.shape, tensor.dtype) == ((5,), torch.bfloat16)
    assert (problem.device, problem.dtype, problem.parameters) == ("cpu", "bfloat16", {"n": 5})


def test_the_same_seed_gives_the_same_inputs_without_naming_it() -> None:
    problem = problem_of(lambda: (torch.randn(4), 2.0))
    first, again, other = (problem.make_inputs(seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_arguments_themselves_are_copied() -> None:
    x = torch.ones(3)
    problem = problem_of((x, 2))
    tensor, number = problem.make_inputs(0)
    assert torch.equal(tensor, x)
    assert tensor.data_ptr() != x.data_ptr()
    assert number == 2
    assert problem_of(x).make_inputs(0)[0].shape == (3,)


def test_a_swept_dtype_is_what_the_inputs_get() -> None:
    problem = problem_of(lambda dtype: torch.ones(2, dtype=dtype), dtype="float16")
    assert problem.dtype == "float16"
    assert problem.matrix_ceiling == "matrix_float16"


def test_a_function_gets_the_swept_parameters_it_names_as_keywords() -> None:
    problem = problem_of(ones, function=scaled, n=2, factor=3)
    built = problem.implementations[0].build()
    assert built(*problem.make_inputs(0)).tolist() == [3.0, 3.0]


def test_functions_without_arguments_need_no_inputs() -> None:
    problem = problem_of(None, function=lambda: torch.ones(1))
    assert problem.make_inputs(0) == ()
    assert problem.device == "cpu"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda: None, "returned nothing"),
        (lambda: [1], "returned a list"),
        (lambda: {"x": 1}, "returned a dict"),
        (lambda: 1 / 0, "fails in line .* \\(ZeroDivisionError"),
        (lambda m: m, "needs arguments that nothing provides \\(m\\)"),
        ([1], "inputs returned a list"),
    ],
)
def test_inputs_that_cannot_be_used_say_why(inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        problem_of(inputs)


def test_functions_that_take_arguments_need_inputs() -> None:
    with pytest.raises(InputError, match=r"'f' takes arguments \(x\), but nothing provides them"):
        problem_of(None)


def test_options_that_no_one_takes_are_refused() -> None:
    with pytest.raises(InputError, match="takes no `dtype`"):
        problem_of(lambda: torch.ones(1), "float16")
    group = group_of_functions({"f": scaled}, inputs=ones)
    check_parameters([group], ["n", "factor"])
    with pytest.raises(InputError, match="nothing takes the parameter 'm'"):
        check_parameters([group], ["m"])
    with pytest.raises(InputError, match="takes one: seed=1"):
        check_parameters([group], ["seed"])


def test_out_of_memory_is_left_to_the_rows() -> None:
    def make_inputs() -> Any:
        raise MemoryError

    assert problem_of(make_inputs).device == "cpu"
