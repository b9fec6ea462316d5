from __future__ import annotations

from case_tables import cases
from torch_tables.cpp_types import coarse_type, signature_distance, split_arguments


def test_a_list_is_split_at_its_top_level() -> None:
    assert split_arguments("A<int, B<2>>, f(1, 2), [](int a, int b) { a, b; }, x->y") == [
        "A<int, B<2>>",
        "f(1, 2)",
        "[](int a, int b) { a, b; }",
        "x->y",
    ]
    assert split_arguments(" ") == []


@cases("written", "coarse")
def test_cpp_and_schema_types_become_one_spelling(written: str, coarse: str) -> None:
    assert coarse_type(written) == coarse


class TestDistance:
    def test_an_alias_may_be_anything(self) -> None:
        assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1
