"""What a recording of a few calls says of one call."""

import tempfile

import pytest

from fakes import TraceBuilder
from opscope.analysis.call_profile import call_profile_of, profile_calls
from opscope.errors import CaptureError

from .conftest import FILL_KERNEL, GELU_KERNEL


def recording(*calls):
    """One operator and launch for each (kernel, microseconds)."""
    built = TraceBuilder()
    for index, (kernel, duration_us) in enumerate(calls):
        built.operator("aten::gelu", 100 * index, 10).launch(100 * index + 1)
        built.kernel(
            kernel, 1_000 + 100 * index, duration_us, grid=[64, 1, 1], block=[128, 1, 1],
            **{"registers per thread": 30, "shared memory": 0},
        )  # fmt: skip
    return built


def test_figures_are_per_call_and_kernels_have_titles(load):
    profile = call_profile_of(load(recording(*[(GELU_KERNEL, 6), (FILL_KERNEL, 3)] * 3)), 3)
    assert (profile.calls, profile.kernels_launched, profile.device_ns) == (3, 2, 9_000)
    first, second = profile.kernels
    assert (first.name, first.launches, first.device_ns, first.operator) == (
        GELU_KERNEL, 1, 6_000, "aten::gelu",
    )  # fmt: skip
    assert first.title == "vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>"
    assert (first.grid, first.block, first.registers_per_thread) == ((64, 1, 1), (128, 1, 1), 30)
    assert second.name == FILL_KERNEL


def test_launches_or_geometry_that_differ_between_calls_are_no_one_number(load):
    profile = call_profile_of(load(recording((GELU_KERNEL, 6), (GELU_KERNEL, 6))), 3)
    assert profile.kernels_launched == pytest.approx(2 / 3)
    built = recording((GELU_KERNEL, 6))
    built.operator("aten::gelu", 500, 10).launch(501).kernel(
        GELU_KERNEL, 2_000, 5, grid=[8, 1, 1], block=[128, 1, 1]
    )
    (use,) = call_profile_of(load(built), 2).kernels
    assert (use.grid, use.block) == (None, (128, 1, 1))


@pytest.mark.torch
def test_calls_are_recorded_and_nothing_is_left_behind(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    tensor = torch.ones(3)
    profile = profile_calls(lambda: seen.append(tensor + 1), calls=2)
    assert profile.calls == 2
    assert len(seen) == 3
    if not torch.cuda.is_available():
        assert (profile.kernels_launched, profile.kernels) == (0, ())
    # The first import of inductor in a process makes its cache folder, which is torch's.
    assert [one for one in tmp_path.iterdir() if not one.name.startswith("torchinductor_")] == []


@pytest.mark.torch
def test_what_the_call_raises_is_the_cause(tmp_path):
    pytest.importorskip("torch")

    def fail():
        raise ValueError("a mistake")

    with pytest.raises(CaptureError, match=r"could not be profiled \(ValueError: a mistake\)") as caught:
        profile_calls(fail)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.torch
def test_a_profiler_that_runs_already_is_an_error_to_report(tmp_path):
    pytest.importorskip("torch")
    from opscope.capture.profiler import Profiler

    with Profiler(tmp_path, warmup=0, active=1), pytest.raises(CaptureError, match="already running"):
        profile_calls(lambda: None)
