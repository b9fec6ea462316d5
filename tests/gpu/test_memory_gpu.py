"""Memory snapshots of the running PyTorch: the peak is the allocator's own."""

import pytest

torch = pytest.importorskip("torch")

from opscope.ingest.memory_snapshot import read_memory_snapshot  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_the_peak_is_what_the_allocator_counted(tmp_path):
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
        counted = torch.cuda.memory_stats()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    (found,) = read_memory_snapshot(tmp_path / "snapshot.pickle")
    assert found.has_history
    assert found.peak_bytes == counted["requested_bytes.all.peak"]
    assert found.end_bytes == counted["requested_bytes.all.current"]
    assert found.end_reserved_bytes == counted["reserved_bytes.all.current"]
    kinds = {one.kind for one in found.holdings}
    assert {"forward", "backward", "optimizer"} <= kinds
    assert sum(one.size_bytes for one in found.holdings) == found.peak_bytes
    assert any("test_memory_gpu.py" in (one.line or "") for one in found.holdings)
    assert any(one.forwards and "linear.py:" in one.forwards[-1] for one in found.holdings)
