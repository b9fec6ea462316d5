"""What ptxas prints of functions, as four generations of nvcc write it."""

from __future__ import annotations

from opscope.kernels.ptx import FunctionUse, parse_ptxas

# nvcc 13.0: no constant memory from sm_90 on; a function that kernels call comes after them.
CUDA_13 = """\
many.cu(4): warning #177-D: variable "unused" was declared but never referenced
   int unused;
       ^

ptxas info    : 4096 bytes gmem, 1024 bytes cmem[3], 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z5callsPfi' for 'sm_80'
ptxas info    : Function properties for _Z5callsPfi
    128 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers, 128 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compile time = 2.285 ms
ptxas info    : Function properties for _Z3reci
    24 bytes stack frame, 20 bytes spill stores, 20 bytes spill loads
ptxas info    : 4096 bytes gmem
ptxas info    : Compiling entry function '_Z5callsPfi' for 'sm_90'
ptxas info    : Function properties for _Z5callsPfi
    128 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 128 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 2.691 ms
"""
# nvcc 13.0 with -rdc=true: the function comes first, before any line tells the target.
SEPARATE = """\
ptxas warning : Value of threads per SM for entry _Z2lbPf is out of range. .minnctapersm will be ignored
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for _Z3reci
    16 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads
ptxas info    : Compile time = 4.776 ms
ptxas info    : Compiling entry function '_Z9recursivePi' for 'sm_90'
ptxas info    : Function properties for _Z9recursivePi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
"""
# As nvcc 11 and 12.0 write it: no barriers, functions between a kernel and its registers.
CUDA_11 = """\
ptxas info    : 0 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z4gemmPKfS0_Pf' for 'sm_80'
ptxas info    : Function properties for _Z4gemmPKfS0_Pf
    16 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for _Z6helperf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, 33792 bytes smem, 376 bytes cmem[0], 8 bytes cmem[2], 2 textures
"""
# As nvcc 8 and 9 write it: no line of the module.
CUDA_9 = """\
ptxas info    : Compiling entry function '_Z3addiPfS_' for 'sm_60'
ptxas info    : Function properties for _Z3addiPfS_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 344 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3addiPfS_' for 'sm_70'
ptxas info    : Function properties for _Z3addiPfS_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 2048+16 bytes smem, 376 bytes cmem[0]
"""


def test_a_module_per_target_with_the_functions_kernels_call():
    assert parse_ptxas(CUDA_13) == (
        FunctionUse("_Z5callsPfi", "sm_80", True, 128, 0, 0, 30, 0, 128, 0, {0: 364}),
        FunctionUse("_Z3reci", "sm_80", False, 24, 20, 20),
        FunctionUse("_Z5callsPfi", "sm_90", True, 128, 0, 0, 30, 1024, 128, 1, {}),
    )


def test_a_function_before_the_kernels_has_their_target():
    assert [(one.symbol, one.target, one.is_kernel) for one in parse_ptxas(SEPARATE)] == [
        ("_Z3reci", "sm_90", False),
        ("_Z9recursivePi", "sm_90", True),
    ]


def test_registers_after_a_function_are_the_kernels():
    gemm, helper = parse_ptxas(CUDA_11)
    assert (gemm.registers, gemm.spill_store_bytes, gemm.shared_bytes) == (255, 12, 33_792)
    assert gemm.constant_bytes == {0: 376, 2: 8}
    assert gemm.barriers is None
    assert (helper.is_kernel, helper.registers) == (False, None)


def test_targets_without_a_line_between_them_are_told_apart():
    assert [(one.target, one.registers, one.shared_bytes) for one in parse_ptxas(CUDA_9)] == [
        ("sm_60", 10, 0),
        ("sm_70", 12, 2064),
    ]


def test_a_report_that_is_cut_off_gives_no_half_kernel():
    for lines in range(len(CUDA_11.splitlines())):
        text = "\n".join(CUDA_11.splitlines()[:lines])
        assert [one for one in parse_ptxas(text) if one.is_kernel] == []


def test_other_text_has_no_functions():
    assert parse_ptxas("") == ()
    assert parse_ptxas("add.cu(4): error: identifier\n    0 bytes stack frame\nUsed 3 registers") == ()
