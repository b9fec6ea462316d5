"""A kernel's name → the Python function; the functions here are what Triton's decorator would make."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from opscope.capture.process_sources import triton_sources


def jit(fn):
    return SimpleNamespace(fn=fn, device_caches={})


def launched(function):
    function.device_caches[0] = ({}, {}, None)
    return function


@jit
def gelu_tanh(x_ptr, n):
    return n


def same_name(first: bool):
    if first:

        @jit
        def scale(x):
            return x
    else:

        @jit
        def scale(x):
            return -x

    return scale


def line_of(text: str) -> int:
    with open(__file__) as file:  # noqa: PTH123
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_the_function_of_a_kernels_name():
    assert triton_sources({"gelu_tanh"}, [gelu_tanh]) == []  # Never launched: it cannot be the kernel.
    (source,) = triton_sources({"gelu_tanh", "nvjet"}, [launched(gelu_tanh), same_name(True)])
    assert (source.kernel, source.kind.value, source.evidence.value) == ("gelu_tanh", "triton", "process")
    assert source.file == __file__
    assert source.line == line_of("def gelu_tanh(")
    assert source.end_line == source.line + 1


def test_equal_names_are_ambiguous_unless_they_lie_in_one_place():
    first, second = same_name(True), same_name(False)
    (source,) = triton_sources({"scale"}, [first, launched(second)])
    assert source.line == line_of("return -x") - 1
    assert triton_sources({"scale"}, [launched(first), second]) == []
    (source,) = triton_sources({"scale"}, [first, launched(same_name(True))])
    assert source.line == line_of("return x\n") - 1


def test_a_function_of_no_file_is_unknown():
    scope = {}
    exec("def typed(x): return x", scope)
    assert triton_sources({"typed"}, [launched(jit(scope["typed"]))]) == []
    assert triton_sources({"len"}, [launched(jit(len)), SimpleNamespace(), SimpleNamespace(fn=None)]) == []


@pytest.mark.parametrize("text", ["def other(): pass\n" * 9, "not Python ("])
def test_a_file_that_was_edited_keeps_the_line_the_process_knows(tmp_path, monkeypatch, text):
    file = tmp_path / "edited.py"
    file.write_text("\n\ndef kernel(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = launched(jit(__import__("edited").kernel))
    sys.modules.pop("edited")
    file.write_text(text)
    (source,) = triton_sources({"kernel"}, [function])
    assert (source.line, source.end_line) == (3, None)
