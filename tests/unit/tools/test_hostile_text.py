"""Whatever the text: no error, no endless reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tables.cpp_types import coarse_type
from torch_tables.source_tree import read_tree

WORDS = """
    { } ( ) [ ] < > ; : :: , = " ' \\ / * # ## a B f operator template struct class namespace enum extern
    __global__ const -> ... 1'0 R"( )" /* */ // #if #else #elif #endif #define M( TORCH_IMPL_FUNC(
    REGISTER_DISPATCH( DEFINE_DISPATCH( USE_ROCM 0 1 defined noexcept typename ~ & && requires
"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\n#define M(x)", "\\\n"])
TEXTS = st.lists(PIECES, max_size=80).map(" ".join) | st.text(max_size=200)


@given(TEXTS)
def test_any_text_can_be_read(text: str) -> None:
    for row in read_tree({"a.cu": text})[0]:
        assert row.end_line is not None
        assert 1 <= row.line <= row.end_line <= text.count("\n") + 1


@given(TEXTS)
def test_any_type_can_be_read(text: str) -> None:
    coarse_type(text)


LENGTH = 2_000


@pytest.mark.parametrize(
    "text",
    [
        "{" * LENGTH,
        "}" * LENGTH,
        "(" * LENGTH,
        "f(" * LENGTH,
        "f()" * LENGTH,
        ">()" * LENGTH,
        "a<" * LENGTH + "{",
        "namespace a {" * LENGTH,
        "namespace a {" * 500 + "#if X\n" * 100,
        "{\n#if A\n" + "{\n#elif B\n" * LENGTH,
        "template<" * LENGTH + "{",
        "operator " * LENGTH + "{",
        "A() : " + "x{1}, " * 2000,
        '"' * LENGTH,
        'R"(' * LENGTH,
        "/*" * LENGTH,
        "\\\n" * LENGTH,
        "#define /*" * LENGTH,
        "#if " + "(" * LENGTH,
        "#define A(x) {x}\nA(" + "(" * LENGTH,
        "".join(f"#define M{i}(x) " + f"M{i + 1}(x) " * 50 + "{\n" for i in range(20)) + "M0(1)\n" * 20,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_long_unbalanced_texts_take_linear_time(text: str) -> None:
    read_tree({"a.cu": text})
