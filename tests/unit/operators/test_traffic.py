"""Least bytes where a call does not read all it is given, or does not write all it gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opscope.hardware.devices import DataType
from opscope.operators.arguments import CallArguments, parse_arguments, with_list_type
from opscope.operators.operator_table import cost_by_rules

FLOAT, HALF, LONG = "float", "c10::Half", "long int"


def tensor(
    *shape: int, of: str = FLOAT, strides: list[int] | None = None
) -> tuple[list[int], str, list[int], str]:
    dense, step = [], 1
    for size in reversed(shape):
        dense.insert(0, step)
        step *= size
    return list(shape), of, dense if strides is None else strides, ""


def tensors(*shapes: int) -> tuple[list[list[int]], str, list[list[int]], str]:
    return [[size] for size in shapes], "TensorList", [[1] for _ in shapes], ""


def value(text: Any) -> tuple[list[int], str, list[int], str]:
    return [], "Scalar", [], str(text)


NOTHING: tuple[list[int], str, list[int], str] = ([], "", [], "")
UNWRITTEN: tuple[list[int], str, list[int], str] = ([], "TensorList", [], "")


def call(name: str, *arguments: Any) -> CallArguments:
    shapes, types, strides, concrete = (json.dumps(column) for column in zip(*arguments, strict=True))
    return parse_arguments(f"aten::{name}", shapes=shapes, types=types, strides=strides, concrete=concrete)


def moved(name: str, *arguments: Any, list_type: str | None = None) -> tuple[int | None, int | None]:
    """Bytes read and written."""
    cost = cost_by_rules(with_list_type(call(name, *arguments), list_type))
    assert cost is not None
    return cost.read_bytes, cost.written_bytes


def test_what_is_overwritten_is_not_read() -> None:
    assert moved("copy_", tensor(8, 4), tensor(8, 4, of=HALF), value(False)) == (64, 128)
    assert moved("copy_", tensor(8, 4), tensor(8, 4, strides=[0, 1]), value(False)) == (16, 128)
    assert moved("fill_", tensor(8, 4, strides=[8, 1]), value(0)) == (0, 128)
    assert moved("zero_", tensor(8)) == (0, 32)
    assert moved("uniform_", tensor(8), value(0.0), value(1.0), NOTHING) == (0, 32)
    assert moved("add_", tensor(8), tensor(8), value(1)) == (64, 32)


def test_a_result_given_to_be_written_is_not_read() -> None:
    assert moved("mm", tensor(4, 8), tensor(8, 2), tensor(4, 2)) == ((32 + 16) * 4, 32)
    assert moved("neg", tensor(8), tensor(8)) == (32, 32)
    assert moved("add", tensor(8), tensor(8), value(1), tensor(0)) == (64, 32)


def test_gathers_read_what_they_take() -> None:
    index = tensor(3, 4, of=LONG)
    assert moved("gather", tensor(100, 4), value(0), index, value(False)) == (48 + 96, 48)
    expanded = tensor(3, 4, of=LONG, strides=[1, 0])
    assert moved("gather", tensor(100, 4), value(0), expanded, value(False)) == (48 + 24, 48)
    assert moved("gather", tensor(2, 4), value(0), index, value(False)) == (32 + 96, 48)
    assert moved("index_select", tensor(100, 4), value(0), tensor(3, of=LONG)) == (48 + 24, 48)
    assert moved("embedding", tensor(100, 4), tensor(3, of=LONG), value(-1), value(False), value(False)) == (
        48 + 24,
        48,
    )
    assert moved(
        "upsample_nearest2d", tensor(1, 1, 8, 8), ([], "ScalarList", [], "[4, 4]"), NOTHING, NOTHING
    ) == (
        64,
        64,
    )


def test_scatters_touch_what_they_are_given() -> None:
    index, source = tensor(3, 4, of=LONG), tensor(3, 4)
    assert moved("scatter_", tensor(100, 4), value(0), index, source) == (96 + 48, 48)
    # The rest of a new result is copied by a child.
    assert moved("scatter", tensor(100, 4), value(0), index, source) == (96 + 48, 48)
    assert moved("scatter_", tensor(100, 4), value(0), index, value(1.0)) == (96, 48)
    assert moved("scatter_add_", tensor(100, 4), value(0), index, source) == (96 + 48 + 48, 48)
    rows = (tensor(100, 4), value(0), tensor(3, of=LONG), tensor(3, 4))
    assert moved("index_add_", *rows, value(1)) == (24 + 48 + 48, 48)
    assert moved("index_copy_", *rows) == (24 + 48, 48)


def test_gradients_of_tables_write_the_rows_that_have_some() -> None:
    arguments = (tensor(2, 3, 4), tensor(2, 3, of=LONG))
    assert moved("embedding_dense_backward", *arguments, value(1000), value(-1), value(False)) == (
        96 + 48,
        96,
    )
    assert moved("embedding_dense_backward", *arguments, value(2), value(-1), value(False)) == (96 + 48, 32)


def test_losses_touch_one_class_of_each_sample() -> None:
    target = tensor(8, of=LONG)
    forward = (tensor(8, 1000), target, NOTHING, value(1), value(-100))
    assert moved("nll_loss_forward", *forward) == (32 + 64, 8)
    backward = (tensor(), tensor(8, 1000), target, NOTHING, value(1), value(-100), tensor())
    assert moved("nll_loss_backward", *backward) == (4 + 64 + 4, 32)


def test_an_addend_without_weight_is_not_read() -> None:
    product = (tensor(2, 3, 4), tensor(2, 4, 5))
    assert moved("baddbmm", tensor(2, 3, 5), *product, value(0), value(1)) == ((24 + 40) * 4, 120)
    assert moved("baddbmm", tensor(2, 3, 5), *product, value(1), value(1)) == ((24 + 40 + 30) * 4, 120)
    assert moved("addmm", tensor(5), tensor(3, 4), tensor(4, 5), value(1), value(1)) == (
        (5 + 12 + 20) * 4,
        60,
    )


def test_numbers_stay_on_the_host() -> None:
    assert moved("mul", tensor(8, of=HALF), tensor(of="double")) == (16, 16)
    assert moved("add", tensor(of=LONG), tensor(of=LONG), value(1)) == (16, 8)
    assert moved("_local_scalar_dense", tensor(of="bool")) == (1, 0)


def test_convolution_gradients_read_what_they_need() -> None:
    def gradients(mask: str) -> tuple[int | None, int | None]:
        numbers = [([], "ScalarList", [], text) for text in ("[1, 1]", "[0, 0]", "[1, 1]")]
        return moved(
            "convolution_backward", tensor(2, 4, 7, 6), tensor(2, 6, 9, 8), tensor(4, 6, 3, 3),
            ([], "ScalarList", [], "[4]"), *numbers, value(False), ([], "ScalarList", [], "[0, 0]"), value(1),
            ([], "ScalarList", [], mask),
        )  # fmt: skip

    gradient, data, weight = 336 * 4, 864 * 4, 216 * 4
    assert gradients("[True, True, True]") == (gradient + data + weight, data + weight + 16)
    assert gradients("[True, False, False]") == (gradient + weight, data)
    assert gradients("[False, True, False]") == (gradient + data, weight)


def test_kernels_set_apart_leave_elements_unread() -> None:
    def convolution(kernel: int, stride: int, padding: int = 0) -> int | None:
        pair = [([], "ScalarList", [], f"[{one}, {one}]") for one in (padding, stride, 1)]
        rest = (value(1), value(False), value(False), value(True))
        return moved("cudnn_convolution", tensor(2, 6, 9, 8), tensor(4, 6, kernel, kernel), *pair, *rest)[0]

    assert convolution(1, 1) == (2 * 6 * 9 * 8 + 24) * 4
    assert convolution(1, 2) == (2 * 6 * 5 * 4 + 24) * 4
    assert convolution(3, 2, padding=1) == (2 * 6 * 9 * 8 + 216) * 4
    assert convolution(2, 3) == (2 * 6 * 6 * 6 + 96) * 4  # rows 0 1 3 4 6 7, columns 0 1 3 4 6 7


def test_training_updates_running_statistics() -> None:
    statistics = [tensor(6)] * 4
    trained = moved("native_batch_norm", tensor(2, 6, 5), *statistics, value(True), value(0.1), value(1e-5))
    evaluated = moved(
        "native_batch_norm", tensor(2, 6, 5), *statistics, value(False), value(0.1), value(1e-5)
    )
    assert trained == (240 + 96, 240 + 48 + 48)
    assert evaluated == (240 + 96, 240 + 48)


def test_states_of_random_numbers_do_not_count() -> None:
    heads = tensor(2, 4, 16, 8, of=HALF)
    gradient = (*[heads] * 5, tensor(2, 4, 16, 1), tensor(of=LONG), tensor(of=LONG), *[NOTHING] * 3)
    numbers = (value(16), value(16), value(0.0), value(False), NOTHING)
    assert moved("_cudnn_attention_backward", *gradient, *numbers) == (5 * 2048 + 512, 3 * 2048)
    cost = cost_by_rules(call("_cudnn_attention_backward", *gradient, *numbers))
    assert cost is not None
    assert (cost.flop_count, cost.data_type) == (5 * 2 * 8 * 16 * 16 * 8, DataType.FP16)


def test_attention_counts_its_own_order_of_dimensions() -> None:
    """As an H200 recorded BERT: 8 sequences of 128 with 12 heads of 64."""
    heads = tensor(8, 128, 12, 64)
    rest = (*[NOTHING] * 5, value("0."), value(0), value(False), value(0.125), NOTHING, NOTHING)
    cost = cost_by_rules(call("_efficient_attention_forward", heads, heads, heads, *rest))
    assert cost is not None
    assert cost.flop_count == 2 * (2 * 8 * 12 * 128 * 128 * 64)
    assert (cost.read_bytes, cost.written_bytes) == (3 * 3145728, 3145728)


def test_packed_sequences_have_no_recorded_lengths() -> None:
    packed, borders = tensor(300, 4, 8, of=HALF), tensor(5, of="int")
    rest = (value(100), value(100), value(0.0), value(True), value(False))
    assert (
        cost_by_rules(call("_flash_attention_forward", packed, packed, packed, borders, borders, *rest))
        is None
    )


def test_optimizer_steps_write_no_gradients() -> None:
    lists = [tensors(100, 28)] * 4
    numbers = [value(one) for one in (0.001, 0.9, 0.999, 0.01, 1e-8, False, False)]
    steps = ([[], []], "TensorList", [[], []], "")
    adam = (*lists, UNWRITTEN, steps, *numbers)
    assert moved("_fused_adamw_", *adam, NOTHING, NOTHING, list_type=FLOAT) == (4 * 512 + 8, 3 * 512)
    scaled = moved("_fused_adamw_", *adam, tensor(), tensor(), list_type=FLOAT)
    assert scaled == (4 * 512 + 16, 4 * 512)


def test_lists_read_and_write_all_members() -> None:
    assert moved("_foreach_add_", tensors(10, 5), tensors(10, 5), value(1), list_type=HALF) == (60, 30)
    assert moved("_foreach_copy_", tensors(10), tensors(10), value(False), list_type=HALF) == (20, 20)
    assert moved("_foreach_sqrt", tensors(10), list_type=FLOAT) == (40, 40)


def test_lists_of_unknown_type_have_no_bytes() -> None:
    cost = cost_by_rules(call("_foreach_sqrt", tensors(10)))
    assert cost is not None
    assert cost.min_bytes is None
    assert "element type" in (cost.reason or "")
    assert cost_by_rules(call("_foreach_sqrt", UNWRITTEN)) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mm", (tensor(3, 4), tensor(5, 6))),
        ("mm", (tensor(3, 4), tensor(4, 6, of=HALF))),
        ("bmm", (tensor(2, 3, 4), tensor(3, 4, 6))),
        ("addmm", (tensor(7), tensor(3, 4), tensor(4, 6), value(1), value(1))),
        ("add", (tensor(3), tensor(4), value(1))),
        ("add_", (tensor(3), tensor(2, 3), value(1))),
        ("copy_", (tensor(3), tensor(4), value(False))),
        ("native_layer_norm", (tensor(3, 8), ([], "ScalarList", [], "[7]"), NOTHING, NOTHING, value(1e-5))),
        ("sum", (tensor(3, 8), ([], "ScalarList", [], "[2]"), value(False), NOTHING)),
        ("_softmax", (tensor(3, 8), value(4), value(False))),
        ("cat", (([[2, 3], [2, 4]], "TensorList", [[3, 1], [4, 1]], ""), value(0))),
        ("topk", (tensor(3, 8), value(9), value(-1), value(True), value(True))),
        ("arange", (value(0), value(-4), value(1), tensor(0))),
        ("gather", (tensor(3, 8), value(0), tensor(3, of=LONG), value(False))),
        ("nll_loss_forward", (tensor(8, 10), tensor(9, of=LONG), NOTHING, value(1), value(-100))),
    ],
)
def test_arguments_that_contradict_have_no_cost(name: str, arguments: Any) -> None:
    cost = cost_by_rules(call(name, *arguments))
    assert cost is not None
    assert (cost.min_bytes, cost.flop_count, cost.data_type) == (None, None, None)
    assert cost.reason is not None
    assert cost.reason.startswith("its recorded arguments contradict")


def test_operators_without_rule_are_left_to_others() -> None:
    assert cost_by_rules(call("_unique2", tensor(8), value(True), value(False), value(False))) is None
    assert cost_by_rules(parse_arguments("mylib::scale", shapes=[[2]], types=["float"])) is None
