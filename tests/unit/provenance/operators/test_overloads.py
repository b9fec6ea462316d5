import gzip
import json
from pathlib import Path

import pytest

from case_tables import cases
from opscope.model.evidence import Grade
from opscope.provenance.native_functions import InputRecord, input_record, resolve

RECORDED = Path(__file__).with_name("recorded_calls.json.gz")
OLD = Grade.NEIGHBOR_VERSION


def overload(table, name, types=None, record=InputRecord.ARGUMENTS, recorded=None):
    found = resolve(table, name, recorded, types, record)
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
    found = resolve(table, "aten::_foreach_div_", None, ["TensorList", ""], InputRecord.ARGUMENTS)
    assert (found.entry.overload, found.grade) == ("ScalarList", Grade.INFERRED)  # a list too long to record
    assert resolve(table, "aten::add", None, ["", "", "Scalar"]).entry.overload == "Tensor"  # nested tensors


def test_other_arguments_in_a_neighboring_release(table):
    types = ["float", "float", "Scalar", "Scalar", "Scalar", "Scalar"]
    assert resolve(table, "aten::mm", None, types, InputRecord.ARGUMENTS).candidates == ()
    neighbor = resolve(table.graded(OLD), "aten::mm", None, types, InputRecord.ARGUMENTS)
    assert (neighbor.entry, neighbor.grade, len(neighbor.candidates)) == (None, OLD, 4)


def test_the_stack_of_the_interpreter(table):
    rest = ("aten::cumsum", ["float", "float", "Scalar", ""])
    assert (
        input_record(table, [("aten::mm", ["float", "float"]), ("aten::relu", None)]) is InputRecord.ARGUMENTS
    )
    assert input_record(table, [("aten::mm", ["float", "float"]), rest]) is InputRecord.STACK
    types = ["float", "float", "float"]
    assert overload(table, "aten::matmul", types, InputRecord.ARGUMENTS) == "out"
    assert overload(table, "aten::matmul", types, InputRecord.STACK) is None
    assert overload(table, "aten::matmul", types, InputRecord.UNKNOWN) is None
    assert overload(table, *rest, InputRecord.STACK) == ""


@cases("kind", "record")
def test_no_recorded_call_is_taken_for_another(table, kind, record):
    """Ground truth: `scripts/record_operator_calls.py`, PyTorch 2.13.0."""
    calls = json.loads(gzip.decompress(RECORDED.read_bytes()))[kind]
    bare = [(name.partition(".")[0], types) for name, types in calls]
    assert input_record(table, bare).value == kind
    correct = wrong = 0
    for (name, _), (base, types) in zip(calls, bare, strict=True):
        found = resolve(table, base, None, types, InputRecord(record))
        truth = table.entry(base, name.partition(".")[2])
        assert truth is not None, name
        if found.entry is not None:
            correct += found.entry == truth
            wrong += found.entry != truth
        elif record == kind:
            assert truth in found.candidates, (name, types)
    assert wrong == 0
    assert correct >= {"arguments": 0.95, "stack": 0.8, "unknown": 0.8}[record] * len(calls)
