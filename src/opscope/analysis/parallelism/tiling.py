"""A matrix product cut into output tiles, and the grids that such a cut explains.

The problem comes from the operator's recorded shapes, the tile from the kernel's name. Libraries see
row-major matrices transposed, lay tiles out in either order, swizzle them, split K, or launch a fixed number
of blocks that take tiles in turn; which of these gives the recorded grid is found by trying each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.facts import Extent, OperatorCall
from opscope.analysis.parallelism.wording import ceil_div

__all__ = ["MatrixProblem", "Tiling", "find_tiling", "matrix_problem", "tilings"]

_SWIZZLES = (2, 4, 8)
_MOST_SPLITS = 1024
_MOST_COUNTED_SPLITS = 64
# Positions of the two factors in the operators' arguments.
_FACTORS_AT = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::matmul": (0, 1),
    "aten::mv": (0, 1),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::addmv": (1, 2),
    "aten::addmv_": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
}


@dataclass(frozen=True)
class MatrixProblem:
    """`batch` products of an m×k with a k×n matrix."""

    batch: int
    m: int
    n: int
    k: int
    operand_type: str | None = None


@dataclass(frozen=True)
class Tiling:
    """One way the problem is cut and launched.

    Attributes:
        rows: `m` or `n`: the side of the output that the tile's first extent covers.
        across: Tiles along that side, padded to whole clusters where there are any.
        along: Tiles along the other side.
        splits: Parts K is cut into.
        arrangement: How tiles become blocks, in words.
        is_persistent: Fewer blocks than tiles; each takes several.
    """

    rows: str
    across: int
    along: int
    batch: int
    splits: int
    arrangement: str
    is_persistent: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of all batches and splits."""
        return self.across * self.along * self.batch * self.splits


def matrix_problem(call: OperatorCall | None) -> MatrixProblem | None:
    """The product an operator computes; None if it is none, or its shapes are unknown or do not fit."""
    if call is None:
        return None
    if call.name == "aten::linear":
        return _linear(call)
    positions = _FACTORS_AT.get(call.name)
    if positions is None:
        return None
    left, right = (call.tensor(position) for position in positions)
    if left is None or right is None:
        return None
    return _product(left.shape, right.shape, left.type_name)


def tilings(
    problem: MatrixProblem, tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)
) -> tuple[Tiling, Tiling]:
    """The problem cut with the tile's first extent along n, as column-major libraries see it, and along m."""
    found = []
    for rows, first, second in (("n", problem.n, problem.m), ("m", problem.m, problem.n)):
        across = _padded(ceil_div(first, tile[0]), cluster[0])
        along = _padded(ceil_div(second, tile[1]), cluster[1])
        found.append(Tiling(rows, across, along, problem.batch, 1, ""))
    return found[0], found[1]


def find_tiling(
    problem: MatrixProblem,
    tile: tuple[int, int],
    grid: Extent,
    *,
    cluster: tuple[int, int] = (1, 1),
    sm_count: int | None = None,
    splits_k: bool | None = None,
) -> Tiling | None:
    """The first arrangement of the tiles that gives the grid, the plainest first; None if none does.

    Args:
        problem: The product.
        tile: Extents of one tile.
        grid: As recorded.
        cluster: Thread-block cluster; tiles are padded to whole ones.
        sm_count: Of the device.
        splits_k: K is split (True), is not (False), or may be where grid.z tells it (None).
    """
    cuts = tilings(problem, tile, cluster)
    for attempt in (_laid_out, _swizzled):
        for cut in cuts:
            found = attempt(cut, grid)
            if found is not None and (splits_k is not False or found.splits == 1):
                return found
    for cut in cuts:
        found = _counted(cut, grid, cluster, sm_count, splits_k=bool(splits_k))
        if found is not None:
            return found
    return None


def _linear(call: OperatorCall) -> MatrixProblem | None:
    data, weight = call.tensor(0), call.tensor(1)
    if data is None or weight is None or len(weight.shape) != 2 or not data.shape:
        return None
    n, k = weight.shape
    if data.shape[-1] != k:
        return None
    return _checked(MatrixProblem(1, prod(data.shape[:-1]), n, k, data.type_name))


def _product(left: tuple[int, ...], right: tuple[int, ...], operand_type: str | None) -> MatrixProblem | None:
    if len(left) < 2 or len(right) not in (1, len(left)) or left[-1] != right[-2 if len(right) > 1 else -1]:
        return None
    n = right[-1] if len(right) > 1 else 1
    if len(right) > 1 and left[:-2] != right[:-2]:
        return None
    return _checked(MatrixProblem(prod(left[:-2]), left[-2], n, left[-1], operand_type))


def _checked(problem: MatrixProblem) -> MatrixProblem | None:
    return problem if min(problem.batch, problem.m, problem.n, problem.k) > 0 else None


def _padded(count: int, unit: int) -> int:
    return ceil_div(count, unit) * unit


def _with(cut: Tiling, arrangement: str, *, splits: int = 1, is_persistent: bool = False) -> Tiling:
    return Tiling(cut.rows, cut.across, cut.along, cut.batch, splits, arrangement, is_persistent)


def _laid_out(cut: Tiling, grid: Extent) -> Tiling | None:
    """Tiles along grid.x and grid.y, batches and splits of K along grid.z."""
    splits, rest = divmod(grid[2], cut.batch)
    if rest or not 1 <= splits <= _MOST_SPLITS:
        return None
    if grid[:2] == (cut.across, cut.along):
        return _with(cut, "grid.x × grid.y tiles", splits=splits)
    if grid[:2] == (cut.along, cut.across):
        return _with(cut, "grid.x × grid.y tiles", splits=splits)
    return None


def _swizzled(cut: Tiling, grid: Extent) -> Tiling | None:
    """CUTLASS' threadblock swizzle: one side multiplied, the other divided. Source: threadblock_swizzle.h."""
    splits, rest = divmod(grid[2], cut.batch)
    if rest or not 1 <= splits <= _MOST_SPLITS:
        return None
    for factor in _SWIZZLES:
        if grid[:2] in (
            (cut.across * factor, ceil_div(cut.along, factor)),
            (cut.along * factor, ceil_div(cut.across, factor)),
        ):
            return _with(cut, f"tiles swizzled by {factor}", splits=splits)
    return None


def _counted(
    cut: Tiling, grid: Extent, cluster: tuple[int, int], sm_count: int | None, *, splits_k: bool
) -> Tiling | None:
    """The number of blocks alone: one per tile, several per tile along K, or as many clusters as fit."""
    blocks = prod(grid)
    splits, rest = divmod(blocks, cut.tiles)
    if not rest and (splits == 1 or (splits_k and splits <= _MOST_COUNTED_SPLITS)):
        return _with(cut, "one block per tile", splits=splits)
    size = prod(cluster)
    if sm_count and cut.tiles > blocks == sm_count // size * size:
        return _with(cut, "one block per multiprocessor, tiles in turn", is_persistent=True)
    return None
