"""Kernel symbols as people read them."""

from __future__ import annotations

import pytest

from opscope.kernels.symbols import demangled, short_name

SYMBOL = "_ZN7opscope41_GLOBAL__N__dbaa91bd_9_square_cu_2680c4de13square_kernelIfLi4EEEvPKT_PS2_l"
NAME = "void opscope::(anonymous namespace)::square_kernel<float, 4>(float const*, float*, long)"


def test_a_symbol_of_nvcc_becomes_the_name_a_profile_shows():
    assert demangled(SYMBOL) == NAME


@pytest.mark.parametrize("symbol", ["triton_poi_fused_gelu_0", "f", "_Zwrong", ""])
def test_anything_else_stays_as_it_is(symbol):
    assert demangled(symbol) == symbol


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (NAME, "square_kernel<float, 4>"),
        ("void gelu_kernel<float, (opscope::GeluFormula)1>(float*)", "gelu_kernel<float, (GeluFormula)1>"),
        ("triton_poi_fused_gelu_0", "triton_poi_fused_gelu_0"),
        ("add(float*)", "add"),
    ],
)
def test_a_short_name_has_no_scopes_and_parameters(name, short):
    assert short_name(name) == short
