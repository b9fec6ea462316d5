"""Elementwise kernels of ATen: vectorized, unrolled, strided.

Operands broadcast to one shape; what 32-bit offsets cannot reach is launched in halves. Work sizes differ
between releases: each documented one is tried and the one that gives the recorded grid is named. Sources:
aten/src/ATen/TensorIterator.cpp (can_use_32bit_indexing, with_32bit_indexing) of PyTorch 2.6.0;
ATen/native/cuda/CUDALoops.cuh and thread_constants.h of 2.6.0, 2.11.0, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.launches.facts import LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    ceil_div,
    ceiling,
    shape_text,
)
from opscope.operators.arguments import TensorArgument, broadcast
from opscope.operators.element_types import item_size_bytes
from opscope.provenance.categories import category_of
from opscope.units import counted

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = ["several_outputs", "strided", "unrolled", "vectorized"]

INT32_MAX = 2**31 - 1
_MOST_HALVINGS = 6
# Operators of these categories launch elementwise kernels on the side, over shapes that are not their
# arguments'.
_OTHER_WORK = frozenset(
    ("matrix", "attention", "convolution", "normalization", "reduction", "sort_scan", "pooling", "optimizer")
)
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
_OPERAND_COUNT = re.compile(r"char\s*\*\s*,\s*\(?(?:int\))?(\d+)")


@dataclass(frozen=True)
class _Elements:
    """Elements an operator computes one by one."""

    shape: Shape
    count: int
    is_split: bool
    is_assumed: bool  # the operator is no elementwise one: the launch may work on something else


def vectorized(launch: LaunchFacts) -> Prediction:
    """`vectorized_elementwise_kernel<vec_size, func_t, array_t>`: contiguous operands, no casts."""
    width, threads = launch.template_integer(0), _threads(launch)
    elements, expected, work = _elements(launch), list[Expected](), None
    if elements is not None:
        fitting = []
        for size in _work_sizes(launch, width):
            grids = list(_grids(elements, size * threads, threads, _work_size_note(launch, size, width)))
            expected += grids
            fitting += [size] if any(one.matches(launch.grid, launch.block) for one in grids) else []
        elements = _confirmed(launch, elements, expected)
        # None where no size gives the recorded grid, or several of unknown releases.
        if len(fitting) == 1 or (fitting and launch.torch_version is not None):
            work = fitting[0]
    if elements is None:
        work = None
    values = _values(launch, elements, work, threads, launch.template_argument(2))
    if width is not None:
        sizes = {item_size_bytes(tensor.type_name) for tensor in _tensors(launch.call)}
        known = sorted(size for size in sizes if size) if None not in sizes else []
        texts = [f"{width * size} B ({width} × {size} B)" for size in known]
        values.update(width=width, vectors=" or ".join(texts) or None)
        if elements is not None and work is not None and not elements.is_split:
            values["ends_without_vectors"] = bool(elements.count % (work * threads))
    return Prediction(values, expected if elements is not None else ())


def unrolled(launch: LaunchFacts) -> Prediction:
    """`unrolled_elementwise_kernel<func_t, array_t, elems_per_thread, ...>`: casts, or unaligned operands."""
    work, threads = launch.template_integer(2) or _UNROLLED_WORK_SIZE, _threads(launch)
    loader = launch.template_argument(-2) or ""
    values, expected = _fixed_work(launch, work, threads, launch.template_argument(1))
    values["casts"] = "WithCast" in loader
    values["is_unaligned"] = loader.startswith("at::native::memory::LoadWithoutCast")
    return Prediction(values, expected)


def strided(launch: LaunchFacts) -> Prediction:
    """`elementwise_kernel<nt, vt, func_t>`: operands of any strides."""
    threads, work = launch.template_integer(0), launch.template_integer(1)
    if not threads or not work:
        return Prediction(_copy_strides(launch))
    values, expected = _fixed_work(launch, work, threads, None)
    count = values.get("count")
    operands = [] if count is None else [
        {"position": position, "elements": tensor.element_count, "times": count // tensor.element_count}
        for position, tensor in enumerate(_tensors(launch.call))
        if 1 < tensor.element_count < count
    ]  # fmt: skip
    values.update(_copy_strides(launch), operands=operands, has_work=True)
    return Prediction(values, expected)


def several_outputs(launch: LaunchFacts) -> Prediction:
    """`unrolled_elementwise_kernel_for_multi_outputs<outputs, ...>`."""
    values, expected = _fixed_work(launch, _UNROLLED_WORK_SIZE, _THREADS, None)
    return Prediction({**values, "outputs": launch.template_integer(0) or None}, expected)


def _tensors(call: CallArguments | None) -> list[TensorArgument]:
    """Tensor arguments in order, those of lists left out."""
    return [] if call is None else [one for one in call.arguments if isinstance(one, TensorArgument)]


def _elements(launch: LaunchFacts) -> _Elements | None:
    """The broadcast shape of an ATen operator's tensors; None if they have none, or none were recorded.

    Other ranges (a compiled region, a node of autograd) hold arguments that are not those of the kernel.
    """
    if launch.call is None or not launch.call.name.startswith("aten::"):
        return None
    tensors = _tensors(launch.call)
    # An `out` argument is recorded before it is resized: empty beside operands that are not.
    filled = [tensor for tensor in tensors if tensor.element_count] or tensors
    shape = broadcast(tensor.shape for tensor in filled)
    if not filled or shape is None or not prod(shape):
        return None
    widest = max((item_size_bytes(tensor.type_name) or 0 for tensor in filled), default=0) or 8
    is_assumed = category_of(launch.call.name) in _OTHER_WORK
    return _Elements(shape, prod(shape), prod(shape) * widest > INT32_MAX, is_assumed)


def _confirmed(launch: LaunchFacts, elements: _Elements, expected: Iterable[Expected]) -> _Elements | None:
    """None where the elements were assumed and the launch is not one of those they would give."""
    is_one = not elements.is_assumed or any(one.matches(launch.grid, launch.block) for one in expected)
    return elements if is_one else None


def _grids(elements: _Elements, per_block: int, threads: int, configuration: str = "") -> Iterator[Expected]:
    """One block per `per_block` elements, of the whole or of one of its 32-bit parts."""
    block = (threads, 1, 1)
    whole = ceil_div(elements.count, per_block)
    yield Expected(f"{ceiling(elements.count, per_block)} blocks", (whole, 1, 1), block, configuration)
    if not elements.is_split:
        return
    for parts in (2**halvings for halvings in range(1, _MOST_HALVINGS + 1)):
        part, rest = divmod(elements.count, parts)
        if rest:
            return
        formula = f"{ceiling(part, per_block)} blocks for one of {parts} parts that 32-bit offsets reach"
        yield Expected(formula, (ceil_div(part, per_block), 1, 1), block, configuration)


def _values(
    launch: LaunchFacts, elements: _Elements | None, work: int | None, threads: int, array_type: str | None
) -> dict[str, Any]:
    """What the sentences about every elementwise kernel say."""
    match = _OPERAND_COUNT.search(array_type or "")
    inputs = int(match[1]) - 1 if match else None  # of a kernel with one output
    why = "written alone" if inputs == 0 else "computed from the operands' elements at its own position"
    functor = launch.kernel.functor
    values: dict[str, Any] = {
        "threads": threads,
        "work": work,
        "per_block": None if work is None else work * threads,
        "why": why,
        "applied": f"applies {functor}" if functor else "applies one function to each element",
    }
    if inputs is not None:
        values["loads"] = f"loads its elements of {counted(inputs, 'input')}" if inputs else "loads nothing"
    if elements is None:
        return values
    values.update(count=elements.count, shape=shape_text(elements.shape))
    if work is not None:
        per_block = work * threads
        if elements.count < per_block:
            values["only"] = elements.count
        elif not elements.is_split:
            values["rest"] = elements.count % per_block or None
    return values


def _fixed_work(
    launch: LaunchFacts, work: int, threads: int, array_type: str | None
) -> tuple[dict[str, Any], list[Expected]]:
    """Values and launches where the name states the work per thread."""
    elements, expected = _elements(launch), list[Expected]()
    if elements is not None:
        expected = list(_grids(elements, work * threads, threads))
        elements = _confirmed(launch, elements, expected)
    return _values(launch, elements, work, threads, array_type), expected if elements is not None else []


def _threads(launch: LaunchFacts) -> int:
    return _OLD_THREADS if launch.thread_count == _OLD_THREADS else _THREADS


def _work_sizes(launch: LaunchFacts, width: int | None) -> tuple[int, ...]:
    """Documented elements per thread, the likeliest first; one alone where the name or release settles it."""
    if _threads(launch) == _OLD_THREADS:
        return (4,)
    if width == _WIDEST_VECTOR:
        return (8,)
    release = re.match(r"(\d+)\.(\d+)", launch.torch_version or "")
    if release is None:
        return _WORK_SIZES
    is_old = (int(release[1]), int(release[2])) <= (2, 6)
    return _OLD_WORK_SIZES if is_old else tuple(size for size in _WORK_SIZES if size != 4)


def _work_size_note(launch: LaunchFacts, work: int, width: int | None) -> str:
    """The work size and, where it is not known, the releases that have it."""
    if _threads(launch) == _OLD_THREADS:
        return "4 elements per thread in blocks of 64, PyTorch 1"
    note = f"{work} elements per thread"
    if work == 16:
        return f"{note}, for one operand of 1 B"
    if launch.torch_version is not None:
        return note
    if work == 4:
        return f"{note}, PyTorch 2.6"
    sizes = [item_size_bytes(tensor.type_name) or 0 for tensor in _tensors(launch.call)]
    is_new = width == _WIDEST_VECTOR or max(sizes, default=0) >= _SMALL_OPERANDS_BYTES
    return f"{note}, PyTorch 2.11 to 2.14" + ("" if is_new else ", or operands under 4 B together in 2.6")


def _copy_strides(launch: LaunchFacts) -> dict[str, Any]:
    """How far apart neighboring threads of a strided copy read and write, from the recorded strides."""
    destination, source = launch.tensor("self"), launch.tensor("src")
    if launch.call is None or launch.call.name != "aten::copy_" or destination is None or source is None:
        return {}
    missing = len(destination.shape) - len(source.shape)
    if destination.strides is None or source.strides is None or missing < 0:
        return {}
    sizes = zip(
        destination.strides,
        destination.shape,
        (1,) * missing + source.shape,
        (0,) * missing + source.strides,
        strict=True,
    )
    dimensions = [
        (written, size, 0 if source_size == 1 else read)
        for written, size, source_size, read in sizes
        if size > 1 and written > 0
    ]
    if not dimensions:
        return {}
    written, size, read = min(dimensions)
    item = item_size_bytes(source.type_name)
    is_even, is_expanded = written == 1 and read == 1, written == 1 and read == 0
    return {
        "fastest": size,
        "written": written,
        "read": read,
        "read_bytes": read * item if item else None,
        "copies_coalesced": is_even,
        "copies_expanded": is_expanded,
        "copies_apart": not is_even and not is_expanded,
    }
