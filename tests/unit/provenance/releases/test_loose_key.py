from __future__ import annotations

import pytest

from opscope.provenance.releases.release_table import LooseKeys, loose_keys

IN_GELU = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()"
    "() const::{lambda()#1}::operator()() const::{lambda(double)#1}"
)
GELU = (
    f"void at::native::vectorized_elementwise_kernel<4, {IN_GELU}, std::array<char*, 2ul> >"
    f"(int, {IN_GELU}, std::array<char*, 2ul>)"
)


@pytest.mark.parametrize(
    ("name", "owner", "launch"),
    [
        (GELU, "at::native::GeluCUDAKernelImpl", "at::native::vectorized_elementwise_kernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, bool, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)",
            None,
            "at::native::vectorized_elementwise_kernel"
            "|at::native::binary_internal::MulFunctor|at::native::AUnaryFunctor",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
            "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float>, "
            "at::native::Sqrt<float> >(int)",
            None,
            "at::native::(anonymous namespace)::multi_tensor_apply_kernel"
            "|at::native::(anonymous namespace)::UnaryOpFunctor|at::native::Sqrt",
        ),
        (
            "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::"
            "index_kernel_impl<at::native::OpaqueType<4> >(at::TensorIteratorBase&)::{lambda(char*)#1}>"
            "(at::TensorIteratorBase&)::{lambda(int)#1}>(long)",
            "at::native::index_kernel_impl",
            "at::native::index_elementwise_kernel|at::native::OpaqueType",
        ),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)", None, "fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
        ("unsigned int* at::f<(at::Order)0>(int)", None, "at::f"),
        ("void at::f<(1 < 2)>(int)", None, "at::f"),
        ("void at::g<at::Less::operator< >(int)", None, "at::g|at::Less::operator<"),
        ("_ZN2at6native6kernelEv", None, None),
        ("", None, None),
        ("((((", None, None),
        ("))>>,,::", None, None),
    ],
)
def test_who_owns_the_code_and_what_is_launched(name, owner, launch):
    assert loose_keys(name) == LooseKeys(owner, launch)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("void at::k<4, at::F<float> >(int)", "void at::k<8, at::F<c10::Half> >(long, long)"),
        ("void at::<unnamed>::k<at::F>(int)", "void at::(anonymous namespace)::k<at::F>(int)"),
        (
            "void cub::CUB_200302_700_NS::Scan<thrust::THRUST_1_NS::plus, at::F<int> >(int)",
            "void cub::CUB_300001_800_NS::Scan<thrust::THRUST_2_NS::plus, at::F<int> >(int)",
        ),
        (
            "void at::k<_INTERNAL_69efeb29_9_Unique_cu_285fecc2::at::F<int> >(int)",
            "void at::k<_INTERNAL_12345678_9_Unique_cu_9abcdef0::at::F<int> >(int)",
        ),
    ],
    ids=["types and sizes", "spelling of no name", "library version", "module of a build"],
)
def test_what_changes_between_releases_is_left_out(name, same_as):
    keys = loose_keys(name)
    assert keys == loose_keys(same_as)
    assert keys.launch is not None
    assert "at::F" in keys.launch


def test_a_template_librarys_kernel_without_a_functor_is_anybodys():
    assert loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, std::plus<float> >(int)").launch is None
    assert loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, mine::Op>(int)").launch is not None


@pytest.mark.parametrize("piece", ["<", "a<b,", "{lambda(", "a::", "(", "f()::{lambda()#1}::"])
def test_a_long_unbalanced_name_has_no_owner(piece):
    assert loose_keys("void at::k<" + piece * (8192 // len(piece))) is not None
