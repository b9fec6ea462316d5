import gzip
import json
from pathlib import Path

import pytest

from case_tables import cases
from opscope.model.origin import Grade
from opscope.provenance.native_functions import holds_stacks, out_of_place, parse_schema, resolve

RECORDED = Path(__file__).with_name("recorded_calls.json.gz")
OLD = Grade.NEIGHBOR_VERSION


def overload(table, name, types=None, recorded=None):
    found = resolve(table, name, recorded, types)
    return found.entry and found.entry.overload


@cases("name", "types", "expected")
def test_overloads_by_types(table, name, types, expected):
    assert overload(table, name, types) == expected


def test_recorded_overloads_win_and_without_types_a_single_one_is_certain(table):
    assert overload(table, "aten::add", ["float", "float", "Scalar"], recorded="Scalar") == "Scalar"
    assert overload(table, "aten::add.Scalar") == "Scalar"
    assert overload(table, "aten::mm", recorded="") == ""
    assert resolve(table, "aten::add", "NoSuch").candidates == ()
    assert overload(table, "aten::linear") is None
    assert overload(table, "aten::numpy_T") == ""
    assert overload(table, "aten::numpy_T", ["float", "float"]) == ""
    ambiguous = resolve(table, "aten::mm", None, None)
    assert {entry.overload for entry in ambiguous.candidates} == {"", "out", "dtype", "dtype_out"}
    assert ambiguous.grade is Grade.RELEASE_INDEX


@pytest.mark.parametrize("name", ["c10d::allreduce_", "_c10d_functional::all_reduce", "add", "detach", ""])
def test_operators_outside_the_yaml_are_unknown(table, name):
    found = resolve(table, name, None, ["float"])
    assert (found.entry, found.grade, found.candidates) == (None, None, ())


def test_an_answer_that_takes_what_is_usual_for_granted_is_inferred(table):
    found = resolve(table, "aten::_foreach_div_", None, ["TensorList", ""])
    assert (found.entry.overload, found.grade) == ("ScalarList", Grade.INFERRED)  # a list too long to record
    assert resolve(table, "aten::add", None, ["", "", "Scalar"]).entry.overload == "Tensor"  # nested tensors


def test_other_arguments_in_a_neighboring_release(table):
    types = ["float", "float", "Scalar", "Scalar", "Scalar", "Scalar"]
    assert resolve(table, "aten::mm", None, types).candidates == ()
    neighbor = resolve(table.graded(OLD), "aten::mm", None, types)
    assert (neighbor.entry, neighbor.grade, len(neighbor.candidates)) == (None, OLD, 4)


@pytest.mark.parametrize("kind", ["arguments", "stack"])
def test_no_recorded_call_is_taken_for_another(table, kind):
    """Ground truth: `scripts/record_operator_calls.py`, PyTorch 2.13.0."""
    calls = json.loads(gzip.decompress(RECORDED.read_bytes()))[kind]
    bare = [(name.partition(".")[0], types) for name, types in calls]
    assert holds_stacks(table, bare) == (kind == "stack")
    if kind == "stack":  # which are not read
        return
    correct = 0
    for (name, _), (base, types) in zip(calls, bare, strict=True):
        found, truth = resolve(table, base, None, types), table.entry(base, name.partition(".")[2])
        assert truth in (found.candidates if found.entry is None else (found.entry,)), (name, types)
        correct += found.entry is not None
    assert correct >= 0.95 * len(calls)


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
