from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from opscope.benchmarking.decorator import benchmark, mark_of
from opscope.benchmarking.user_problem import marked_groups
from opscope.errors import InputError


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
    assert mark is not None
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
