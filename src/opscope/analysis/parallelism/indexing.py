"""Kernels that read or write by index: index, gather, scatter, index_select, index_put.

Sources: aten/src/ATen/native/cuda/IndexKernel.cu, ScatterGatherKernel.cu and Indexing.cu of PyTorch 2.6.0;
IndexKernelUtils.cu of later releases for vectorized_gather_kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts, OperatorCall, broadcast, item_size_bytes
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    independent,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)

__all__ = ["index_elements", "index_put_rows", "scatter_gather", "select_rows", "vectorized_gather"]

_SMALL_BLOCK = 128  # Source: Indexing.cu, getDefaultMaxThreadsPerBlock
_BLOCKS_PER_SM = 8
_GATHER_THREADS = 256  # Source: IndexKernelUtils.cu, max_num_threads
_WARP = 32
# Source: Indexing.cu, UNROLL and indices_per_block of index_put with accumulation.
_PUT_UNROLL = 4
_PUT_WARPS = 4
# Position of the index tensor in the operators' arguments.
_INDEX_AT = {
    **dict.fromkeys(
        ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
         "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill_"), 2
    ),
    "embedding": 1,
}  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Slices read by an index vector."""

    index_count: int
    slice_size: int
    item_bytes: int | None


def scatter_gather(launch: LaunchFacts) -> Iterator[Note]:
    """`_scatter_gather_elementwise_kernel<nt, vt, ...>`: one index element at a time."""
    call = launch.call
    index = None if call is None else call.tensor(_INDEX_AT.get(_short(call), -1))
    threads, work = launch.template_integer(0), launch.template_integer(1)
    is_scatter = "kernel<true" in launch.kernel.name
    if index is not None:
        yield over(
            f"{plural(index.element_count, 'index element')} ({shape_text(index.shape)}) are "
            + (
                "handled independently; several may name one target."
                if is_scatter
                else "independent: each fetches one element."
            )
        )
    if threads and work:
        yield computes(
            f"A block of {threads} threads handles {threads * work:,} index elements, {work} per thread."
        )
        if index is not None and index.element_count:
            per_block = threads * work
            expected = Expected(
                f"{ceiling(index.element_count, per_block)} blocks",
                (ceil_div(index.element_count, per_block), 1, 1),
                (threads, 1, 1),
            )
            yield from checked(launch, [expected])
    yield memory(
        "Indices are read in order; the addresses they name follow the data, so those accesses may be "
        "scattered."
    )
    if is_scatter and "Reduce" in launch.kernel.name:
        yield synchronization("Elements with the same target are combined by atomics in global memory.")
    elif not is_scatter:
        yield synchronization("None: every output element is written once.")


def index_elements(launch: LaunchFacts) -> Iterator[Note]:
    """`index_elementwise_kernel<nt, vt, ...>`: index, index_put, take, put."""
    threads, work = launch.template_integer(0), launch.template_integer(1)
    count = None if launch.call is None else _indexed_elements(launch.call)
    if count:
        yield over(f"{plural(count, 'indexed element')} are handled independently.")
    if threads and work:
        yield computes(f"A block of {threads} threads handles {threads * work} elements, {work} per thread.")
        if count:
            per_block = threads * work
            formula = f"{ceiling(count, per_block)} blocks"
            expected = Expected(formula, (ceil_div(count, per_block), 1, 1), (threads, 1, 1))
            yield from checked(launch, [expected])
    yield memory("Addresses follow the index tensors' values, so accesses may be scattered.")
    yield synchronization("None: threads share nothing.")


def vectorized_gather(launch: LaunchFacts) -> Iterator[Note]:
    """`vectorized_gather_kernel<alignment, index_t>`: whole rows, copied by vectors."""
    alignment = launch.template_integer(0)
    rows = None if launch.call is None else _gathered_rows(launch.call)
    if rows is not None:
        yield over(
            f"{plural(rows.index_count, 'row')} of {rows.slice_size:,} elements are copied independently."
        )
    if not alignment:
        return
    if rows is not None and rows.item_bytes:
        vectors = ceil_div(rows.slice_size * rows.item_bytes, alignment)
        threads = min(_GATHER_THREADS, ceil_div(vectors, _WARP) * _WARP)
        parts = ceil_div(vectors, _GATHER_THREADS)
        yield computes(
            f"A block of {threads} threads copies "
            f"{'one row' if parts == 1 else f'one of {parts} parts of a row'}: {vectors:,} vectors of "
            f"{alignment} B a row."
        )
        formula = f"{rows.index_count:,} rows × {ceiling(vectors, _GATHER_THREADS)} parts"
        yield from checked(launch, [Expected(formula, (rows.index_count, parts, 1), (threads, 1, 1))])
    yield memory(
        f"Each thread copies vectors of {alignment} B; a row is contiguous, so its loads and stores are "
        "coalesced."
    )
    yield synchronization("None: rows are independent.")


def select_rows(launch: LaunchFacts) -> Iterator[Note]:
    """`indexSelectSmallIndex`, `indexSelectLargeIndex`, `indexFuncSmallIndex`, `indexFuncLargeIndex`."""
    is_small = "Small" in launch.function_name
    slices = _slices(launch.call)
    if slices is not None:
        count, size = slices
        yield over(
            f"{plural(count, 'slice')} of {plural(size, 'element')}, {plural(size * count, 'element')} in "
            f"all, {independent(size * count)}."
        )
        yield from _select_launch(launch, size, size * count, is_small=is_small)
        if is_small:
            yield algorithm(
                f"Each thread keeps its place in the slice and walks all indices, {count} here: made for up "
                "to 16."
            )
    if not is_small:
        yield algorithm(
            "Each thread takes one element of one selected slice at a time, in a grid-stride loop."
        )
    yield memory("Inside a slice neighboring threads take neighboring elements, one at a time.")
    if launch.function_name.startswith("indexFunc"):
        yield synchronization("Slices that name one target are combined by atomics in global memory.")
    else:
        yield synchronization("None: every output element is written once.")


def _slices(call: OperatorCall | None) -> tuple[int, int] | None:
    """Selected slices, and elements of one: (self, dim, index, ...)."""
    if call is None:
        return None
    data, index, at = call.tensor(0), call.tensor(_INDEX_AT.get(_short(call), 2)), call.integer(1)
    if data is None or index is None or not data.shape or (at is None and len(data.shape) > 1):
        return None
    chosen = (at or 0) % len(data.shape)
    return index.element_count, prod(size for place, size in enumerate(data.shape) if place != chosen)


def index_put_rows(launch: LaunchFacts) -> Iterator[Note]:
    """`indexing_backward_kernel<scalar_t, SZ>`: rows added into places given by sorted indices."""
    rows = None if launch.call is None else _put_rows(launch.call)
    if rows is not None:
        yield over(
            f"{plural(rows.index_count, 'row')} of {rows.slice_size:,} elements; runs of one target are "
            "independent."
        )
        down = ceil_div(rows.index_count, _PUT_WARPS)
        across = ceil_div(rows.slice_size, _WARP * _PUT_UNROLL)
        parts = ceiling(rows.slice_size, _WARP * _PUT_UNROLL)
        formula = f"{ceiling(rows.index_count, _PUT_WARPS)} × {parts} parts of a row"
        yield from checked(launch, [Expected(formula, (down, across, 1), (_WARP, _PUT_WARPS, 1))])
    yield computes(
        f"A block of {_WARP}×{_PUT_WARPS} threads takes {_PUT_WARPS} entries of the sorted indices, one warp "
        "each."
    )
    yield memory(
        f"Lanes take neighboring elements of a row, {_PUT_UNROLL} per lane a {_WARP}-element step apart: "
        "coalesced."
    )
    yield synchronization(
        "Indices were sorted before, so the first warp of a run adds it up alone: no atomics."
    )


def _select_launch(launch: LaunchFacts, slice_size: int, total: int, *, is_small: bool) -> Iterator[Note]:
    work = slice_size if is_small else total
    threads = min(work, _SMALL_BLOCK)
    if not launch.sm_count or not threads:
        return
    wanted = ceil_div(work, _SMALL_BLOCK)
    blocks = min(wanted, launch.sm_count * _BLOCKS_PER_SM)
    what = "slice" if is_small else "elements"
    yield computes(
        f"A block of {threads} threads takes {threads} places of "
        f"{'every slice' if is_small else 'the output'}" + (" at a time." if blocks < wanted else ".")
    )
    formula = (
        f"{ceiling(work, _SMALL_BLOCK)} blocks over the {what}, at most {_BLOCKS_PER_SM} per multiprocessor"
    )
    yield from checked(launch, [Expected(formula, (blocks, 1, 1), (threads, 1, 1))])


def _short(call: OperatorCall) -> str:
    return call.name.removeprefix("aten::")


def _gathered_rows(call: OperatorCall) -> _Rows | None:
    """Rows of `gather` with an expanded index, `index_select`, `embedding` or `index`."""
    name = _short(call)
    data = call.tensor(0)
    if data is None or len(data.shape) < 1 or not data.element_count:
        return None
    item = item_size_bytes(data.type_name)
    index = call.tensor(_INDEX_AT.get(name, -1))
    if name == "gather" and index is not None and len(index.shape) == 2 and call.integer(1) == 0:
        return _Rows(index.shape[0], index.shape[1], item)
    if name in ("index_select", "embedding") and index is not None:
        return _Rows(index.element_count, data.element_count // data.shape[0], item)
    if name == "index":
        indices = call.tensor_list(1)
        if len(indices) == 1:
            return _Rows(indices[0].element_count, data.element_count // data.shape[0], item)
    return None


def _put_rows(call: OperatorCall) -> _Rows | None:
    """Rows of `index_put` whose indices stand for the leading dimensions."""
    data, indices, values = call.tensor(0), call.tensor_list(1), call.tensor(2)
    if _short(call) not in ("_index_put_impl_", "index_put_") or data is None:
        return None
    if (
        not indices
    ):  # members of optional lists are not recorded; values of the full shape begin with the indices'
        if (
            values is None
            or len(values.shape) != 2
            or values.shape[1:] != data.shape[1:]
            or not values.element_count
        ):
            return None
        return _Rows(values.shape[0], values.shape[1], None)
    common = broadcast(index.shape for index in indices)
    if not common or len(indices) > len(data.shape) or not all(index.shape for index in indices):
        return None
    slice_size = prod(data.shape[len(indices) :])
    return _Rows(prod(common), slice_size, None) if slice_size and prod(common) else None


def _indexed_elements(call: OperatorCall) -> int | None:
    """Elements of `index` or `index_put`: the indices' common shape times the dimensions left over."""
    name = _short(call)
    data, indices = call.tensor(0), call.tensor_list(1)
    if name == "flip":
        return data.element_count if data is not None else None
    if name == "take":
        index = call.tensor(1)
        return index.element_count if index is not None else None
    if name not in ("index", "index_put_", "_index_put_impl_", "index_put") or data is None or not indices:
        return None
    if len(indices) > len(data.shape):
        return None
    common = broadcast(index.shape for index in indices)
    if not common or not all(index.shape for index in indices):
        return None
    return prod(common) * prod(data.shape[len(indices) :])
