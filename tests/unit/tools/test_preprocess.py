from __future__ import annotations

import pytest

from torch_tables.preprocess import Source, evaluate


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("0", False),
        ("1", True),
        ("42L", True),
        ("true", True),
        ("defined(USE_ROCM)", False),
        ("defined USE_ROCM", False),
        ("!defined(USE_ROCM) && AT_CUDNN_ENABLED()", True),
        ("AT_ROCM_ENABLED() || !AT_CUDNN_ENABLED()", False),
        ("defined(USE_ROCM) || defined(UNKNOWN)", None),
        ("defined(USE_ROCM) && defined(UNKNOWN)", False),
        ("!defined(USE_ROCM) || UNKNOWN > 3", True),
        ("(((1)))", True),
        ("0 && AT_USE_JITERATOR()", False),
        ("CUDA_VERSION >= 12000", None),
        ("1 == 1", None),
        ("CUB_SUPPORTS(1, (2))", None),
        ("defined(AT_CUDNN_ENABLED)", None),
        ("", None),
        ("(1", None),
        ("1 1", None),
        ("defined(", None),
        ("(" * 5000, None),
    ],
)
def test_a_condition_is_true_false_or_undecided(condition: str, value: bool | None) -> None:
    assert evaluate(condition) is value


def kept(text: str) -> list[list[str]]:
    """Words that are left as code, in each of the texts."""
    return [one.replace('"', " ").split() for one in Source("a.cu", text).texts]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a; // b; {\nc;", ["a;", "c;"]),
        ("a; // b \\\n still a comment {\nc;", ["a;", "c;"]),
        ("a /* { \n */ b", ["a", "b"]),
        ('a = "} \\" {" ;', ["a", "=", ";"]),
        ("a = '{'; b = '\\''; c", ["a", "=", ";", "b", "=", ";", "c"]),
        ('a = R"(} " \n {)" + b;', ["a", "=", "R", "+", "b;"]),
        ('a = R"x(} )" {)x"; b', ["a", "=", "R", ";", "b"]),
        ('a = u8R"(})"; b', ["a", "=", "u8R", ";", "b"]),
        ("n = 1'000'000; char q = '{'; b", ["n", "=", "1", "000", "000;", "char", "q", "=", ";", "b"]),
        ("#pragma once {\na", ["a"]),
        ("#define A(x) { \\\n x {\na", ["a"]),
        ("#define A /* { \n } */ {\na", ["a"]),
    ],
)
def test_only_code_is_left(text: str, words: list[str]) -> None:
    (found,) = kept(text)
    assert [word for word in found if word not in ("R", "u8R")] == [
        word for word in words if word not in ("R", "u8R")
    ]


@pytest.mark.parametrize("text", ["/* open", '"open', "'open", 'R"(open', "#define open \\", "// open \\"])
def test_what_never_ends_ends_with_the_text(text: str) -> None:
    (code,) = Source("a.cu", text).texts
    assert len(code) == len(text)


def test_offsets_and_lines_stay() -> None:
    text = '/* a\nb */ int x = R"(\n\n)"; // c\n#if A\nint y;\n#else\nint z;\n#endif\n'
    for code in Source("a.cu", text).texts:
        assert len(code) == len(text)
        assert [at for at, one in enumerate(code) if one == "\n"] == [
            at for at, one in enumerate(text) if one == "\n"
        ]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("#ifdef USE_ROCM\nrocm {\n#else\ncuda\n#endif\nend", [["cuda", "end"]]),
        ("#if !defined(USE_ROCM)\ncuda\n#else\nrocm {\n#endif\nend", [["cuda", "end"]]),
        ("#if 0\n{\n#if A\n{\n#endif\n#endif\nend", [["end"]]),
        ("#if AT_CUDNN_ENABLED()\nreal\n#elif A\nother\n#else\nstub\n#endif", [["real"]]),
        ("#if !AT_CUDNN_ENABLED()\nstub\n#else // AT_CUDNN_ENABLED\nreal\n#endif", [["real"]]),
        ("#if A\na\n#else\nb\n#endif", [["a"], ["b"]]),
        ("#if A\na\n#elif 1\nb\n#else\nc\n#endif", [["a"], ["b"]]),
        ("#if A\na\n#if B\nb\n#else\nc\n#endif\n#else\nd\n#endif", [["a", "b"], ["a", "c"], ["d"]]),
    ],
)
def test_every_branch_of_this_build_is_in_a_text(text: str, texts: list[list[str]]) -> None:
    assert kept(text) == texts


@pytest.mark.parametrize("text", ["#endif\n", "#else\na", "#if\n", "#if A\n#if B\n", "#elif\n#endif"])
def test_unbalanced_conditionals_do_not_raise(text: str) -> None:
    assert {len(one) for one in Source("a.cu", text).texts} == {len(text)}
