"""Compilations by the nvcc of this machine."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import CaptureError, DependencyError, InputError, OpscopeError
from opscope.hardware.architectures import Target
from opscope.hardware.toolkit import find_cuda_tool
from opscope.nvcc.command import BuildProduct, read_nvcc
from opscope.nvcc.compile import (
    Compilation,
    DoubleUse,
    Request,
    compile_error,
    compile_source,
    constant_bytes,
    double_uses,
    has_lines,
    run_compiled,
)
from opscope.nvcc.messages import parse_messages

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

    def run(
        text: str, *, name: str = "a.cu", product: BuildProduct = BuildProduct.OBJECT, **facts: Any
    ) -> Compilation:
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
        "__global__ void k(int* x) { *x = 1; }", product=BuildProduct.CUBIN, targets=(Target(9, 0, "a"),)
    )
    (kernel,) = compiled.kernels
    assert (kernel.target.name, kernel.constant_bytes) == ("sm_90a", 528 + 8)


def test_an_error_leaves_what_was_there(compile_text, tmp_path):
    source, output = tmp_path / "bad.cu", tmp_path / "bad"
    source.write_text("__global__ void k(float* y) { y[0] = wrong; }\n")
    output.write_text("before")
    compiler = read_nvcc(find_cuda_tool("nvcc") or "")
    with pytest.raises(InputError, match=r'bad.cu\(1\): error: identifier "wrong" is undefined'):
        compile_source(compiler, Request(source, output, BuildProduct.OBJECT, (HOPPER,)), os.environ)
    assert output.read_text() == "before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad", "bad.cu"]


def test_an_error_of_ptxas_shows_the_line_of_ptx(compile_text):
    with pytest.raises(InputError, match=r"Not a name of any known instruction: 'wrong'\n    wrong.f32 %f1;"):
        compile_text('__global__ void k(float* y) { asm volatile("wrong.f32 %0;" :: "f"(y[0])); }')


def test_a_host_compiler_that_is_missing_is_told(compile_text):
    with pytest.raises(DependencyError, match=r"nvcc finds no host compiler:\n.*No such file"):
        compile_text("int main() {}", options=("-ccbin=/nonexistent",))


# As the programs of CUDA 13.0 print them.
UNSUPPORTED = """\
In file included from /usr/local/cuda/include/cuda_runtime.h:82,
                 from <command-line>:
/usr/local/cuda/include/crt/host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions \
later than 15 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this \
version check
"""
NO_HOST = "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.\n"
# CUDA 11 calls a shell.
NO_HOST_11 = "sh: gcc: command not found\n"
NO_MAIN = """\
Scrt1.o: in function `_start':
(.text+0x17): undefined reference to `main'
collect2: error: ld returned 1 exit status
"""
SHARED = "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x61a80 bytes, 0xc000 max)\n"
EXTERN = "ptxas fatal   : Unresolved extern function '_Z1fi'\n"
TORCH = "add.cu:1:10: fatal error: torch/extension.h: No such file or directory\n"


def error(output: str, product: BuildProduct = BuildProduct.PROGRAM) -> OpscopeError:
    request = Request(Path("folder/add.cu"), Path("add"), product, (Target(8, 0), Target(9, 0)))
    return compile_error(request, parse_messages(output), output)


@pytest.mark.parametrize(
    ("output", "kind", "words", "remedy"),
    [
        (UNSUPPORTED, DependencyError, "unsupported GNU version!", "--nvcc-option=-ccbin=PATH"),
        (NO_HOST, DependencyError, "gcc: No such file", "apt install g++"),
        (NO_HOST_11, DependencyError, "gcc: command not found", "apt install g++"),
        (SHARED, InputError, "uses too much shared data", "extern __shared__"),
        (EXTERN, InputError, "Unresolved extern function", "-rdc=true"),
        (TORCH, InputError, "add.cu:1:10: fatal error", "torch.utils.cpp_extension"),
        ("a.cu:1:10: fatal error: accel.h: No such file or directory\n", InputError, "accel.h", ""),
        ("Segmentation fault\n", InputError, "Segmentation fault", ""),
    ],
)
def test_the_compilers_words_and_a_remedy(output, kind, words, remedy):
    raised = error(output)
    assert type(raised) is kind
    assert words in str(raised)
    assert remedy in str(raised)


def test_a_compile_error_names_the_file_and_the_targets_first():
    assert str(error(SHARED)).startswith("add.cu does not compile for sm_80, sm_90:\nptxas error")


def test_without_main_the_other_products_are_named():
    assert "--emit object" in str(error(NO_MAIN))
    assert "undefined reference" in str(error(NO_MAIN, BuildProduct.SHARED))


# nvcc 13.0 -lineinfo, of: x[0] = x[0] * 2.0 + 1.0; (rounded) and: *total += x[0]; (a sum in double)
PTX = """
.version 9.0
.target sm_90
.visible .entry _Z8promotedPf(
	.param .u64 _Z8promotedPf_param_0
)
{
	.loc	1 1 0
	.loc	1 2 3
	ld.global.f32 	%f1, [%rd4];
	cvt.f64.f32 	%fd1, %f1;
	fma.rn.f64 	%fd2, %fd1, 0d4000000000000000, 0d3FF0000000000000;
	cvt.rn.f32.f64 	%f2, %fd2;
	.loc	2 8 5, function_name $L__info_string0, inlined_at 1 3 1
	cvt.rn.f32.f64 	%f3, %fd2;
	ret;
}
.visible .entry _Z3sumPKfPd(
	.param .u64 _Z3sumPKfPd_param_0
)
{
	cvt.f64.f32 	%fd4, %f1;
	add.f64 	%fd5, %fd11, %fd4;
	st.global.f64 	[%rd6], %fd5;
	ret;
}
.visible .entry _Z7doublesPd(
)
{
	cvt.rn.f32.f64 	%f2, %fd2;
	ret;
}
	.file	1 "/src/a.cu"
	.file	2 "/src/b.cuh"
"""


def test_only_what_is_widened_and_rounded_again_counts():
    assert double_uses(PTX) == (DoubleUse("promoted(float*)", 2, (("/src/a.cu", 2), ("/src/b.cuh", 8))),)


def test_without_lines_the_places_are_unknown():
    bare = "\n".join(line for line in PTX.splitlines() if ".loc" not in line and ".file" not in line)
    assert (has_lines(PTX), has_lines(bare)) == (True, False)
    assert double_uses(bare) == (DoubleUse("promoted(float*)", 2, ()),)


def cubin(sections: dict[str, int]) -> bytes:
    """An ELF file of 64 bits that has these sections, without contents."""
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name in sections)
    entries = [(1, 64, len(names))]
    entries += [(names.index(name.encode()), 0, size) for name, size in sections.items()]
    table = b"".join(struct.pack("<I20xQQ24x", *entry) for entry in entries)
    header = struct.pack("<6s34xQ10xHHH", b"\x7fELF\x02\x01", 64 + len(names), 64, len(entries), 0)
    return header + names + table


def test_banks_by_kernel():
    content = cubin(
        {
            ".text._Z3addPf": 512,
            ".nv.constant0._Z3addPf": 552,
            ".nv.constant2._Z3addPf": 8,
            ".nv.constant3": 1024,
        }
    )
    assert constant_bytes(content) == {"_Z3addPf": {0: 552, 2: 8}}


@given(st.integers(0, 400))
def test_a_file_that_is_cut_off_is_no_error(length):
    content = cubin({".nv.constant0._Z3addPf": 552})
    assert constant_bytes(content[:length]) in ({}, {"_Z3addPf": {0: 552}})


@given(st.binary(max_size=200))
def test_anything_else_has_none(content):
    assert constant_bytes(content) == {}
    assert constant_bytes(b"\x7fELF\x02\x01" + content) == {}


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program"
    file.write_text('#!/bin/sh\necho "$@"\nexec sh -c "$1"\n')
    file.chmod(0o755)
    return file


def test_the_exit_code_and_the_output_are_the_programs(program, capfd):
    assert run_compiled(program, ["exit 7", "--help"], os.environ) == 7
    assert capfd.readouterr().out == "exit 7 --help\n"


def test_its_output_can_go_elsewhere(program, capfd):
    assert run_compiled(program, ["true"], os.environ, stdout=2) == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "true\n")


def test_a_signal_is_told_as_shells_do(program):
    assert run_compiled(program, ["kill -SEGV $$"], os.environ, stdout=2) == 128 + signal.SIGSEGV


def test_what_cannot_be_started_is_an_error(tmp_path):
    with pytest.raises(CaptureError, match="cannot be started"):
        run_compiled(tmp_path / "nothing", [], os.environ)
