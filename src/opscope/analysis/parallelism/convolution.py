"""Convolutions as matrix products: implicit GEMM of cuDNN and CUTLASS, and what names say of others.

An implicit GEMM multiplies matrices that are never formed: output places × channels, over filter window ×
channels. The reading of tiles is as for matrix products; cuDNN's own grids are not documented.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, LaunchCheck, Note, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts, OperatorCall, Shape
from opscope.analysis.parallelism.image_windows import window_size
from opscope.analysis.parallelism.tiling import MatrixProblem, find_tiling, tilings
from opscope.analysis.parallelism.wording import algorithm, ceil_div, ceiling, computes, over, shape_text
from opscope.model.evidence import Grade

__all__ = ["convolution", "implicit_sgemm"]


@dataclass(frozen=True)
class _Convolution:
    """Shapes of one convolution, whichever of its three products is computed."""

    data: Shape
    weight: Shape
    output: Shape
    groups: int


def convolution(launch: LaunchFacts) -> Iterator[Note]:
    """Any convolution kernel: parallel over what its direction computes, tiled where a tile is named."""
    shapes = None if launch.call is None else _shapes(launch.call)
    name = launch.kernel.name
    product = _product(name)
    if "winograd" in name.lower():
        yield algorithm(
            "Winograd's algorithm, as the name says: input and filter tiles are transformed, multiplied per "
            "frequency, and transformed back, with fewer multiplications than the direct sum."
        )
    elif "implicit" in name or product is not None:
        yield algorithm(
            "Implicit GEMM: the matrix of input windows is addressed, never stored.", Grade.INFERRED
        )
    if shapes is None or product is None:
        return
    problem = _problem(shapes, product)
    groups = f"{shapes.groups:,} × " if shapes.groups > 1 else ""
    yield over(
        f"{groups}{problem.m:,}×{problem.n:,} sums of {problem.k:,} terms are independent: "
        f"{_WHAT[product]} (input {shape_text(shapes.data)}, filter {shape_text(shapes.weight)}).",
        Grade.INFERRED,
    )
    tile = [int(part) for part in (launch.kernel.tile or "").split("x") if part.isdecimal()]
    if len(tile) >= 2 and launch.grid is not None:
        yield from _tiled(launch, launch.grid, _readings(shapes, product), (tile[0], tile[1]))


def implicit_sgemm(launch: LaunchFacts) -> Iterator[Note]:
    """The `implicit_convolve_sgemm<float, float, 1024, log2 tile, log2 tile, ...>` of cuDNN."""
    shapes = None if launch.call is None else _shapes(launch.call)
    yield algorithm("Implicit GEMM: the matrix of input windows is addressed, never stored.", Grade.INFERRED)
    places_log2, channels_log2 = launch.template_integer(3), launch.template_integer(4)
    if (
        shapes is None
        or places_log2 is None
        or channels_log2 is None
        or not 0 < places_log2 < 16 > channels_log2 > 0
    ):
        return
    problem = _problem(shapes, "fprop")
    yield over(
        f"{problem.m:,} output places × {problem.n:,} channels are independent sums of {problem.k:,} terms.",
        Grade.INFERRED,
    )
    tile = (1 << places_log2, 1 << channels_log2)
    grid = (ceil_div(problem.m, tile[0]), ceil_div(problem.n, tile[1]), shapes.groups)
    formula = f"{ceiling(problem.m, tile[0])} × {ceiling(problem.n, tile[1])} tiles"
    for check in checked(launch, [Expected(formula, grid)], Grade.INFERRED):
        if check.is_explained:
            yield computes(f"A block computes {tile[0]} output places × {tile[1]} channels.", Grade.INFERRED)
        yield check


_TRANSPOSED_AT = 7  # in the arguments of convolution_backward
_WHAT = {
    "fprop": "output places × output channels",
    "dgrad": "input places × input channels",
    "wgrad": "output channels × filter weights",
}


def _product(name: str) -> str | None:
    return next((product for product in _WHAT if product in name), None)


def _tiled(
    launch: LaunchFacts, grid: Extent, problems: tuple[MatrixProblem, ...], tile: tuple[int, int]
) -> Iterator[Note]:
    """The tile, and the first reading of groups whose tiles give the grid."""
    # The gradient of the filter sums over all places: few tiles, so cuDNN splits the sum.
    splits_k = "wgrad" in launch.kernel.name or bool(launch.kernel.split_k)
    yield computes(f"A block computes {tile[0]}×{tile[1]} tiles of the output matrix.", Grade.INFERRED)
    for problem in problems:
        cut = find_tiling(problem, tile, grid, sm_count=launch.sm_count, splits_k=splits_k)
        if cut is not None:
            splits = f" × {cut.splits} splits of the sum (read from the grid)" if cut.splits > 1 else ""
            groups = f" × {cut.batch} groups" if cut.batch > 1 else ""
            found = Expected(
                f"{cut.across:,} × {cut.along:,} tiles{groups}{splits}", grid, None, cut.arrangement
            )
            yield LaunchCheck((found,), found, Grade.INFERRED)
            return
    blocks = prod(grid)
    cuts = tilings(problems[0], tile)
    if launch.sm_count and blocks <= launch.sm_count:
        yield computes(
            f"{blocks} blocks, no more than the {launch.sm_count} multiprocessors, share {cuts[0].tiles:,} "
            "tiles and their sums; how is not published.",
            Grade.INFERRED,
        )
        return
    tried = tuple(
        Expected(
            f"{one.across:,} × {one.along:,} tiles of {tile[0]}×{tile[1]}", (one.across, one.along, one.batch)
        )
        for one in cuts
    )
    yield LaunchCheck(tried, None, Grade.INFERRED)


def _readings(shapes: _Convolution, product: str) -> tuple[MatrixProblem, ...]:
    """The product with groups side by side, one group at a time, and all groups' channels in one matrix."""
    whole = _problem(shapes, product)
    if shapes.groups == 1:
        return (whole,)
    alone = MatrixProblem(1, whole.m, whole.n, whole.k)
    folded = MatrixProblem(1, whole.m, whole.n * shapes.groups, whole.k)
    return (whole, alone, folded)


def _problem(shapes: _Convolution, product: str) -> MatrixProblem:
    groups = shapes.groups
    outputs, window = shapes.weight[0] // groups, prod(shapes.weight[2:])
    inputs = shapes.weight[1]
    output_places = shapes.output[0] * prod(shapes.output[2:])
    input_places = shapes.data[0] * prod(shapes.data[2:])
    if product == "dgrad":
        return MatrixProblem(groups, input_places, inputs, outputs * window)
    if product == "wgrad":
        return MatrixProblem(groups, outputs, inputs * window, output_places)
    return MatrixProblem(groups, output_places, outputs, inputs * window)


def _shapes(call: OperatorCall) -> _Convolution | None:
    """Of `cudnn_convolution(self, weight, padding, stride, dilation, groups)` or `convolution_backward`."""
    name = call.name.removeprefix("aten::")
    if name == "convolution_backward":
        output, data, weight, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.integer(9)
        if output is None or data is None or weight is None:
            return None
        is_transposed = len(call.concrete) > _TRANSPOSED_AT and call.concrete[_TRANSPOSED_AT] == "True"
        if is_transposed:  # its backward is an ordinary forward convolution of the gradient
            return _checked(output.shape, weight.shape, data.shape, groups)
        return _checked(data.shape, weight.shape, output.shape, groups)
    return _forward_shapes(call, name)


def _forward_shapes(call: OperatorCall, name: str) -> _Convolution | None:
    positions = _ARGUMENTS.get(name)
    data, weight = call.tensor(0), call.tensor(1)
    if positions is None or data is None or weight is None:
        return None
    padding, stride, dilation = (call.integers(position) for position in positions[:3])
    rank = len(data.shape) - 2
    if padding is None or stride is None or dilation is None or rank < 1 or not all(stride):
        return None
    if not len(weight.shape) - 2 == len(padding) == len(stride) == len(dilation) == rank:
        return None
    sides = (
        window_size(*one)
        for one in zip(data.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    )
    return _checked(
        data.shape, weight.shape, (data.shape[0], weight.shape[0], *sides), call.integer(positions[3])
    )


# Positions of padding, stride, dilation and groups.
_ARGUMENTS = {
    "cudnn_convolution": (2, 3, 4, 5),
    "cudnn_convolution_relu": (4, 3, 5, 6),
}


def _checked(data: Shape, weight: Shape, output: Shape, groups: int | None) -> _Convolution | None:
    if not groups or min(len(data), len(weight), len(output)) < 3 or weight[0] % groups:
        return None
    return (
        _Convolution(data, weight, output, groups) if prod(data) and prod(weight) and prod(output) else None
    )
