"""Formulas for operations against what their definitions do: numbers that count what is done with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from opscope.operators.arguments import CallArguments, TensorArgument, parse_arguments
from opscope.operators.call_cost import FlopSource
from opscope.operators.effects import CallEffects, FlopCount
from opscope.operators.operator_table import cost_by_rules, count_flops

SIZES = {"float": 4, "c10::Half": 2, "long int": 8}


class Number:
    """A number that counts the arithmetic done with it; comparing and changing the sign are none."""

    operations = 0

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def _did(self, value: float) -> Number:
        Number.operations += 1
        return Number(value)

    def __add__(self, other: Any) -> Number:
        return self._did(self.value + value_of(other))

    def __sub__(self, other: Any) -> Number:
        return self._did(self.value - value_of(other))

    def __mul__(self, other: Any) -> Number:
        return self._did(self.value * value_of(other))

    def __truediv__(self, other: Any) -> Number:
        return self._did(self.value / value_of(other))

    def __rsub__(self, other: float) -> Number:
        return self._did(other - self.value)

    def __radd__(self, other: float) -> Number:
        return self._did(other + self.value)

    def __rmul__(self, other: float) -> Number:
        return self._did(other * self.value)

    def __rtruediv__(self, other: float) -> Number:
        return self._did(other / self.value)

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __lt__(self, other: Number) -> bool:
        return self.value < other.value


def value_of(number: Any) -> float:
    return number.value if isinstance(number, Number) else number


def function(of: Callable[[float], float]) -> Callable[[Number], Number]:
    """An elementary function: one operation."""
    return lambda number: number._did(of(number.value))


exp, log, sqrt, tanh = (function(one) for one in (math.exp, math.log, math.sqrt, math.tanh))
erf, rsqrt = function(math.erf), function(lambda value: 1 / math.sqrt(value))


def total(numbers: Sequence[Number]) -> Number:
    result = numbers[0]
    for number in numbers[1:]:
        result = result + number
    return result


def numbers(count: int) -> list[Number]:
    return [Number(0.1 + 0.8 * index / count) for index in range(count)]


def operations(compute: Callable[[], Any]) -> int:
    Number.operations = 0
    compute()
    return Number.operations


def call(name: str, *arguments: Any, type_name: str = "float") -> CallArguments:
    """A recorded call; tuples are tensors, lists of tuples lists of tensors, other lists numbers."""
    columns: list[list[Any]] = [[], [], [], []]
    for argument in arguments:
        if isinstance(argument, tuple):
            entry: Any = (list(argument), type_name, _dense(argument), "")
        elif isinstance(argument, list) and argument and isinstance(argument[0], tuple):
            entry = ([list(one) for one in argument], "TensorList", [_dense(one) for one in argument], "")
        elif argument is None:
            entry = ([], "", [], "")
        else:
            entry = ([], "ScalarList" if isinstance(argument, list) else "Scalar", [], str(argument))
        for column, value in zip(columns, entry, strict=True):
            column.append(value)
    shapes, types, strides, concrete = (json.dumps(column) for column in columns)
    return parse_arguments(f"aten::{name}", shapes=shapes, types=types, strides=strides, concrete=concrete)


def _dense(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[position + 1 :]) for position in range(len(shape))]


def counted(name: str, *arguments: Any, outputs: Sequence[tuple[int, ...]] | None = None) -> int | None:
    """Operations of a call, by rules or with given results."""
    if outputs is None:
        cost = cost_by_rules(call(name, *arguments))
        assert cost is not None, name
        return cost.flop_count
    recorded = call(name, *arguments)
    results = tuple(TensorArgument(shape, "float") for shape in outputs)
    return count_flops(CallEffects(recorded, recorded.tensors, results)).count


x, y = Number(0.3), Number(0.7)


def sigmoid(number: Number) -> Number:
    return 1 / (1 + exp(-number))


def normal(number: Number) -> Number:
    return 0.5 * (1 + erf(number / math.sqrt(2)))


def density(number: Number) -> Number:
    return exp(-(0.5 * (number * number))) * (1 / math.sqrt(2 * math.pi))


def silu_gradient(gradient: Number, number: Number) -> Number:
    share = sigmoid(number)
    return gradient * share * (1 + number * (1 - share))


def bent(number: Number) -> Number:
    return tanh(log(1 + exp(number)))


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("sigmoid", lambda: sigmoid(x)),
        ("silu", lambda: x / (1 + exp(-x))),
        ("mish", lambda: x * bent(x)),
        ("gelu", lambda: x * normal(x)),
        ("logit", lambda: log(x / (1 - x))),
        ("exp", lambda: exp(x)),
        ("reciprocal", lambda: 1 / x),
        ("relu", lambda: max(x, y)),
        ("neg", lambda: -x),
        ("hardswish", lambda: x * max(x + 3.0, Number(0)) / 6.0),
    ],
)
def test_functions_of_one_number(name: str, definition: Callable[[], Any]) -> None:
    assert counted(name, (5, 7)) == 35 * operations(definition)


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("tanh_backward", lambda: x * (1 - y * y)),
        ("sigmoid_backward", lambda: x * (1 - y) * y),
        ("gelu_backward", lambda: x * (normal(y) + y * density(y))),
        ("mish_backward", lambda: x * (bent(y) + y * sigmoid(y) * (1 - y * y))),
        ("silu_backward", lambda: silu_gradient(x, y)),
        ("threshold_backward", lambda: x if x < y else Number(0)),
        ("hardsigmoid_backward", lambda: x / 6.0),
    ],
)
def test_gradients_of_functions(name: str, definition: Callable[[], Any]) -> None:
    extra = (0,) if name == "threshold_backward" else ()
    assert counted(name, (5, 7), (5, 7), *extra) == 35 * operations(definition)


def test_pairs_and_factors() -> None:
    assert counted("add", (5, 7), (7,), 1) == 35
    assert counted("add", (5, 7), (7,), 0.5) == 70
    assert counted("add_", (5, 7), (7,), -0.001) == 70
    assert counted("mul", (5, 7), (1, 7)) == 35
    assert counted("div", (5, 7), (5, 1)) == 35
    assert counted("pow", (5,), 3) == 5
    assert counted("addcmul", (5,), (5,), (5,), 1) == 10
    assert counted("addcdiv", (5,), (5,), (5,), -0.1) == 15
    assert counted("lerp", (5,), (5,), 0.9) == 5 * operations(lambda: x + 0.9 * (y - x))
    assert counted("softplus", (5,), 1, 20) == 5 * operations(lambda: log(1 + exp(x)))
    assert counted("softplus", (5,), 2, 20) == 5 * operations(lambda: log(1 + exp(2 * x)) / 2)


def test_an_unrecorded_factor_leaves_operations_unknown() -> None:
    recorded = parse_arguments(
        "aten::add", shapes=[[5], [5], []], types=["float", "float", "Scalar"], strides=[[1], [1], []]
    )
    cost = cost_by_rules(recorded)
    assert cost is not None
    assert (cost.flop_count, cost.min_bytes) == (None, 60)
    assert cost.reason


def softmax(row: Sequence[Number]) -> list[Number]:
    largest = max(row)
    powers = [exp(one - largest) for one in row]
    whole = total(powers)
    return [power / whole for power in powers]


def log_softmax(row: Sequence[Number]) -> list[Number]:
    largest = max(row)
    shifted = [one - largest for one in row]
    rest = log(total([exp(one) for one in shifted]))
    return [one - rest for one in shifted]


def test_softmax() -> None:
    row, gradient = numbers(8), numbers(8)
    assert counted("_softmax", (3, 8), -1, False) == 3 * operations(lambda: softmax(row))
    assert counted("_log_softmax", (3, 8), 1, False) == 3 * operations(lambda: log_softmax(row))

    def backward() -> None:
        inner = total([one * g for one, g in zip(row, gradient, strict=True)])
        [one * (g - inner) for one, g in zip(row, gradient, strict=True)]

    def log_backward() -> None:
        whole = total(gradient)
        [g - exp(one) * whole for one, g in zip(row, gradient, strict=True)]

    assert counted("_softmax_backward_data", (3, 8), (3, 8), 1, 6) == 3 * operations(backward)
    assert counted("_log_softmax_backward_data", (3, 8), (3, 8), 1, 6) == 3 * operations(log_backward)


def mean(row: Sequence[Number]) -> Number:
    return total(row) / len(row)


def test_reductions() -> None:
    row = numbers(8)
    assert counted("sum", (3, 8), [1], False, None) == 3 * operations(lambda: total(row))
    assert counted("mean", (3, 8), [1], False, None) == 3 * operations(lambda: mean(row))
    assert counted("sum", (3, 8), None) == 23
    assert counted("amax", (3, 8), [1], False) == 0
    assert counted("cumsum", (3, 8), 1, None) == 3 * 7
    assert counted("linalg_vector_norm", (8,), 2, None, False, None) == operations(
        lambda: sqrt(total([one * one for one in row]))
    )
    assert counted("linalg_vector_norm", (8,), 1, None, False, None) == operations(lambda: total(row))
    assert counted("linalg_vector_norm", (8,), "inf", None, False, None) == 0
    assert counted("logsumexp", (3, 8), [1], False) == 3 * operations(
        lambda: log(total([exp(one - row[0]) for one in row])) + row[0]
    )


def spread(row: Sequence[Number]) -> Number:
    middle = mean(row)
    differences = [one - middle for one in row]
    return mean([one * one for one in differences])


def test_variance_counts_its_differences_once() -> None:
    assert counted("var", (3, 8), [1], 1, False) == 3 * operations(lambda: spread(numbers(8)))


def normalized(row: Sequence[Number], weight: Sequence[Number], bias: Sequence[Number]) -> None:
    middle = mean(row)
    differences = [one - middle for one in row]
    scale = rsqrt(mean([one * one for one in differences]) + 1e-5)
    [one * scale * w + b for one, w, b in zip(differences, weight, bias, strict=True)]


def test_layer_norm() -> None:
    row, weight, bias, gradient = (numbers(8) for _ in range(4))
    forward = operations(lambda: normalized(row, weight, bias))
    assert counted("native_layer_norm", (3, 8), [8], (8,), (8,), 1e-5) == 3 * forward
    assert counted("native_layer_norm", (3, 8), [8], None, None, 1e-5) == 3 * (forward - 16)

    def backward() -> None:
        rows = []
        for _ in range(3):
            hats = [(one - x) * y for one in row]
            weighted = [g * w for g, w in zip(gradient, weight, strict=True)]
            first, second = mean(weighted), mean([g * hat for g, hat in zip(weighted, hats, strict=True)])
            [(g - first - hat * second) * y for g, hat in zip(weighted, hats, strict=True)]
            rows.append([g * hat for g, hat in zip(gradient, hats, strict=True)])
        for column in range(8):
            total([products[column] for products in rows])
            total([gradient[column] for _ in rows])

    mask = [True, True, True]
    arguments = ((3, 8), (3, 8), [8], (3, 1), (3, 1), (8,), (8,), mask)
    assert counted("native_layer_norm_backward", *arguments) == operations(backward)


def test_batch_norm() -> None:
    channel = numbers(12)  # 2 samples of 6 elements
    forward = operations(lambda: normalized(channel, channel, channel))
    statistics = ((3,), (3,), (3,), (3,))
    assert counted("native_batch_norm", (2, 3, 6), *statistics, True, 0.1, 1e-5) == 3 * forward

    def evaluated() -> None:
        scale = rsqrt(x + 1e-5)
        [(one - y) * scale * x + y for one in channel]

    assert counted("native_batch_norm", (2, 3, 6), *statistics, False, 0.1, 1e-5) == 3 * operations(evaluated)

    def backward() -> None:
        hats = [(one - x) * y for one in channel]
        first = mean(channel)
        second = mean([g * hat for g, hat in zip(channel, hats, strict=True)])
        [(g - first - hat * second) * y for g, hat in zip(channel, hats, strict=True)]

    arguments = ((2, 3, 6), (2, 3, 6), (3,), (3,), (3,), (3,), (3,), True, 1e-5, [True] * 3)
    assert counted("native_batch_norm_backward", *arguments) == 3 * operations(backward)


def test_distributed_batch_norm() -> None:
    channel = numbers(12)
    statistics = operations(lambda: rsqrt(spread(channel) + 1e-5))
    assert counted("batch_norm_stats", (2, 3, 6), 1e-5) == 3 * statistics
    elements = operations(lambda: [(one - x) * y * x + y for one in channel])
    assert counted("batch_norm_elemt", (2, 3, 6), (3,), (3,), (3,), (3,), 1e-5) == 3 * elements

    def gradient() -> None:
        [(g - x - (one - y) * x) * y for g, one in zip(channel, channel, strict=True)]

    arguments = ((2, 3, 6), (2, 3, 6), (3,), (3,), (3,), (3,), (3,), (2,))
    assert counted("batch_norm_backward_elemt", *arguments) == 3 * operations(gradient)


def test_group_norm() -> None:
    group, weight = numbers(10), numbers(10)  # 2 channels of 5 elements
    forward = 6 * operations(lambda: normalized(group, weight, weight))
    sizes = (2, 6, 5, 3)
    assert counted("native_group_norm", (2, 6, 5), (6,), (6,), *sizes, 1e-5) == forward

    def backward() -> None:
        hats = [(one - x) * y for one in group]
        weighted = [g * w for g, w in zip(group, weight, strict=True)]
        first, second = mean(weighted), mean([g * hat for g, hat in zip(weighted, hats, strict=True)])
        [(g - first - hat * second) * y for g, hat in zip(weighted, hats, strict=True)]
        [g * hat for g, hat in zip(group, hats, strict=True)]

    # Sums of 60 products and of 60 gradients into 6 weights and 6 biases.
    wanted = 6 * operations(backward) + 2 * (60 - 6)
    arguments = ((2, 6, 5), (2, 6, 5), (2, 3), (2, 3), (6,), *sizes)
    assert counted("native_group_norm_backward", *arguments, [True, True, True]) == wanted
    assert counted("native_group_norm_backward", *arguments, [False, False, True]) == 60 - 6


def test_evaluated_batch_norm_has_plain_gradients() -> None:
    arguments = ((2, 3, 6), (2, 3, 6), (3,), (3,), (3,), (3,), (3,), False, 1e-5)
    assert counted("native_batch_norm_backward", *arguments, [True, False, False]) == 36
    assert counted("native_batch_norm_backward", *arguments, [False, False, True]) == 36


def test_root_mean_square_norm() -> None:
    row, weight = numbers(8), numbers(8)

    def forward() -> None:
        scale = rsqrt(mean([one * one for one in row]) + 1e-5)
        [one * scale * w for one, w in zip(row, weight, strict=True)]

    def backward() -> None:
        hats = [one * x for one in row]
        weighted = [g * w for g, w in zip(row, weight, strict=True)]
        second = mean([g * hat for g, hat in zip(weighted, hats, strict=True)])
        [(g - hat * second) * y for g, hat in zip(weighted, hats, strict=True)]
        [g * hat for g, hat in zip(row, hats, strict=True)]

    assert counted("_fused_rms_norm", (3, 8), [8], (8,), 1e-5) == 3 * operations(forward)
    arguments = ((3, 8), (3, 8), [8], (3, 1), (8,), [True, True])
    assert counted("_fused_rms_norm_backward", *arguments) == 3 * operations(backward) + 2 * 8


def test_losses() -> None:
    pairs = list(zip(numbers(12), numbers(12), strict=True))
    squares = operations(lambda: mean([(a - b) * (a - b) for a, b in pairs])) - 12  # the difference is one
    assert counted("mse_loss", (3, 4), (3, 4), 1) == squares
    assert counted("mse_loss", (3, 4), (3, 4), 2) == squares - 1
    assert counted("mse_loss", (3, 4), (3, 4), 0) == 24
    assert counted("mse_loss_backward", (), (3, 4), (3, 4), 1) == 12 * operations(
        lambda: x * (2 / 12 * (x - y))
    )
    entropy = operations(lambda: [b * log(a) + (1 - b) * log(1 - a) for a, b in pairs])
    assert counted("binary_cross_entropy", (3, 4), (3, 4), None, 0) == entropy
    assert counted("nll_loss_forward", (8, 10), (8,), None, 1, -100) == operations(lambda: mean(numbers(8)))


def dominant(size: int) -> list[list[Number]]:
    return [[Number(0.1 + size * (row == column)) for column in range(size)] for row in range(size)]


def lu(size: int) -> None:
    matrix = dominant(size)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot + 1, size):
                matrix[row][column] = matrix[row][column] - factor * matrix[pivot][column]


def cholesky(size: int) -> None:
    matrix = dominant(size)
    for pivot in range(size):
        root = sqrt(matrix[pivot][pivot])
        factors = [matrix[row][pivot] / root for row in range(pivot + 1, size)]
        for row in range(pivot + 1, size):
            for column in range(pivot + 1, row + 1):
                product = factors[row - pivot - 1] * factors[column - pivot - 1]
                matrix[row][column] = matrix[row][column] - product


def solve(size: int) -> None:
    matrix, right = dominant(size), numbers(size)
    for row in range(size):
        for column in range(row):
            right[row] = right[row] - matrix[row][column] * right[column]
        right[row] = right[row] / matrix[row][row]


def test_weighted_losses() -> None:
    weighted = ((8, 10), (8,), (10,))
    plain, sums = operations(lambda: mean(numbers(8))), operations(lambda: total(numbers(8)))
    assert counted("nll_loss_forward", *weighted, 1, -100) == plain + 8 + sums
    assert counted("nll_loss_forward", *weighted, 2, -100) == sums + 8
    assert counted("nll_loss_forward", *weighted, 0, -100) == 8
    gradient = ((), *weighted)
    assert counted("nll_loss_backward", *gradient, 1, -100, ()) == 16
    assert counted("nll_loss_backward", *gradient, 2, -100, ()) == 8
    assert counted("binary_cross_entropy", (4,), (4,), (4,), 0) == 4 * 8


@pytest.mark.parametrize("size", [1, 2, 5])
def test_factorizations(size: int) -> None:
    square = (2, size, size)
    assert counted("linalg_lu_factor_ex", square, False, False) == 2 * operations(lambda: lu(size))
    assert counted("linalg_cholesky_ex", square, outputs=[square]) == 2 * operations(lambda: cholesky(size))
    triangular = ((size, size), (size, 3), False, True, False)
    assert counted("linalg_solve_triangular", *triangular) == 3 * operations(lambda: solve(size))


def test_distances() -> None:
    def distance() -> None:
        sqrt(total([(a - b) * (a - b) for a, b in zip(numbers(5), numbers(5), strict=True)]))

    assert counted("_cdist_forward", (7, 5), (9, 5), 2.0, None) == 63 * (operations(distance) - 5)


def test_windows() -> None:
    assert counted("avg_pool2d", (1, 1, 6, 6), [3, 3], [3, 3], [0, 0], False, True, None) == 4 * operations(
        lambda: mean(numbers(9))
    )
    assert counted("_adaptive_avg_pool2d", (2, 3, 7, 7), [1, 1]) == 6 * operations(lambda: mean(numbers(49)))
    assert counted("_adaptive_avg_pool2d", (1, 1, 3, 1), [2, 1]) == 2 * operations(lambda: mean(numbers(2)))
    assert counted("upsample_bilinear2d", (1, 1, 2, 2), [3, 3], False, None, None) == 9 * 9
    assert counted("max_pool2d_with_indices", (1, 1, 6, 6), [3], [3], [0], [1], False) == 0
    padding, one_window = ([0, 0], False, True, None), 1 + 9  # a division, then nine additions
    assert counted("avg_pool2d_backward", (1, 1, 2, 2), (1, 1, 6, 6), [3], [3], *padding) == 4 * one_window
    assert counted("_adaptive_avg_pool2d_backward", (1, 1, 1, 1), (1, 1, 3, 3)) == one_window


def test_windows_beyond_reason_are_not_gone_through() -> None:
    assert counted("_adaptive_avg_pool2d", (1, 1, 3, 3), [1 << 40, 1 << 40]) is None


def adam(gradient: Number, decay: Callable[[Number, Number], tuple[Number, Number]]) -> None:
    parameter, first, second = Number(1.0), Number(0.1), Number(0.2)
    parameter, gradient = decay(parameter, gradient)
    first = 0.9 * first + 0.1 * gradient
    second = 0.99 * second + 0.01 * (gradient * gradient)
    parameter = parameter - 0.001 * first / (sqrt(second) / 0.5 + 1e-8)


def test_optimizer_steps() -> None:
    lists = [[(5,), (2, 3)]] * 4
    numbers_of = (0.001, 0.9, 0.999)
    plain, adamw, coupled = (
        operations(lambda: adam(Number(0.3), decay))  # noqa: B023 - called at once
        for decay in (
            lambda p, g: (p, g),
            lambda p, g: (p * 0.99, g),
            lambda p, g: (p, g + 0.01 * p),
        )
    )
    rest = (1e-8, False, False, None, None)
    empty: Any = None
    for name, decay, each in (("adam", 0.0, plain), ("adamw", 0.01, adamw), ("adam", 0.01, coupled)):
        got = counted(
            f"_fused_{name}_", *lists, empty, [(), ()], *numbers_of, decay, *rest, outputs=[(5,), (2, 3)]
        )
        assert got == 11 * each
    adagrad = operations(lambda: x - 0.1 * x / (sqrt(y + x * x) + 1e-10))
    arguments = (*lists[:3], [(), ()], 0.1, 0.0, 0.0, 1e-10, False, None, None)
    assert counted("_fused_adagrad_", *arguments, outputs=[(5,), (2, 3)]) == 11 * adagrad


def test_steps_of_gradient_descent() -> None:
    def descent(decay: float, momentum: float, *, nesterov: bool = False, first: bool = False) -> int | None:
        numbers_of = (decay, momentum, 0.1, 0.0, nesterov, False, first, None, None)
        return counted("_fused_sgd_", *[[(11,)]] * 3, *numbers_of, outputs=[(11,)])

    plain = operations(lambda: x - 0.1 * y)
    assert descent(0.0, 0.0) == 11 * plain
    assert descent(0.01, 0.0) == 11 * (plain + operations(lambda: y + 0.01 * x))
    buffer = operations(lambda: 0.9 * x + 0.1 * y)
    assert descent(0.0, 0.9) == 11 * (plain + buffer)
    assert descent(0.0, 0.9, first=True) == 11 * plain
    assert descent(0.0, 0.9, nesterov=True) == 11 * (plain + buffer + operations(lambda: y + 0.9 * x))


def test_lists_count_as_their_members_do() -> None:
    members, outputs = [(5,), (2, 3)], [(5,), (2, 3)]
    assert counted("_foreach_mul_", members, 0.9, outputs=outputs) == 11
    assert counted("_foreach_add_", members, members, -0.1, outputs=outputs) == 22
    assert counted("_foreach_addcdiv_", members, members, members, 1, outputs=outputs) == 22
    assert counted("_foreach_addcdiv_", members, members, members, None, outputs=outputs) == 33
    assert counted("_foreach_norm", members, 2, None, outputs=[(), ()]) == 22


@pytest.mark.parametrize("name", ["copy_", "cat", "sort", "eq", "relu", "where", "_local_scalar_dense"])
def test_what_computes_nothing(name: str) -> None:
    effects = CallEffects(call(name, (3,), (3,)), (), (TensorArgument((3,), "float"),))
    assert count_flops(effects) == FlopCount(0, FlopSource.NONE)


@pytest.mark.parametrize("name", ["add", "mul", "sum"])
def test_integers_are_no_floating_point(name: str) -> None:
    arguments = ((3,), None) if name == "sum" else ((3,), (3,), 1)[: 3 if name == "add" else 2]
    cost = cost_by_rules(call(name, *arguments, type_name="long int"))
    assert cost is not None
    assert (cost.flop_count, cost.flop_source, cost.data_type) == (0, FlopSource.NONE, None)


def test_complex_products_are_six_operations() -> None:
    cost = cost_by_rules(call("mul", (3,), (3,), type_name="c10::complex<float>"))
    assert cost is not None
    assert cost.flop_count == 18
