from __future__ import annotations

import pytest

from opscope.provenance.operators.schema import Kind, OperatorName, parse_schema


@pytest.mark.parametrize(
    "text",
    [
        "add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        "_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()",
        "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        "_cufft_clear_plan_cache(DeviceIndex device_index) -> ()",
        "linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, *, ScalarType? dtype=None) -> Tensor",
        "empty(SymInt[] size, *, Device? device=None, str mode='constant') -> Tensor",
    ],
)
def test_a_schema_is_read_and_written_exactly(text):
    assert str(parse_schema(text)) == text


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


def test_variants_of_one_function_share_a_signature():
    texts = (
        "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
        "add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
    )
    assert len({parse_schema(text).signature for text in texts}) == 1
    other = parse_schema("add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor")
    assert other.signature != parse_schema(texts[0]).signature


@pytest.mark.parametrize(
    ("name", "base", "unambiguous"),
    [
        ("add_.Tensor", "add", "add__Tensor"),
        ("__ior__.Scalar", "__or__", "__ior___Scalar"),
        ("norm_functional", "norm", "norm_functional"),
        ("mm", "mm", "mm"),
    ],
)
def test_names(name, base, unambiguous):
    parsed = OperatorName.parse(name)
    assert (str(parsed), parsed.base, parsed.unambiguous) == (name, base, unambiguous)


@pytest.mark.parametrize(
    "text", ["", "relu", "relu(Tensor self)", "(Tensor self) -> Tensor", "f(Tensor) -> ()"]
)
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        parse_schema(text)
