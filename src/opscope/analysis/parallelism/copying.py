"""Kernels that move or mask elements: concatenation, triangles, and the driver's copies and sets.

Sources: aten/src/ATen/native/cuda/Shape.cu and TriangularOps.cu of PyTorch 2.6.0; the vectorized
concatenation of later releases is known from recorded launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts, TensorArgument
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)
from opscope.model.evidence import Grade
from opscope.units import format_bytes

__all__ = ["concatenation", "driver_copy", "driver_set", "triangle"]

# Source: Shape.cu, getCatGridContig, getCatGrid, CAT_ARRAY_BATCH_SIZE.
_CONTIGUOUS_THREADS = 128
_STRIDED_THREADS = 512
_BLOCKS_PER_SM = 32
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


def concatenation(launch: LaunchFacts) -> Iterator[Note]:
    """`CatArrayBatchedCopy<OpaqueType<size>, ...>` and its contiguous, aligned and vectorized forms."""
    inputs = () if launch.call is None or launch.call.name != "aten::cat" else launch.call.tensor_list(0)
    size = _opaque_size(launch)
    if inputs:
        count = sum(tensor.element_count for tensor in inputs)
        yield over(
            f"All {count:,} elements of {plural(len(inputs), 'tensor')} are copied independently, each "
            "tensor by its own row of blocks (grid.y)."
        )
        yield from checked(launch, list(_concatenation_grids(launch, inputs, size)))
    threads = launch.thread_count
    if launch.function_name.endswith(("vectorized", "alignedK_contig", "aligned16_contig")) and size:
        vector = max(_vector_bytes(launch) // size, 1)
        if threads:
            yield computes(
                f"A block of {threads} threads copies {threads * vector:,} elements a step, {vector} per "
                "thread."
            )
        yield memory(
            f"Inputs are contiguous and aligned: loads are vectors of {vector * size} B ({vector} × {size} "
            "B)."
        )
        if not launch.function_name.endswith("vectorized"):
            yield memory("Stores go element by element, each to its own place in the output.")
    elif threads:
        yield computes(
            f"A block of {threads} threads copies {threads} elements a step, one per thread, in a "
            "grid-stride loop."
        )
        yield memory(
            "Places in output and strided inputs are worked out with integer arithmetic; one element a load."
        )
    yield synchronization("None: every output element is written once.")


def triangle(launch: LaunchFacts) -> Iterator[Note]:
    """`triu_tril_kernel<scalar_t, IndexType, upper, elements_per_thread, inplace>`."""
    work = launch.template_integer(3)
    tensor = launch.tensor(0)
    if tensor is not None and tensor.element_count:
        yield over(
            f"All {tensor.element_count:,} elements ({shape_text(tensor.shape)}) are independent: kept or "
            "zeroed by their own place."
        )
    if not work:
        return
    yield computes(
        f"A block of {_TRIANGLE_THREADS} threads handles {_TRIANGLE_THREADS * work} elements, {work} "
        "neighbors in a row per thread."
    )
    if tensor is not None and len(tensor.shape) >= 2 and tensor.element_count:
        padded = ceil_div(tensor.shape[-1], work) * work * prod(tensor.shape[:-1])
        per_block = _TRIANGLE_THREADS * work
        formula = f"{ceiling(padded, per_block)} blocks (rows padded to multiples of {work})"
        expected = Expected(formula, (ceil_div(padded, per_block), 1, 1), (_TRIANGLE_THREADS, 1, 1))
        yield from checked(launch, [expected])
    if launch.template_integer(4) == 1:
        yield memory("In place: only elements outside of the triangle are written, nothing is read.")
    else:
        yield memory("Threads whose elements all lie outside of the triangle read nothing and write zeros.")
    yield synchronization("None: threads share nothing.")


def driver_copy(launch: LaunchFacts) -> Iterator[Note]:
    """`Memcpy HtoD (Pageable -> Device)` and relatives: no grid."""
    sides = _COPY_SIDES.get(launch.kernel.copy_direction or "")
    moved = f" of {format_bytes(launch.size_bytes)}" if launch.size_bytes else ""
    if sides:
        yield algorithm(
            f"A copy{moved} {sides} by the driver: no kernel of the program, so no grid or blocks.",
            Grade.EXACT,
        )


def driver_set(launch: LaunchFacts) -> Iterator[Note]:
    """`Memset (Device)`: no grid."""
    moved = f" of {format_bytes(launch.size_bytes)}" if launch.size_bytes else ""
    yield algorithm(
        f"A memory set{moved} by the driver: no kernel of the program, so no grid or blocks.", Grade.EXACT
    )


def _opaque_size(launch: LaunchFacts) -> int | None:
    """Bytes of one element: `OpaqueType<4u>`."""
    text = (launch.template_argument(0) or "").rpartition("OpaqueType<")[2].rstrip("> uU")
    return int(text) if text.isdecimal() and 0 < int(text) <= _VECTOR_BYTES else None


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
    rest = len(inputs) % batch
    for tensors in dict.fromkeys((min(batch, len(inputs)), rest or min(batch, len(inputs)))):
        largest = max(tensor.element_count for tensor in inputs)
        per_thread = max(_vector_bytes(launch) // size, 1) if size else 1
        needed = ceil_div(ceil_div(largest, per_thread), _CONTIGUOUS_THREADS)
        blocks = min(needed, launch.sm_count * _BLOCKS_PER_SM)
        yield Expected(
            f"{ceiling(largest, per_thread * _CONTIGUOUS_THREADS)} blocks for the largest tensor × "
            f"{plural(tensors, 'tensor')}",
            (blocks, tensors, 1),
            (_CONTIGUOUS_THREADS, 1, 1),
        )
        yield Expected(
            f"{_STRIDED_BLOCKS_PER_SM} blocks per multiprocessor × {plural(tensors, 'tensor')}, whatever "
            "their size",
            (launch.sm_count * _STRIDED_BLOCKS_PER_SM, tensors, 1),
            (_STRIDED_THREADS, 1, 1),
        )
