"""Taking C++ names apart."""

from __future__ import annotations

import pytest

from case_tables import cases
from opscope.provenance.kernel_names.cxx_name import entities, parse, template_arguments, without_module

LAMBDA = "{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}"
GELU_LAMBDA = f"at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{LAMBDA}"
GELU = (
    f"void at::native::vectorized_elementwise_kernel<4, {GELU_LAMBDA}, std::array<char*, 2ul> >"
    f"(int, {GELU_LAMBDA}, std::array<char*, 2ul>)"
)
COPY_LAMBDA = f"at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{LAMBDA}"
COPY = (
    f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{COPY_LAMBDA}>"
    f"(at::TensorIteratorBase&, {COPY_LAMBDA} const&)::{{lambda(int)#1}}>(int, char*)"
)
SUM = (
    "void k<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<"
    "float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, int, float, 4> >(int)"
)
LOCAL = "at::native::_INTERNAL_5cd812b1_7_Loss_cu_5b0651e1"


@cases("name", "function", "arguments")
def test_function_and_template_arguments(name: str, function: str | None, arguments: list[str]) -> None:
    assert parse(name).function == function
    assert list(template_arguments(name)) == arguments


def test_arguments_with_lambdas_stay_whole() -> None:
    assert parse(GELU).function == "at::native::vectorized_elementwise_kernel"
    width, functor, array = template_arguments(GELU)
    assert (width, array) == ("4", "std::array<char*, 2ul>")
    assert functor.endswith("{lambda()#2}::operator()() const::{lambda(float)#1}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GELU, ("at::native::GeluCUDAKernelImpl",)),
        (COPY, ("at::native::gpu_kernel_impl_nocast", "at::native::direct_copy_kernel_cuda")),
        (SUM, ("at::native::ReduceOp", "at::native::func_wrapper_t", "at::native::sum_functor")),
        (
            "void k<4, at::native::CUDAFunctor_add<float>, std::array<char*> >()",
            ("at::native::CUDAFunctor_add",),
        ),
        (f"void k<{LOCAL}::f(int)::{{lambda(float)#1}}>()", ("at::native::(anonymous namespace)::f",)),
        (f"void k<{LOCAL}::(anonymous namespace)::f>()", ("at::native::(anonymous namespace)::f",)),
        ("void k<X, std::plus<float> >(int)", ("X", "std::plus")),
        ("void k<float, c10::BFloat16, OffsetCalculator<1, unsigned int> >(int)", ()),
        ("void k<int>(at::native::NotAnArgument)", ()),
        ("k(at::Tensor)", ()),
        ("void k<outer(int)::'lambda'(float)>(int)", ("outer",)),
    ],
)
def test_owners_go_from_outer_to_inner(name: str, expected: tuple[str, ...]) -> None:
    assert owners(name) == expected


def owners(name: str) -> tuple[str, ...]:
    found = entities(parse(name).template_arguments)
    return tuple(dict.fromkeys(without_module(entity.name) for entity in found))


@cases("name", "expected")
def test_the_function_of_a_mangled_name(name: str, expected: str | None) -> None:
    assert parse(name).function == expected
    assert template_arguments(name) == ()
    assert owners(name) == ()
