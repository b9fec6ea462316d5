from __future__ import annotations

from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.provenance.binaries import process
from opscope.provenance.binaries.library import TranslationUnit
from opscope.provenance.origins import recorded_origins


def test_origins_take_the_form_of_the_sidecar(monkeypatch):
    origin = process.KernelOrigin("libx.so", None, (TranslationUnit("a.cu", "12345678", "src/a.cu"),))
    monkeypatch.setattr(process, "units_of_process", lambda names: {"k": origin} if "k" in names else {})
    expected = RecordedKernel("k", "libx.so", None, (RecordedUnit("a.cu", "12345678", "src/a.cu"),))
    assert recorded_origins(["k", "other"]) == {"k": expected}
    assert recorded_origins([]) == {}
