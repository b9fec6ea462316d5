from __future__ import annotations

import importlib
import inspect
import sys

import pytest

from opscope.capture.program import after_import


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("first = 1\n")
    (tmp_path / "hooked_package" / "part.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked_package"
    for name in [name for name in sys.modules if name.startswith("hooked_package")]:
        del sys.modules[name]


def test_a_module_is_announced_once_when_it_is_whole(package):
    seen = []
    with after_import({f"{package}.part": lambda module: seen.append(module.value)}):
        importlib.import_module(package)
        assert seen == []
        importlib.import_module(f"{package}.part")
        importlib.import_module(f"{package}.part")
    assert seen == [2]


def test_what_is_imported_already_is_announced_at_once(package):
    importlib.import_module(package)
    seen = []
    with after_import({package: lambda module: seen.append(module.first)}):
        assert seen == [1]


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
