"""Gradients of embedding tables: small batches in one launch, larger ones sorted and summed by segments.

Sources: aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu of PyTorch 2.6.0; the atomic
variant of later releases is known from recorded launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts
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
from opscope.model.evidence import Grade

__all__ = ["feature_gradient", "segment_bookkeeping", "segment_gradient", "segment_scatter"]

_WARP = 32
_ROWS_PER_THREAD = 10  # Source: EmbeddingBackwardKernel.cu, NROWS_PER_THREAD
_MAX_THREADS = 1024  # Source: EmbeddingBackwardKernel.cu, MAX_BLOCK_SIZE
_SMALL_BATCH = 3072  # Source: Embedding.cu, embedding_dense_backward_cuda


@dataclass(frozen=True)
class _Table:
    """Sizes of `aten::embedding_dense_backward`."""

    index_count: int
    weight_count: int
    features: int

    @property
    def segments(self) -> int:
        """Most distinct rows that can be hit."""
        return min(self.index_count, self.weight_count)

    @property
    def partial_segments(self) -> int:
        """Most parts of up to ten rows that the segments are cut into."""
        return self.index_count // _ROWS_PER_THREAD + self.segments

    @property
    def block(self) -> Extent:
        """One thread per feature, in whole warps."""
        return (min(self.padded_features, _MAX_THREADS), 1, 1)

    @property
    def padded_features(self) -> int:
        """Features rounded up to whole warps."""
        return ceil_div(self.features, _WARP) * _WARP


def feature_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`embedding_backward_feature_kernel`: features in parallel, indices in turn."""
    table = _table(launch)
    if table is not None:
        yield over(
            f"{plural(table.features, 'feature')} are independent: each sums over the {table.index_count:,} "
            "indices."
        )
        formula = f"{ceiling(table.features, _WARP)} blocks over the features"
        expected = Expected(formula, (ceil_div(table.features, _WARP), 1, 1), (_WARP, _WARP, 1))
        yield from checked(launch, [expected])
    yield computes(
        f"A block of {_WARP}×{_WARP} threads computes {_WARP} features of all rows, {_WARP} indices at a "
        "time."
    )
    yield memory("Gradients pass through shared memory; lanes read neighboring features of a row: coalesced.")
    yield synchronization(
        "__syncthreads() per chunk of indices; warps that hit one row find each other by ballot, and the "
        "first adds for all: deterministic, no atomics."
    )
    yield algorithm(f"Used for up to {_SMALL_BATCH:,} indices; more are sorted first.")


def segment_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`compute_grad_weight` and its atomic variant: partial sums of up to ten rows with one target."""
    table = _table(launch)
    if table is not None:
        yield over(
            f"Up to {table.partial_segments:,} partial segments × {table.features:,} features are "
            f"independent; a partial segment is up to {_ROWS_PER_THREAD} indices of one row."
        )
        work = table.partial_segments * table.padded_features
        most = f"for the most segments {table.index_count:,} indices can make"
        formula = f"{ceiling(work, table.block[0])} blocks, {most}"
        yield from checked(launch, [Expected(formula, (ceil_div(work, table.block[0]), 1, 1), table.block)])
        yield computes(
            f"A block of {table.block[0]} threads sums one partial segment, one feature per thread."
        )
    yield memory(
        "Neighboring threads read neighboring features of a gradient row: coalesced; rows follow the sorted "
        "order."
    )
    if "atomic" in launch.function_name:
        yield synchronization(
            "Partial sums are added to their row by atomics in global memory.", Grade.INFERRED
        )
    else:
        yield synchronization("None within the launch; the next one adds the partial sums of each row.")


def segment_scatter(launch: LaunchFacts) -> Iterator[Note]:
    """`sum_and_scatter`: adds the partial sums of each row and writes it."""
    table = _table(launch)
    if table is not None:
        yield over(f"Up to {table.segments:,} rows of {table.features:,} features are independent.")
        work = table.segments * table.padded_features
        formula = f"{ceiling(work, table.block[0])} blocks"
        yield from checked(launch, [Expected(formula, (ceil_div(work, table.block[0]), 1, 1), table.block)])
        yield computes(f"A block of {table.block[0]} threads writes one row, one feature per thread.")
    yield memory("Neighboring threads read and write neighboring features: coalesced.")
    yield synchronization("It follows the launch of the partial sums; within it, none.")


def segment_bookkeeping(launch: LaunchFacts) -> Iterator[Note]:
    """`krn_partials_per_segment`, `krn_partial_segment_offset`: sizes and starts of the partial segments."""
    table = _table(launch)
    if table is not None:
        yield over(f"Up to {plural(table.segments, 'segment')} are independent.")
        formula = f"{ceiling(table.segments, _WARP)} blocks"
        yield from checked(
            launch, [Expected(formula, (ceil_div(table.segments, _WARP), 1, 1), (_WARP, 1, 1))]
        )
    yield computes(f"A block of {_WARP} threads handles {_WARP} segments, one per thread.")
    yield synchronization("None: threads share nothing.")


def segment_total(launch: LaunchFacts) -> Iterator[Note]:
    """`compute_num_of_partial_segments`: where the last segment ends."""
    yield computes("One thread adds the last segment's start and size.")
    if launch.call is not None:
        yield from checked(launch, [Expected("one thread", (1, 1, 1), (1, 1, 1))])
    yield synchronization("It follows the launch that computed the segments' starts.")


def _table(launch: LaunchFacts) -> _Table | None:
    call = launch.call
    if call is None or call.name != "aten::embedding_dense_backward":
        return None
    gradient, indices, weights = call.tensor(0), call.tensor(1), call.integer(2)
    if gradient is None or indices is None or not weights or not gradient.shape:
        return None
    if not gradient.element_count or not indices.element_count:
        return None
    return _Table(indices.element_count, weights, gradient.shape[-1])
