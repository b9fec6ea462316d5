"""Occupancy of compiled kernels, against NVIDIA's calculator; on a device the GPU tests ask CUDA itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.occupancy import Limiter
from opscope.analysis.static_occupancy import KernelNeed, static_occupancy
from opscope.hardware.architectures import architectures

CAPABILITIES = [one.compute_capability for one in architectures()]


def test_a_small_kernel_fills_a_multiprocessor_with_any_common_block():
    found = static_occupancy(KernelNeed(16, 0), "9.0")
    assert [block.threads for block in found.blocks] == [128, 256, 512]
    assert [block.occupancy for block in found.blocks] == [1.0, 1.0, 1.0]
    assert found.best is not None
    assert (found.best.threads, found.best.occupancy) == (1024, 1.0)
    assert found.reason is None


def test_registers_limit_and_large_blocks_do_not_start():
    found = static_occupancy(KernelNeed(128, 0), "9.0", [128, 512, 1024])
    small, middle, large = found.blocks
    assert small.residency is not None
    assert (small.occupancy, small.residency.limiters) == (0.25, (Limiter.REGISTERS,))
    assert middle.occupancy == 0.25
    assert large.residency is None
    assert found.largest_threads == 512


def test_shared_memory_limits():
    # 40 KiB and the system's 1 KiB of 228 KiB: 5 blocks.
    found = static_occupancy(KernelNeed(32, 40 * 1024), "9.0", [128])
    (block,) = found.blocks
    assert block.residency is not None
    assert (block.residency.blocks_per_sm, block.residency.limiters) == (5, (Limiter.SHARED_MEMORY,))


def test_generations_with_fewer_threads_prefer_another_block():
    found = static_occupancy(KernelNeed(18, 0), "8.6")
    assert found.best is not None
    assert (found.best.threads, found.best.occupancy) == (768, 1.0)
    assert found.largest_threads == 1024


def test_launch_bounds_hold():
    found = static_occupancy(KernelNeed(32, 0, max_threads=192), "9.0", [128, 256])
    assert [block.residency is None for block in found.blocks] == [False, True]
    assert found.largest_threads == 192


def test_what_cannot_start_or_is_not_known_has_a_reason():
    too_much = static_occupancy(KernelNeed(32, 300_000), "9.0", [128])
    assert (too_much.best, too_much.reason) == (None, "no block of it can start")
    unknown = static_occupancy(KernelNeed(32, 0), "8.8")
    assert unknown.blocks == ()
    assert "8.8" in (unknown.reason or "")


@given(
    registers=st.integers(8, 255),
    shared_bytes=st.integers(0, 60_000),
    max_threads=st.none() | st.integers(1, 2048),
    capability=st.sampled_from(CAPABILITIES),
)
def test_the_best_block_has_the_most_threads_of_all_and_none_is_larger_than_the_largest(
    registers, shared_bytes, max_threads, capability
):
    need = KernelNeed(registers, shared_bytes, max_threads)
    found = static_occupancy(need, capability, range(32, 1025, 32))
    if found.best is None or found.best.residency is None:
        pytest.fail("registers and shared memory of one warp always fit")
    threads = {
        block.threads: 0 if block.residency is None else block.residency.blocks_per_sm * block.threads
        for block in found.blocks
    }
    assert found.best.residency.blocks_per_sm * found.best.threads >= max(threads.values())
    assert all(size <= (found.largest_threads or 0) for size, resident in threads.items() if resident)
    assert all(0 <= block.occupancy <= 1 for block in found.blocks)
