"""Resident blocks: cases worked out by hand, and figures the recorder of real H200 traces estimated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.hardware.architectures import architecture, architectures
from opscope.hardware.occupancy import active_blocks, static_occupancy, waves_of

CAPABILITIES = [one.compute_capability for one in architectures()]


def held(capability, threads, registers, shared_bytes):
    limits = architecture(capability)
    assert limits is not None
    return active_blocks(limits, threads=threads, registers_per_thread=registers, shared_bytes=shared_bytes)


@cases("block", "blocks", "warps", "limiters")
def test_of_the_h200_as_recorded(block, blocks, warps, limiters):
    found = held("9.0", *block)
    assert (found.blocks_per_sm, found.warps_per_sm, set(found.limiters)) == (blocks, warps, set(limiters))
    assert found.occupancy == warps / 64


def test_the_system_takes_shared_memory_and_registers_come_in_units():
    # 227 KiB is the most a block may have of the 228; 113 KiB twice would fit but for what is reserved.
    assert held("9.0", 128, 16, 227 * 1024).blocks_per_sm == 1
    assert held("9.0", 128, 16, 113 * 1024).blocks_per_sm == 2
    assert held("9.0", 128, 16, 113 * 1024 + 128).blocks_per_sm == 1
    assert held("7.0", 128, 16, 48 * 1024).blocks_per_sm == 2
    # 33 registers take the room of 40: 40 × 32 = 1,280 of a warp.
    assert held("8.0", 1024, 33, 0).blocks_per_sm == held("8.0", 1024, 40, 0).blocks_per_sm == 1
    assert held("8.0", 1024, 32, 0).blocks_per_sm == 2


@cases("threads", "registers", "shared_bytes")
def test_a_missing_figure_or_one_that_cannot_be_gives_none(threads, registers, shared_bytes):
    assert held("9.0", threads, registers, shared_bytes) is None


@cases("blocks", "count", "tail_fraction", "tail_loss")
def test_waves_and_what_their_tail_loses(blocks, count, tail_fraction, tail_loss):
    found = waves_of(held("9.0", 128, 218, 19_200), blocks=blocks, sm_count=132)  # two blocks fit
    assert (found.slots, found.count) == (264, count)
    assert (found.tail_fraction, found.tail_loss) == (tail_fraction, pytest.approx(tail_loss))


@given(st.integers(1, 1 << 31), st.integers(1, 256), st.integers(1, 1024))
def test_empty_and_filled_slots_are_all_slots(blocks, sm_count, threads):
    found = waves_of(held("9.0", threads, 16, 0), blocks=blocks, sm_count=sm_count)
    passes = -(-blocks // found.slots)
    assert 0 <= found.tail_loss < 1
    assert found.tail_loss == pytest.approx(1 - blocks / (passes * found.slots), abs=1e-9)
    assert (passes - 1 + found.tail_fraction) * found.slots == pytest.approx(blocks)


def test_what_cannot_start_or_is_not_known_has_a_reason():
    too_much = static_occupancy("9.0", [128], registers=32, shared_bytes=300_000)
    assert (too_much.best, too_much.reason) == (None, "no block of it can start")
    unknown = static_occupancy("8.8", registers=32, shared_bytes=0)
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
    sizes = range(32, 1025, 32)
    found = static_occupancy(
        capability, sizes, registers=registers, shared_bytes=shared_bytes, max_threads=max_threads
    )
    if found.best is None or found.best.active is None:
        pytest.fail("registers and shared memory of one warp always fit")
    threads = {
        block.threads: 0 if block.active is None else block.active.blocks_per_sm * block.threads
        for block in found.blocks
    }
    assert found.best.active.blocks_per_sm * found.best.threads >= max(threads.values())
    assert all(size <= (found.largest_threads or 0) for size, resident in threads.items() if resident)
    assert all(0 <= block.occupancy <= 1 for block in found.blocks)
