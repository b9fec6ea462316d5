"""`opscope bench` on a device: what its rows know of kernels, ceilings and code."""

import io
from contextlib import redirect_stdout

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.analysis.call_profile import profile_calls  # noqa: E402
from opscope.cli import main  # noqa: E402
from opscope.model.benchmark import BenchmarkResult, Status  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

QUICK = {"device": "cuda", "time_budget_s": 0.1, "min_samples": 5, "warmup_s": 0.01}


def bench(*targets, **options):
    result = opscope.bench(*targets, **{**QUICK, **options})
    assert isinstance(result, BenchmarkResult)
    return result


def test_a_call_is_profiled_with_titles_operators_and_geometry():
    x = torch.randn(1024, 1024, device="cuda")
    profile = profile_calls(lambda: torch.nn.functional.gelu(x))
    (use,) = profile.kernels
    assert (profile.calls, profile.kernels_launched, use.launches) == (3, 1, 1)
    assert "GeluCUDAKernelImpl" in use.title
    assert use.operator == "aten::gelu"
    assert use.grid is not None
    assert use.source_file.endswith("ActivationGeluKernel.cu")
    assert 0 < profile.device_ns < 1e6


def test_rows_know_kernels_memory_and_their_share_of_the_ceiling():
    result = bench("gelu", shape=(4096, 4096), implementations=["torch", "naive"], profile=True)
    torch_row, naive = result.row("torch"), result.row("naive")
    assert torch_row.kernels_launched == 1
    assert (naive.kernels_launched or 0) > 3
    assert (naive.peak_memory_bytes or 0) > (torch_row.peak_memory_bytes or 0)
    assert 0.2 < (torch_row.ceiling_fraction or 0) < 1.3
    assert naive.ratio is not None
    assert naive.ratio > 2


def test_a_profiler_that_runs_is_a_finding_and_not_a_failure():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True):  # without it torch 2.11 warns
        result = bench(torch.square, inputs=torch.ones(1024, device="cuda"), ceilings=False)
    (row,) = result.rows
    assert row.status is Status.OK
    assert row.profile is None
    assert "bench.not_profiled" in {finding.code for finding in result.findings}


def test_the_report_explains_the_squares(capfd):
    names = ("--implementations", "torch", "multiply", "power")
    out = io.StringIO()
    with redirect_stdout(out):
        options = ("--device", "cuda", *names, "--time-budget", "0.3", "--show", "kernels")
        code = main(["bench", "square", *options])
    assert code == 0
    text = out.getvalue()
    assert "Kernels" in text
    assert "CUDA events on the device" in text
    assert "elementwise_kernel" in text
