import pytest

from opscope.benchmarking.problem import lost_device


def test_a_device_that_cannot_be_waited_for_is_lost(monkeypatch):
    torch = pytest.importorskip("torch")

    def fail(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert lost_device("cuda:0") == "CUDA error: an illegal memory access was encountered"
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert lost_device("cuda:0") is None
