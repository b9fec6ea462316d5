from __future__ import annotations

import pytest

from torch_tables.cpp_types import coarse_type, signature_distance, split_arguments


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
        ("const at::Tensor &", "Tensor"),
        ("Tensor(a!)", "Tensor"),
        ("Tensor(a -> *)[]", "Tensor[]"),
        ("TensorList", "Tensor[]"),
        ("const ITensorListRef&", "Tensor[]"),
        ("c10::optional<int64_t>", "int?"),
        ("::std::optional<c10::SymInt>", "int?"),
        ("SymInt?", "int?"),
        ("IntArrayRef", "int[]"),
        ("SymInt[2]", "int[]"),
        ("at::OptionalIntArrayRef", "int[]?"),
        ("int[1]?", "int[]?"),
        ("const std::optional<Tensor>&", "Tensor?"),
        ("Tensor?", "Tensor?"),
        ("const c10::List<::std::optional<Tensor>>&", "Tensor?[]"),
        ("Tensor?[]", "Tensor?[]"),
        ("std::array<bool, 3>", "bool[]"),
        ("bool[3]", "bool[]"),
        ("double", "float"),
        ("float", "float"),
        ("c10::string_view", "str"),
        ("str?", "str?"),
        ("std::optional<c10::string_view>", "str?"),
        ("const Scalar&", "Scalar"),
        ("std::optional<ArrayRef<double>>", "float[]?"),
        ("float[]?", "float[]?"),
        ("unsigned int", "unsignedint"),
        ("[[maybe_unused]] bool", "bool"),
        ("std::function<int(float)>", "function<int(float)>"),
        ("SparseTensor&", "Tensor"),
    ],
)
def test_cpp_and_schema_types_become_one_spelling(written: str, coarse: str) -> None:
    assert coarse_type(written) == coarse


class TestDistance:
    def test_an_alias_may_be_anything(self) -> None:
        assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1
