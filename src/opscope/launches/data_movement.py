"""Kernels that move elements: concatenation, by index, embedding gradients, lists of tensors, the driver.

Sources: aten/src/ATen/native/cuda of PyTorch 2.6.0: Shape.cu, TriangularOps.cu, IndexKernel.cu,
ScatterGatherKernel.cu, Indexing.cu, Embedding.cu, EmbeddingBackwardKernel.cu, ForeachReduceOp.cu;
IndexKernelUtils.cu of later releases for vectorized_gather_kernel; MultiTensorApply.cuh of 2.6.0 and 2.11.0.
The vectorized concatenation and atomic embedding gradient of later releases are known from recorded
launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.launches.facts import LaunchFacts
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    plural,
    shape_text,
)
from opscope.operators.arguments import TensorArgument, broadcast
from opscope.operators.element_types import item_size_bytes
from opscope.units import format_bytes

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "concatenation",
    "driver_copy",
    "feature_gradient",
    "index_elements",
    "index_put_rows",
    "multi_tensor_apply",
    "scatter_gather",
    "segment_bookkeeping",
    "segment_gradient",
    "segment_scatter",
    "segment_total",
    "select_rows",
    "triangle",
    "vectorized_gather",
]

_WARP = 32
# Source: Shape.cu, getCatGridContig, getCatGrid, CAT_ARRAY_BATCH_SIZE.
_CONTIGUOUS_THREADS = 128
_STRIDED_THREADS = 512
_CONTIGUOUS_BLOCKS_PER_SM = 32
_STRIDED_BLOCKS_PER_SM = 2
_VECTOR_BYTES = 16
_TRIANGLE_THREADS = 128  # Source: TriangularOps.cu, block_size
_COPY_SIDES = {
    "host_to_device": "from host to device",
    "device_to_host": "from device to host",
    "device_to_device": "within the device",
    "peer_to_peer": "between devices",
    "host_to_host": "within the host",
}
_SELECT_THREADS = 128  # Source: Indexing.cu, getDefaultMaxThreadsPerBlock
_SELECT_BLOCKS_PER_SM = 8
_GATHER_THREADS = 256  # Source: IndexKernelUtils.cu, max_num_threads
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
# Source: EmbeddingBackwardKernel.cu, NROWS_PER_THREAD, MAX_BLOCK_SIZE; Embedding.cu,
# embedding_dense_backward_cuda.
_ROWS_PER_THREAD = 10
_TABLE_MAX_THREADS = 1024
_SMALL_BATCH = 3072
# Source: MultiTensorApply.cuh: kChunkSize, kBlockSize, kILP, depth_to_max_blocks (the same for every depth);
# tensors of one launch by number of lists: depth_to_max_tensors, depth_to_max_tensors_scalarlist.
_CHUNK = 65_536
_CHUNK_THREADS = 512
_CHUNK_VECTOR = 4
_MOST_CHUNKS = 320
_MOST_TENSORS = (110, 64, 48, 36, 30)
_MOST_TENSORS_WITH_SCALARS = (96, 64, 48, 36, 30)
_METADATA = re.compile(
    r"(TensorListMetadata|TensorListScalarListMetadata|FusedOptimizerTensorListMetadata)<.*?(\d+)>?$"
)


@dataclass(frozen=True)
class _Rows:
    """Slices named by an index vector."""

    count: int
    length: int
    item_bytes: int | None = None


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
    def padded_features(self) -> int:
        """Features rounded up to whole warps."""
        return ceil_div(self.features, _WARP) * _WARP

    @property
    def threads(self) -> int:
        """One thread per feature, in whole warps."""
        return min(self.padded_features, _TABLE_MAX_THREADS)


def concatenation(launch: LaunchFacts) -> Prediction:
    """`CatArrayBatchedCopy<OpaqueType<size>, ...>` and its contiguous, aligned and vectorized forms."""
    call, name, threads = launch.call, launch.function_name, launch.thread_count
    inputs = () if call is None or call.name != "aten::cat" else call.tensor_list(0) or ()
    text = (launch.template_argument(0) or "").rpartition("OpaqueType<")[2].rstrip("> uU")
    size = int(text) if text.isdecimal() and 0 < int(text) <= _VECTOR_BYTES else None
    values: dict[str, Any] = {}
    if inputs:
        values.update(count=sum(tensor.element_count for tensor in inputs), tensors=len(inputs))
    if name.endswith(("vectorized", "alignedK_contig", "aligned16_contig")) and size:
        vector = max(_vector_bytes(launch) // size, 1)
        values.update(
            vector=vector,
            vector_bytes=vector * size,
            item_bytes=size,
            per_block=threads * vector if threads else None,
            stores_singly=not name.endswith("vectorized"),
        )
    elif threads:
        values["by_element"] = True
    expected = list(_concatenation_grids(launch, inputs, size)) if inputs else []
    return Prediction(values, expected)


def triangle(launch: LaunchFacts) -> Prediction:
    """`triu_tril_kernel<scalar_t, IndexType, upper, elements_per_thread, inplace>`."""
    work, tensor, is_in_place = launch.template_integer(3), launch.tensor(0), launch.template_integer(4) == 1
    values: dict[str, Any] = {}
    if tensor is not None and tensor.element_count:
        values.update(count=tensor.element_count, shape=shape_text(tensor.shape))
    if not work:
        return Prediction(values)
    per_block = _TRIANGLE_THREADS * work
    values.update(threads=_TRIANGLE_THREADS, work=work, per_block=per_block)
    values["is_in_place" if is_in_place else "is_copied"] = True
    if tensor is None or len(tensor.shape) < 2 or not tensor.element_count:
        return Prediction(values)
    padded = ceil_div(tensor.shape[-1], work) * work * prod(tensor.shape[:-1])
    what = f"blocks (rows padded to multiples of {work})"
    return Prediction(values, [blocks_over(padded, per_block, _TRIANGLE_THREADS, what)])


def driver_copy(launch: LaunchFacts) -> Prediction:
    """`Memcpy HtoD (Pageable -> Device)`, `Memset (Device)` and relatives: no grid."""
    moved = format_bytes(launch.size_bytes) if launch.size_bytes else None
    return Prediction({"moved": moved, "sides": _COPY_SIDES.get(launch.kernel.copy_direction or "")})


def scatter_gather(launch: LaunchFacts) -> Prediction:
    """`_scatter_gather_elementwise_kernel<nt, vt, ...>`: one index element at a time."""
    index = None if launch.call is None else launch.call.tensor(_INDEX_AT.get(_short(launch.call), -1))
    is_scatter = "kernel<true" in launch.kernel.name
    values: dict[str, Any] = {
        "is_scatter": is_scatter,
        "is_reduced": is_scatter and "Reduce" in launch.kernel.name,
    }
    if index is not None:
        values.update(indices=index.element_count, shape=shape_text(index.shape))
    return _fixed_work(launch, index.element_count if index is not None else None, values)


def index_elements(launch: LaunchFacts) -> Prediction:
    """`index_elementwise_kernel<nt, vt, ...>`: index, index_put, take, put."""
    count = None if launch.call is None else _indexed_elements(launch.call)
    return _fixed_work(launch, count, {"count": count or None})


def vectorized_gather(launch: LaunchFacts) -> Prediction:
    """`vectorized_gather_kernel<alignment, index_t>`: whole rows, copied by vectors."""
    alignment = launch.template_integer(0)
    rows = None if launch.call is None else _gathered_rows(launch.call)
    values: dict[str, Any] = {"alignment": alignment or None}
    if rows is not None:
        values.update(rows=rows.count, length=rows.length)
    if not alignment or rows is None or not rows.item_bytes:
        return Prediction(values)
    vectors = ceil_div(rows.length * rows.item_bytes, alignment)
    threads, parts = (
        min(_GATHER_THREADS, ceil_div(vectors, _WARP) * _WARP),
        ceil_div(vectors, _GATHER_THREADS),
    )
    what = "one row" if parts == 1 else f"one of {parts} parts of a row"
    values.update(threads=threads, what=what, vectors=vectors)
    formula = f"{rows.count:,} rows × {ceiling(vectors, _GATHER_THREADS)} parts"
    return Prediction(values, [Expected(formula, (rows.count, parts, 1), (threads, 1, 1))])


def select_rows(launch: LaunchFacts) -> Prediction:
    """`indexSelectSmallIndex`, `indexSelectLargeIndex`, `indexFuncSmallIndex`, `indexFuncLargeIndex`."""
    is_small, slices = "Small" in launch.function_name, _slices(launch.call)
    values: dict[str, Any] = {
        "is_large": not is_small,
        "is_combined": launch.function_name.startswith("indexFunc"),
    }
    if slices is None:
        return Prediction(values)
    total = slices.count * slices.length
    work, what = (slices.length, "slice") if is_small else (total, "elements")
    threads = min(work, _SELECT_THREADS)
    values.update(slices=slices.count, length=slices.length, count=total)
    values["walked"] = slices.count if is_small else None
    if not launch.sm_count or not threads:
        return Prediction(values)
    wanted = ceil_div(work, _SELECT_THREADS)
    blocks = min(wanted, launch.sm_count * _SELECT_BLOCKS_PER_SM)
    covered = "every slice" if is_small else "the output"
    values.update(threads=threads, covered=covered + (" at a time" if blocks < wanted else ""))
    formula = f"{ceiling(work, _SELECT_THREADS)} blocks over the {what}, "
    formula += f"at most {_SELECT_BLOCKS_PER_SM} per multiprocessor"
    return Prediction(values, [Expected(formula, (blocks, 1, 1), (threads, 1, 1))])


def index_put_rows(launch: LaunchFacts) -> Prediction:
    """`indexing_backward_kernel<scalar_t, SZ>`: rows added into places given by sorted indices."""
    rows = None if launch.call is None else _put_rows(launch.call)
    values: dict[str, Any] = {"warps": _PUT_WARPS, "warp": _WARP, "unroll": _PUT_UNROLL}
    if rows is None:
        return Prediction(values)
    values.update(rows=rows.count, length=rows.length)
    across = _WARP * _PUT_UNROLL
    formula = f"{ceiling(rows.count, _PUT_WARPS)} × {ceiling(rows.length, across)} parts of a row"
    grid = (ceil_div(rows.count, _PUT_WARPS), ceil_div(rows.length, across), 1)
    return Prediction(values, [Expected(formula, grid, (_WARP, _PUT_WARPS, 1))])


def feature_gradient(launch: LaunchFacts) -> Prediction:
    """`embedding_backward_feature_kernel`: features in parallel, indices in turn."""
    table, values = _table(launch), {"warp": _WARP, "small_batch": _SMALL_BATCH}
    if table is None:
        return Prediction(values)
    values.update(features=table.features, indices=table.index_count)
    grid = (ceil_div(table.features, _WARP), 1, 1)
    formula = f"{ceiling(table.features, _WARP)} blocks over the features"
    return Prediction(values, [Expected(formula, grid, (_WARP, _WARP, 1))])


def segment_gradient(launch: LaunchFacts) -> Prediction:
    """`compute_grad_weight` and its atomic variant: partial sums of up to ten rows with one target."""
    table, values = _table(launch), {"is_atomic": "atomic" in launch.function_name}
    if table is None:
        return Prediction(values)
    what = f"blocks, for the most segments {table.index_count:,} indices can make"
    expected = blocks_over(table.partial_segments * table.padded_features, table.threads, table.threads, what)
    return Prediction(
        {
            **values,
            "segments": table.partial_segments,
            "features": table.features,
            "together": _ROWS_PER_THREAD,
            "threads": table.threads,
        },
        [expected],
    )


def segment_scatter(launch: LaunchFacts) -> Prediction:
    """`sum_and_scatter`: adds the partial sums of each row and writes it."""
    table = _table(launch)
    if table is None:
        return Prediction()
    values = {"rows": table.segments, "features": table.features, "threads": table.threads}
    return Prediction(
        values, [blocks_over(table.segments * table.padded_features, table.threads, table.threads)]
    )


def segment_bookkeeping(launch: LaunchFacts) -> Prediction:
    """`krn_partials_per_segment`, `krn_partial_segment_offset`: sizes and starts of the partial segments."""
    table = _table(launch)
    if table is None:
        return Prediction({"warp": _WARP})
    return Prediction(
        {"warp": _WARP, "segments": table.segments}, [blocks_over(table.segments, _WARP, _WARP)]
    )


def segment_total(launch: LaunchFacts) -> Prediction:
    """`compute_num_of_partial_segments`: where the last segment ends."""
    return Prediction({}, [] if launch.call is None else [Expected("one thread", (1, 1, 1), (1, 1, 1))])


def multi_tensor_apply(launch: LaunchFacts) -> Prediction:
    """`multi_tensor_apply_kernel<Metadata<depth>, Functor, ...>`."""
    metadata = _METADATA.search((launch.template_argument(0) or "").rstrip("> "))
    depth, blocks = int(metadata[2]) if metadata is not None else 0, launch.block_count
    # Of the first list, where its members were recorded.
    members = (launch.call.tensor_list(0) or ()) if launch.call is not None else ()
    sizes = [tensor.element_count for tensor in members if tensor.element_count]
    values: dict[str, Any] = {
        "threads": _CHUNK_THREADS,
        "chunk": _CHUNK,
        "per_thread": _CHUNK // _CHUNK_THREADS,
        "full": _MOST_CHUNKS if blocks == _MOST_CHUNKS else None,
        "chunks": blocks if blocks and blocks != _MOST_CHUNKS else None,
        "covered": (blocks or 0) * _CHUNK,
        "lists": depth or None,
        "vector": _CHUNK_VECTOR,
    }
    if sizes:
        values.update(count=sum(sizes), tensors=len(sizes))
    if not sizes or metadata is None or not 1 <= depth <= len(_MOST_TENSORS):
        return Prediction(values)
    most = _MOST_TENSORS_WITH_SCALARS if metadata[1].startswith("TensorListScalar") else _MOST_TENSORS
    grids = list(_chunks_of_launches(sizes, most[depth - 1]))
    expected = [
        Expected(
            f"{plural(chunks, 'chunk')} of up to {_CHUNK:,} elements "
            f"(launch {number} of {len(grids)} for the list)",
            (chunks, 1, 1),
            (_CHUNK_THREADS, 1, 1),
        )
        for number, chunks in enumerate(grids, 1)
    ]
    return Prediction(values, expected)


def _fixed_work(launch: LaunchFacts, count: int | None, values: dict[str, Any]) -> Prediction:
    """A flat grid whose block and work per thread the name states: `<threads, work, ...>`."""
    threads, work = launch.template_integer(0), launch.template_integer(1)
    if not threads or not work:
        return Prediction(values)
    values.update(threads=threads, work=work, per_block=threads * work)
    return Prediction(values, [blocks_over(count, threads * work, threads)] if count else [])


def _vector_bytes(launch: LaunchFacts) -> int:
    """Bytes of one load: the argument after <T, index, dims, batch, stride>, or 16 in names without it."""
    return launch.template_integer(5) or _VECTOR_BYTES


def _concatenation_grids(
    launch: LaunchFacts, inputs: tuple[TensorArgument, ...], size: int | None
) -> Iterator[Expected]:
    """Of one launch for all tensors; longer lists take several launches of a name-given batch."""
    if not launch.sm_count:
        return
    batch = launch.template_integer(3) or len(inputs)
    most, rest = min(batch, len(inputs)), len(inputs) % batch
    largest = max(tensor.element_count for tensor in inputs)
    per_block = (max(_vector_bytes(launch) // size, 1) if size else 1) * _CONTIGUOUS_THREADS
    blocks = min(ceil_div(largest, per_block), launch.sm_count * _CONTIGUOUS_BLOCKS_PER_SM)
    for tensors in dict.fromkeys((most, rest or most)):
        formula = f"{ceiling(largest, per_block)} blocks for the largest tensor × {plural(tensors, 'tensor')}"
        yield Expected(formula, (blocks, tensors, 1), (_CONTIGUOUS_THREADS, 1, 1))
        formula = (
            f"{_STRIDED_BLOCKS_PER_SM} blocks per multiprocessor × {plural(tensors, 'tensor')}, whatever "
        )
        formula += "their size"
        grid = (launch.sm_count * _STRIDED_BLOCKS_PER_SM, tensors, 1)
        yield Expected(formula, grid, (_STRIDED_THREADS, 1, 1))


def _short(call: CallArguments) -> str:
    return call.name.removeprefix("aten::")


def _slices(call: CallArguments | None) -> _Rows | None:
    """Selected slices: (self, dim, index, ...)."""
    if call is None:
        return None
    data, index, at = call.tensor(0), call.tensor(_INDEX_AT.get(_short(call), 2)), call.integer(1)
    if data is None or index is None or not data.shape or (at is None and len(data.shape) > 1):
        return None
    chosen = (at or 0) % len(data.shape)
    return _Rows(index.element_count, prod(size for place, size in enumerate(data.shape) if place != chosen))


def _gathered_rows(call: CallArguments) -> _Rows | None:
    """Rows of `gather` with an expanded index, `index_select`, `embedding` or `index`."""
    name, data = _short(call), call.tensor(0)
    if data is None or not data.shape or not data.element_count:
        return None
    item, length = item_size_bytes(data.type_name), data.element_count // data.shape[0]
    index = call.tensor(_INDEX_AT.get(name, -1))
    if name == "gather" and index is not None and len(index.shape) == 2 and call.integer(1) == 0:
        return _Rows(index.shape[0], index.shape[1], item)
    if name in ("index_select", "embedding") and index is not None:
        return _Rows(index.element_count, length, item)
    indices = call.tensor_list(1) or ()
    return _Rows(indices[0].element_count, length, item) if name == "index" and len(indices) == 1 else None


def _put_rows(call: CallArguments) -> _Rows | None:
    """Rows of `index_put` whose indices stand for the leading dimensions."""
    data, values = call.tensor(0), call.tensor(2)
    if _short(call) not in ("_index_put_impl_", "index_put_") or data is None:
        return None
    if not call.tensor_list(1):
        # Members of optional lists are not recorded; values of the full shape begin with the indices'.
        if values is None or len(values.shape) != 2 or values.shape[1:] != data.shape[1:]:
            return None
        return _Rows(values.shape[0], values.shape[1]) if values.element_count else None
    named = _named_places(call, data)
    return _Rows(*named) if named is not None and 0 not in named else None


def _indexed_elements(call: CallArguments) -> int | None:
    """Elements of `index` or `index_put`: the indices' common shape times the dimensions left over."""
    name, data, index = _short(call), call.tensor(0), call.tensor(1)
    if name == "flip":
        return None if data is None else data.element_count
    if name == "take":
        return None if index is None else index.element_count
    if name not in ("index", "index_put_", "_index_put_impl_", "index_put") or data is None:
        return None
    named = _named_places(call, data)
    return None if named is None else named[0] * named[1]


def _named_places(call: CallArguments, data: TensorArgument) -> tuple[int, int] | None:
    """Places that a list of indices names together, and elements of each."""
    indices = call.tensor_list(1) or ()
    common = broadcast(index.shape for index in indices)
    if not common or len(indices) > len(data.shape) or not all(index.shape for index in indices):
        return None
    return prod(common), prod(data.shape[len(indices) :])


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


def _chunks_of_launches(sizes: Sequence[int], most_tensors: int) -> Iterator[int]:
    """Blocks of each launch, as multi_tensor_apply fills them."""
    blocks = tensors = 0
    for size in sizes:
        tensors += 1
        chunks = ceil_div(size, _CHUNK)
        for chunk in range(chunks):
            blocks += 1
            is_last = chunk == chunks - 1
            if (tensors == most_tensors and is_last) or blocks == _MOST_CHUNKS:
                yield blocks
                blocks, tensors = 0, 0 if is_last else 1
    if blocks:
        yield blocks
