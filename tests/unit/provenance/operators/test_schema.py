import pytest

from case_tables import cases
from opscope.provenance.native_functions import out_of_place, parse_schema


def test_arguments_of_a_schema():
    schema = parse_schema(
        "f.out(Tensor(a -> *) self, int[1]? dim=None, *, str mode='x', Tensor(a!)[] out) -> (Tensor, int)"
    )
    assert schema.name == "f"
    assert [(one.type, one.name, one.default, one.is_written) for one in schema.arguments] == [
        ("Tensor", "self", None, False),
        ("int[1]?", "dim", "None", False),
        ("str", "mode", "'x'", False),
        ("Tensor[]", "out", None, True),
    ]
    assert [len(part) for part in (schema.positional, schema.keyword_only, schema.out)] == [2, 1, 1]


@cases("text", "is_inplace")
def test_what_changes_its_first_argument(text, is_inplace):
    assert parse_schema(text).is_inplace is is_inplace


@cases("name", "plain")
def test_the_variant_that_changes_nothing(name, plain):
    assert out_of_place(name) == plain


@cases("text")
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        parse_schema(text)
