"""Elementwise kernels of ATen: vectorized, unrolled, legacy (strided), with index, and their relatives.

Work sizes differ between releases; each documented one is tried and the one that gives the recorded grid is
named. Sources: ATen/native/cuda/CUDALoops.cuh and thread_constants.h of PyTorch 2.6.0, 2.11.0, 2.13.0 and
2.14.1; aten/src/ATen/native/cuda/RangeFactories.cu of 2.6.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked
from opscope.analysis.parallelism.facts import LaunchFacts, OperatorCall, item_size_bytes
from opscope.analysis.parallelism.iteration import (
    IterationSpace,
    confirmed,
    expected_grids,
    independent_elements,
    iteration_space,
    stride_statements,
)
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    every,
    independent,
    memory,
    over,
    plural,
    synchronization,
)

__all__ = [
    "indexed_elementwise",
    "legacy_elementwise",
    "several_outputs",
    "unrolled_elementwise",
    "vectorized_elementwise",
]

# Source: thread_constants.h, num_threads() = 4 warps. Releases before it (1.8 and 1.9 recorded) had 2.
_THREADS = 128
_OLD_THREADS = 64
# Source: CUDALoops.cuh, elems_per_thread<io_size>(): of operands of 1 byte together 16, else 8 (2.11.0 to
# 2.14.1); 2.6.0 takes 8 only below 4 bytes together, else 4.
_WORK_SIZES = (8, 4, 16)
_OLD_WORK_SIZES = (4, 8, 16)
_SMALL_OPERANDS_BYTES = 4
_WIDEST_VECTOR = 8  # Source: CUDALoops.cuh 2.11.0: vectors of 8 came with the work size of 8
_UNROLLED_WORK_SIZE = 4
_INDEXED_THREADS = 64  # Source: RangeFactories.cu, num_threads() = 2 warps, one element each
_OPERAND_COUNT = re.compile(r"char\s*\*\s*,\s*\(?(?:int\))?(\d+)")


def vectorized_elementwise(launch: LaunchFacts) -> Iterator[Note]:
    """`vectorized_elementwise_kernel<vec_size, func_t, array_t>`: contiguous operands, no casts."""
    width = launch.template_integer(0)
    space = iteration_space(launch)
    if space is not None:
        space = confirmed(launch, space, _vectorized_grids(launch, space, width))
    yield from independent_elements(space, reads=_input_count(launch.template_argument(2)) != 0)
    work = None
    if space is not None:
        work = _work_size(launch, space, width)
        if work is not None:
            yield from _block_work(space, work, _threads(launch))
        yield from checked(launch, _vectorized_grids(launch, space, width))
    if width is not None:
        yield from _vector_access(launch, space, width, work)
    yield from _pointwise_steps(launch, launch.template_argument(2))


def unrolled_elementwise(launch: LaunchFacts) -> Iterator[Note]:
    """`unrolled_elementwise_kernel<func_t, array_t, elems_per_thread, ...>`: casts, or unaligned operands."""
    work, threads = launch.template_integer(2) or _UNROLLED_WORK_SIZE, _threads(launch)
    space = _fixed_space(launch, work, threads)
    yield from independent_elements(space, reads=_input_count(launch.template_argument(1)) != 0)
    yield from _fixed_work(launch, space, work, threads)
    loader = launch.template_argument(-2) or ""
    yield memory(
        f"Thread t of a block takes elements t, t + {threads}, …: neighbors load neighbors, one element a "
        "load."
    )
    if "WithCast" in loader:
        yield memory(
            "Operand types differ from the computation's: each element is cast as it is loaded or stored."
        )
    elif loader.startswith("at::native::memory::LoadWithoutCast"):
        yield memory(
            "No casts; an operand is not aligned for vector loads, so elements are loaded one by one."
        )
    yield from _pointwise_steps(launch, launch.template_argument(1))


def legacy_elementwise(launch: LaunchFacts) -> Iterator[Note]:
    """`elementwise_kernel<nt, vt, func_t>`: operands of any strides."""
    threads, work = launch.template_integer(0), launch.template_integer(1)
    space = _fixed_space(launch, work, threads) if threads and work else None
    yield from independent_elements(space)
    if threads and work:
        yield from _fixed_work(launch, space, work, threads)
        yield memory(
            f"Thread t takes elements t, t + {threads}, … of the iteration order; each operand's address is "
            "worked out from the strides with integer arithmetic, so no vector loads."
        )
    yield from stride_statements(launch)
    if space is not None and launch.call is not None:
        yield from _broadcast_operands(launch.call, space)
    yield from _pointwise_steps(launch, None)


def several_outputs(launch: LaunchFacts) -> Iterator[Note]:
    """`unrolled_elementwise_kernel_for_multi_outputs<outputs, ...>`."""
    outputs = launch.template_integer(0)
    space = _fixed_space(launch, _UNROLLED_WORK_SIZE, _THREADS)
    yield from independent_elements(space)
    yield from _fixed_work(launch, space, _UNROLLED_WORK_SIZE, _THREADS)
    if outputs:
        yield algorithm(f"Each thread stores {plural(outputs, 'result')} per element, to as many outputs.")
    yield synchronization("None: threads share nothing.")


def indexed_elementwise(launch: LaunchFacts) -> Iterator[Note]:
    """`elementwise_kernel_with_index<index_t, func_t>`: arange, linspace and relatives."""
    count = None if launch.call is None else _range_length(launch.call)
    if count is not None:
        yield over(
            f"{every(count, 'output element')} {independent(count)}: each is a function of its own index."
        )
        formula = f"{ceiling(count, _INDEXED_THREADS)} blocks"
        expected = Expected(formula, (ceil_div(count, _INDEXED_THREADS), 1, 1), (_INDEXED_THREADS, 1, 1))
        yield from checked(launch, [expected])
    yield computes(
        f"A block of {_INDEXED_THREADS} threads writes {_INDEXED_THREADS} elements, one per thread."
    )
    yield memory("Nothing is read; neighboring threads write neighboring elements: coalesced.")
    yield synchronization("None: no thread needs another's result.")


def _threads(launch: LaunchFacts) -> int:
    return _OLD_THREADS if launch.thread_count == _OLD_THREADS else _THREADS


def _vectorized_grids(launch: LaunchFacts, space: IterationSpace, width: int | None) -> Iterator[Expected]:
    threads = _threads(launch)
    if threads == _OLD_THREADS:
        yield from expected_grids(
            space, 4 * threads, threads, "4 elements per thread in blocks of 64, PyTorch 1"
        )
        return
    for work in _work_sizes(launch, width):
        yield from expected_grids(space, work * threads, threads, _work_size_note(launch, work, width))


def _work_sizes(launch: LaunchFacts, width: int | None) -> tuple[int, ...]:
    """Documented elements per thread, the likeliest first; one alone where the name or release settles it."""
    if _threads(launch) == _OLD_THREADS:
        return (4,)
    if width == _WIDEST_VECTOR:
        return (8,)
    release = _release(launch.torch_version)
    if release is None:
        return _WORK_SIZES
    return _OLD_WORK_SIZES if release <= (2, 6) else tuple(size for size in _WORK_SIZES if size != 4)


def _work_size_note(launch: LaunchFacts, work: int, width: int | None) -> str:
    """The work size and, where it is not known, the releases that have it."""
    note = f"{work} elements per thread"
    if work == 16:
        return f"{note}, for one operand of 1 B"
    if launch.torch_version is not None:
        return note
    if work == 4:
        return f"{note}, PyTorch 2.6"
    sizes = [] if launch.call is None else [item_size_bytes(t.type_name) or 0 for t in launch.call.tensors]
    is_new = width == _WIDEST_VECTOR or max(sizes, default=0) >= _SMALL_OPERANDS_BYTES
    return f"{note}, PyTorch 2.11 to 2.14" + ("" if is_new else ", or operands under 4 B together in 2.6")


def _work_size(launch: LaunchFacts, space: IterationSpace, width: int | None) -> int | None:
    """The one work size that gives the recorded grid; None if none does, or several."""
    grid, threads = launch.grid, _threads(launch)
    sizes = _work_sizes(launch, width)
    found = [
        size
        for size in sizes
        if any(
            one.matches(grid, launch.block)
            for one in expected_grids(space, size * threads, threads, "")
            if grid
        )
    ]
    if launch.torch_version is not None and found:
        return found[0]
    return found[0] if len(found) == 1 else None


def _release(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _block_work(space: IterationSpace, work: int, threads: int) -> Iterator[Statement]:
    per_block = work * threads
    text = f"A block of {threads} threads computes {per_block:,} elements, {work} per thread"
    rest = space.element_count % per_block
    if space.element_count < per_block:
        text += f"; the only block has {space.element_count:,} to compute"
    elif rest and not space.is_split:
        text += f"; the last one has {rest:,} left"
    yield computes(f"{text}.")


def _fixed_space(launch: LaunchFacts, work: int, threads: int) -> IterationSpace | None:
    """What is iterated over, where the name states the work per thread."""
    space = iteration_space(launch)
    if space is None:
        return None
    return confirmed(launch, space, expected_grids(space, work * threads, threads, ""))


def _fixed_work(launch: LaunchFacts, space: IterationSpace | None, work: int, threads: int) -> Iterator[Note]:
    """Work per block where the name states it, held against the grid."""
    if space is None:
        yield computes(
            f"A block of {threads} threads computes {work * threads:,} elements, {work} per thread."
        )
        return
    yield from _block_work(space, work, threads)
    yield from checked(launch, expected_grids(space, work * threads, threads, ""))


def _vector_access(
    launch: LaunchFacts, space: IterationSpace | None, width: int, work: int | None
) -> Iterator[Statement]:
    """Bytes of one load or store, per operand type recorded."""
    text = f"Operands are contiguous: a thread loads and stores vectors of {width} elements"
    sizes = [] if launch.call is None else [item_size_bytes(t.type_name) for t in launch.call.tensors]
    distinct = sorted({size for size in sizes if size})
    if distinct and None not in sizes:
        each = " or ".join(f"{width * size} B ({width} × {size} B)" for size in distinct)
        text += f", {each} at a time"
    yield memory(f"{text}; neighboring threads take neighboring vectors: coalesced.")
    if space is None or work is None or space.is_split:
        return
    if space.element_count % (work * _threads(launch)):
        yield memory("The last block is not full and goes element by element, without vectors.")


def _broadcast_operands(call: OperatorCall, space: IterationSpace) -> Iterator[Statement]:
    """Operands smaller than the result, read again for each of its elements."""
    for position, tensor in enumerate(call.tensors):
        if 1 < tensor.element_count < space.element_count:
            times = space.element_count // tensor.element_count
            yield memory(
                f"Operand {position} has {tensor.element_count:,} elements: each is read {times:,} times "
                "(broadcast)."
            )


def _pointwise_steps(launch: LaunchFacts, array_type: str | None) -> Iterator[Statement]:
    yield synchronization("None: threads share nothing; the grid needs no second pass.")
    functor, inputs = launch.kernel.functor, _input_count(array_type)
    if inputs is None:
        return
    loads = f"loads its elements of {plural(inputs, 'input')}" if inputs else "loads nothing"
    applied = f"applies {functor}" if functor else "applies one function to each element"
    yield algorithm(f"Each thread {loads}, {applied}, and stores its elements of one output.")


def _input_count(array_type: str | None) -> int | None:
    """Inputs of a kernel with one output, from the type of its array of operands."""
    match = _OPERAND_COUNT.search(array_type or "")
    return int(match[1]) - 1 if match else None


def _range_length(call: OperatorCall) -> int | None:
    """Elements of `aten::arange(start, end, step, out)`."""
    if call.name != "aten::arange" or len(call.concrete) < 3:
        return None
    try:
        start, end, step = (float(text) for text in call.concrete[:3])
    except (TypeError, ValueError):
        return None
    return max(ceil((end - start) / step), 0) or None if step else None
