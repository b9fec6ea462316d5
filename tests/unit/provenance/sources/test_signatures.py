from __future__ import annotations

import pytest

from opscope.provenance.sources.signatures import (
    coarse_type,
    parameter_types,
    signature_distance,
)


@pytest.mark.parametrize(
    ("written", "coarse"),
    [
        ("const at::Tensor & self", "Tensor"),
        ("Tensor(a!) self", "Tensor"),
        ("Tensor(a -> *)[] tensors", "Tensor[]"),
        ("TensorList tensors", "Tensor[]"),
        ("const ITensorListRef& tensors", "Tensor[]"),
        ("c10::optional<int64_t> dim", "int?"),
        ("::std::optional<c10::SymInt> dim = std::nullopt", "int?"),
        ("SymInt? dim=None", "int?"),
        ("IntArrayRef size", "int[]"),
        ("SymInt[2] stride=1", "int[]"),
        ("at::OptionalIntArrayRef dim", "int[]?"),
        ("int[1]? dim", "int[]?"),
        ("const std::optional<Tensor>& weight", "Tensor?"),
        ("Tensor? weight={}", "Tensor?"),
        ("const c10::List<::std::optional<Tensor>>& indices", "Tensor?[]"),
        ("Tensor?[] indices", "Tensor?[]"),
        ("std::array<bool, 3> output_mask", "bool[]"),
        ("bool[3] output_mask", "bool[]"),
        ("double p = 0.5", "float"),
        ("float p=0.5", "float"),
        ("c10::string_view mode", "str"),
        ("str? mode", "str?"),
        ("std::optional<c10::string_view> mode", "str?"),
        ("const Scalar& alpha", "Scalar"),
        ("std::optional<ArrayRef<double>> scale_factors", "float[]?"),
        ("float[]? scale_factors", "float[]?"),
        ("unsigned int", "unsignedint"),
        ("[[maybe_unused]] bool x", "bool"),
        ("std::function<int(float)> f", "function<int(float)>"),
        ("SparseTensor& r_", "Tensor"),
    ],
)
def test_cpp_and_schema_types_become_one_spelling(written: str, coarse: str) -> None:
    assert coarse_type(written) == coarse


def test_parameters_of_a_list() -> None:
    assert (
        parameter_types("const Tensor& a, std::array<bool, 2> m, int64_t n = f(1, 2)")
        == "Tensor, bool[], int"
    )
    assert parameter_types(" void ") == ""


class TestDistance:
    def test_the_same(self) -> None:
        assert signature_distance("Tensor, int?", ["const Tensor& self", "SymInt? dim"]) == 0

    def test_an_alias_may_be_anything(self) -> None:
        assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1

    @pytest.mark.parametrize("wanted", [["Tensor"], ["Tensor", "Scalar"], ["Tensor", "int", "int"]])
    def test_another(self, wanted: list[str]) -> None:
        assert signature_distance("Tensor, int", wanted) is None
