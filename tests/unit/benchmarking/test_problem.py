import pytest

from case_tables import cases
from opscope.benchmarking.problem import failure_of, lost_device
from opscope.model.benchmark import Status


@cases("text", "words")
def test_what_generated_code_needs_and_this_machine_lacks_is_named(text, words):
    status, reason = failure_of(RuntimeError(text), "at its first call")
    assert status is Status.UNAVAILABLE
    assert words in reason


def test_a_device_that_cannot_be_waited_for_is_lost(monkeypatch):
    torch = pytest.importorskip("torch")

    def fail(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert lost_device("cuda:0") == "CUDA error: an illegal memory access was encountered"
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert lost_device("cuda:0") is None
