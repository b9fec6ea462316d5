"""The inputs a benchmark rotates among, and how many calls a sample holds.

Every implementation gets the same sets in the same order, so that where they lie in memory and what they hold
favors none. Imports torch lazily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from opscope.benchmarking.costs import min_bytes
from opscope.benchmarking.problem import Inputs, Problem
from opscope.model.benchmark import CacheState
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch

__all__ = ["bodies", "calls_per_sample", "cpu_cache_bytes", "make_input_sets", "set_count"]

_MOST_SETS = 64
_CACHES = 2  # rotate through so many times the last-level cache
_MOST_CPU_BYTES = 256_000_000
_LARGEST_SHARE = 0.25  # of the free device memory
_RESOLUTIONS = 20  # a sample lasts at least so many times what its timer resolves
_MOST_CALLS = 1_000
# A call this many times longer than the others' samples need not be repeated: what a sample costs besides its
# calls is too small a part of it to matter.
_LONG_CALL = 100
_CPU_CACHES = "devices/system/cpu/cpu0/cache"
_UNKNOWN_CPU_CACHE_BYTES = 32_000_000


def make_input_sets(problem: Problem, seed: int, cache_state: CacheState) -> tuple[Inputs, ...]:
    """Sets of inputs to rotate among; one if the cache is to be hot, or if there is no memory for more.

    Args:
        problem: Makes them.
        seed: Set i is made with `seed + 1 + i`; `seed` itself is left for the check.
        cache_state: What samples are to find in the cache.
    """
    sets = [problem.make_inputs(seed + 1)]
    if cache_state is CacheState.HOT:
        return tuple(sets)
    count = set_count(min_bytes(sets[0], ()), *_memory(problem.device))
    try:
        for index in range(1, count):  # one by one: those made before memory runs out are kept
            sets.append(problem.make_inputs(seed + 1 + index))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_memory()
    return tuple(sets)


def set_count(set_bytes: int, cache_bytes: int, room_bytes: int) -> int:
    """How many sets of inputs exceed the last-level cache twice, within the room there is; 1 to 64.

    Args:
        set_bytes: Of one set; 0 if its inputs hold no tensors, which no cache can favor.
        cache_bytes: Size of the last-level cache.
        room_bytes: What all sets together may take.
    """
    if set_bytes <= 0:
        return 1
    wanted = math.ceil(_CACHES * cache_bytes / set_bytes)
    return max(1, min(wanted, room_bytes // set_bytes, _MOST_SETS))


def calls_per_sample(call_ns: Sequence[float], resolution_ns: float) -> list[int]:
    """Calls in each implementation's samples, so that each is well above what the timer resolves.

    As many for all, for what a sample costs besides its calls then weighs alike; but 1 for calls that are
    longer by far.

    Args:
        call_ns: Duration of one call of each implementation.
        resolution_ns: Of the timer.
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
    return [_sequence([once[(first + k) % len(once)] for k in range(calls)]) for first in range(len(once))]


def cpu_cache_bytes(root: Path = Path("/sys")) -> int:
    """Size of the first CPU's largest cache, as Linux states it; 32 MB where it does not."""
    sizes = [_size_bytes(file) for file in (root / _CPU_CACHES).glob("index*/size")]
    return max(sizes, default=0) or _UNKNOWN_CPU_CACHE_BYTES


def _sequence(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    def run() -> None:
        for call in calls:
            call()

    return run


def _memory(device: str) -> tuple[int, int]:
    """Size of the last-level cache and the room for inputs, in bytes."""
    if not device.startswith("cuda"):
        return cpu_cache_bytes(), _MOST_CPU_BYTES
    cuda = require_torch().cuda
    free_bytes, _ = cuda.mem_get_info(device)
    cache_bytes = getattr(cuda.get_device_properties(device), "L2_cache_size", 0)
    return cache_bytes, int(free_bytes * _LARGEST_SHARE)


def _size_bytes(file: Path) -> int:
    """Bytes of a size such as `32768K`; 0 if it cannot be read."""
    try:
        text = file.read_text(encoding="ascii").strip()
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        return int(text.rstrip("KMG")) * factor
    except (OSError, ValueError):
        return 0
