"""Arithmetic in double between floats, seen in PTX."""

from __future__ import annotations

from opscope.toolchain.nvcc.compile import DoubleUse, double_uses, has_lines

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
