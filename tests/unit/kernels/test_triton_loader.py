"""Compiled and interpreted copies of the Triton kernels in one process, and Triton left as it was."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from opscope.errors import DependencyError  # noqa: E402
from opscope.kernels import triton_loader  # noqa: E402
from opscope.kernels.triton_loader import TRITON_MODULES, interpreted, load_triton  # noqa: E402


@pytest.mark.parametrize("name", TRITON_MODULES)
def test_both_copies_have_the_same_functions(name):
    compiled, copy = load_triton(name), load_triton(name, interpret=True)
    assert compiled is not copy
    assert compiled.__all__ == copy.__all__


def test_a_copy_is_compiled_or_interpreted_whatever_the_environment_says(monkeypatch):
    for variable in ("0", "1"):
        monkeypatch.setenv("TRITON_INTERPRET", variable)
        load_triton.cache_clear()
        monkeypatch.delitem(sys.modules, "opscope.kernels.triton.softmax", raising=False)
        assert isinstance(load_triton("softmax").softmax_teaching_kernel, triton.JITFunction)
        interpreted_kernel = load_triton("softmax", interpret=True).softmax_teaching_kernel
        assert not isinstance(interpreted_kernel, triton.JITFunction)


def test_kernels_declared_later_are_compiled_as_before():
    load_triton.cache_clear()
    load_triton("softmax", interpret=True)
    declared = triton.jit(load_triton("softmax").softmax_teaching_kernel.fn)
    assert isinstance(declared, triton.JITFunction)


def test_the_interpreter_leaves_the_language_as_it_was():
    language = triton.language
    names = ["load", "store", "sum", "max", "arange", "exp", "range", "program_id", "dot", "reduce"]
    before = {name: getattr(language, name) for name in names}
    before_core = dict(vars(language.core))
    before_tensor = dict(vars(language.core.tensor))
    interpreted(load_triton("softmax", interpret=True).softmax)(torch.ones(2, 3))
    assert {name: getattr(language, name) for name in names} == before
    assert dict(vars(language.core.tensor)) == before_tensor
    changed = {name for name, value in before_core.items() if vars(language.core)[name] is not value}
    assert not changed


def test_the_language_is_restored_after_an_error():
    before = triton.language.load, triton.JITFunction.__call__
    kernel = load_triton("elementwise", interpret=True).square
    with pytest.raises(AttributeError):
        interpreted(kernel)(None)
    assert (triton.language.load, triton.JITFunction.__call__) == before


def test_a_compiled_kernel_still_refuses_to_be_called_as_a_function():
    interpreted(load_triton("softmax", interpret=True).softmax)(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        load_triton("elementwise").gelu_of(1.0, True)


def test_without_triton_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(DependencyError, match=r"pip install 'opscope\[triton\]'"):
        triton_loader.require_triton()
    load_triton.cache_clear()
    with pytest.raises(DependencyError):
        load_triton("softmax")
