from __future__ import annotations

import pytest

from opscope.provenance.native_functions import Kind, out_of_place, parse_schema


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("relu(Tensor self) -> Tensor", Kind.FUNCTIONAL),
        ("relu_(Tensor(a!) self) -> Tensor(a!)", Kind.INPLACE),
        ("__iadd__.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)", Kind.INPLACE),
        ("__and__.Scalar(Tensor self, Scalar other) -> Tensor", Kind.FUNCTIONAL),
        ("abs.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", Kind.OUT),
        ("norm(Tensor input, Tensor(a!) running) -> Tensor", Kind.MUTABLE),
        ("f(Tensor self, *, Tensor(a!) _scratch_x) -> Tensor(a!)", Kind.SCRATCH),
    ],
)
def test_what_a_function_does_with_its_arguments(text, kind):
    assert parse_schema(text).kind is kind


@pytest.mark.parametrize(
    ("name", "plain"), [("add_", "add"), ("__ior__", "__or__"), ("__and__", "__and__"), ("mm", "mm")]
)
def test_the_variant_that_changes_nothing(name, plain):
    assert out_of_place(name) == plain


@pytest.mark.parametrize(
    "text", ["", "relu", "relu(Tensor self)", "(Tensor self) -> Tensor", "f(Tensor) -> ()"]
)
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        parse_schema(text)
