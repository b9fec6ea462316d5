"""Lists of tensors: types from kernels, members from the gradients of the step, or nothing."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from case_tables import tables
from fakes import TraceBuilder
from opscope.operators.arguments import (
    CHUNK_ELEMENTS,
    parse_arguments,
    read_gradients,
    with_kernel_types,
    with_list_members,
)

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
            built.operator(
                "torch::autograd::AccumulateGrad",
                100 * number + 10 * index,
                5,
                **{"Input Dims": [shape], "Input type": ["float"]},
            )
    assert read_gradients(load(built)) == {(("float", ((3,), (3,), (4, 2))),)}
