"""Windows that step over images: convolutions, pooling, interpolation.

An empty list of numbers stands for the default, one number for all dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod

import msgspec

from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.effects import (
    INT64,
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    UnrecordedError,
    agree,
    bytes_of,
    each_of,
    gathering,
    inputs_without,
    item_bytes,
    known,
    require,
    results,
    wanted_gradients,
    without,
)


class Steps(msgspec.Struct, frozen=True):
    """How windows step, one number for each dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...] = ()
    is_transposed: bool = False
    rounds_up: bool = False

    def places(self, sizes: Shape, window: Shape) -> Shape:
        """Places where a window is applied; transposed, the sizes that have so many places.

        Source: aten/src/ATen/native/Pool.h, pooling_output_shape.
        """
        found = []
        for at, (size, extent) in enumerate(zip(sizes, window, strict=True)):
            stride, padding = self.stride[at], self.padding[at]
            reach = self.dilation[at] * (extent - 1)
            agree(stride > 0)
            if self.is_transposed:
                count = (size - 1) * stride - 2 * padding + reach + self.output_padding[at] + 1
            else:
                rest = size + 2 * padding - reach - 1
                count = (-(-rest // stride) if self.rounds_up else rest // stride) + 1
                if self.rounds_up and (count - 1) * stride >= size + padding:
                    count -= 1  # it would begin in the padding
            agree(count > 0 or count == size == 0)
            found.append(count)
        return tuple(found)

    def touched_elements(self, data: TensorArgument, weight: TensorArgument) -> int:
        """Elements of the data that some weight meets: not all where strides leave gaps between windows."""
        if self.is_transposed:
            return data.element_count
        places = self.places(data.shape[2:], weight.shape[2:])
        met = (
            min(size, count * extent)
            for size, count, extent in zip(data.shape[2:], places, weight.shape[2:], strict=True)
        )
        return prod(data.shape[:2]) * prod(met)


def numbers_of(call: CallArguments, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of one number for each dimension, the default where a call has none."""
    if not call.has(name):
        return default
    numbers = known(call.integers(name))
    agree(len(numbers) in (0, 1, len(default)))
    return (numbers * len(default) if len(numbers) == 1 else numbers) or default


def steps_of(call: CallArguments, dimensions: int, window: Shape | None = None) -> Steps:
    ones, zeros = (1,) * dimensions, (0,) * dimensions
    is_transposed = is_transposed_call(call)
    return Steps(
        numbers_of(call, "stride", window or ones),
        numbers_of(call, "padding", zeros),
        numbers_of(call, "dilation", ones),
        numbers_of(call, "output_padding", zeros) if is_transposed else (),
        is_transposed,
        known(call.boolean("ceil_mode")) if call.has("ceil_mode") else False,
    )


def is_transposed_call(call: CallArguments) -> bool:
    return known(call.boolean("transposed")) if call.has("transposed") else "transpose" in call.name


# Convolutions: a multiplication and an addition for each weight at each place it is applied.
#
# N·(places)·(elements of the weight)·2, the places being those of the output, of a transposed convolution
# those of its input; padding counts like data, a bias does not count. Each of the two gradients of a
# convolution costs as much as the convolution.
#
# torch.utils.flop_counter (PyTorch 2.13.0) has the same formulas, but errs in three places, which are
# definitions here: it takes the `benchmark` of cudnn_convolution for `transposed`, misses an argument of
# _slow_conv2d_forward, and counts the gradient of a grouped weight as often as there are groups.

_CONVOLVED = ("input", "self")


class ConvolutionShapes(msgspec.Struct, frozen=True):
    """One convolution, or one of its gradients: input, weight and output of the forward pass."""

    data: Shape
    weight: Shape
    output: Shape
    groups: int


def convolution_shapes(call: CallArguments) -> ConvolutionShapes | None:
    """Shapes of a convolution or its gradients, none empty; None where they are not recorded.

    A transposed convolution is told as the one whose gradient it is.
    """
    if call.stem not in CONVOLUTIONS:
        return None
    try:
        data, weight = known(call.tensor(*_CONVOLVED)), known(call.tensor("weight"))
        output = known(call.tensor("grad_output") or _convolution(call).output)
        is_transposed = is_transposed_call(call)
    except (ContradictionError, UnrecordedError):
        return None
    if not len(data.shape) == len(weight.shape) == len(output.shape) >= 3:
        return None
    if is_transposed:
        data, output = output, data
    groups = call.integer("groups") or (data.shape[1] // weight.shape[1] if weight.shape[1] else 0)
    shapes = (data.shape, weight.shape, output.shape)
    is_whole = groups > 0 and weight.shape[0] % groups == 0 and all(map(prod, shapes))
    return ConvolutionShapes(*shapes, groups) if is_whole else None


def _flops(effects: CallEffects) -> int:
    """Of one pass, or of the gradients wanted; a transposed one is applied at its input."""
    call, weight = effects.call, known(effects.call.tensor("weight"))
    gradient = call.tensor("grad_output")
    passes = 1 if gradient is None else sum(wanted_gradients(call, 3)[:2])
    places = call.tensor(*_CONVOLVED) if is_transposed_call(call) else gradient or effects.output
    shape = known(places).shape
    require(3 <= len(shape) == len(weight.shape))
    return passes * 2 * shape[0] * prod(shape[2:]) * weight.element_count


def _convolution(call: CallArguments) -> CallEffects:
    data, weight = known(call.tensor(*_CONVOLVED)), known(call.tensor("weight"))
    agree(3 <= len(data.shape) == len(weight.shape))
    steps = steps_of(call, len(data.shape) - 2)
    groups = known(call.integer("groups")) if call.has("groups") else None
    # Weights are results × inputs / groups, transposed the other way round.
    given, channels, of_group = data.shape[1], *weight.shape[:2]
    if steps.is_transposed:
        fits, channels = channels == given, of_group * (groups or 1)
    else:
        fits = of_group > 0 and given % of_group == 0 and groups in (None, given // of_group)
    agree(fits)
    places = steps.places(data.shape[2:], weight.shape[2:])
    return results(call, ((data.shape[0], channels, *places), type_of(data)))


def _gradients(call: CallArguments) -> CallEffects:
    """The gradients wanted: of the input, the weight, the bias."""
    gradient, data, weight = (known(call.tensor(name)) for name in ("grad_output", "input", "weight"))
    wanted = wanted_gradients(call, 3)
    agree(3 <= len(gradient.shape) == len(data.shape) == len(weight.shape))
    shapes = (data.shape, weight.shape, gradient.shape[1:2])
    given = [shape for shape, is_wanted in zip(shapes, wanted, strict=True) if is_wanted]
    return results(call, *((shape, type_of(gradient)) for shape in given))


def _traffic(effects: CallEffects) -> tuple[int, int]:
    """The gradient of the weight needs the input, that of the input the weight.

    Windows that strides set apart leave elements between them unread; all count where the steps are not
    recorded.
    """
    call = effects.call
    data, weight = known(call.tensor(*_CONVOLVED)), known(call.tensor("weight"))
    of_input, of_weight = (
        (True, True) if call.tensor("grad_output") is None else wanted_gradients(call, 3)[:2]
    )
    touched = bytes_of((data,))
    with suppress(UnrecordedError):
        steps = steps_of(call, len(data.shape) - 2)
        touched = min(touched, steps.touched_elements(data, weight) * item_bytes(data))
    read = bytes_of(inputs_without(effects, *_CONVOLVED, "weight"))
    read += bytes_of((weight,)) * of_input + touched * of_weight
    return read, bytes_of(effects.outputs)


_FORWARD = """
    convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu
    cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution miopen_depthwise_convolution
    miopen_convolution_transpose _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
    slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d
"""
CONVOLUTIONS: Mapping[str, Operator] = {
    **dict.fromkeys(_FORWARD.split(), Operator(_convolution, _flops, _traffic, _CONVOLVED)),
    "convolution_backward": Operator(_gradients, _flops, _traffic, ("grad_output",)),
}


# Pooling and interpolation: sums over windows, and nested linear interpolations.
#
# Of pooling an element takes part in one window, as where windows do not overlap. An interpolation between
# two values is 3 operations, w·a + v·b with weights that depend on the position alone and do not count. In
# two dimensions three of them make a value, in three dimensions seven; a cubic one is 35.

_SAMPLED = ("self", "input")


def _pooled(dimensions: int, *, has_positions: bool = False) -> Rule:
    """Values, and the positions of the largest."""

    def rule(call: CallArguments) -> CallEffects:
        data, window = known(call.tensor("self")), numbers_of(call, "kernel_size", (1,) * dimensions)
        require(len(data.shape) in (dimensions + 1, dimensions + 2))
        steps = steps_of(call, dimensions, window)
        shape = (*data.shape[:-dimensions], *steps.places(data.shape[-dimensions:], window))
        return results(call, (shape, type_of(data)), *[(shape, INT64)] * has_positions)

    return rule


def _to_size(dimensions: int, *, has_positions: bool = False) -> Rule:
    """Interpolation and adaptive pooling."""

    def rule(call: CallArguments) -> CallEffects:
        data, sizes = known(call.tensor(*_SAMPLED)), known(call.integers("output_size"))
        require(len(sizes) == dimensions)
        agree(len(data.shape) in (dimensions + 1, dimensions + 2))
        shape = (*data.shape[:-dimensions], *sizes)
        return results(call, (shape, type_of(data)), *[(shape, INT64)] * has_positions)

    return rule


def _gradient(call: CallArguments) -> CallEffects:
    """Of the gradient's type, of the shape of the data, or of the sizes given."""
    data, gradient = call.tensor("self"), known(call.tensor("grad_output"))
    shape = known(call.integers("input_size")) if data is None else data.shape
    return results(call, (shape, type_of(gradient)))


# Of the data only the sizes matter.
_SIZED = without("self")
_ADDED = Operator(_gradient, each_of("grad_output"), _SIZED)
SAMPLING: Mapping[str, Operator] = {
    **{f"max_pool{n}d_with_indices": Operator(_pooled(n, has_positions=True), 0) for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _ADDED for n in (2, 3)},
    **{f"avg_pool{n}d": Operator(_pooled(n), 1) for n in (2, 3)},
    **{f"avg_pool{n}d_backward": Operator(_gradient, 2, _SIZED) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": Operator(_to_size(n), 1) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward": Operator(_gradient, 2, _SIZED) for n in (2, 3)},
    "adaptive_max_pool2d": Operator(_to_size(2, has_positions=True), 0),
    "adaptive_max_pool2d_backward": _ADDED,
    **{
        name: Operator(_to_size(n), 0, gathering(*_SAMPLED))
        for n in (1, 2, 3)
        for name in (f"upsample_nearest{n}d", f"_upsample_nearest_exact{n}d")
    },
    **{f"upsample_nearest{n}d_backward": Operator(_gradient, each_of("grad_output")) for n in (1, 2, 3)},
    "upsample_linear1d": Operator(_to_size(1), 3),
    "upsample_bilinear2d": Operator(_to_size(2), 9),
    "upsample_bilinear2d_backward": Operator(_gradient, 9),
    "upsample_trilinear3d": Operator(_to_size(3), 21),
    "upsample_bicubic2d": Operator(_to_size(2), 35),
}


OPERATORS: Mapping[str, Operator] = {**CONVOLUTIONS, **SAMPLING}
