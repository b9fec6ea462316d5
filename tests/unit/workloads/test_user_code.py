from __future__ import annotations

from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.workloads.target import failure_place, is_file_name, load_function, load_module


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "code_of_user.py"
    path.write_text("class Box:\n    def open(self): return 'opened'\n\nbox = Box()\nnumber = 3\n")
    return path


def test_attributes_of_attributes_are_found(file: Path) -> None:
    assert load_function(f"{file}:box.open")() == "opened"


def test_two_files_of_one_name_stay_apart(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other" / file.name
    other.parent.mkdir()
    other.write_text("def box(): return 'other'\n")
    assert load_module(str(file)).__name__ != load_module(str(other)).__name__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "It defines: Box"),
        ("number", "is a int, not a function"),
        ("box.shut", "there is no 'box.shut'"),
    ],
)
def test_what_is_no_function_is_refused(file: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_function(f"{file}:{name}")


def test_the_hint_says_how_such_a_target_is_written() -> None:
    with pytest.raises(InputError, match="like this"):
        load_function("nonsense", hint="like this")


def test_a_failing_import_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "failing_code.py"
    file.write_text("x = 1\nraise SystemExit(3)\n")
    with pytest.raises(InputError, match=r"its import fails in line 2 \(SystemExit: 3\)"):
        load_module(str(file))


def test_the_place_of_an_error_is_its_last_line_in_the_file() -> None:
    try:
        load_function("x")
    except InputError as error:
        assert failure_place(error, Path(__file__)) is not None
        assert failure_place(error, Path("elsewhere.py")) is None
        assert (failure_place(error, None) or "").startswith("target.py line")


def test_files_are_told_from_modules() -> None:
    assert is_file_name("a.py")
    assert is_file_name("dir/a")
    assert not is_file_name("package.module")
