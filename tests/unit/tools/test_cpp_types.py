from __future__ import annotations

import pytest

from torch_tables.cpp_types import (
    coarse_type,
    parameter_types,
    signature_distance,
    split_arguments,
    template_parameter_names,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("typename T", ("T",)),
        ("class T, int N = 4, bool B", ("T", "N", "B")),
        ("typename, int", ("", "")),
        ("typename... Ts", ("Ts...",)),
        ("typename ...", ("...",)),
        ("int nt, int vt, typename func_t = A<B, C>", ("nt", "vt", "func_t")),
        ("template <typename> class Op, typename T", ("Op", "T")),
        ("typename T, typename std::enable_if<(N > 3), int>::type = 0", ("T", "")),
        ("typename T, std::enable_if_t<is_x<T>, bool> = true", ("T", "")),
        ("void (*fn)(int), auto V", ("fn", "V")),
        ("const char* name", ("name",)),
        ("std::size_t N, std::size_t", ("N", "")),
        ("at::ScalarType t", ("t",)),
        ("unsigned int bits, unsigned int", ("bits", "")),
    ],
)
def test_names_of_parameters(text: str, names: tuple[str, ...]) -> None:
    assert template_parameter_names(text) == names


def test_a_list_is_split_at_its_top_level() -> None:
    assert split_arguments("A<int, B<2>>, f(1, 2), [](int a, int b) { a, b; }, x->y") == [
        "A<int, B<2>>",
        "f(1, 2)",
        "[](int a, int b) { a, b; }",
        "x->y",
    ]
    assert split_arguments(" ") == []


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
    def test_an_alias_may_be_anything(self) -> None:
        assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1
