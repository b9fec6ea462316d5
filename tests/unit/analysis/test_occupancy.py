"""Resident blocks: cases worked out by hand, and figures the recorder of real H200 traces estimated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.occupancy import (
    Limiter,
    Residency,
    residency,
    sm_limits,
    waves_of,
)


def held(capability: str, threads: int, registers: int | None, shared_bytes: int | None) -> Residency:
    limits = sm_limits(capability)
    assert limits is not None
    found = residency(limits, threads=threads, registers_per_thread=registers, shared_bytes=shared_bytes)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("capability", "blocks", "threads", "registers", "shared_kib"),
    [
        ("7.0", 32, 2048, 65536, 96),
        ("7.5", 16, 1024, 65536, 64),
        ("8.0", 32, 2048, 65536, 164),
        ("8.6", 16, 1536, 65536, 100),
        ("8.9", 24, 1536, 65536, 100),
        ("9.0", 32, 2048, 65536, 228),
        ("10.0", 32, 2048, 65536, 228),
        ("12.0", 24, 1536, 65536, 100),
    ],
)
def test_limits_of_a_multiprocessor(
    capability: str, blocks: int, threads: int, registers: int, shared_kib: int
) -> None:
    limits = sm_limits(capability)
    assert limits is not None
    assert (limits.blocks, limits.threads, limits.registers) == (blocks, threads, registers)
    assert limits.shared_bytes == shared_kib * 1024


@pytest.mark.parametrize("capability", [None, "", "3.5", "9", "nonsense"])
def test_unknown_devices_have_no_limits(capability: str | None) -> None:
    assert sm_limits(capability) is None


@pytest.mark.parametrize(
    ("block", "blocks", "warps", "limiters"),  # threads, registers of each, shared bytes
    [
        ((128, 32, 0), 16, 64, {Limiter.THREADS, Limiter.REGISTERS}),
        ((128, 40, 16384), 12, 48, {Limiter.REGISTERS}),
        ((128, 195, 33808), 2, 8, {Limiter.REGISTERS}),
        ((256, 44, 0), 5, 40, {Limiter.REGISTERS}),
        ((384, 168, 231868), 1, 12, {Limiter.REGISTERS, Limiter.SHARED_MEMORY}),
        ((64, 16, 0), 32, 64, {Limiter.BLOCKS, Limiter.THREADS}),
        ((32, 16, 0), 32, 32, {Limiter.BLOCKS}),
        ((80, 39, 6656), 16, 48, {Limiter.REGISTERS}),
    ],
)
def test_of_the_h200_as_recorded(
    block: tuple[int, int, int], blocks: int, warps: int, limiters: set[Limiter]
) -> None:
    found = held("9.0", *block)
    assert (found.blocks_per_sm, found.warps_per_sm, set(found.limiters)) == (blocks, warps, limiters)
    assert found.occupancy == warps / 64


def test_the_system_takes_a_kibibyte_of_each_block_from_8_0_on() -> None:
    # 227 KiB is the most a block may have of the 228; 113 KiB twice would fit but for what is reserved.
    assert held("9.0", 128, 16, 227 * 1024).blocks_per_sm == 1
    assert held("9.0", 128, 16, 113 * 1024).blocks_per_sm == 2
    assert held("9.0", 128, 16, 113 * 1024 + 128).blocks_per_sm == 1
    assert held("7.0", 128, 16, 48 * 1024).blocks_per_sm == 2


def test_registers_are_given_to_warps_in_units_of_256() -> None:
    # 33 registers take the room of 40: 40 × 32 = 1,280 of a warp.
    assert held("8.0", 1024, 33, 0).blocks_per_sm == held("8.0", 1024, 40, 0).blocks_per_sm == 1
    assert held("8.0", 1024, 32, 0).blocks_per_sm == 2


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes"),
    [(128, None, 0), (128, 32, None), (0, 32, 0), (1056, 64, 0), (128, 32, 300 * 1024)],
)
def test_a_missing_figure_or_one_that_cannot_be_gives_none(
    threads: int, registers: int | None, shared_bytes: int | None
) -> None:
    limits = sm_limits("9.0")
    assert limits is not None
    assert (
        residency(limits, threads=threads, registers_per_thread=registers, shared_bytes=shared_bytes) is None
    )


@pytest.mark.parametrize(
    ("blocks", "count", "tail_fraction", "tail_loss"),
    [(132, 0.5, 0.5, 0.5), (264, 1.0, 1.0, 0.0), (290, 290 / 264, 26 / 264, 0.4507575), (528, 2.0, 1.0, 0.0)],
)
def test_waves_and_what_their_tail_loses(
    blocks: int, count: float, tail_fraction: float, tail_loss: float
) -> None:
    found = waves_of(held("9.0", 128, 218, 19_200), blocks=blocks, sm_count=132)  # two blocks fit
    assert found is not None
    assert (found.slots, found.count) == (264, count)
    assert (found.tail_fraction, found.tail_loss) == (tail_fraction, pytest.approx(tail_loss))


@pytest.mark.parametrize(("blocks", "sm_count"), [(0, 132), (-1, 132), (4, 0)])
def test_no_blocks_or_multiprocessors_make_no_waves(blocks: int, sm_count: int) -> None:
    assert waves_of(held("9.0", 128, 32, 0), blocks=blocks, sm_count=sm_count) is None


@given(st.integers(1, 1 << 31), st.integers(1, 256), st.integers(1, 1024))
def test_empty_and_filled_slots_are_all_slots(blocks: int, sm_count: int, threads: int) -> None:
    found = waves_of(held("9.0", threads, 16, 0), blocks=blocks, sm_count=sm_count)
    assert found is not None
    passes = -(-blocks // found.slots)
    assert 0 <= found.tail_loss < 1
    assert found.tail_loss == pytest.approx(1 - blocks / (passes * found.slots), abs=1e-9)
    assert (passes - 1 + found.tail_fraction) * found.slots == pytest.approx(blocks)
