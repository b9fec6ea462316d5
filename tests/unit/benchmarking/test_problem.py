import pytest

from case_tables import cases
from opscope.benchmarking.problem import failure_of, lost_device
from opscope.errors import MeasurementError
from opscope.model.benchmark import Status


def test_what_an_error_while_building_or_calling_means():
    graph = MeasurementError("it cannot be captured in a CUDA graph")
    assert failure_of(graph, "at its first call", may_be_unavailable=True)[0] is Status.UNAVAILABLE
    reason = "it cannot be captured in a CUDA graph (while it warmed up)"
    assert failure_of(graph, "while it warmed up") == (Status.FAILED, reason)
    failure = failure_of(ValueError("\n  bad stride\nat line 7"), "at its first call")
    assert failure == (Status.FAILED, "ValueError at its first call: bad stride")


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
