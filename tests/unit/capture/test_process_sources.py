"""A kernel's name → the Python function; the functions here are what Triton's decorator would make."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from case_tables import cases
from opscope.capture.process_sources import (
    base_name,
    extension_sources,
    mapped_files,
    triton_sources,
)
from opscope.model.origin import RecordedKernel, RecordedUnit


def jit(fn):
    return SimpleNamespace(fn=fn, device_caches={})


def launched(function):
    function.device_caches[0] = ({}, {}, None)
    return function


@jit
def gelu_tanh(x_ptr, n):
    return n


def same_name(first):
    if first:

        @jit
        def scale(x):
            return x
    else:

        @jit
        def scale(x):
            return -x

    return scale


def line_of(text):
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


SOURCE = Path(__file__).with_name("square.cu").read_text(encoding="utf-8")


@pytest.fixture
def build(tmp_path):
    """A build folder with a library, and what the system says of a process that loaded it."""
    folder = tmp_path / "own kernels"
    folder.mkdir()
    (folder / "cuda.cu").write_text(SOURCE)
    (tmp_path / "far.cu").write_text("__global__ void far(int n) {}\n")
    escaped = str(folder / "cuda.cu").replace(" ", "$ ")
    (folder / "build.ninja").write_text(
        f"rule cuda_compile\n  command = $nvcc -c $in\n\nbuild main.o: compile main.cpp\n"
        f"build cuda.cuda.o: cuda_compile {escaped}\nbuild far.cuda.o: cuda_compile ../far.cu\n"
        "build own.so: link main.o cuda.cuda.o\n"
    )
    (tmp_path / "maps").write_text(
        f"7f00-7f01 r-xp 00000000 08:01 1234    {folder}/own.so\n"
        f"7f01-7f02 r--p 00001000 08:01 1234    {folder}/own.so\n"
        "7f02-7f03 rw-p 00000000 00:00 0\n7f03-7f04 r-xp 00000000 08:01 9   /usr/lib/libtorch_cuda.so\n"
        "7f05-7f06 rw-p 00000000 00:00 0    [heap]\n"
    )
    return tmp_path


@cases("kernel", "name")
def test_the_name_without_arguments(kernel, name):
    assert base_name(kernel) == name


def kernel(name, library="own.so", *units):
    return RecordedKernel(name, library, units=tuple(map(RecordedUnit, units)))


def test_mappings_are_listed_once(build):
    assert {name: len(paths) for name, paths in mapped_files(build / "maps").items()} == {
        "own.so": 1,
        "libtorch_cuda.so": 1,
    }
    assert mapped_files(build / "none") == {}


def test_a_kernel_is_found_in_the_sources_of_its_library(build):
    kernels = [
        kernel("void square<float>(float const*, float*, long)", "own.so", "cuda.cu"),
        kernel("far(int)"),
        kernel("far(int)", "own.so", "cuda.cu"),  # Its unit is another file.
        kernel("twice(float*)"),
        kernel("hidden(float*)"),
        kernel("square(int)", "libtorch_cuda.so"),
        kernel("square(int)", "gone.so"),
        kernel("square(int)", None),
    ]
    first, second = extension_sources(kernels, build / "maps")
    assert (first.kind.value, first.file) == ("cuda", str(build / "own kernels" / "cuda.cu"))
    assert (first.line, first.end_line) == (8, 11)
    assert (Path(second.file).resolve(), second.line) == (build.resolve() / "far.cu", 1)


def test_libraries_of_one_name_and_sources_that_are_gone_tell_nothing(build):
    (build / "far.cu").unlink()
    assert extension_sources([kernel("far(int)")], build / "maps") == []
    with (build / "maps").open("a") as maps:
        maps.write("7f07-7f08 r-xp 00000000 08:01 77   /elsewhere/own.so\n")
    assert extension_sources([kernel("far(int)")], build / "maps") == []
