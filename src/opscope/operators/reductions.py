"""Sums and what is made of them: means, norms, softmax, running sums, normalization, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TypeAlias

import msgspec

from opscope.operators.arguments import CallArguments, ElementType, TensorArgument, type_of
from opscope.operators.effects import (
    BOOL,
    FLOAT32,
    INT64,
    CallEffects,
    Operator,
    Rule,
    Shape,
    agree,
    bytes_of,
    dimension_of,
    each_of,
    effects_of,
    inputs_without,
    item_bytes,
    known,
    like,
    promoted_type,
    real_part,
    require,
    results,
    rows,
    summed_type,
    to_float,
    wanted_gradients,
    wanted_type,
    without,
)
from opscope.operators.pointwise import common_shape

# Operations are those of each element of the input: what is done once for each result does not count.

_Typed: TypeAlias = Callable[["ElementType | None"], "ElementType | None"]


class Rows(msgspec.Struct, frozen=True):
    """A tensor as outer × length × inner: rows over so many dimensions, each worked on by itself."""

    shape: Shape
    outer: int
    length: int
    inner: int
    dimensions: int = 1

    @property
    def count(self) -> int:
        return self.outer * self.inner


def rows_along(data: TensorArgument | None, dimension: int | None) -> Rows | None:
    """The rows along one dimension; None if that is unknown, or there is no such one."""
    if data is None or dimension is None:
        return None
    shape = data.shape or (1,)
    if not -len(shape) <= dimension < len(shape):
        return None
    at = dimension % len(shape)
    return Rows(shape, prod(shape[:at]), shape[at], prod(shape[at + 1 :]))


def reduced_dimensions(call: CallArguments) -> set[int]:
    """Dimensions of `self` that a reduction sums over, all if it names none."""
    shape = known(call.tensor("self")).shape
    named = () if call.is_omitted("dim") else known(call.integers("dim"))
    return {dimension_of(shape, dimension) for dimension in named} or set(range(len(shape)))


def _kept(element: ElementType | None) -> ElementType | None:
    return element


def _index(element: ElementType | None) -> ElementType | None:
    return None if element is None else INT64


def _reduction(*types: _Typed) -> Rule:
    """One result for each type, the dimensions named reduced, all if none is."""

    def rule(call: CallArguments) -> CallEffects:
        data, dimensions = known(call.tensor("self")), reduced_dimensions(call)
        keeps = known(call.boolean("keepdim")) if call.has("keepdim") else False
        shape = tuple(
            1 if position in dimensions else size
            for position, size in enumerate(data.shape)
            if keeps or position not in dimensions
        )
        return results(call, *((shape, wanted_type(call, "dtype", typed(type_of(data)))) for typed in types))

    return rule


def _largest(call: CallArguments) -> CallEffects:
    """max(self): one value; with a dimension values and their positions; of two tensors none of these."""
    require(not call.has("other"))
    return _reduction(_kept, _index)(call) if call.has("dim") else _reduction(_kept)(call)


def _running(call: CallArguments) -> CallEffects:
    data = known(call.tensor("self"))
    known(call.integer("dim"))
    return results(call, (data.shape, wanted_type(call, "dtype", summed_type(type_of(data)))))


def _softmax(call: CallArguments) -> CallEffects:
    """Like the data; `half_to_float` widens."""
    data, element = known(call.tensor("self")), known(type_of(known(call.tensor("self"))))
    dimension_of(data.shape, known(call.integer("dim")))
    return results(call, (data.shape, FLOAT32 if known(call.boolean("half_to_float")) else element))


def _softmax_gradient(call: CallArguments) -> CallEffects:
    known(call.integer("input_dtype"))
    return results(call, (known(call.tensor("output")).shape, wanted_type(call, "input_dtype", None)))


REDUCTIONS: Mapping[str, Operator] = {
    **rows(_reduction(summed_type), {1: "sum nansum prod"}),
    # Variances: a mean, a difference and its square, their sum.
    **rows(_reduction(real_part), {4: "var std"}),
    **rows(_reduction(real_part, _kept), {4: "var_mean std_mean"}),
    **rows(_reduction(_kept), {0: "amax amin", 1: "mean"}),
    **rows(_reduction(_index), {0: "argmax argmin"}),
    **rows(
        _reduction(lambda element: element if element and element.name == "uint8" else BOOL), {0: "any all"}
    ),
    **rows(_largest, {0: "max min"}),
    **rows(_reduction(lambda element: to_float(real_part(element))), {2: "norm linalg_vector_norm"}),
    **rows(_reduction(to_float), {3: "logsumexp"}),
    **rows(_running, {1: "cumsum cumprod"}),
    # Subtract the largest, exp, their sum, a division.
    **rows(_softmax, {4: "_softmax _log_softmax"}),
    **rows(_softmax_gradient, {4: "_softmax_backward_data _log_softmax_backward_data"}),
}


# Layer, group, batch and root-mean-square normalization, forward and backward.
#
# Operations of each element: its part of the statistics 4 (mean, difference, square, sum), a product with the
# inverse deviation, weight and bias; backward, with x̂ the normalized input and h = g·w,
# dx = s·(h − mean(h) − x̂·mean(h·x̂)), and the sums of g·x̂ and g.


def normalized_rows(call: CallArguments) -> Rows | None:
    """The rows that layer and root-mean-square norm work on, or their gradients."""
    data, sizes, weight = call.tensor("input"), call.integers("normalized_shape"), call.tensor("weight")
    if sizes is None and weight is not None:
        sizes = weight.shape  # recorders before 2.0 leave lists of integers out
    if data is None or not sizes or not call.has("normalized_shape"):
        return None
    agree(data.shape[-len(sizes) :] == sizes)
    return Rows(data.shape, prod(data.shape[: -len(sizes)]), prod(sizes), 1, len(sizes))


def _statistics_type(element: ElementType | None) -> ElementType | None:
    return element if element is None or element.size_bytes >= FLOAT32.size_bytes else FLOAT32


def _row_statistics(statistics: int) -> Rule:
    """Layer norm: mean and deviation of each row; root-mean-square norm: one number."""

    def rule(call: CallArguments) -> CallEffects:
        data, rows = known(call.tensor("input")), known(normalized_rows(call))
        shape = (*data.shape[: -rows.dimensions], *(1,) * rows.dimensions)
        of_rows = [(shape, _statistics_type(type_of(data)))] * statistics
        return results(call, (data.shape, type_of(data)), *of_rows)

    return rule


def _groups(call: CallArguments) -> CallEffects:
    data, batch, groups = known(call.tensor("input")), known(call.integer("N")), known(call.integer("group"))
    agree(batch > 0 and data.shape[:1] == (batch,))
    # Statistics of groups are kept in the type of the data.
    return results(call, (data.shape, type_of(data)), *[((batch, groups), type_of(data))] * 2)


def _normalized_channels(call: CallArguments) -> CallEffects:
    """Batch norm: statistics of channels; of libraries only where it trains, and of cuDNN a reserve."""
    data, trains, stem = known(call.tensor("input")), known(call.boolean("training")), call.stem or ""
    shape, element = _of_channels(call)
    of_channel = (shape if trains or not stem.startswith(("cudnn", "miopen")) else (0,)), element
    found = results(call, (data.shape, type_of(data)), *[of_channel] * 2)
    if not stem.startswith("cudnn"):
        return found
    return effects_of(call, (*found.outputs, TensorArgument((0,), "uint8")))


def _gradients(count: int) -> Rule:
    """The gradients wanted: of the data, of the weight, of the bias."""

    def rule(call: CallArguments) -> CallEffects:
        data, weight = known(call.tensor("input")), call.tensor("weight")
        wanted = wanted_gradients(call, count)
        require(weight is not None or not any(wanted[1:]))
        of_weight = (data if weight is None else weight).shape, type_of(weight or data) or type_of(data)
        kinds = [(data.shape, type_of(data)), *[of_weight] * (count - 1)]
        return results(call, *(kind for kind, is_wanted in zip(kinds, wanted, strict=True) if is_wanted))

    return rule


def _of_channels(call: CallArguments) -> tuple[Shape, ElementType | None]:
    """What is kept of each channel: mean or inverse deviation."""
    data = known(call.tensor("input"))
    require(len(data.shape) >= 2)
    return data.shape[1:2], _statistics_type(type_of(data))


def _running_statistics(effects: CallEffects) -> tuple[int, int]:
    """Running statistics are updated in training, and only then, whatever the schema says."""
    call, written = effects.call, bytes_of(effects.outputs)
    if call.boolean("training"):
        written += bytes_of((*call.members("running_mean"), *call.members("running_var")))
    return bytes_of(effects.device_inputs), written


NORMALIZATIONS: Mapping[str, Operator] = {
    "native_layer_norm": Operator(_row_statistics(2), 7),
    # The bias has no part in any gradient.
    "native_layer_norm_backward": Operator(_gradients(3), 13, without("bias")),
    "native_group_norm": Operator(_groups, 7),
    "native_group_norm_backward": Operator(_gradients(3), 13),
    "_fused_rms_norm": Operator(_row_statistics(1), 4),
    "_fused_rms_norm_backward": Operator(_gradients(2), 8),
    **rows(
        _normalized_channels,
        {7: "native_batch_norm _native_batch_norm_legit miopen_batch_norm cudnn_batch_norm"},
        _running_statistics,
    ),
    **rows(_gradients(3), {9: "native_batch_norm_backward cudnn_batch_norm_backward"}),
    # Of distributed batch norm.
    "batch_norm_stats": Operator(lambda call: results(call, *[_of_channels(call)] * 2), 4),
    **rows(like("input"), {4: "batch_norm_elemt", 5: "batch_norm_backward_elemt"}),
}


# Loss functions: operations of each pair of elements, the sum over them among these.

# Source: PyTorch 2.11.0, aten/src/ATen/core/Reduction.h.
_NO_REDUCTION = 0


def _paired_result(call: CallArguments) -> CallEffects:
    data, target = known(call.tensor("self")), known(call.tensor("target"))
    shape = common_shape([data, target]) if known(call.integer("reduction")) == _NO_REDUCTION else ()
    return results(call, (shape, promoted_type([data, target])))


def _likelihood(call: CallArguments) -> CallEffects:
    """The loss and the sum of weights."""
    data, target = known(call.tensor("self")), known(call.tensor("target"))
    classes = data.shape[1:2] if len(data.shape) > 1 else data.shape
    agree((*target.shape[:1], *classes, *target.shape[1:]) == data.shape)
    shape = target.shape if known(call.integer("reduction")) == _NO_REDUCTION else ()
    return results(call, (shape, type_of(data)), ((), type_of(data)))


def _target_elements(effects: CallEffects) -> tuple[int, int]:
    """Of the probabilities one is read for each target."""
    data, target = known(effects.call.tensor("self")), known(effects.call.tensor("target"))
    chosen = min(target.element_count * item_bytes(data), bytes_of((data,)))
    return chosen + bytes_of(inputs_without(effects, "self")), bytes_of(effects.outputs)


def _target_gradients(effects: CallEffects) -> tuple[int, int]:
    """One gradient is written for each target, into zeros that are there."""
    target, (output, *_) = known(effects.call.tensor("target")), effects.outputs
    written = min(target.element_count * item_bytes(output), bytes_of(effects.outputs))
    return bytes_of(inputs_without(effects, "self")), written


_FORWARD = Operator(_likelihood, each_of("target"), _target_elements)
_BACKWARD = Operator(like("self"), each_of("target"), _target_gradients)
LOSSES: Mapping[str, Operator] = {
    "nll_loss_forward": _FORWARD,
    "nll_loss2d_forward": _FORWARD,
    "nll_loss_backward": _BACKWARD,
    "nll_loss2d_backward": _BACKWARD,
    # (x − y)²; ½ · (x − y)² / β; y·log(x) + (1 − y)·log(1 − x).
    **rows(_paired_result, {3: "mse_loss", 4: "huber_loss", 5: "smooth_l1_loss", 8: "binary_cross_entropy"}),
    **rows(
        like("self"),
        {
            3: "mse_loss_backward huber_loss_backward smooth_l1_loss_backward",
            6: "binary_cross_entropy_backward",
        },
    ),
}


OPERATORS: Mapping[str, Operator] = {**REDUCTIONS, **NORMALIZATIONS, **LOSSES}
