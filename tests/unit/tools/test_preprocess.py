import pytest

from case_tables import cases
from torch_tables.preprocess import Source, evaluate, split_arguments


@cases("condition", "value")
def test_a_condition_is_true_false_or_undecided(condition, value):
    assert evaluate(condition) is value


def test_a_list_is_split_at_its_top_level():
    parts = ["A<int, B<2>>", "f(1, 2)", "[](int a, int b) { a, b; }", "x->y"]
    assert split_arguments(", ".join(parts)) == parts
    assert split_arguments(" ") == []


def kept(text):
    """Words that are left as code, in each of the texts."""
    return [one.replace('"', " ").split() for one in Source("a.cu", text).texts]


@cases("text", "words")
def test_only_code_is_left(text, words):
    (found,) = kept(text)
    assert [word for word in found if word not in ("R", "u8R")] == [
        word for word in words if word not in ("R", "u8R")
    ]


BRANCHES = '/* a\nb */ int x = R"(\n\n)"; // c\n#if A\nint y;\n#else\nint z;\n#endif\n'
ENDLESS = ("/* open", '"open', "'open", 'R"(open', "#define open \\", "// open \\")
UNBALANCED = ("#endif\n", "#else\na", "#if\n", "#if A\n#if B\n", "#elif\n#endif")


@pytest.mark.parametrize("text", [BRANCHES, *ENDLESS, *UNBALANCED])
def test_offsets_and_lines_stay(text):
    for code in Source("a.cu", text).texts:
        assert len(code) == len(text)
        assert [at for at, one in enumerate(code) if one == "\n"] == [
            at for at, one in enumerate(text) if one == "\n"
        ]


@cases("text", "texts")
def test_every_branch_of_this_build_is_in_a_text(text, texts):
    assert kept(text) == texts
