"""What a call costs apart from time: the least bytes it moves, its floating-point operations, its memory.

Bytes follow from the tensors alone, operations from torch's own formulas, memory from the caching allocator.
Imports torch lazily.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from opscope.benchmarking.nested import tensors_of
from opscope.workloads.runtime import require_torch, synchronize

__all__ = ["count_flops", "min_bytes", "peak_memory_bytes"]


def min_bytes(inputs: Any, outputs: Any) -> int:
    """Least bytes a call moves: each byte its inputs address read once, each of its outputs written once.

    Bytes that several views address count once. An output that shares memory with an input is a view of it,
    because functions that change their inputs are not measured: nothing is written for it.

    Args:
        inputs: Arguments, nested as they like; what is not a tensor has no bytes.
        outputs: Result, likewise.
    """
    read = _parts(inputs)
    storages = {_storage(tensor) for tensor in read}
    written = [tensor for tensor in _parts(outputs) if _storage(tensor) not in storages]
    return _addressed_bytes(read) + _addressed_bytes(written)


def count_flops(fn: Callable[..., object], inputs: tuple[Any, ...]) -> int | None:
    """Floating-point operations of one call by torch's formulas; None if they know of none.

    They know matrix products, convolutions and attention: a multiplication and an addition are 2. Elementwise
    work counts nothing. The function runs once on the inputs: tensors without data would be cheaper, but a
    kernel that is handed their null pointers takes the device down with it.

    Source: torch.utils.flop_counter.FlopCounterMode.
    """
    try:
        return _counted_flops(fn, inputs) or None
    except Exception:  # noqa: BLE001 - a user's function may fail in any way under a dispatch mode
        return None


def peak_memory_bytes(fn: Callable[[], object], device: str) -> int | None:
    """Most device memory that torch's allocator gave out during one call beyond what it had; None on a CPU.

    Includes the call's results. The allocator's peak statistics of the device are reset.
    """
    if not device.startswith("cuda"):
        return None
    cuda = require_torch().cuda
    synchronize()
    before_bytes: int = cuda.memory_allocated(device)
    cuda.reset_peak_memory_stats(device)
    result = fn()
    synchronize()
    peak_bytes: int = cuda.max_memory_allocated(device)
    del result
    return peak_bytes - before_bytes


def _counted_flops(fn: Callable[..., object], arguments: tuple[Any, ...]) -> int:
    torch = require_torch()
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # noqa: PLC0415 - torch is imported lazily

    # Compiled functions run as they were written: their graphs would hide the operators, and torch.compile
    # that meets a counting mode gives up on the function for good, so that it would be timed uncompiled.
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None:  # before torch 2.6
        return 0
    aten = torch.ops.aten
    # Attention on a CPU has an operator of its own, which torch's table lacks.
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: sdpa_flop_count(
            query, key, value
        )
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with set_stance("force_eager"), counter:
        fn(*arguments)
    return int(counter.get_total_flops())


def _parts(value: Any) -> list[Any]:
    """The dense tensors of a value: itself, or the indices and values of a sparse one."""
    return [part for tensor in tensors_of(value) for part in _dense_parts(tensor)]


def _dense_parts(tensor: Any) -> tuple[Any, ...]:
    torch = require_torch()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def _storage(tensor: Any) -> tuple[str, int]:
    """What tells apart the memory tensors live in."""
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _addressed_bytes(tensors: Iterable[Any]) -> int:
    """Distinct bytes that tensors address.

    Exact for tensors that are equal or disjoint, also when they interleave; an upper bound for views that
    overlap in part and leave gaps.
    """
    extents: dict[tuple[str, int], dict[Any, tuple[int, int, int]]] = defaultdict(dict)
    for tensor in tensors:
        if tensor.numel():
            identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size())
            extents[_storage(tensor)][identity] = _extent(tensor)
    return sum(
        min(
            sum(size for *_, size in views.values()), _covered((low, high) for low, high, _ in views.values())
        )
        for views in extents.values()
    )


def _extent(tensor: Any) -> tuple[int, int, int]:
    """First byte, end and number of distinct bytes of a strided tensor that is not empty."""
    item = tensor.element_size()
    steps = [(size, abs(stride)) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    span = (1 + sum((size - 1) * stride for size, stride in steps)) * item
    distinct = item
    for size, stride in steps:
        distinct *= size if stride else 1
    start = tensor.data_ptr()
    return start, start + span, min(distinct, span)


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of half-open intervals."""
    total, reached = 0, 0
    for low, high in sorted(intervals):
        total += max(0, high - max(low, reached))
        reached = max(reached, high)
    return total
