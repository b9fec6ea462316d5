"""The inputs a benchmark rotates among, the tensors in them, and what a call on them costs apart from time.

Every implementation gets the same sets in the same order, so that where they lie in memory and what they hold
favors none. Tensors are found in nested lists, tuples, mappings and dataclasses; mappings are walked in the
order of their keys' text, so that two results of the same keys pair up whatever order they were filled in.
Bytes follow from the tensors alone, operations from torch's own formulas, memory from the caching allocator.
Imports torch lazily.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from opscope.benchmarking.problem import Inputs, Problem
from opscope.model.benchmark import CacheState
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch, synchronize


def tensors_of(value: Any) -> list[Any]:
    """Every tensor inside a value, in order; one that occurs twice is there twice."""
    return [tensor for _, tensor in named_tensors(value)]


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor inside a value with its place in it, e.g. `[0]['loss']`; `""` for the value itself."""
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, require_torch().Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        children = ((f"[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, Mapping):
        children = ((f"[{key!r}]", value[key]) for key in sorted(value, key=repr))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        children = ((f".{key}", child) for key, child in _fields(value))
    for key, child in children:
        yield from named_tensors(child, f"{name}{key}")


def map_tensors(fn: Callable[[Any], Any], value: Any) -> Any:
    """The value with every tensor replaced by `fn(tensor)`; containers are new, other objects the same."""
    if isinstance(value, require_torch().Tensor):
        return fn(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(fn, child) for child in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(fn, child) for child in value)
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)  # of the same type, whatever its constructor takes
        for key, child in value.items():  # one by one: outputs of transformers refuse `update`
            changed[key] = map_tensors(fn, child)
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{key: map_tensors(fn, child) for key, child in _fields(value)})
    return value


_MOST_GAPS = 2  # times the elements: memory of a copy


def copied(tensor: Any) -> Any:
    """A copy that no longer shares memory, of the same strides, and needs gradients if the tensor does."""
    made = tensor.detach().clone()
    # `clone` packs what has gaps, such as a slice of columns, and a compiler takes that for another form.
    if tensor.layout == require_torch().strided and made.stride() != tensor.stride():
        steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        if 0 not in tensor.stride() and sum(steps) < _MOST_GAPS * tensor.numel():
            made = tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(made)
    return made.requires_grad_(tensor.requires_grad)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init)


def min_bytes(inputs: Any, outputs: Any) -> int:
    """Least bytes a call moves: each byte its inputs address read once, each of its outputs written once.

    Bytes that several views address count once. An output that shares memory with an input is a view of it,
    because functions that change their inputs are not measured: nothing is written for it.
    """
    read = _dense_parts(inputs)
    storages = {_storage(tensor) for tensor in read}
    written = (tensor for tensor in _dense_parts(outputs) if _storage(tensor) not in storages)
    return _addressed_bytes(read) + _addressed_bytes(written)


def count_flops(fn: Callable[..., object], inputs: tuple[Any, ...]) -> int | None:
    """Floating-point operations of one call by torch's formulas; None if they know of none.

    They know matrix products, convolutions and attention: a multiplication and an addition are 2. Elementwise
    work counts nothing. The function runs once on the inputs: tensors without data would be cheaper, but a
    kernel that is handed their null pointers takes the device down with it.

    Source: torch.utils.flop_counter.FlopCounterMode.
    """
    torch = require_torch()
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # noqa: PLC0415 - torch is imported lazily

    # Compiled functions run as they were written: their graphs would hide the operators, and torch.compile
    # that meets a counting mode gives up on the function for good, so that it would be timed uncompiled.
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None:  # before torch 2.6
        return None

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return sdpa_flop_count(query, key, value)

    try:
        # Attention on a CPU has an operator of its own, which torch's table lacks.
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        counter = FlopCounterMode(display=False, custom_mapping={on_cpu: attention})
        with set_stance("force_eager"), counter:
            fn(*inputs)
        return int(counter.get_total_flops()) or None
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


def _dense_parts(value: Any) -> list[Any]:
    """The dense tensors of a value: themselves, or the indices and values of sparse ones."""
    parts: list[Any] = []
    for tensor in tensors_of(value):
        names = _SPARSE_PARTS.get(str(tensor.layout).removeprefix("torch."))
        parts += [tensor] if names is None else [getattr(tensor, name)() for name in names]
    return parts


_SPARSE_PARTS: dict[str, tuple[str, ...]] = {"sparse_coo": ("_indices", "_values")}
_SPARSE_PARTS |= {f"sparse_{one}": ("crow_indices", "col_indices", "values") for one in ("csr", "bsr")}
_SPARSE_PARTS |= {f"sparse_{one}": ("ccol_indices", "row_indices", "values") for one in ("csc", "bsc")}


def _storage(tensor: Any) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _addressed_bytes(tensors: Iterable[Any]) -> int:
    """Distinct bytes that tensors address; at most those of the memory they share.

    Exact for tensors that are equal or disjoint, also when they interleave, or that together address all of
    their memory; an upper bound for others that overlap.
    """
    views: dict[tuple[str, int], dict[Any, int]] = defaultdict(dict)
    sizes_bytes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        item, steps = tensor.element_size(), list(zip(tensor.shape, tensor.stride(), strict=True))
        span = 1 + sum((size - 1) * abs(stride) for size, stride in steps)
        distinct = min(span, math.prod(size for size, stride in steps if stride))
        views[_storage(tensor)][tensor.data_ptr(), item, tuple(steps)] = distinct * item
        sizes_bytes[_storage(tensor)] = tensor.untyped_storage().nbytes()
    return sum(min(sizes_bytes[memory], sum(own.values())) for memory, own in views.items())


_MOST_SETS = 64
_CACHES = 2  # rotate through so many times the last-level cache
_CPU_CACHE_BYTES = 128_000_000  # more than most CPUs have
_LARGEST_SHARE = 0.25  # of the free device memory
_RESOLUTIONS = 20  # a sample lasts at least so many times what its timer resolves
_MOST_CALLS = 1_000
# A call this many times longer than the others' samples need not be repeated: what a sample costs besides its
# calls is too small a part of it to matter.
_LONG_CALL = 100


def make_input_sets(problem: Problem, seed: int, cache_state: CacheState) -> tuple[Inputs, ...]:
    """Sets of inputs to rotate among; one if the cache is to be hot, or if there is no memory for more.

    Set i is made with `seed + 1 + i`; `seed` itself is left for the check.
    """
    sets = [problem.make_inputs(seed + 1)]
    if cache_state is CacheState.HOT:
        return tuple(sets)
    cache_bytes = _CPU_CACHE_BYTES
    room_bytes = _CACHES * cache_bytes
    if problem.device.startswith("cuda"):
        cuda = require_torch().cuda
        free_bytes, _ = cuda.mem_get_info(problem.device)
        cache_bytes = getattr(cuda.get_device_properties(problem.device), "L2_cache_size", 0)
        room_bytes = int(free_bytes * _LARGEST_SHARE)
    # Together they exceed the last-level cache, within the room there is.
    set_bytes, count = min_bytes(sets[0], ()), 1
    if set_bytes:
        count = min(math.ceil(_CACHES * cache_bytes / set_bytes), room_bytes // set_bytes, _MOST_SETS)
    try:
        # One by one: those made before memory runs out are kept.
        for index in range(1, count):
            sets.append(problem.make_inputs(seed + 1 + index))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_memory()
    return tuple(sets)


def calls_per_sample(call_ns: Sequence[float], resolution_ns: float) -> list[int]:
    """Calls in each implementation's samples, so that each is well above what the timer resolves.

    As many for all, for what a sample costs besides its calls then weighs alike; but 1 for calls that are
    longer by far.
    """
    least_ns = _RESOLUTIONS * resolution_ns
    needed = max((math.ceil(least_ns / max(call, 1.0)) for call in call_ns), default=1)
    calls = max(1, min(needed, _MOST_CALLS))
    return [1 if call >= _LONG_CALL * least_ns else calls for call in call_ns]


def bodies(fn: Callable[..., Any], sets: Sequence[Inputs], calls: int) -> list[Callable[[], object]]:
    """What a sample runs, by the set it begins with: `calls` calls, each with the next set."""
    once = [partial(fn, *inputs) for inputs in sets]
    if calls == 1:
        return list(once)

    def run(several: Sequence[Callable[[], object]]) -> None:
        for call in several:
            call()

    count = len(once)
    return [partial(run, [once[(first + k) % count] for k in range(calls)]) for first in range(count)]
