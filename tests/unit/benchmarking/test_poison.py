"""Memory that is handed out inside the block holds the poison; outside it does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import check as poison  # noqa: E402
from opscope.benchmarking.check import POISON_NAN, POISON_ZERO, poisoned_memory  # noqa: E402


@pytest.mark.parametrize("count", [1, 16, 1000, 100_000, 20_000_000])
@pytest.mark.parametrize("byte", [POISON_NAN, POISON_ZERO, 0x55])
def test_all_new_memory_holds_it(count, byte):
    torch.full((count,), 7, dtype=torch.uint8)  # freed at once
    with poisoned_memory("cpu", [count], byte):
        fresh = [torch.empty(count, dtype=torch.uint8) for _ in range(3)]
    assert all(bool((one == byte).all()) for one in fresh)


def test_it_is_nan_in_every_floating_point_dtype():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2):
        with poisoned_memory("cpu", [5000]):
            fresh = torch.empty(5000, dtype=dtype)
        assert fresh.float().isnan().all()


def test_it_ends_with_the_block_also_if_that_raises():
    with pytest.raises(ValueError, match="stop"), poisoned_memory("cpu", [100_000], 0x55):
        raise ValueError("stop")
    written = torch.full((100_000,), 1, dtype=torch.uint8)
    del written
    assert not (torch.empty(100_000, dtype=torch.uint8) == 0x55).all()


def test_without_glibc_blocks_that_were_freed_hold_it(monkeypatch):
    """What malloc gives back from its own heap is what was freed last."""

    def no_library(name):
        raise OSError("no libc")

    monkeypatch.setattr(poison.ctypes, "CDLL", no_library)
    with poisoned_memory("cpu", [4000]):
        fresh = [torch.empty(1000) for _ in range(8)]
    # malloc keeps links and sizes of its own in free memory, and hands out other blocks between them.
    assert any(block.isnan().float().mean() > 0.9 for block in fresh)


@pytest.mark.parametrize(
    ("size", "segment_mib"), [(1 << 20, 20), (20 << 20, 20), ((20 << 20) + 1, 22), (268_435_456, 256)]
)
def test_whole_segments_of_the_cuda_allocator_are_filled(size, segment_mib):
    assert poison._segment_bytes(size) == segment_mib << 20


class TestCuda:
    """Which blocks are filled, by an allocator that only notes their sizes."""

    @pytest.fixture
    def filled(self, monkeypatch):
        sizes = []
        monkeypatch.setattr(poison, "_filled", lambda device, wanted, byte: sizes.append(wanted) or [])
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 << 30, 80 << 30))
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
        monkeypatch.setattr(poison, "_here", lambda device: (0, 0, (0, 0)))
        return sizes

    def test_outputs_small_blocks_and_spare_memory(self, filled):
        with poisoned_memory("cuda:0", [100 << 20, 10]):
            pass
        free, new = filled
        assert free == []
        assert new[:16] == [1 << 20] * 16
        assert new[16:] == [100 << 20, 802 << 20]

    def test_no_more_than_a_quarter_of_what_is_free(self, filled):
        with poisoned_memory("cuda:0", [1 << 30]):
            pass
        assert sum(filled[1][16:]) <= 2 << 30

    def test_free_parts_of_segments_that_are_in_use_here(self, filled, monkeypatch):
        def segment(*blocks, device=0, stream=0, pool=(0, 0)):
            states = [{"size": size, "state": state} for size, state in blocks]
            return {"device": device, "stream": stream, "segment_pool_id": pool, "blocks": states}

        snapshot = [
            segment((512, "inactive"), (1024, "active_allocated"), (2048, "inactive")),
            segment((1, "inactive"), device=1),
            segment((2, "inactive"), stream=7),
            segment((3, "inactive"), pool=(0, 1)),  # of a CUDA graph
        ]
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot)
        with poisoned_memory("cuda:0", []):
            pass
        assert filled[0] == [2048, 512]


def test_filling_stops_where_memory_ends(monkeypatch):
    def empty(size, **options):
        if size > 100:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(size, dtype=torch.uint8)

    monkeypatch.setattr(torch, "empty", empty)
    blocks = poison._filled("cuda:0", [10, 200, 10], 0xFF)
    assert [len(block) for block in blocks] == [10]
    assert (blocks[0] == 0xFF).all()
