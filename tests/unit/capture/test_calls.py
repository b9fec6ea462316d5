from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from opscope.capture.calls import Configuration, profile_call, run_configuration  # noqa: E402
from opscope.errors import CaptureError, InputError  # noqa: E402
from opscope.workloads.target import resolve  # noqa: E402
from opscope.workloads.workload import Workload, WorkloadOptions, WorkloadSpec  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_failing_function_or_workload_fails_unchanged(tmp_path):
    with pytest.raises(ZeroDivisionError):
        profile_call(lambda: 1 / 0, output_dir=tmp_path)
    with pytest.raises(CaptureError, match="out of memory"):
        profile_call(lambda: (_ for _ in ()).throw(MemoryError()), output_dir=tmp_path)
    spec = WorkloadSpec("w", WorkloadOptions(device="cpu"), lambda *args: Workload(lambda: 1 / 0, "cpu"))
    with pytest.raises(ZeroDivisionError):
        run_configuration(Configuration(spec, 1, 4), tmp_path, trace_name="t")


@pytest.fixture(scope="module")
def spec():
    return resolve("transformer", WorkloadOptions(device="cpu", layers=1, hidden=16))


def test_files_in_the_way_are_found_before_the_workload_is_built(tmp_path, spec):
    def fail(options, batch_size, seq_len):
        raise AssertionError("built")

    (tmp_path / "t.opscope.json").write_text("")
    with pytest.raises(InputError, match="exists"):
        run_configuration(Configuration(replace(spec, builder=fail), 1, 4), tmp_path, trace_name="t")


@pytest.mark.parametrize("where", ["build", "measure", "step"])
def test_out_of_memory_names_the_configuration_wherever_it_happens(tmp_path, where):
    def exhaust(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def builder(options, batch_size, seq_len):
        return exhaust() if where == "build" else Workload(exhaust, "cpu")

    spec = WorkloadSpec("w", WorkloadOptions(device="cpu"), builder)
    with pytest.raises(CaptureError, match="out of memory with w bs1_seq4") as caught:
        measure = (lambda fn, device: fn()) if where == "measure" else None
        run_configuration(Configuration(spec, 1, 4), tmp_path, trace_name="t", measure=measure)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert list(tmp_path.iterdir()) == []
