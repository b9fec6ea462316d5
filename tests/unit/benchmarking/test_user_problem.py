"""Functions of the user's: how they are marked, named and found, and the problem a group of them makes."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.benchmarking.user_problem import (  # noqa: E402  # noqa: E402
    benchmark,
    check_parameters,
    group_of_functions,
    group_problem,
    groups_of_targets,
    mark_of,
    marked_groups,
    named_functions,
    selected,
    values_of,
)
from opscope.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


def module_of(**attributes: Any) -> ModuleType:
    module = ModuleType("mine")
    vars(module).update(attributes)
    return module


def make_inputs() -> tuple[int, ...]:
    return (1,)


def test_arguments_are_kept_in_the_mark() -> None:
    @benchmark(inputs=make_inputs, params={"n": [1, 2]}, group="g", name="mine", is_reference=True)
    def fast() -> None: ...

    mark = mark_of(fast)
    assert (mark.name, mark.group, mark.inputs, mark.params, mark.is_reference) == (
        "mine", "g", make_inputs, {"n": (1, 2)}, True,
    )  # fmt: skip


def test_a_builtin_is_wrapped_because_it_holds_no_attributes() -> None:
    marked = benchmark(abs)
    assert marked is not abs
    assert marked(-3) == 3
    assert mark_of(marked) is not None


def test_marked_functions_are_found_in_order_and_once() -> None:
    @benchmark
    def second() -> None: ...

    @benchmark
    def first() -> None: ...

    module = module_of(second=second, plain=len, alias=second, first=first)
    (group,) = marked_groups(module, "mine.py")
    assert list(group.functions) == ["second", "first"]


def test_what_one_member_says_holds_for_its_group() -> None:
    @benchmark(inputs=make_inputs, params={"n": (1,)})
    def slow() -> None: ...

    @benchmark(is_reference=True)
    def fast() -> None: ...

    @benchmark(group="other")
    def alone() -> None: ...

    groups = marked_groups(module_of(slow=slow, fast=fast, alone=alone), "mine.py")
    assert [(group.name, list(group.functions), group.reference) for group in groups] == [
        ("mine.py", ["slow", "fast"], "fast"),
        ("other", ["alone"], None),
    ]
    assert groups[0].inputs is make_inputs
    assert groups[0].params == {"n": (1,)}


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"inputs": make_inputs}, {"inputs": lambda: None}, "inputs"),
        ({"is_reference": True}, {"is_reference": True}, "reference"),
        ({"params": {"n": [1]}}, {"params": {"n": [2]}}, "params"),
    ],
)
def test_members_that_contradict_each_other_are_refused(first: Any, second: Any, what: str) -> None:
    def a() -> None: ...
    def b() -> None: ...

    module = module_of(a=benchmark(**first)(a), b=benchmark(**second)(b))
    with pytest.raises(InputError, match=f"different {what}"):
        marked_groups(module, "mine.py")


def test_mistakes_are_refused_when_the_decorator_is_written() -> None:
    with pytest.raises(InputError, match="no values"):
        benchmark(params={"n": []})
    with pytest.raises(InputError, match="both name a reference"):
        benchmark(reference="x", is_reference=True)
    with pytest.raises(InputError, match="is not a function"):
        benchmark(3)  # type: ignore[type-var]


def test_two_functions_of_one_name_are_refused() -> None:
    module = module_of(a=benchmark(name="x")(lambda: None), b=benchmark(name="x")(lambda: None))
    with pytest.raises(InputError, match="called 'x'"):
        marked_groups(module, "mine.py")


def test_one_value_in_python_is_a_list_of_one() -> None:
    assert values_of({"n": 3, "mode": "tanh", "m": [1, 2]}) == {"n": (3,), "mode": ("tanh",), "m": (1, 2)}
    with pytest.raises(InputError, match="no values"):
        values_of({"n": []})


PROGRAM = """
import opscope

def make_inputs(n):
    return (n,)

def other_inputs():
    return ()

def fast(x):
    return x

def slow(x):
    return x
"""
MARKED = (
    PROGRAM
    + """
opscope.benchmark(fast)
opscope.benchmark(group="g", inputs=other_inputs)(slow)
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program_of_targets.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    path = tmp_path / "marked_of_targets.py"
    path.write_text(MARKED)
    return path


def test_functions_of_one_file_are_of_one_module(file: Path) -> None:
    (group,) = groups_of_targets([f"{file}:fast", f"{file}:slow"])
    assert group.name == file.name
    assert list(group.functions) == ["fast", "slow"]
    assert group.functions["fast"].__globals__ is group.functions["slow"].__globals__


def test_the_files_own_make_inputs_is_taken_where_none_is_given(file: Path) -> None:
    (group,) = groups_of_targets([f"{file}:fast"])
    assert group.inputs(3) == (3,)
    (group,) = groups_of_targets([f"{file}:fast"], inputs=f"{file}:other_inputs", expected=f"{file}:slow")
    assert group.inputs() == ()
    assert group.expected is not None


def test_equal_names_are_told_apart(file: Path, marked: Path) -> None:
    (group,) = groups_of_targets([f"{file}:fast", f"{marked}:fast"])
    assert list(group.functions) == ["program_of_targets:fast", "marked_of_targets:fast"]
    (group,) = groups_of_targets([f"{file}:fast", f"{file}:fast"])
    assert list(group.functions) == ["fast", "fast (2)"]


def test_a_file_alone_gives_its_marked_groups(marked: Path) -> None:
    first, second = groups_of_targets([str(marked)])
    assert (first.name, list(first.functions)) == (marked.name, ["fast"])
    assert (second.name, list(second.functions)) == (f"{marked.name}:g", ["slow"])
    assert first.inputs(2) == (2,)
    assert second.inputs() == ()


@cases("targets", "message")
def test_targets_that_cannot_be_loaded_say_why(file: Path, targets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        groups_of_targets([target.format(file=file) for target in targets])


def test_functions_in_python_get_names() -> None:
    def fast() -> None: ...

    named = named_functions([fast, functools.partial(fast), lambda: None, {"mine": fast}])
    assert list(named) == ["fast", "fast (2)", "lambda", "mine"]
    with pytest.raises(InputError, match="neither a function nor a suite"):
        named_functions([3])


def test_a_group_keeps_the_named_functions_and_its_reference(file: Path) -> None:
    (group,) = groups_of_targets([f"{file}:fast", f"{file}:slow"])
    assert list(selected(group, ["slow"]).functions) == ["fast", "slow"]
    assert selected(group, []) is group
    with pytest.raises(InputError, match=r"has no function 'x'\. It has: fast, slow"):
        selected(group, ["x"])


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to benchmark"):
        group_of_functions({})
    with pytest.raises(InputError, match="'x' is a int, not a function"):
        group_of_functions({"x": 3})  # type: ignore[dict-item]


def square(x: Any) -> Any:
    return x * x


def scaled(x: Any, *, factor: int = 1) -> Any:
    return x * factor


def ones(n: int) -> Any:
    return torch.ones(n)


def problem_of(inputs: Any, function: Any = square, **parameters: Any) -> Any:
    return group_problem(group_of_functions({"f": function}, inputs=inputs), parameters, "cpu")


def test_an_inputs_function_gets_what_it_names() -> None:
    seen: dict[str, Any] = {}

    def make_inputs(n: int, device: Any, dtype: Any, seed: int) -> Any:
        seen.update(device=device, dtype=dtype, seed=seed)
        return torch.randn(n, device=device, dtype=dtype)

    problem = problem_of(make_inputs, dtype="bf16", n=5)
    (tensor,) = problem.make_inputs(7)
    assert seen == {"device": torch.device("cpu"), "dtype": torch.bfloat16, "seed": 7}
    assert (tensor.shape, tensor.dtype) == ((5,), torch.bfloat16)
    assert (problem.device, problem.dtype) == ("cpu", "bfloat16")


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
    group = group_of_functions({"f": scaled}, inputs=ones)
    check_parameters([group], ["n", "factor"])
    with pytest.raises(InputError, match="nothing takes the parameter 'm'"):
        check_parameters([group], ["m"])
    with pytest.raises(InputError, match="nothing takes the parameter 'dtype'"):
        check_parameters([group], ["dtype"])
    with pytest.raises(InputError, match="takes one: seed=1"):
        check_parameters([group], ["seed"])


def test_out_of_memory_is_left_to_the_rows() -> None:
    def make_inputs() -> Any:
        raise MemoryError

    assert problem_of(make_inputs).device == "cpu"
