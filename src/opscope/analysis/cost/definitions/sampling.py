"""Operations of pooling and interpolation: sums over windows, and nested linear interpolations.

An interpolation between two values is 3 operations, w·a + v·b with weights that depend on the position alone
and do not count. In two dimensions three of them make a value, in three dimensions seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.analysis.cost.arguments import TensorArgument
from opscope.analysis.cost.definitions.counting import Definition, Formula, defined, per_element
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS"]


# More than any layer has along one dimension; they are gone through one by one.
_MOST_WINDOWS = 1 << 20


def _average(dimensions: int) -> Formula:
    """For each window of k elements k − 1 additions and a division; padding counts like data."""

    def formula(effects: CallEffects) -> int | None:
        sizes = effects.call.integers(1)
        if sizes is None or len(sizes) not in (1, dimensions):
            return None
        window = sizes[0] ** dimensions if len(sizes) == 1 else prod(sizes)
        return window * effects.output_elements

    return formula


def _adaptive_average(effects: CallEffects) -> int | None:
    """The same, window i of n over m elements reaching from ⌊i·m/n⌋ to ⌈(i + 1)·m/n⌉."""
    return _window_elements(effects.call.tensor(0), effects.output)


def _adaptive_average_backward(effects: CallEffects) -> int | None:
    """Each gradient divided by its window's size, and added to each of its elements."""
    gradient = effects.call.tensor(0)
    elements = _window_elements(effects.call.tensor(1), gradient)
    return None if elements is None or gradient is None else gradient.element_count + elements


def _window_elements(data: TensorArgument | None, windows: TensorArgument | None) -> int | None:
    """Elements of all windows together, those in several windows as often."""
    if data is None or windows is None or len(data.shape) != len(windows.shape):
        return None
    if max(windows.shape, default=0) > _MOST_WINDOWS:
        return None
    total = 1
    for size, count in zip(data.shape, windows.shape, strict=True):
        total *= sum(-(-(index + 1) * size // count) - index * size // count for index in range(count))
    return total


def _average_backward(dimensions: int) -> Formula:
    """Each gradient divided by its window's size, and added to each of its elements."""

    def formula(effects: CallEffects) -> int | None:
        gradient, sizes = effects.call.tensor(0), effects.call.integers(2)
        if gradient is None or sizes is None or len(sizes) not in (1, dimensions):
            return None
        window = sizes[0] ** dimensions if len(sizes) == 1 else prod(sizes)
        return (1 + window) * gradient.element_count

    return formula


DEFINITIONS: Mapping[str, Definition] = {
    "avg_pool1d": defined(_average(1)),
    "avg_pool2d": defined(_average(2)),
    "avg_pool3d": defined(_average(3)),
    "avg_pool2d_backward": defined(_average_backward(2)),
    "avg_pool3d_backward": defined(_average_backward(3)),
    "_adaptive_avg_pool2d": defined(_adaptive_average),
    "_adaptive_avg_pool3d": defined(_adaptive_average),
    "adaptive_avg_pool2d": defined(_adaptive_average),
    "adaptive_avg_pool3d": defined(_adaptive_average),
    "_adaptive_avg_pool2d_backward": defined(_adaptive_average_backward),
    "_adaptive_avg_pool3d_backward": defined(_adaptive_average_backward),
    "upsample_linear1d": per_element(3),
    "upsample_bilinear2d": per_element(9),
    "upsample_trilinear3d": per_element(21),
    # Four taps: 4 products and 3 sums; of four rows, and of their results.
    "upsample_bicubic2d": per_element(35),
}
