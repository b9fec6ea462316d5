"""Matrix products and convolutions: output tiles in parallel, and the grids that such a cut explains.

The problem comes from the operator's recorded shapes, the tile from the kernel's name: CUTLASS' are
documented, those of xmma, nvjet and the older cuBLAS kernels observed. Libraries see row-major matrices
transposed, lay tiles out in either order, swizzle them, split K, or launch a fixed number of blocks that take
tiles in turn; which of these gives the recorded grid is found by trying each. An implicit GEMM multiplies
matrices that are never formed: output places × channels, over filter window × channels; cuDNN's grids are not
documented.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import msgspec

from opscope.launches.facts import (
    Expected,
    Extent,
    LaunchFacts,
    Prediction,
    ceil_div,
    ceiling,
    extent_text,
    extents,
    shape_text,
)
from opscope.model.origin import Grade
from opscope.operators.arguments import item_size_bytes
from opscope.operators.products import MatrixProduct, matrix_product
from opscope.operators.windows import convolution_shapes
from opscope.units import format_fraction

_SWIZZLES = (1, 2, 4, 8)
_MOST_SPLITS = 1024
_MOST_COUNTED_SPLITS = 64
_LOADING_WARPS = re.compile(r"nvjet|sm(?:9|1[0-2])\d")


class Tiling(msgspec.Struct, frozen=True):
    """One way the problem is cut and launched."""

    rows: str  # `m` or `n`: the side of the output that the tile's first extent covers
    across: int  # tiles along that side, padded to whole clusters where there are any
    along: int  # tiles along the other side
    batch: int
    splits: int = 1  # parts K is cut into
    arrangement: str = ""  # how tiles become blocks, in words
    is_persistent: bool = False  # fewer blocks than tiles; each takes several

    @property
    def tiles(self) -> int:
        return self.across * self.along * self.batch * self.splits


def tiled_product(launch: LaunchFacts) -> Prediction:
    """Output tiles in parallel, K in sequence."""
    kernel, problem, tile = launch.kernel, _problem(launch), extents(launch.kernel.tile)
    values = _of_product(problem)
    if len(tile) < 2:
        return Prediction(values)
    first, second, *depth = tile
    named = extents(kernel.cluster)
    cluster = (named[0], named[1]) if len(named) >= 2 else (1, 1)
    threads, shared = launch.thread_count, launch.geometry.shared_memory_bytes or 0
    values.update(
        first=first,
        second=second,
        tile_grade=kernel.grades.get("tile", Grade.INFERRED),
        cluster=None if cluster == (1, 1) else extent_text((*cluster, 1)),
        cluster_grade=kernel.grades.get("cluster", Grade.INFERRED),
        splits_k=bool(kernel.split_k),
        tensor_core_grade=kernel.grades.get("tensor_core", Grade.INFERRED),
        on_tensor_cores=kernel.tensor_core is True,
        off_tensor_cores=kernel.tensor_core is False,
        mma_shape=kernel.mma_shape.replace("x", "×") if kernel.mma_shape else None,
        # From compute capability 9.0 on some warps of a block load only: no share per thread.
        per_thread=first * second / threads if threads and not _LOADING_WARPS.search(kernel.name) else None,
    )
    if depth:  # slices of A and B pass through shared memory
        stages, size = kernel.stages or 0, None if problem is None else item_size_bytes(problem.operand_type)
        taken = stages * (first + second) * depth[0] * (size or 0)
        values.update(
            depth=depth[0],
            steps=None if problem is None else ceil_div(problem.k, depth[0]),
            stages=stages if stages > 1 else None,
            slices_bytes=taken if 0 < taken <= shared else None,
            shared_bytes=shared,
        )
    if problem is None or launch.grid is None:
        return Prediction(values)
    sizes, blocks = (first, second), prod(launch.grid)
    cut = find_tiling(
        problem,
        sizes,
        launch.grid,
        cluster=cluster,
        sm_count=launch.sm_count,
        splits_k=kernel.split_k or None,
    )
    if cut is None:
        return Prediction(
            values,
            [
                Expected(_tile_formula(problem, sizes, one), (one.across, one.along, one.batch))
                for one in tilings(problem, sizes, cluster)
            ],
        )
    covered, outputs = cut.across * cut.along * first * second, problem.m * problem.n
    values.update(
        along_first=cut.rows.upper(),
        along_second="M" if cut.rows == "n" else "N",
        tiles_in_turn=cut.tiles if cut.is_persistent else None,
        tiles_each=cut.tiles / blocks,
        across=cut.across,
        down=cut.along,
        used=format_fraction(outputs / covered) if covered > outputs else None,
        splits=cut.splits if cut.splits > 1 else None,
        splits_k=bool(kernel.split_k) and cut.splits == 1,
        blocks_alone=cut.splits == 1 and not kernel.split_k,
    )
    formula = f"{_tile_formula(problem, sizes, cut)} ({cut.arrangement})"
    return Prediction(values, [Expected(formula, launch.grid)])


def _problem(launch: LaunchFacts) -> MatrixProduct | None:
    """The product an operator computes; None if it is none, or its shapes are unknown or do not fit."""
    return None if launch.call is None else matrix_product(launch.call)


def product(launch: LaunchFacts) -> Prediction:
    """Kernels whose blocks are no tiles: matrix-vector products, the sums after a split along K."""
    values = _of_product(_problem(launch))
    # gemv2T_kernel_val and gemmSN_…_kernel: the first integers are threads, and how many share an output.
    arguments = map(launch.template_integer, range(len(launch.kernel.template_arguments)))
    threads, sharing = [*(number for number in arguments if number is not None), 0, 0][:2]
    if threads == launch.thread_count and sharing and not threads % sharing:
        values.update(sharing=sharing, per_block=threads // sharing)
    return Prediction(values)


def dot_product(launch: LaunchFacts) -> Prediction:
    """The `dot_kernel<type, threads, ...>` and the `reduce_1Block_kernel` after it."""
    tensor, is_last = launch.tensor("self"), launch.function_name == "reduce_1Block_kernel"
    if launch.call is None or launch.call.name != "aten::dot" or tensor is None:
        return Prediction()
    return Prediction({"count": tensor.element_count, "is_last": is_last, "is_first": not is_last})


def convolution(launch: LaunchFacts) -> Prediction:
    """Any convolution kernel: parallel over what its direction computes, tiled where a tile is named."""
    name, shapes = launch.kernel.name, None if launch.call is None else convolution_shapes(launch.call)
    usual = "fprop" if "implicit_convolve" in name else None
    direction = next((one for one in ("fprop", "dgrad", "wgrad") if one in name), usual)
    is_winograd, tile = "winograd" in name.lower(), extents(launch.kernel.tile)
    values: dict[str, Any] = {
        "is_winograd": is_winograd,
        "is_implicit": not is_winograd and ("implicit" in name or direction is not None),
    }
    if shapes is None or direction is None:
        return Prediction(values)
    groups = shapes.groups
    channels, inputs, window = shapes.weight[0] // groups, shapes.weight[1], prod(shapes.weight[2:])
    places, input_places = (one[0] * prod(one[2:]) for one in (shapes.output, shapes.data))
    sizes, what = {
        "fprop": ((places, channels, inputs * window), "output places × output channels"),
        "dgrad": ((input_places, inputs, channels * window), "input places × input channels"),
        "wgrad": ((channels, inputs * window, places), "output channels × filter weights"),
    }[direction]
    values.update(
        _of_product(MatrixProduct(groups, *sizes)),
        groups=groups if groups > 1 else None,
        what=what,
        input=shape_text(shapes.data),
        filter=shape_text(shapes.weight),
    )
    if len(tile) >= 2:
        values.update(first=tile[0], second=tile[1])
    return Prediction(values)


def tilings(
    problem: MatrixProduct, tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)
) -> tuple[Tiling, Tiling]:
    """The problem cut with the tile's first extent along n, as column-major libraries see it, and along m.

    Tiles are padded to whole clusters.
    """

    def cut(rows: str, first: int, second: int) -> Tiling:
        across, along = (
            ceil_div(ceil_div(size, extent), unit) * unit
            for size, extent, unit in zip((first, second), tile, cluster, strict=True)
        )
        return Tiling(rows, across, along, problem.batch)

    return cut("n", problem.n, problem.m), cut("m", problem.m, problem.n)


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

    K is split (True), is not (False), or may be where grid.z tells it.
    """
    cuts, blocks = tilings(problem, tile, cluster), prod(grid)
    # Tiles along grid.x and grid.y, batches and splits of K along grid.z; or CUTLASS' threadblock swizzle:
    # one side multiplied, the other divided. Source: threadblock_swizzle.h.
    for factors in (_SWIZZLES[:1], _SWIZZLES[1:]):
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
                    return msgspec.structs.replace(cut, arrangement=how, splits=splits)
    # The number of blocks alone: one per tile, several per tile along K, or as many clusters as fit.
    for cut in cuts:
        splits, rest = divmod(blocks, cut.tiles)
        if not rest and (splits == 1 or (splits_k and splits <= _MOST_COUNTED_SPLITS)):
            return msgspec.structs.replace(cut, arrangement="one block per tile", splits=splits)
        size = prod(cluster)
        if sm_count and cut.tiles > blocks == sm_count // size * size:
            how = "one block per multiprocessor, tiles in turn"
            return msgspec.structs.replace(cut, arrangement=how, is_persistent=True)
    return None


def _of_product(problem: MatrixProduct | None) -> dict[str, Any]:
    if problem is None:
        return {}
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    return {"batch": batch if batch > 1 else None, "m": m, "n": n, "k": k, "count": batch * m * n}


def _tile_formula(problem: MatrixProduct, tile: tuple[int, int], cut: Tiling) -> str:
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
