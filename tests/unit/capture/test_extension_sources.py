"""CUDA sources beside a library that torch.utils.cpp_extension built."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.capture.process_sources import base_name, extension_sources, global_function_lines, mapped_files
from opscope.model.origin import RecordedKernel, RecordedUnit

SOURCE = """#include <torch/types.h>
#define GLOBAL __global__ void
// __global__ void square(float*) {
/* __global__ void square(float*) { } */
const char* text = "__global__ void square(int) {";
__global__ void square(const float* x, float* y, long n);
template <typename T>
__global__ void
__launch_bounds__(256) square(const T* x, T* y, long n) {
    if (n) { y[0] = x[0] * '{'; }
}
template __global__ void square<float>(const float*, float*, long);
__global__ void twice(float* x) { x[0] *= 2; }
#if 0
__global__ void twice(float* x) { x[0] += x[0]; }
#endif
GLOBAL hidden(float* x) { }
"""


@pytest.mark.parametrize(
    ("name", "lines"), [("square", (8, 11)), ("twice", None), ("hidden", None), ("absent", None)]
)
def test_one_definition_or_none(name, lines):
    assert global_function_lines(SOURCE, name) == lines


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("square_kernel(float const*, float*, long)", "square_kernel"),
        ("void ns::(anonymous namespace)::scale<float, std::array<char*, 2ul> >(float*)", "scale"),
        ("plain", "plain"),
        ("_ZN2ns3fooEv", "_ZN2ns3fooEv"),
        ("", None),
    ],
)
def test_the_name_without_arguments(kernel, name):
    assert base_name(kernel) == name


@pytest.fixture
def build(tmp_path: Path) -> Path:
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


def kernel(name: str, library: str | None = "own.so", *units: str) -> RecordedKernel:
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
        kernel("square(int)", "libtorch_cuda.so"),
        kernel("square(int)", "gone.so"),
        kernel("square(int)", None),
    ]
    first, second = extension_sources(kernels, build / "maps")
    assert (first.kind.value, first.file) == ("cuda", str(build / "own kernels" / "cuda.cu"))
    assert (first.line, first.end_line) == (8, 11)
    assert (Path(second.file).resolve(), second.line) == (build.resolve() / "far.cu", 1)


def test_two_libraries_of_one_name_are_not_told_apart(build):
    with (build / "maps").open("a") as maps:
        maps.write("7f07-7f08 r-xp 00000000 08:01 77   /elsewhere/own.so\n")
    assert extension_sources([kernel("far(int)")], build / "maps") == []


def test_a_source_that_is_gone_is_unknown(build):
    (build / "far.cu").unlink()
    assert extension_sources([kernel("far(int)")], build / "maps") == []
