"""Bounds in a PTX file, and reports of ptxas."""

from pathlib import Path

from opscope.nvcc.compile import KernelResources, LaunchBounds, launch_bounds, parse_ptxas

OUTPUTS = Path(__file__).parent / "outputs"
PTX = (OUTPUTS / "kernels.ptx").read_text(encoding="utf-8")


def test_kernels_are_found_with_their_bounds():
    assert launch_bounds(PTX) == {"_Z5spillPf": LaunchBounds(512, 2), "$plain": LaunchBounds()}
    assert launch_bounds("no PTX {}") == {}


# nvcc 13.0: no constant memory from sm_90 on; a function that kernels call comes after them.
CUDA_13 = (OUTPUTS / "nvcc_13.txt").read_text(encoding="utf-8")
# nvcc 13.0 with -rdc=true: the function comes first, before any line tells the target.
SEPARATE = (OUTPUTS / "nvcc_13_rdc.txt").read_text(encoding="utf-8")
# As nvcc 11 and 12.0 write it: no barriers, functions between a kernel and its registers.
CUDA_11 = (OUTPUTS / "nvcc_11.txt").read_text(encoding="utf-8")
# As nvcc 8 and 9 write it: no line of the module.
CUDA_9 = (OUTPUTS / "nvcc_9.txt").read_text(encoding="utf-8")


def test_a_kernel_per_target_without_the_functions_it_calls():
    assert parse_ptxas(CUDA_13) == (
        KernelResources("_Z5callsPfi", "sm_80", 128, 0, 0, 30, 0, 128, {0: 364}),
        KernelResources("_Z5callsPfi", "sm_90", 128, 0, 0, 30, 1024, 128, {}),
    )


def test_reports_of_each_release_give_whole_kernels():
    (gemm,) = parse_ptxas(CUDA_11)
    assert (gemm.registers, gemm.spill_store_bytes, gemm.shared_bytes) == (255, 12, 33_792)
    assert gemm.constant_bytes == {0: 376, 2: 8}
    assert [(one.target, one.registers, one.shared_bytes) for one in parse_ptxas(CUDA_9)] == [
        ("sm_60", 10, 0),
        ("sm_70", 12, 2064),
    ]
    (recursive,) = parse_ptxas(SEPARATE)
    assert (recursive.symbol, recursive.target, recursive.stack_bytes) == ("_Z9recursivePi", "sm_90", 0)
    assert parse_ptxas("") == ()
    assert parse_ptxas("add.cu(4): error: identifier\n    0 bytes stack frame\nUsed 3 registers") == ()


def test_a_report_that_is_cut_off_gives_no_half_kernel():
    for lines in range(len(CUDA_11.splitlines())):
        text = "\n".join(CUDA_11.splitlines()[:lines])
        assert parse_ptxas(text) == ()
