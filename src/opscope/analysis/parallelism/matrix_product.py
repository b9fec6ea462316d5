"""Matrix products: tiled GEMM of any library, products with a vector or few columns, split-K reduction.

Tile, stages and cluster are read from names: CUTLASS' are documented, those of xmma, nvjet and the older
cuBLAS kernels observed. What the grid does not confirm is said to be unexplained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opscope.analysis.parallelism.account import Expected, LaunchCheck, Note, Statement, checked, extent_text
from opscope.analysis.parallelism.facts import LaunchFacts, item_size_bytes
from opscope.analysis.parallelism.tiling import MatrixProblem, Tiling, find_tiling, matrix_problem, tilings
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    memory,
    over,
    plural,
    synchronization,
)
from opscope.model.evidence import Grade, weakest
from opscope.units import format_fraction

__all__ = ["dot_product", "few_columns", "split_k_reduction", "tiled_product"]

# Grids of older cuBLAS and of cuBLASLt kernels are laid out by rules that are not published.
_GRID_GRADE = Grade.INFERRED
_LOADING_WARPS = re.compile(r"nvjet|sm(?:9|1[0-2])\d")


def tiled_product(launch: LaunchFacts) -> Iterator[Note]:
    """Output tiles in parallel, K in sequence."""
    problem = matrix_problem(launch.call)
    tile = _extents(launch.kernel.tile)
    if problem is not None:
        yield from _parallel(problem)
    if len(tile) < 2:
        return
    grade = weakest([launch.kernel.grades.get("tile", _GRID_GRADE)]) or _GRID_GRADE
    cut = _cut(launch, problem, tile)
    yield from _tile_work(launch, problem, tile, cut, grade)
    if problem is not None and launch.grid is not None:
        yield _tile_check(launch, problem, tile, cut)
    yield from _slices(launch, problem, tile, grade)
    yield from _waiting(launch, cut)
    yield from _mathematics(launch)


def few_columns(launch: LaunchFacts) -> Iterator[Note]:
    """The `gemv2T_kernel_val` and `gemmSN_..._kernel`: threads share each output's dot product."""
    problem = matrix_problem(launch.call)
    numbers = [
        value
        for position in range(len(launch.kernel.template_arguments))
        if (value := launch.template_integer(position)) is not None
    ]
    if problem is None:
        return
    yield from _parallel(problem)
    if len(numbers) < 2 or not numbers[1] or numbers[0] % numbers[1]:
        return
    threads, sharing = numbers[:2]
    per_block = threads // sharing
    outputs = max(problem.m, problem.n)
    blocks = ceil_div(outputs, per_block)
    formula = f"ceil({outputs:,} outputs of the long side / {per_block} per block) blocks"
    expected = Expected(formula, (blocks, 1, problem.batch), (threads, 1, 1))
    for check in checked(launch, [expected], Grade.INFERRED):
        if check.is_explained:
            yield computes(
                f"A block of {threads} threads computes {plural(per_block, 'output')} of the long side, "
                f"{sharing} threads sharing each dot product of {problem.k:,} terms.",
                Grade.INFERRED,
            )
            yield synchronization(
                f"The {sharing} threads of an output add up their partial sums.", Grade.INFERRED
            )
        yield check


def split_k_reduction(launch: LaunchFacts) -> Iterator[Note]:
    """`cublasLt::splitKreduce_kernel<width, height, ...>`: adds the partial products of a split along K."""
    problem = matrix_problem(launch.call)
    width, height = launch.template_integer(0), launch.template_integer(1)
    if problem is not None:
        yield over(
            f"All {problem.batch * problem.m * problem.n:,} output elements are independent: each adds its "
            "own partial products.",
        )
    if problem is not None and width and height:
        for check in checked(launch, _reduction_grids(problem, width, height), Grade.INFERRED):
            if check.is_explained:
                yield computes(
                    f"A block of {width}×{height} threads finishes {width}×{height} elements, one per "
                    "thread.",
                    Grade.INFERRED,
                )
            yield check
    yield synchronization("It follows the launch that computed the partial products; within it, none.")
    yield algorithm(
        "Sum over the splits of each element, then the epilogue (scale, bias, type).", Grade.INFERRED
    )


def dot_product(launch: LaunchFacts) -> Iterator[Note]:
    """The `dot_kernel<type, threads, ...>` and the `reduce_1Block_kernel` after it."""
    tensor = launch.tensor(0)
    threads = launch.template_integer(1)
    if launch.call is None or launch.call.name != "aten::dot" or tensor is None or not threads:
        return
    count = tensor.element_count
    yield over(f"The {count:,} products are independent; their sum is associative.", Grade.INFERRED)
    if launch.function_name == "reduce_1Block_kernel":
        yield from checked(launch, [Expected("one block adds the partial sums", (1, 1, 1))], Grade.INFERRED)
        yield synchronization("It follows the launch that left one partial sum per block.", Grade.INFERRED)
        return
    expected = Expected(
        f"{ceiling(count, threads)} blocks", (ceil_div(count, threads), 1, 1), (threads, 1, 1)
    )
    yield from checked(launch, [expected], Grade.INFERRED)
    yield computes(f"A block of {threads} threads adds up {threads} products.", Grade.INFERRED)
    yield synchronization("A second launch of one block adds the blocks' partial sums.", Grade.INFERRED)


def _reduction_grids(problem: MatrixProblem, width: int, height: int) -> Iterator[Expected]:
    """Blocks over the output in either orientation, counted along one or two sides of the grid."""
    block = (width, height, 1)
    for first, second in ((problem.n, problem.m), (problem.m, problem.n)):
        across, down = ceil_div(first, width), ceil_div(second, height)
        formula = f"{ceiling(first, width)} × {ceiling(second, height)} blocks"
        yield Expected(formula, (across, down, problem.batch), block)
        yield Expected(formula, (across * down, 1, problem.batch), block)


def _parallel(problem: MatrixProblem) -> Iterator[Statement]:
    count = problem.batch * problem.m * problem.n
    batches = f"{problem.batch:,} × " if problem.batch > 1 else ""
    yield over(
        f"The {count:,} output elements ({batches}{problem.m:,}×{problem.n:,}) are independent dot products "
        f"of {plural(problem.k, 'term')}; sums along K are associative, so K can be split too."
    )


def _extents(text: str | None) -> tuple[int, ...]:
    """`128x64x8` as numbers; empty if it is something else."""
    parts = (text or "").split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() and int(part) > 0 for part in parts) else ()


def _cluster(launch: LaunchFacts) -> tuple[int, int]:
    extents = _extents(launch.kernel.cluster)
    return (extents[0], extents[1]) if len(extents) >= 2 else (1, 1)


def _cut(launch: LaunchFacts, problem: MatrixProblem | None, tile: tuple[int, ...]) -> Tiling | None:
    if problem is None or launch.grid is None:
        return None
    return find_tiling(
        problem,
        (tile[0], tile[1]),
        launch.grid,
        cluster=_cluster(launch),
        sm_count=launch.sm_count,
        splits_k=launch.kernel.split_k or None,
    )


def _tile_work(
    launch: LaunchFacts,
    problem: MatrixProblem | None,
    tile: tuple[int, ...],
    cut: Tiling | None,
    grade: Grade,
) -> Iterator[Statement]:
    threads = f" of {launch.thread_count:,} threads" if launch.thread_count else ""
    sides = ""
    if cut is not None:
        first, second = ("n", "m") if cut.rows == "n" else ("m", "n")
        sides = f" ({tile[0]} along {first.upper()}, {tile[1]} along {second.upper()})"
    per_thread = ""
    # From compute capability 9.0 on some warps of a block load only: no share per thread.
    if launch.thread_count and not _LOADING_WARPS.search(launch.kernel.name):
        per_thread = f", {tile[0] * tile[1] / launch.thread_count:g} elements per thread"
    yield computes(
        f"A block{threads} computes a {tile[0]}×{tile[1]} tile of the output{sides}{per_thread}.", grade
    )
    if cut is None or problem is None:
        return
    if cut.is_persistent and launch.block_count:
        yield computes(
            f"{launch.block_count:,} blocks take {cut.tiles:,} tiles in turn, "
            f"{cut.tiles / launch.block_count:.2f} each.",
            _GRID_GRADE,
        )
    covered = cut.across * cut.along * tile[0] * tile[1]
    if covered > problem.m * problem.n:
        used = problem.m * problem.n / covered
        yield computes(
            f"{cut.across}×{cut.along} tiles cover more than the output: {format_fraction(used)} of their "
            "elements are used.",
            grade,
        )


def _tile_check(
    launch: LaunchFacts, problem: MatrixProblem, tile: tuple[int, ...], cut: Tiling | None
) -> LaunchCheck:
    if cut is None:
        tried = tuple(
            Expected(_tile_formula(problem, tile, one), (one.across, one.along, one.batch))
            for one in tilings(problem, (tile[0], tile[1]), _cluster(launch))
        )
        return LaunchCheck(tried, None, _GRID_GRADE)
    found = Expected(_tile_formula(problem, tile, cut), launch.grid, launch.block, cut.arrangement)
    return LaunchCheck((found,), found, _GRID_GRADE)


def _tile_formula(problem: MatrixProblem, tile: tuple[int, ...], cut: Tiling) -> str:
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


def _slices(
    launch: LaunchFacts, problem: MatrixProblem | None, tile: tuple[int, ...], grade: Grade
) -> Iterator[Statement]:
    """The slices of A and B that pass through shared memory."""
    if len(tile) < 3:
        return
    depth = tile[2]
    size = item_size_bytes(problem.operand_type) if problem is not None else None
    steps = (
        f": {plural(ceil_div(problem.k, depth), 'step')} for K = {problem.k:,}" if problem is not None else ""
    )
    yield algorithm(
        f"K is walked in slices of {depth}{steps}; each loads {tile[0]}×{depth} and {tile[1]}×{depth} "
        "elements.",
        grade,
    )
    stages, shared = launch.kernel.stages, launch.geometry.shared_memory_bytes
    if not stages or stages < 2:
        return
    yield algorithm(
        f"{stages} slices are in flight at a time (software pipeline), so loads overlap arithmetic.", grade
    )
    taken = stages * (tile[0] + tile[1]) * depth * (size or 0)
    if shared and 0 < taken <= shared:
        yield memory(
            f"The {stages} slices of both operands take {taken:,} B of the block's {shared:,} B shared "
            "memory.",
            grade,
        )


def _waiting(launch: LaunchFacts, cut: Tiling | None) -> Iterator[Statement]:
    splits = cut.splits if cut is not None else None
    if splits and splits > 1:
        yield synchronization(
            f"K is split over {splits} blocks per tile: their partial products have to be added across "
            "blocks.",
            _GRID_GRADE,
        )
    elif launch.kernel.split_k:
        yield synchronization(
            "K is split over blocks: partial products have to be added across blocks.", _GRID_GRADE
        )
    elif cut is not None:
        yield synchronization(
            "Blocks are independent: each finishes its tiles alone. Threads of a block meet at every slice "
            "of K.",
            _GRID_GRADE,
        )
    cluster = _cluster(launch)
    if cluster != (1, 1):
        yield synchronization(
            f"Blocks run in clusters of {extent_text((*cluster, 1))}, whose blocks are scheduled together.",
            launch.kernel.grades.get("cluster", _GRID_GRADE),
        )


def _mathematics(launch: LaunchFacts) -> Iterator[Statement]:
    kernel = launch.kernel
    if kernel.tensor_core is None:
        return
    grade = kernel.grades.get("tensor_core", _GRID_GRADE)
    if kernel.tensor_core:
        shape = f", matrix instructions of {kernel.mma_shape.replace('x', '×')}" if kernel.mma_shape else ""
        yield algorithm(f"Tensor cores{shape}.", grade)
    else:
        yield algorithm("Multiply-adds on the ordinary cores, no tensor cores.", grade)
