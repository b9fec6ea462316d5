"""Matrix products and convolutions: output tiles in parallel, and the grids that such a cut explains.

The problem comes from the operator's recorded shapes, the tile from the kernel's name: CUTLASS' are
documented, those of xmma, nvjet and the older cuBLAS kernels observed. Libraries see row-major matrices
transposed, lay tiles out in either order, swizzle them, split K, or launch a fixed number of blocks that take
tiles in turn; which of these gives the recorded grid is found by trying each. An implicit GEMM multiplies
matrices that are never formed: output places × channels, over filter window × channels; cuDNN's own grids are
not documented.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.launches.facts import Extent, LaunchFacts
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    extent_text,
    extents,
    shape_text,
)
from opscope.model.evidence import Grade
from opscope.operators.convolutions import ConvolutionShapes, convolution_shapes
from opscope.operators.element_types import item_size_bytes
from opscope.operators.products import MatrixProduct, matrix_product
from opscope.units import format_fraction

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "Tiling",
    "convolution",
    "dot_product",
    "few_columns",
    "find_tiling",
    "implicit_sgemm",
    "split_k_reduction",
    "tiled_product",
]

_SWIZZLES = (2, 4, 8)
_MOST_SPLITS = 1024
_MOST_COUNTED_SPLITS = 64
_LOADING_WARPS = re.compile(r"nvjet|sm(?:9|1[0-2])\d")
_CONVOLVED = {
    "fprop": "output places × output channels",
    "dgrad": "input places × input channels",
    "wgrad": "output channels × filter weights",
}


@dataclass(frozen=True)
class Tiling:
    """One way the problem is cut and launched."""

    rows: str  # `m` or `n`: the side of the output that the tile's first extent covers
    across: int  # tiles along that side, padded to whole clusters where there are any
    along: int  # tiles along the other side
    batch: int
    splits: int  # parts K is cut into
    arrangement: str  # how tiles become blocks, in words
    is_persistent: bool = False  # fewer blocks than tiles; each takes several

    @property
    def tiles(self) -> int:
        """Tiles of all batches and splits."""
        return self.across * self.along * self.batch * self.splits


def tiled_product(launch: LaunchFacts) -> Prediction:
    """Output tiles in parallel, K in sequence."""
    problem, tile, kernel = _problem(launch.call), extents(launch.kernel.tile), launch.kernel
    values: dict[str, Any] = {} if problem is None else _values(problem)
    if len(tile) < 2:
        return Prediction(values)
    named = extents(kernel.cluster)
    cluster = (named[0], named[1]) if len(named) >= 2 else (1, 1)
    cut, threads = None, launch.thread_count
    if problem is not None and launch.grid is not None:
        cut = find_tiling(
            problem,
            (tile[0], tile[1]),
            launch.grid,
            cluster=cluster,
            sm_count=launch.sm_count,
            splits_k=kernel.split_k or None,
        )
    values.update(
        first=tile[0],
        second=tile[1],
        tile_grade=kernel.grades.get("tile", Grade.INFERRED),
        cluster=None if cluster == (1, 1) else extent_text((*cluster, 1)),
        cluster_grade=kernel.grades.get("cluster", Grade.INFERRED),
        splits_k=bool(kernel.split_k) and (cut is None or cut.splits == 1),
        tensor_core_grade=kernel.grades.get("tensor_core", Grade.INFERRED),
        on_tensor_cores=kernel.tensor_core is True,
        off_tensor_cores=kernel.tensor_core is False,
        mma_shape=kernel.mma_shape.replace("x", "×") if kernel.mma_shape else None,
        **_slices(launch, problem, tile),
    )
    # From compute capability 9.0 on some warps of a block load only: no share per thread.
    if threads and not _LOADING_WARPS.search(kernel.name):
        values["per_thread"] = tile[0] * tile[1] / threads
    if problem is None or launch.grid is None:
        return Prediction(values)
    if cut is None:
        tried = [
            Expected(_tile_formula(problem, tile, one), (one.across, one.along, one.batch))
            for one in tilings(problem, (tile[0], tile[1]), cluster)
        ]
        return Prediction(values, tried)
    values.update(_cut_values(cut, problem, tile, prod(launch.grid)))
    values["blocks_alone"] = cut.splits == 1 and not values["splits_k"]
    found = Expected(_tile_formula(problem, tile, cut), launch.grid, launch.block, cut.arrangement)
    return Prediction(values, [found])


def few_columns(launch: LaunchFacts) -> Prediction:
    """The `gemv2T_kernel_val` and `gemmSN_..._kernel`: threads share each output's dot product."""
    problem = _problem(launch.call)
    arguments = (launch.template_integer(at) for at in range(len(launch.kernel.template_arguments)))
    numbers = [value for value in arguments if value is not None]
    if problem is None:
        return Prediction()
    if len(numbers) < 2 or not numbers[1] or numbers[0] % numbers[1]:
        return Prediction(_values(problem))
    threads, sharing = numbers[:2]
    per_block, outputs = threads // sharing, max(problem.m, problem.n)
    formula = f"ceil({outputs:,} outputs of the long side / {per_block} per block) blocks"
    expected = Expected(formula, (ceil_div(outputs, per_block), 1, problem.batch), (threads, 1, 1))
    values = {**_values(problem), "threads": threads, "sharing": sharing, "per_block": per_block}
    return Prediction(values, [expected])


def split_k_reduction(launch: LaunchFacts) -> Prediction:
    """`cublasLt::splitKreduce_kernel<width, height, ...>`: adds the partial products of a split along K."""
    problem = _problem(launch.call)
    width, height = launch.template_integer(0), launch.template_integer(1)
    if problem is None:
        return Prediction()
    values = {**_values(problem), "width": width, "height": height}
    expected = []
    if width and height:  # over the output in either orientation, counted along one or two sides of the grid
        for first, second in ((problem.n, problem.m), (problem.m, problem.n)):
            across, down = ceil_div(first, width), ceil_div(second, height)
            formula = f"{ceiling(first, width)} × {ceiling(second, height)} blocks"
            for grid in ((across, down, problem.batch), (across * down, 1, problem.batch)):
                expected.append(Expected(formula, grid, (width, height, 1)))
    return Prediction(values, expected)


def dot_product(launch: LaunchFacts) -> Prediction:
    """The `dot_kernel<type, threads, ...>` and the `reduce_1Block_kernel` after it."""
    tensor, threads = launch.tensor("self"), launch.template_integer(1)
    if launch.call is None or launch.call.name != "aten::dot" or tensor is None or not threads:
        return Prediction()
    count, is_last = tensor.element_count, launch.function_name == "reduce_1Block_kernel"
    one = Expected("one block adds the partial sums", (1, 1, 1))
    return Prediction(
        {"count": count, "threads": threads, "is_last": is_last, "is_first": not is_last},
        [one if is_last else blocks_over(count, threads, threads)],
    )


def convolution(launch: LaunchFacts) -> Prediction:
    """Any convolution kernel: parallel over what its direction computes, tiled where a tile is named."""
    name, shapes = launch.kernel.name, None if launch.call is None else convolution_shapes(launch.call)
    product = next((product for product in _CONVOLVED if product in name), None)
    is_winograd = "winograd" in name.lower()
    values: dict[str, Any] = {
        "is_winograd": is_winograd,
        "is_implicit": not is_winograd and ("implicit" in name or product is not None),
    }
    if shapes is None or product is None:
        return Prediction(values)
    whole = _convolution_problem(shapes, product)
    values.update(
        _values(whole),
        groups=shapes.groups if shapes.groups > 1 else None,
        what=_CONVOLVED[product],
        input=shape_text(shapes.data),
        filter=shape_text(shapes.weight),
    )
    tile = extents(launch.kernel.tile)
    if len(tile) < 2 or launch.grid is None:
        return Prediction(values)
    values.update(first=tile[0], second=tile[1])
    # The gradient of the filter sums over all places: few tiles, so cuDNN splits the sum.
    splits_k = "wgrad" in name or bool(launch.kernel.split_k)
    # The first reading of groups whose tiles give the grid: side by side, one group, or in one matrix.
    readings = [whole]
    if whole.batch > 1:
        readings += [replace(whole, batch=1), replace(whole, batch=1, n=whole.n * whole.batch)]
    for problem in readings:
        cut = find_tiling(
            problem, (tile[0], tile[1]), launch.grid, sm_count=launch.sm_count, splits_k=splits_k
        )
        if cut is not None:
            formula = f"{cut.across:,} × {cut.along:,} tiles"
            formula += f" × {cut.batch} groups" if cut.batch > 1 else ""
            formula += f" × {cut.splits} splits of the sum (read from the grid)" if cut.splits > 1 else ""
            return Prediction(values, [Expected(formula, launch.grid, None, cut.arrangement)])
    cuts = tilings(whole, (tile[0], tile[1]))
    if launch.sm_count and prod(launch.grid) <= launch.sm_count:
        return Prediction({**values, "shared_tiles": cuts[0].tiles})
    tried = [
        Expected(
            f"{one.across:,} × {one.along:,} tiles of {tile[0]}×{tile[1]}", (one.across, one.along, one.batch)
        )
        for one in cuts
    ]
    return Prediction(values, tried)


def implicit_sgemm(launch: LaunchFacts) -> Prediction:
    """The `implicit_convolve_sgemm<float, float, 1024, log2 tile, log2 tile, ...>` of cuDNN."""
    shapes = None if launch.call is None else convolution_shapes(launch.call)
    places_log2, channels_log2 = launch.template_integer(3) or 0, launch.template_integer(4) or 0
    if shapes is None or not 0 < places_log2 < 16 > channels_log2 > 0:
        return Prediction()
    problem = _convolution_problem(shapes, "fprop")
    places, channels = 1 << places_log2, 1 << channels_log2
    grid = (ceil_div(problem.m, places), ceil_div(problem.n, channels), shapes.groups)
    formula = f"{ceiling(problem.m, places)} × {ceiling(problem.n, channels)} tiles"
    values = {**_values(problem), "places": places, "channels": channels}
    return Prediction(values, [Expected(formula, grid)])


def tilings(
    problem: MatrixProduct, tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)
) -> tuple[Tiling, Tiling]:
    """The problem cut with the tile's first extent along n, as column-major libraries see it, and along m."""
    found = []
    for rows, first, second in (("n", problem.n, problem.m), ("m", problem.m, problem.n)):
        across = _padded(ceil_div(first, tile[0]), cluster[0])
        along = _padded(ceil_div(second, tile[1]), cluster[1])
        found.append(Tiling(rows, across, along, problem.batch, 1, ""))
    return found[0], found[1]


def find_tiling(
    problem: MatrixProduct,
    tile: tuple[int, int],
    grid: Extent,
    *,
    cluster: tuple[int, int] = (1, 1),
    sm_count: int | None = None,
    splits_k: bool | None = None,
) -> Tiling | None:
    """The first arrangement of the tiles that gives the grid, the plainest first; None if none does.

    Tiles are padded to whole clusters. K is split (True), is not (False), or may be where grid.z tells it.
    """
    cuts = tilings(problem, tile, cluster)
    # Tiles along grid.x and grid.y, batches and splits of K along grid.z; or CUTLASS' threadblock swizzle:
    # one side multiplied, the other divided. Source: threadblock_swizzle.h.
    for factors in ((1,), _SWIZZLES):
        for cut in cuts:
            splits, rest = divmod(grid[2], cut.batch)
            if rest or not 1 <= splits <= _MOST_SPLITS or (splits_k is False and splits != 1):
                continue
            for factor in factors:
                if grid[:2] in (
                    (cut.across * factor, ceil_div(cut.along, factor)),
                    (cut.along * factor, ceil_div(cut.across, factor)),
                ):
                    how = "grid.x × grid.y tiles" if factor == 1 else f"tiles swizzled by {factor}"
                    return replace(cut, arrangement=how, splits=splits)
    for cut in cuts:
        found = _counted(cut, grid, cluster, sm_count, splits_k=bool(splits_k))
        if found is not None:
            return found
    return None


def _problem(call: CallArguments | None) -> MatrixProduct | None:
    """The product an operator computes; None if it is none, or its shapes are unknown or do not fit."""
    return None if call is None else matrix_product(call)


def _values(problem: MatrixProduct) -> dict[str, Any]:
    """What sentences say of a product."""
    return {
        "batch": problem.batch if problem.batch > 1 else None,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "count": problem.elements[0],
    }


def _padded(count: int, unit: int) -> int:
    return ceil_div(count, unit) * unit


def _counted(
    cut: Tiling, grid: Extent, cluster: tuple[int, int], sm_count: int | None, *, splits_k: bool
) -> Tiling | None:
    """The number of blocks alone: one per tile, several per tile along K, or as many clusters as fit."""
    blocks = prod(grid)
    splits, rest = divmod(blocks, cut.tiles)
    if not rest and (splits == 1 or (splits_k and splits <= _MOST_COUNTED_SPLITS)):
        return replace(cut, arrangement="one block per tile", splits=splits)
    size = prod(cluster)
    if sm_count and cut.tiles > blocks == sm_count // size * size:
        return replace(cut, arrangement="one block per multiprocessor, tiles in turn", is_persistent=True)
    return None


def _cut_values(cut: Tiling, problem: MatrixProduct, tile: tuple[int, ...], blocks: int) -> dict[str, Any]:
    covered = cut.across * cut.along * tile[0] * tile[1]
    outputs = problem.m * problem.n
    return {
        "along_first": "N" if cut.rows == "n" else "M",
        "along_second": "M" if cut.rows == "n" else "N",
        "tiles_in_turn": cut.tiles if cut.is_persistent else None,
        "tiles_each": cut.tiles / blocks,
        "across": cut.across,
        "down": cut.along,
        "used": format_fraction(outputs / covered) if covered > outputs else None,
        "splits": cut.splits if cut.splits > 1 else None,
    }


def _tile_formula(problem: MatrixProduct, tile: tuple[int, ...], cut: Tiling) -> str:
    first, second = (problem.n, problem.m) if cut.rows == "n" else (problem.m, problem.n)
    formula = f"{ceiling(first, tile[0])} × {ceiling(second, tile[1])}"
    if (cut.across, cut.along) != (ceil_div(first, tile[0]), ceil_div(second, tile[1])):
        formula += f", padded to whole clusters {cut.across} × {cut.along},"
    formula += " tiles"
    if cut.batch > 1:
        formula += f" × {cut.batch:,} products"
    if cut.splits > 1:
        formula += f" × {cut.splits} splits of K (read from the grid)"
    return formula


def _slices(launch: LaunchFacts, problem: MatrixProduct | None, tile: tuple[int, ...]) -> dict[str, Any]:
    """The slices of A and B that pass through shared memory."""
    if len(tile) < 3:
        return {}
    depth, stages, shared = tile[2], launch.kernel.stages or 0, launch.geometry.shared_memory_bytes or 0
    size = item_size_bytes(problem.operand_type) if problem is not None else None
    taken = stages * (tile[0] + tile[1]) * depth * (size or 0)
    return {
        "depth": depth,
        "steps": None if problem is None else ceil_div(problem.k, depth),
        "stages": stages if stages > 1 else None,
        "slices_bytes": taken if 0 < taken <= shared else None,
        "shared_bytes": shared,
    }


def _convolution_problem(shapes: ConvolutionShapes, product: str) -> MatrixProduct:
    """The product of one group that a direction computes, and how many groups there are."""
    groups = shapes.groups
    outputs, inputs, window = shapes.weight[0] // groups, shapes.weight[1], prod(shapes.weight[2:])
    output_places = shapes.output[0] * prod(shapes.output[2:])
    input_places = shapes.data[0] * prod(shapes.data[2:])
    if product == "dgrad":
        return MatrixProduct(groups, input_places, inputs, outputs * window)
    if product == "wgrad":
        return MatrixProduct(groups, outputs, inputs * window, output_places)
    return MatrixProduct(groups, output_places, outputs, inputs * window)
