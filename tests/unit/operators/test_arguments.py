"""Recorded arguments: what is understood, and what is refused with which reason."""

import json

from msgspec.structs import replace

from case_tables import cases
from opscope.operators.arguments import (
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    distinct_bytes,
    parse_arguments,
    with_list_types,
)
from opscope.operators.operator_table import cost_by_rules


def test_every_kind_of_argument_is_told_apart():
    call = replace(
        parse_arguments(
            "mylib::some",
            overload="out",
            shapes="[[2, 3], [], [], [[4], [5]], [], [], []]",
            types='["float", "double", "", "TensorList", "Scalar", "ScalarList", "Scalar"]',
            strides="[[3, 1], [], [], [[1], [1]], [], [], []]",
            concrete='["", "", "", "", "0.5", "[1, -1]", "True"]',
        ),
        given_names=tuple("abcdefg"),
    )
    assert (call.defect, call.overload) == (None, "out")
    assert call.tensor("a") == TensorArgument((2, 3), "float", (3, 1))
    assert call.at("b") == TensorArgument((), "double", ())
    assert call.is_omitted("c") and call.at("x") is None
    assert call.tensor_list("d") == (TensorArgument((4,), None, (1,)), TensorArgument((5,), None, (1,)))
    assert (call.value("e"), call.number("e"), call.integer("e")) == (0.5, 0.5, None)
    assert (call.integers("f"), call.boolean("g"), call.integer("g")) == ((1, -1), True, None)
    assert call.tensor("x", "a") == call.tensor("a")
    assert len(call.tensors) == 4


@cases("operator", "types", "names")
def test_arguments_are_named_by_the_schema_that_fits(operator, types, names):
    call = parse_arguments(f"aten::{operator}", shapes=[[] for _ in types], types=types)
    assert " ".join(call.names) == names
    assert (call.schema is None) == (not names)


def test_a_recorded_overload_decides_and_arguments_may_be_parsed_already():
    types = ["float", "Scalar", "Scalar"]
    call = parse_arguments("aten::max", overload="dim", shapes=[[3], [], []], types=types)
    assert call.names == ("self", "dim", "keepdim")
    assert parse_arguments("aten::max", overload="names_dim", shapes=[[3]], types=["float"]).names == ()
    columns = {"shapes": [[2]], "types": ["float"], "strides": [[1]], "concrete": [""]}
    as_text = {name: json.dumps(value) for name, value in columns.items()}
    assert parse_arguments("aten::exp", **columns) == parse_arguments("aten::exp", **as_text)


def test_lists_are_told_from_absent_ones_and_their_type_by_a_kernel():
    call = parse_arguments("aten::cat", shapes=[[], []], types=["TensorList", ""], concrete=["", ""])
    assert call.at("tensors") == TensorListArgument(None)
    assert call.has_unrecorded_list
    assert call.at("dim") is None
    call = parse_arguments(
        "aten::cat", shapes=[[[4]], []], types=["TensorList", "Scalar"], concrete=["", "0"]
    )
    assert distinct_bytes(call.tensors[0]) is None
    assert distinct_bytes(with_list_types(call, {0: "c10::Half"}).tensors[0]) == 8


def test_scalars_of_old_recorders_have_no_values():
    call = parse_arguments(
        "aten::mean", shapes=[[4], [], [], []], types=["float", "GenericList", "Bool", ""], strides=None
    )
    assert not call.values_recorded
    assert call.at("dim") == ScalarArgument(None, "GenericList")
    cost = cost_by_rules(call)
    assert cost.min_bytes is None
    assert "not recorded" in (cost.reason or "")


@cases("recorded", "reason")
def test_a_recording_that_cannot_be_used_says_why(recorded, reason):
    call = parse_arguments("aten::add", **recorded)
    assert reason in (call.defect or "")
    assert call.arguments == ()
    cost = cost_by_rules(call)
    assert (cost.min_bytes, cost.flop_count, cost.evidence) == (None, None, None)
    assert reason in (cost.reason or "")


def test_an_expanded_tensor_of_absurd_size_is_small():
    call = parse_arguments(
        "aten::add", shapes=[[1 << 40, 2]], types=["float"], strides=[[0, 1]], concrete=[""]
    )
    assert call.defect is None
    assert distinct_bytes(call.tensors[0]) == 8
