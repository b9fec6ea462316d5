"""Elementwise kernels of ATen (vectorized, unrolled, strided), and programs that torch.compile fused.

Operands broadcast to one shape; what 32-bit offsets cannot reach is launched in halves. Work sizes differ
between releases: each documented one is tried and the one that gives the recorded grid is named. Sources:
aten/src/ATen/TensorIterator.cpp (can_use_32bit_indexing, with_32bit_indexing) of PyTorch 2.6.0;
ATen/native/cuda/CUDALoops.cuh and thread_constants.h of 2.6.0, 2.11.0, 2.13.0 and 2.14.1;
torch/_inductor/codegen/triton.py and runtime/triton_heuristics.py of 2.6.0 (one program per XBLOCK, YBLOCK).
"""

from __future__ import annotations

import re
from itertools import takewhile
from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import Expected, LaunchFacts, Prediction, ceil_div, ceiling, shape_text
from opscope.operators.arguments import ScalarArgument, TensorArgument, broadcast, item_size_bytes
from opscope.provenance.categories import category_of
from opscope.units import counted

_INT32_MAX = 2**31 - 1
_MOST_HALVINGS = 6
# Operators of these categories launch elementwise kernels on the side, over shapes that are not their
# arguments'.
_OTHER_WORK = frozenset(
    ("matrix", "attention", "convolution", "normalization", "reduction", "sort_scan", "pooling", "optimizer")
)
_THREADS = 128  # Source: thread_constants.h, num_threads() = 4 warps
_UNROLLED_WORK = 4  # elements of a thread
_OPERAND_COUNT = re.compile(r"char\s*\*\s*,\s*\(?(?:int\))?(\d+)")


def vectorized(launch: LaunchFacts) -> Prediction:
    """`vectorized_elementwise_kernel<vec_size, func_t, array_t>`: contiguous operands, no casts."""
    width = launch.template_integer(0)
    values, expected, works = _elements(launch, _work_sizes(launch, width), launch.template_argument(2))
    # None where no size gives the recorded grid, or several of unknown releases.
    work = works[0] if len(works) == 1 or (works and launch.torch_version is not None) else None
    _divide(values, work)
    if width is not None:
        sizes = {item_size_bytes(tensor.type_name) for tensor in _tensors(launch)}
        known = sorted(size for size in sizes if size) if None not in sizes else []
        values["width"] = width
        values["vectors"] = " or ".join(f"{width * size} B ({width} × {size} B)" for size in known) or None
        values["ends_without_vectors"] = bool(values.get("only") or values.get("rest"))
    return Prediction(values, expected)


def unrolled(launch: LaunchFacts) -> Prediction:
    """`unrolled_elementwise_kernel<func_t, array_t, elems_per_thread, ...>`: casts, or unaligned operands."""
    work, loader = launch.template_integer(2) or _UNROLLED_WORK, launch.template_argument(-2) or ""
    values, expected, _ = _elements(launch, (work,), launch.template_argument(1))
    _divide(values, work)
    values["casts"] = "WithCast" in loader
    values["is_unaligned"] = loader.startswith("at::native::memory::LoadWithoutCast")
    return Prediction(values, expected)


def strided(launch: LaunchFacts) -> Prediction:
    """`elementwise_kernel<nt, vt, func_t>`: operands of any strides."""
    threads, work = launch.template_integer(0), launch.template_integer(1)
    if not threads or not work:
        return Prediction(_copy_strides(launch))
    values, expected, _ = _elements(launch, (work,), None, threads)
    _divide(values, work)
    count = values.get("count", 0)
    values["operands"] = [
        {"position": position, "elements": tensor.element_count, "times": count // tensor.element_count}
        for position, tensor in enumerate(_tensors(launch))
        if 1 < tensor.element_count < count
    ]
    return Prediction({**values, **_copy_strides(launch), "has_work": True}, expected)


def several_outputs(launch: LaunchFacts) -> Prediction:
    """`unrolled_elementwise_kernel_for_multi_outputs<outputs, ...>`."""
    values, expected, _ = _elements(launch, (_UNROLLED_WORK,), None)
    _divide(values, _UNROLLED_WORK)
    return Prediction({**values, "outputs": launch.template_integer(0) or None}, expected)


def _tensors(launch: LaunchFacts) -> list[TensorArgument]:
    """Tensor arguments in order, those of lists left out."""
    given = () if launch.call is None else launch.call.arguments
    return [one for one in given if isinstance(one, TensorArgument)]


def _work_sizes(launch: LaunchFacts, width: int | None) -> tuple[int, ...]:
    """Documented elements per thread, the likeliest first; one alone where the name or release settles it.

    Source: CUDALoops.cuh, elems_per_thread<io_size>(): of operands of 1 byte together 16, else 8 (2.11.0 to
    2.14.1), vectors of 8 among them; 2.6.0 takes 8 only below 4 bytes together, else 4.
    """
    if width == 8:
        return (8,)
    release = re.match(r"(\d+)\.(\d+)", launch.torch_version or "")
    if release is None:
        return (8, 4, 16)
    return (4, 8, 16) if (int(release[1]), int(release[2])) <= (2, 6) else (8, 16)


def _elements(
    launch: LaunchFacts, works: tuple[int, ...], array_type: str | None, threads: int | None = None
) -> tuple[dict[str, Any], list[Expected], list[int]]:
    """Values of the elements an operator computes one by one, the launches they give, the works that fit.

    Elements are those of the broadcast shape of an ATen operator's tensors; other ranges (a compiled region,
    a node of autograd) hold arguments that are not those of the kernel.
    """
    match = _OPERAND_COUNT.search(array_type or "")
    inputs = int(match[1]) - 1 if match else None  # of a kernel with one output
    # Blocks of another size are AMD's, or of PyTorch 1.9 and before: what their threads do is another rule's.
    works = works if threads or launch.thread_count in (None, _THREADS) else ()
    functor, threads = launch.kernel.functor, threads or launch.thread_count or _THREADS
    values: dict[str, Any] = {
        "threads": threads,
        "why": "written alone" if inputs == 0 else "computed from the operands' elements at its own position",
        "applied": f"applies {functor}" if functor else "applies one function to each element",
    }
    if inputs is not None:
        values["loads"] = f"loads its elements of {counted(inputs, 'input')}" if inputs else "loads nothing"
    name, tensors = "" if launch.call is None else launch.call.name, _tensors(launch)
    # An `out` argument is recorded before it is resized: empty beside operands that are not.
    filled = [tensor for tensor in tensors if tensor.element_count] or tensors
    shape = broadcast(tensor.shape for tensor in filled)
    if not name.startswith("aten::") or not filled or shape is None or not prod(shape):
        return values, [], []
    count = prod(shape)
    widest = max((item_size_bytes(tensor.type_name) or 0 for tensor in filled), default=0) or 8
    is_split = count * widest > _INT32_MAX
    parts = [1, *(2**halvings for halvings in range(1, _MOST_HALVINGS + 1) if is_split)]
    expected, fitting = [], []
    for work in works:
        per_block = work * threads
        for part in (part for part in parts if not count % part):
            blocks = ceiling(count // part, per_block)
            formula = (
                f"{blocks} blocks"
                if part == 1
                else f"{blocks} blocks for one of {part} parts that 32-bit offsets reach"
            )
            one = Expected(formula, (ceil_div(count // part, per_block), 1, 1), (threads, 1, 1))
            expected.append(one)
            if one.matches(launch) and work not in fitting:
                fitting.append(work)
    if not fitting and category_of(name) in _OTHER_WORK:
        return values, [], []
    values.update(count=count, shape=shape_text(shape), is_split=is_split)
    return values, expected, fitting


def _divide(values: dict[str, Any], work: int | None) -> None:
    """Adds what a block computes, so many elements of each thread."""
    if work is None:
        return
    per_block, count = work * values["threads"], values.get("count")
    values.update(work=work, per_block=per_block)
    if count is not None and count < per_block:
        values["only"] = count
    elif count is not None and not values["is_split"]:
        values["rest"] = count % per_block or None


def _copy_strides(launch: LaunchFacts) -> dict[str, Any]:
    """How far apart neighboring threads of a strided copy read and write, from the recorded strides."""
    destination, source = launch.tensor("self"), launch.tensor("src")
    if launch.call is None or launch.call.name != "aten::copy_" or destination is None or source is None:
        return {}
    missing = len(destination.shape) - len(source.shape)
    if destination.strides is None or source.strides is None or missing < 0:
        return {}
    steps = (0,) * missing + tuple(
        0 if size == 1 else step for size, step in zip(source.shape, source.strides, strict=True)
    )
    dimensions = zip(destination.strides, destination.shape, steps, strict=True)
    written, size, read = min((one for one in dimensions if one[1] > 1 and one[0] > 0), default=(0, 0, 0))
    if not written:
        return {}
    item = item_size_bytes(source.type_name)
    return {
        "fastest": size,
        "written": written,
        "read": read,
        "read_bytes": read * item if item else None,
        "copies_coalesced": written == read == 1,
        "copies_expanded": written == 1 and read == 0,
        "copies_apart": written != 1 or read not in (0, 1),
    }


def program(launch: LaunchFacts) -> Prediction:
    """`triton_poi_…`, `triton_red_…`, `triton_per_…` of torch.compile: pointwise, looped or persistent.

    Block sizes come from the recorded compile-time arguments (`XBLOCK=1024`), element counts from the call's
    last integer arguments, written in the order znumel, ynumel, xnumel, then what is reduced.
    """
    kind, compiled = launch.function_name.split("_")[1], launch.compile_arguments
    threads = launch.thread_count
    is_reduction = kind in ("red", "per")
    blocks = tuple(takewhile(bool, (compiled.get(f"{axis}BLOCK", 0) for axis in "XYZ")))
    given = () if launch.call is None else launch.call.arguments
    scalars = (one.value for one in given if isinstance(one, ScalarArgument))
    counts = [one for one in scalars if type(one) is int]
    reduced = counts.pop() if is_reduction and counts else 0
    sizes = counts[-len(blocks) :][::-1] if blocks and len(counts) >= len(blocks) else []
    if any(size <= 0 for size in sizes):
        sizes = []
    values: dict[str, Any] = {
        "is_pointwise": kind == "poi",
        "is_persistent": kind == "per",
        "is_looped": kind == "red",
        "is_one_warp": is_reduction and threads == WARP_SIZE,
        "has_warps": is_reduction and bool(threads) and threads != WARP_SIZE,
        "fused": ", ".join(launch.kernel.fused_operators) or None,
    }
    if sizes and is_reduction == (reduced > 0):
        values["rows" if is_reduction else "count"] = prod(sizes)
        values["reduced"] = reduced or None
    if blocks and threads:
        tile = prod(blocks)
        values["program"] = counted(threads, "thread")
        values["blocks_text"] = "×".join(
            f"{axis}BLOCK={size}" for axis, size in zip("XYZ", blocks, strict=False)
        )
        if not is_reduction:
            values.update(elements=tile, elements_each=tile / threads)
        elif reduced <= 0:
            values.update(tile_rows=tile, has_no_length=True)
        elif kind == "per":
            values.update(tile_rows=tile, held=reduced, held_each=tile * reduced / threads)
        else:
            piece = compiled.get("R0_BLOCK") or compiled.get("RBLOCK")
            values.update(tile_rows=tile, walked=reduced, piece=piece)
            values["pieces"] = ceil_div(reduced, piece) if piece else None
    if not sizes:
        return Prediction(values)
    pairs = list(zip(sizes, blocks, strict=True))
    x, y, z = ([ceil_div(*pair) for pair in pairs] + [1, 1])[:3]
    formula = " × ".join(ceiling(*pair) for pair in pairs)
    return Prediction(values, [Expected(f"{formula} programs", (x, y, z))])
