"""Recorded arguments: what is understood, what is refused with which reason, and lists of tensors."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from case_tables import cases, tables
from fakes import TraceBuilder
from opscope.operators.arguments import (
    CHUNK_ELEMENTS,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    distinct_bytes,
    parse_arguments,
    read_gradients,
    with_kernel_types,
    with_list_members,
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


KERNELS = tables(Path(__file__).with_suffix(".toml"))["kernels"]
MUL, ADDCDIV, SQRT, COPY, ADAMW, CAT, OLD_CAT = KERNELS.values()
BIG, SMALL = (3 * CHUNK_ELEMENTS + 1,), (5, 2)
GRADIENTS = frozenset({(("c10::BFloat16", (SMALL, BIG)),)})
BLOCKS = 1 + 4


def lists(name, *members, values=()):
    count = len(members)
    return parse_arguments(
        f"aten::{name}",
        shapes=[*members, *[[] for _ in values]],
        types=["TensorList"] * count + ["Scalar"] * len(values),
        concrete=[""] * count + list(values),
    )


def step(*members):
    """A fused step of AdamW: lr, both betas, decay, eps, amsgrad, maximize; no scale of gradients."""
    call = lists("_fused_adamw_", *members, values=("0.1", "0.9", "0.9", "0", "1e-8", "False", "False"))
    return replace(call, arguments=(*call.arguments, None, None))


def types_of(call):
    return [tensor.type_name for tensor in call.tensors]


@pytest.mark.parametrize(
    ("kernel", "type_name"),
    [(MUL, "c10::BFloat16"), (SQRT, "float"), (CAT, "short int"), (OLD_CAT, "long"), ("elementwise", None)],
)
def test_types_come_from_the_kernel(kernel, type_name):
    assert types_of(with_kernel_types(lists("op", [[2, 3], [4]]), kernel)) == [type_name] * 2


def test_copies_and_steps_have_types_of_their_own_and_calls_without_lists_stay():
    assert types_of(with_kernel_types(lists("_foreach_copy_", [[2]], [[2]]), COPY)) == ["float", "c10::Half"]
    call = with_kernel_types(step(*[[[4]]] * 5, [[]]), ADAMW)
    assert types_of(call) == ["c10::BFloat16"] * 5 + ["float"]
    call = parse_arguments("aten::relu", shapes=[[4]], types=["float"])
    assert with_kernel_types(call, MUL) is call


def test_members_are_the_gradients_whose_blocks_were_launched():
    call = with_list_members(lists("_foreach_mul_", [], values=("0.9",)), MUL, BLOCKS, GRADIENTS)
    assert [tensor.shape for tensor in call.tensors] == [SMALL, BIG]
    assert set(types_of(call)) == {"c10::BFloat16"}
    assert call.value("scalar") == 0.9
    call = with_list_members(lists("_foreach_sqrt", []), SQRT, BLOCKS, GRADIENTS)
    assert len(call.tensors) == 2
    assert with_list_members(lists("_foreach_addcdiv_", [], [], []), ADDCDIV, BLOCKS, GRADIENTS) is not None


@pytest.mark.parametrize(
    ("kernel", "blocks"),
    [
        (MUL, BLOCKS + 1),
        (MUL, BLOCKS - 1),
        (MUL, None),
        ("elementwise", BLOCKS),
        (None, BLOCKS),
        (SQRT, BLOCKS),
    ],
)
def test_members_that_are_not_certain_stay_unknown(kernel, blocks):
    # SQRT's kernel takes two lists, and a call without results gives it one.
    call = lists("_foreach_mul_", [], [], [])
    assert with_list_members(call, kernel, blocks, GRADIENTS) is None


def test_which_sets_of_gradients_tell_the_members():
    other = (("c10::BFloat16", ((7,), BIG)),)
    both = GRADIENTS | {other}
    one_each = frozenset({(("c10::BFloat16", (SMALL, (7,))),)})
    assert with_list_members(lists("_foreach_mul_", []), MUL, 2, one_each) is None  # or counts of steps
    backwards = GRADIENTS | {(("c10::BFloat16", (BIG, SMALL)),)}
    assert with_list_members(lists("_foreach_mul_", []), MUL, BLOCKS, backwards) is not None
    assert with_list_members(lists("_foreach_mul_", []), MUL, BLOCKS, both) is None
    mixed = frozenset({(("c10::BFloat16", (SMALL, BIG)), ("float", ((9,),)))})
    call = with_list_members(lists("_foreach_mul_", []), MUL, BLOCKS, mixed)
    assert [tensor.shape for tensor in call.tensors] == [SMALL, BIG]


def test_gradients_are_read_by_step(load):
    built = TraceBuilder()
    for number in (1, 2):
        built.step(number, 100 * number, 90)
        for index, shape in enumerate(([4, 2], [3], [3])):
            given = {"Input Dims": [shape], "Input type": ["float"]}
            built.operator("torch::autograd::AccumulateGrad", 100 * number + 10 * index, 5, **given)
    assert read_gradients(load(built)) == {(("float", ((3,), (3,), (4, 2))),)}
