"""Every way to record leaves a sidecar with the origins of its kernels, and a Session that keeps them."""

import gc

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.capture import recording  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.errors import DependencyError, InputError  # noqa: E402
from opscope.model.origin import RecordedKernel, RecordedUnit  # noqa: E402
from opscope.model.sidecar import read_sidecar  # noqa: E402
from opscope.provenance.binaries import library as process  # noqa: E402

pytestmark = pytest.mark.torch

ORIGIN = RecordedKernel("gemm", "libown.so", "ab12", (RecordedUnit("gemm.cu", "12345678", "src/gemm.cu"),))


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch):
    """As if every trace had one kernel, and a library of this process registered it."""
    # What pytest has frozen takes seconds to look through.
    monkeypatch.setattr("opscope.capture.process_sources.tracked_objects", gc.get_objects)
    read = recording.read_trace_names
    monkeypatch.setattr(
        recording, "read_trace_names", lambda path: read(path)._replace(kernels=frozenset({"gemm"}))
    )
    monkeypatch.setattr(process, "units_of_process", lambda names, maps: dict.fromkeys(names, ORIGIN))


def work():
    torch.ones(4, 4) @ torch.ones(4, 4)


def test_profile(tmp_path):
    with opscope.profile(tmp_path, active=1, repeat=2) as profiler:
        for _ in range(profiler.total_steps):
            work()
            profiler.step()
    assert [cycle.sidecar.kernels for cycle in profiler.cycles] == [(ORIGIN,), (ORIGIN,)]
    assert read_sidecar(profiler.cycles[1].sidecar_path).kernels == (ORIGIN,)


def test_libraries_that_cannot_be_read_break_nothing(tmp_path, monkeypatch):
    def fail(names, maps):
        raise InputError("truncated", source="libown.so")

    monkeypatch.setattr(process, "units_of_process", fail)
    with opscope.profile(tmp_path, warmup=0) as profiler:
        work()
    (gap,) = profiler.cycles[0].sidecar.gaps
    assert (gap.part, gap.reason) == ("kernel origins", "InputError: libown.so: truncated")
    with profiler.session as session:
        assert "trace.sidecar_incomplete" in {finding.code for finding in session.findings()}


def test_custom_operators_are_recorded(tmp_path):
    @torch.library.custom_op("opscope_test::twice", mutates_args=())
    def _(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with opscope.profile(tmp_path, warmup=0) as profiler:
        # Called by its Python name it passes the dispatcher by in torch 2.15, and is in no trace.
        torch.ops.opscope_test.twice(torch.ones(2))
    (registration,) = profiler.cycles[0].sidecar.registrations
    assert (registration.name, registration.python_file) == ("opscope_test::twice", __file__)
    with profiler.session as session:
        assert session.query("SELECT name, python_line FROM operator_registrations") == [
            ("opscope_test::twice", registration.python_line)
        ]


class TestTracking:
    def test_it_lasts_as_long_as_the_block(self, tmp_path):
        config = pytest.importorskip("torch._inductor.config").trace
        if not hasattr(config, "provenance_tracking_level"):
            pytest.skip("this torch has no provenance tracking")
        before = config.provenance_tracking_level
        with pytest.raises(ZeroDivisionError), Profiler(tmp_path, track_compile=True, warmup=0):
            assert config.provenance_tracking_level >= 1
            _ = 1 / 0
        assert config.provenance_tracking_level == before

    def test_a_torch_without_it_says_so(self, tmp_path, monkeypatch):
        from opscope.capture import profiler

        monkeypatch.setattr(profiler, "_TRACKING", "no_such_setting")
        with pytest.raises(DependencyError, match="cannot track"), Profiler(tmp_path, track_compile=True):
            pass
        with Profiler(tmp_path, warmup=0):
            work()
