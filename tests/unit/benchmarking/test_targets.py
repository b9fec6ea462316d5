from __future__ import annotations

import functools
from pathlib import Path

import pytest

from opscope.benchmarking.user_problem import group_of_functions, groups_of_targets, named_functions, selected
from opscope.errors import InputError

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


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["{file}"], "no function of this file is marked"),
        (["{file}", "{file}:fast"], "names no function"),
        (["{file}:"], "names no function"),
        (["{file}:absent"], "there is no 'absent'. It defines: fast, make_inputs, other_inputs, slow"),
        (["{file}.py:fast"], "no such file"),
        (["no_such_module_anywhere:fast"], "there is no module"),
    ],
)
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
