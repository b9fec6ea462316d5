"""Functions of the user's: how they are named and found, and the problem a group of them makes."""

import functools
from pathlib import Path

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking.user_problem import (  # noqa: E402
    check_parameters,
    group_of_functions,
    group_of_targets,
    group_problem,
    named_functions,
    values_of,
)
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


def test_one_value_in_python_is_a_list_of_one():
    assert values_of({"n": 3, "mode": "tanh", "m": [1, 2]}) == {"n": (3,), "mode": ("tanh",), "m": (1, 2)}
    with pytest.raises(InputError, match="no values"):
        values_of({"n": []})


PROGRAM = Path(__file__).with_name("user_functions.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program_of_targets.py"
    path.write_text(PROGRAM)
    return path


def test_equal_names_are_told_apart(file, tmp_path):
    other = tmp_path / "other_of_targets.py"
    other.write_text(PROGRAM)
    group = group_of_targets([f"{file}:fast", f"{other}:fast"])
    assert list(group.functions) == ["program_of_targets:fast", "other_of_targets:fast"]
    group = group_of_targets([f"{file}:fast", f"{file}:fast"])
    assert list(group.functions) == ["fast", "fast (2)"]


@cases("targets", "message")
def test_targets_that_cannot_be_loaded_say_why(file, targets, message):
    with pytest.raises(InputError, match=message):
        group_of_targets([target.format(file=file) for target in targets])


def test_functions_in_python_get_names():
    def fast(): ...

    named = named_functions([fast, functools.partial(fast), lambda: None, {"mine": fast}])
    assert list(named) == ["fast", "fast (2)", "lambda", "mine"]
    with pytest.raises(InputError, match="neither a function nor a suite"):
        named_functions([3])


def test_an_empty_group_is_refused():
    with pytest.raises(InputError, match="nothing to benchmark"):
        group_of_functions({})
    with pytest.raises(InputError, match="'x' is a int, not a function"):
        group_of_functions({"x": 3})


def square(x):
    return x * x


def scaled(x, *, factor=1):
    return x * factor


def ones(n):
    return torch.ones(n)


def problem_of(inputs, function=square, **parameters):
    return group_problem(group_of_functions({"f": function}, inputs=inputs), parameters, "cpu")


def test_an_inputs_function_gets_what_it_names():
    seen = {}

    def make_inputs(n, device, dtype, seed):
        seen.update(device=device, dtype=dtype, seed=seed)
        return torch.randn(n, device=device, dtype=dtype)

    problem = problem_of(make_inputs, dtype="bf16", n=5)
    (tensor,) = problem.make_inputs(7)
    assert seen == {"device": torch.device("cpu"), "dtype": torch.bfloat16, "seed": 7}
    assert (tensor.shape, tensor.dtype) == ((5,), torch.bfloat16)
    assert (problem.device, problem.dtype) == ("cpu", "bfloat16")


def test_the_same_seed_gives_the_same_inputs_and_arguments_are_copied():
    problem = problem_of(lambda: (torch.randn(4), 2.0))
    first, again, other = (problem.make_inputs(seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    x = torch.ones(3)
    problem = problem_of((x, 2))
    tensor, number = problem.make_inputs(0)
    assert torch.equal(tensor, x)
    assert tensor.data_ptr() != x.data_ptr()
    assert number == 2
    assert problem_of(x).make_inputs(0)[0].shape == (3,)


def test_functions_without_arguments_need_no_inputs_and_others_get_what_they_name():
    problem = problem_of(None, function=lambda: torch.ones(1))
    assert problem.make_inputs(0) == ()
    assert problem.device == "cpu"
    problem = problem_of(ones, function=scaled, n=2, factor=3)
    assert problem.implementations[0].build()(*problem.make_inputs(0)).tolist() == [3.0, 3.0]
    problem = problem_of(lambda dtype: torch.ones(2, dtype=dtype), dtype="float16")
    assert problem.dtype == "float16"
    assert problem.matrix_ceiling == "matrix_float16"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda: None, "returned nothing"),
        (lambda: [1], "returned a list"),
        (lambda: {"x": 1}, "returned a dict"),
        (lambda: 1 / 0, "fails in line .* \\(ZeroDivisionError"),
        (lambda m: m, "needs arguments that nothing provides \\(m\\)"),
        ([1], "inputs returned a list"),
        (None, "'f' takes arguments \\(x\\), but nothing provides them"),
    ],
)
def test_inputs_that_cannot_be_used_say_why(inputs, message):
    with pytest.raises(InputError, match=message):
        problem_of(inputs)


def test_options_that_no_one_takes_are_refused():
    group = group_of_functions({"f": scaled}, inputs=ones)
    check_parameters(group, ["n", "factor"])
    with pytest.raises(InputError, match="nothing takes the parameter 'm'"):
        check_parameters(group, ["m"])
    with pytest.raises(InputError, match="nothing takes the parameter 'dtype'"):
        check_parameters(group, ["dtype"])
    with pytest.raises(InputError, match="takes one: seed=1"):
        check_parameters(group, ["seed"])


def test_out_of_memory_is_left_to_the_rows():
    def make_inputs():
        raise MemoryError

    assert problem_of(make_inputs).device == "cpu"
