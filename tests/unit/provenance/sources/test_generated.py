from __future__ import annotations

import pytest

from opscope.provenance.sources.index import generated_function, generated_unit, ufunc_of

ADD = "aten/src/ATen/native/ufunc/add.h"


@pytest.mark.parametrize(
    "name",
    [
        "CUDAFunctor_add",
        "at::native::CUDAFunctorOnSelf_add",
        "at::native::(anonymous namespace)::CUDAFunctorOnOther_add",
        "ufunc_add_CUDA",
        "UfuncCUDA_add.cu",
        "build/aten/src/ATen/UfuncCPUKernel_add.cpp",
    ],
)
def test_universal_functions_lead_to_their_inner_loop(name: str) -> None:
    found = ufunc_of(name)
    assert found is not None
    assert (found.name, found.file) == ("add", ADD)


@pytest.mark.parametrize("name", ["CUDAFunctor_", "AddFunctor", "at::native::add", "SoftMax.cu", ""])
def test_others_do_not(name: str) -> None:
    assert ufunc_of(name) is None


@pytest.mark.parametrize(
    ("unit", "file"),
    [
        ("UfuncCUDA_add.cu", ADD),
        ("RegisterCUDA.cpp", "aten/src/ATen/templates/RegisterDispatchKey.cpp"),
        ("RegisterCUDA_0.cpp", "aten/src/ATen/templates/RegisterDispatchKey.cpp"),
        ("RegisterSchema.cpp", "aten/src/ATen/templates/RegisterSchema.cpp"),
    ],
)
def test_generated_units(unit: str, file: str) -> None:
    found = generated_unit(unit)
    assert found is not None
    assert found.file == file
    assert "generated at build time" in found.reason


def test_a_unit_of_the_repository() -> None:
    assert generated_unit("aten/src/ATen/native/cuda/SoftMax.cu") is None


@pytest.mark.parametrize(
    ("name", "is_generated_entry", "reason"),
    [
        ("ufunc_add_CUDA", False, "universal function"),
        ("select_copy_int_out", True, "variant"),
        ("expand_copy_symint", False, "view copy"),
        ("softmax_cuda_out", False, None),
    ],
)
def test_why_a_function_has_no_definition(name: str, is_generated_entry: bool, reason: str | None) -> None:
    found = generated_function(name, is_generated_entry=is_generated_entry)
    assert (found is None) == (reason is None)
    assert found is None or (reason or "") in found.reason
