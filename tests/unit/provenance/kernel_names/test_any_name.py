"""Whatever the name, it is decoded: nothing raises, and what is said holds together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opscope.provenance.kernel_names import FAMILIES, function_of, owners, template_arguments
from opscope.provenance.kernel_names.decoder import decode, decode_uncached

FAMILY_NAMES = {declared.name for declared in FAMILIES}
KINETO_LONGEST = 8192
REAL = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::BinaryFunctor<c10::Half, "
    "c10::Half, c10::Half, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, "
    "at::native::BinaryFunctor<c10::Half> const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl<int>)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<c10::Half, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4> >(int)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::_cuda_scatter_gather_internal_kernel<"
    "true, float>::operator()<at::native::ReduceAdd>(at::TensorIterator&, long)::{lambda(int)#1}>(int)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
    "at::native::UnaryOpFunctor<long, 2, 1, 1>, at::native::Copy<long, long> >(int)",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::half_t> >, true>(pytorch_flash::Flash_fwd_params)",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>(Params)",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_execute_kernel__5x_cublas",
    "nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
    "triton_per_fused__softmax_add_index_select_mul_native_layer_norm_3",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, long>, long*, cub::Sum>(long*)",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
    "Cijk_Ailk_Bjlk_SB_Bias_MT64x16x16_MI16x16x1_SN_ISA90a_IU1.kd",
    "Memcpy DtoH (Device -> Pageable)",
)  # fmt: skip


def check(name: str) -> None:
    kernel = decode_uncached(name)
    assert kernel.name == name
    assert kernel.family is None or kernel.family in FAMILY_NAMES
    assert kernel.direction in (None, "forward", "backward")
    known = {key for key, value in vars(kernel).items() if value is not None and value != ()}
    assert set(kernel.grades) == known - {"name", "grades"}
    assert kernel.function == (function_of(name) if kernel.family not in ("memcpy", "memset") else None)
    assert all(isinstance(argument, str) for argument in template_arguments(name) + owners(name))


@given(st.text())
def test_any_text(name: str) -> None:
    check(name)


@given(st.text(alphabet="abZ_:<>(){}[],.?@&*'`~-+$ 0123456789", max_size=400))
def test_text_of_brackets(name: str) -> None:
    check(name)


@given(st.sampled_from(REAL), st.data())
def test_names_that_are_cut_or_garbled(name: str, data: st.DataObject) -> None:
    positions = st.integers(0, len(name))
    start, end = sorted((data.draw(positions), data.draw(positions)))
    inserted = data.draw(st.text(alphabet="<>(){},: &*af0_", max_size=8))
    check(name[:start] + inserted + name[end:])


@given(
    st.lists(st.sampled_from(REAL), min_size=2, max_size=3), st.sampled_from(["", "<", "_", "::", "(", ", "])
)
def test_names_that_run_into_each_other(names: list[str], between: str) -> None:
    check(between.join(names))


@given(
    st.sampled_from(
        ["<", "(", "{", "a<", "(<", "x::", "<a,", "{lambda(", "operator<", "_ZN", "_ZI", "L", "N1a", "- >"]
    )
)
def test_the_longest_names_a_recorder_writes(piece: str) -> None:
    repeated = piece * (KINETO_LONGEST // len(piece))
    check(repeated)
    check("void f<" + repeated)
    check("_ZN" + repeated)
    check("triton_poi_fused_" + repeated)
    check("sm80_xmma_gemm_" + repeated)


def test_answers_are_kept() -> None:
    assert decode(REAL[0]) is decode(REAL[0])
    assert decode(REAL[0]) == decode_uncached(REAL[0])
