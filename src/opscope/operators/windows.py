"""Windows that step over images: the numbers of convolutions and pooling, and the places they apply at.

An empty list of numbers stands for the default, one number for all dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.effects import ContradictionError, Shape, known


@dataclass(frozen=True)
class Steps:
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
            if stride < 1:
                raise ContradictionError(f"a stride of {stride}")
            if self.is_transposed:
                count = (size - 1) * stride - 2 * padding + reach + self.output_padding[at] + 1
            else:
                rest = size + 2 * padding - reach - 1
                count = (-(-rest // stride) if self.rounds_up else rest // stride) + 1
                if self.rounds_up and (count - 1) * stride >= size + padding:
                    count -= 1  # it would begin in the padding
            if count < 0 or (count == 0 and size):
                raise ContradictionError(
                    f"a window that reaches over {reach + 1} of {size + 2 * padding} elements"
                )
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
    if len(numbers) not in (0, 1, len(default)):
        raise ContradictionError(f"{len(numbers)} numbers for {len(default)} dimensions")
    return (numbers * len(default) if len(numbers) == 1 else numbers) or default


def steps_of(call: CallArguments, dimensions: int, window: Shape | None = None) -> Steps:
    """The steps of a convolution or of pooling, the window by default."""
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
    """Whether a convolution is a transposed one."""
    return known(call.boolean("transposed")) if call.has("transposed") else "transpose" in call.name
