"""A program in this process: what it finds there, how it ends, and what can be wrong with it."""

import importlib
import inspect
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import tables
from opscope.capture.program import Program, after_import, check_program, run_program
from opscope.errors import InputError

TEXTS = tables(Path(__file__).with_suffix(".toml"))["texts"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder, text, *arguments, name="script.py", **fields):
    (folder / name).write_text(text)
    return run_program(Program(name, arguments, **fields), lambda: None, lambda end: None)


def test_a_script_finds_what_python_gives_it(folder, capsys):
    (folder / "sub").mkdir()
    (folder / "sub" / "sibling.py").write_text("NAME = 'sibling'\n")
    assert run(folder, TEXTS["script"], "--lr", "1", "--help", name="sub/script.py").exit_code == 0
    ours = capsys.readouterr().out
    python = subprocess.run(
        [sys.executable, "sub/script.py", "--lr", "1", "--help"], capture_output=True, text=True, check=True
    )
    assert ours == python.stdout


def test_a_module_finds_what_python_gives_it(folder, capsys):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "other.py").write_text("value = 42\n")
    # A relative import, and no package.
    assert run(folder, TEXTS["module"], "-x", name="package/__main__.py").error is not None
    capsys.readouterr()
    end = run_program(Program("package", ("-x",), is_module=True), lambda: None, lambda end: None)
    assert end.exit_code == 0
    ours = capsys.readouterr().out
    python = subprocess.run(
        [sys.executable, "-m", "package", "-x"], capture_output=True, text=True, check=True
    )
    assert ours == python.stdout
    for name in ("package", "package.other"):
        del sys.modules[name]


def test_the_process_is_as_before_afterwards(folder):
    before = (sys.argv, list(sys.path), sys.modules["__main__"], sys.stdout, signal.getsignal(signal.SIGTERM))
    run(folder, "import sys, io\nsys.stdout = io.StringIO()\nsys.path.insert(0, 'x')\nsys.argv = []\n")
    after = (sys.argv, list(sys.path), sys.modules["__main__"], sys.stdout, signal.getsignal(signal.SIGTERM))
    assert after == before


def test_an_error_is_shown_as_python_shows_it(folder, capsys):
    end = run(folder, TEXTS["error"])
    assert end.exit_code == 1
    assert isinstance(end.error, ValueError)
    python = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert capsys.readouterr().err == python.stderr


def test_a_handler_of_the_program_is_its_own(folder):
    previous = signal.getsignal(signal.SIGTERM)
    text = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nos.kill(os.getpid(), 15)\n"
    try:
        assert run(folder, text).exit_code == 0
        assert signal.getsignal(signal.SIGTERM) is not previous
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_the_end_is_told_while_the_program_still_exists(folder):
    seen = []
    (folder / "script.py").write_text("value = 5\n")
    run_program(
        Program("script.py"),
        lambda: seen.append(hasattr(sys.modules["__main__"], "value")),
        lambda end: seen.append(sys.modules["__main__"].value),
    )
    assert seen == [False, 5]


def test_a_step_function_is_wrapped_without_moving(folder, capsys):
    wrapped = []

    def wrap(function):
        wrapped.append(type(function).__name__)
        return function

    assert run(folder, TEXTS["step"], step_function="Trainer.step", wrap=wrap).exit_code == 0
    assert wrapped == ["staticmethod"]
    assert capsys.readouterr().out == "1 3\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"x = (\n", "not Python: line 1"), (b"\x7fELF\x00\x01", "not Python"), (b"\xff\xfe bad", "not Python")],
)
def test_a_file_that_is_not_python_is_refused(folder, content, message):
    (folder / "script.py").write_bytes(content)
    with pytest.raises(InputError, match=message):
        check_program(Program("script.py"))


@pytest.mark.parametrize("name", ["opscope_absent", "opscope_absent.part", "sys", "..x"])
def test_a_module_that_cannot_be_run_is_refused(folder, name):
    with pytest.raises(InputError):
        run_program(Program(name, is_module=True), lambda: None, lambda end: None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("first = 1\n")
    (tmp_path / "hooked_package" / "part.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked_package"
    for name in [name for name in sys.modules if name.startswith("hooked_package")]:
        del sys.modules[name]


def test_a_module_is_announced_once_when_it_is_whole_or_at_once_if_it_is(package):
    seen = []
    with after_import({f"{package}.part": lambda module: seen.append(module.value)}):
        importlib.import_module(package)
        assert seen == []
        importlib.import_module(f"{package}.part")
        importlib.import_module(f"{package}.part")
    assert seen == [2]
    with after_import({package: lambda module: seen.append(module.first)}):
        assert seen == [2, 1]


def test_the_module_keeps_its_loader_and_source(package):
    with after_import({package: lambda module: None}):
        module = importlib.import_module(package)
    assert inspect.getsource(module) == "first = 1\n"
    assert "exec_module" not in vars(module.__loader__)


def test_afterwards_and_elsewhere_imports_are_as_they_were(package):
    before = list(sys.meta_path)
    seen = []
    with after_import({f"{package}.absent": seen.append}):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{package}.absent")
        importlib.import_module(package)
    assert sys.meta_path == before
    assert seen == []
