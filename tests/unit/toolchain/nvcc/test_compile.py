"""Compilations by the nvcc of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.errors import DependencyError, InputError
from opscope.hardware.architectures import Target
from opscope.hardware.toolkit import find_cuda_tool
from opscope.toolchain.nvcc.command import Product, read_nvcc
from opscope.toolchain.nvcc.compile import Compilation, Request, compile_source

pytestmark = pytest.mark.skipif(find_cuda_tool("nvcc") is None, reason="no nvcc")

AMPERE, HOPPER = Target(8, 0), Target(9, 0)
KERNELS = """\
__constant__ float table[256];
__device__ __noinline__ int rec(int n) { return n < 2 ? n : rec(n - 1) + rec(n - 2); }
namespace {
template <typename T> __global__ void __launch_bounds__(128, 4) scale(T* x, T f) {
  __shared__ T s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x] * f * (T)table[threadIdx.x];
}
}
__global__ void recursive(int* x) { x[0] = rec(x[1]); }
__global__ void promoted(float* x) {
  int unused;
  x[threadIdx.x] = x[threadIdx.x] * 2.0 + 1.0;
}
void go(float* x) { scale<float><<<1, 128>>>(x, 2.f); }
"""


@pytest.fixture(scope="module")
def compile_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Compilation]:
    """Compiles a text in a folder of its own."""
    compiler = read_nvcc(find_cuda_tool("nvcc") or "")

    def run(text: str, *, name: str = "a.cu", product: Product = Product.OBJECT, **facts: Any) -> Compilation:
        folder = tmp_path_factory.mktemp("nvcc")
        source = folder / name
        source.write_text(text)
        wanted = {"targets": (HOPPER,), **facts}
        return compile_source(compiler, Request(source, folder / "made", product, **wanted), os.environ)

    return run


@pytest.fixture(scope="module")
def compiled(compile_text: Callable[..., Compilation]) -> Compilation:
    return compile_text(KERNELS, name="a file é.cu", targets=(AMPERE, HOPPER), ptx=HOPPER)


def folder_of(compilation: Compilation) -> Path:
    return compilation.request.source.parent


def test_every_kernel_is_told_for_every_target(compiled):
    names = {(one.name.rpartition("::")[2], one.target.name) for one in compiled.kernels}
    wanted = ("scale<float>(float*, float)", "recursive(int*)", "promoted(float*)")
    assert names == {(name, target) for name in wanted for target in ("sm_80", "sm_90")}
    assert {one.request.output.name for one in [compiled]} == {"made"}
    assert sorted(file.name for file in folder_of(compiled).iterdir()) == ["a file é.cu", "made"]


def test_numbers_and_launch_bounds_are_those_of_the_source(compiled):
    for one in compiled.kernels:
        assert one.registers > 0
        if "scale" in one.name:
            assert (one.use.shared_bytes, one.max_threads, one.min_blocks) == (512, 128, 4)
        else:
            assert (one.use.shared_bytes, one.max_threads) == (0, None)


def test_constant_memory_of_the_cubin_is_what_ptxas_prints(compiled):
    # Parameters start at byte 352 before Hopper and at 528 on it: a pointer, or a pointer and a float.
    sizes = {(one.name, one.target.name): one.constant_bytes for one in compiled.kernels}
    assert sizes["recursive(int*)", "sm_80"] == 352 + 8
    assert sizes["recursive(int*)", "sm_90"] == 528 + 8


def test_functions_warnings_and_double_precision_are_told(compiled):
    assert {one.symbol for one in compiled.functions} == {"_Z3reci"}
    unused = [one for one in compiled.messages if "unused" in one.text]
    assert [(one.line, one.code) for one in unused] == [(13, "#177-D")]
    (use,) = compiled.doubles
    assert (use.name, [line for _, line in use.places]) == ("promoted(float*)", [14])


def test_ptx_is_there_by_target(compiled):
    assert list(compiled.ptx) == ["compute_80", "compute_90"]
    assert ".target sm_80" in compiled.ptx["compute_80"]
    assert ".target sm_90" in compiled.ptx["compute_90"]


def test_a_cubin_tells_as_much(compile_text):
    compiled = compile_text(
        "__global__ void k(int* x) { *x = 1; }", product=Product.CUBIN, targets=(Target(9, 0, "a"),)
    )
    (kernel,) = compiled.kernels
    assert (kernel.target.name, kernel.constant_bytes) == ("sm_90a", 528 + 8)


def test_an_error_leaves_what_was_there(compile_text, tmp_path):
    source, output = tmp_path / "bad.cu", tmp_path / "bad"
    source.write_text("__global__ void k(float* y) { y[0] = wrong; }\n")
    output.write_text("before")
    compiler = read_nvcc(find_cuda_tool("nvcc") or "")
    with pytest.raises(InputError, match=r'bad.cu\(1\): error: identifier "wrong" is undefined'):
        compile_source(compiler, Request(source, output, Product.OBJECT, (HOPPER,)), os.environ)
    assert output.read_text() == "before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad", "bad.cu"]


def test_an_error_of_ptxas_shows_the_line_of_ptx(compile_text):
    with pytest.raises(InputError, match=r"Not a name of any known instruction: 'wrong'\n    wrong.f32 %f1;"):
        compile_text('__global__ void k(float* y) { asm volatile("wrong.f32 %0;" :: "f"(y[0])); }')


def test_a_host_compiler_that_is_missing_is_told(compile_text):
    with pytest.raises(DependencyError, match=r"nvcc finds no host compiler:\n.*No such file"):
        compile_text("int main() {}", options=("-ccbin=/nonexistent",))
