"""Checks of torch: installed, built for this GPU, calculating on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import DeviceCalculation, DeviceFacts, Facts, TorchFacts
from opscope.toolchain.doctor.outcome import Outcome, Verdict

Answer = Callable[[Facts, str], Outcome]
Change = Callable[..., Facts]
Judge = Callable[..., Outcome]

CU130 = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"


def test_without_torch_nothing_can_be_profiled(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, torch=None, packages=replace(gpu_machine.packages, versions={}, pins=()))
    outcome = answer(facts, "torch.installed")
    assert outcome.verdict is Verdict.PROBLEM
    assert outcome.remedy == "pip install torch --index-url https://download.pytorch.org/whl/cu130"
    for code in ("torch.import", "torch.version", "torch.gpu", "profiler.records", "gpu.calculation"):
        assert answer(facts, code).verdict is Verdict.NOT_APPLICABLE
    assert not diagnose(facts).can_profile


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (TorchFacts(import_error="OSError: libcudart.so.13: cannot open"), "libcudart.so.13"),
        (TorchFacts(stopped="did not end within 120 s at import"), "did not end"),
        (TorchFacts(stopped="died of SIGSEGV at import"), "SIGSEGV"),
    ],
)
def test_a_broken_torch_is_a_problem(
    gpu_machine: Facts, answer: Answer, torch: TorchFacts, words: str
) -> None:
    facts = replace(gpu_machine, torch=torch)
    outcome = answer(facts, "torch.import")
    assert outcome.verdict is Verdict.PROBLEM
    assert words in outcome.reason
    assert outcome.remedy == CU130
    assert not diagnose(facts).can_profile


def test_a_torch_that_was_not_tried_is_unknown(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, torch=None, failed_probes={"torch": "ValueError: x"})
    assert answer(facts, "torch.import").verdict is Verdict.UNKNOWN
    assert "ValueError: x" in answer(facts, "torch.import").reason


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("2.3.1+cu121", Verdict.WARNING),
        ("1.13", Verdict.WARNING),
        ("2.4.0", Verdict.OK),
        ("2.13.0a0+git1", Verdict.OK),
    ],
)
def test_torch_before_2_4(
    gpu_machine: Facts, answer: Answer, change: Change, version: str, verdict: Verdict
) -> None:
    assert answer(change(gpu_machine, "torch", version=version), "torch.version").verdict is verdict


def test_a_debug_build_qualifies_times(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    assert answer(change(gpu_machine, "torch", is_debug_build=True), "torch.build").verdict is Verdict.WARNING


def test_torch_without_cuda_on_a_machine_with_a_gpu(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(
        gpu_machine, "torch", version="2.11.0+cpu", cuda=None, is_available=False, devices=(),
        architectures=(), calculations=(), has_product=False,
    )  # fmt: skip
    outcome = answer(facts, "torch.gpu")
    assert outcome.verdict is Verdict.PROBLEM
    assert outcome.reason == "there is a GPU, and torch 2.11.0+cpu is built without CUDA"
    assert outcome.remedy == CU130
    assert not diagnose(facts).can_profile


def test_cuda_that_does_not_start_in_torch_is_told_in_its_words(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "torch", cuda_error="RuntimeError: CUDA unknown error", devices=())
    outcome = answer(facts, "torch.gpu")
    assert outcome.verdict is Verdict.PROBLEM
    assert "CUDA unknown error" in outcome.reason
    hanging = change(
        gpu_machine, "torch", is_available=None, devices=(), stopped="did not end within 120 s at devices"
    )
    assert "did not end within 120 s at devices" in answer(hanging, "torch.gpu").reason


def test_torch_for_rocm_on_its_gpu(cpu_machine: Facts, answer: Answer, change: Change) -> None:
    device = CudaDevice(0, "AMD Instinct MI300X", "9.4")
    facts = change(
        cpu_machine, "torch", hip="6.4", devices=(device,), is_available=True, has_product=True,
        calculations=(DeviceCalculation(0),), architectures=("gfx942",),
    )  # fmt: skip
    facts = change(
        facts, "torch", capture=replace(facts.torch.capture, kernels_launched=8, kernels_recorded=8)
    )
    facts = replace(facts, devices=(DeviceFacts(0, device.name, "torch"),))
    assert "ROCm 6.4" in answer(facts, "torch.gpu").reason
    for code in (
        "driver.runtime",
        "torch.architectures",
        "counters.access",
        "tools.nsys",
        "tools.ncu",
        "gpu.processes",
        "gpu.clocks",
    ):
        assert answer(facts, code).verdict is Verdict.NOT_APPLICABLE, code
    assert diagnose(facts).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("served", "built", "verdict", "words"),
    [
        ("13.0", "13.0", Verdict.OK, None),
        ("13.1", "12.6", Verdict.OK, None),
        ("12.4", "12.8", Verdict.WARNING, "525.60.13"),
        ("12.9", "13.0", Verdict.PROBLEM, "580.65.06"),
        ("11.4", "12.1", Verdict.PROBLEM, "whl/cu118"),
        (None, "13.0", Verdict.UNKNOWN, None),
        ("13.0", None, Verdict.NOT_APPLICABLE, None),
    ],
)
def test_a_driver_too_old_for_the_runtime(
    judge: Judge, served: str | None, built: str | None, verdict: Verdict, words: str | None
) -> None:
    outcome = judge("driver.runtime", driver={"cuda_version": served}, torch={"cuda": built})
    assert outcome.verdict is verdict
    if words is not None:
        assert words in (outcome.remedy or "")


def test_a_driver_too_old_is_also_why_torch_does_not_start(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "driver", cuda_version="12.2")
    facts = change(facts, "torch", cuda_error="RuntimeError: driver too old", devices=(), is_available=False)
    assert answer(facts, "torch.gpu").remedy == answer(facts, "driver.runtime").remedy
    assert "580.65.06" in (answer(facts, "torch.gpu").remedy or "")


@pytest.mark.parametrize(
    ("built", "capability", "verdict"),
    [
        ("sm_80 sm_90", "9.0", Verdict.OK),
        ("sm_80 sm_86 sm_90", "8.9", Verdict.OK),  # within a major capability, from its minor up
        ("sm_86 sm_90", "8.0", Verdict.PROBLEM),
        ("sm_80 sm_90", "10.0", Verdict.PROBLEM),
        ("sm_80 sm_90 compute_90", "12.0", Verdict.WARNING),  # compiled by the driver
        ("sm_75 sm_80 sm_90 compute_120", "7.0", Verdict.PROBLEM),
        ("sm_90a", "9.0", Verdict.OK),
        ("sm_100a compute_100a", "10.3", Verdict.PROBLEM),  # its features are of one capability
        ("sm_80", "8.7", Verdict.PROBLEM),  # an integrated GPU takes its own alone
        ("sm_87", "8.9", Verdict.PROBLEM),
        ("sm_100 sm_120", "12.1", Verdict.OK),
    ],
)
def test_torch_not_built_for_this_gpu(judge: Judge, built: str, capability: str, verdict: Verdict) -> None:
    device = CudaDevice(0, "GPU", capability)
    torch = {"architectures": tuple(built.split()), "devices": (device,)}
    outcome = judge("torch.architectures", torch=torch)
    assert outcome.verdict is verdict
    assert built in outcome.reason
    assert (outcome.remedy is None) == (verdict is Verdict.OK)


@pytest.mark.parametrize(
    ("served", "capability", "span", "index"),
    [
        ("13.0", "7.0", ("9.0", "12.9"), "cu126"),  # wheels for later CUDA leave it out
        ("12.4", "9.0", ("11.8", None), "cu128"),  # a driver serves all of its major version
        ("13.0", "10.0", ("12.8", None), "cu130"),
        ("12.8", "10.0", ("12.8", None), "cu128"),
        ("11.4", "8.0", ("11.0", None), "cu118"),
    ],
)
def test_the_torch_to_install_fits_driver_and_gpu(
    judge: Judge, served: str, capability: str, span: tuple[str, str | None], index: str
) -> None:
    device = {
        "compute_capability": capability, "least_cuda_version": span[0], "last_cuda_version": span[1]
    }  # fmt: skip
    broken = {"import_error": "broken"}
    outcome = judge("torch.import", device=device, driver={"cuda_version": served}, torch=broken)
    assert (outcome.remedy or "").endswith(f"/{index}")


def test_a_driver_that_serves_no_fitting_cuda_leaves_the_index_open(
    gpu_machine: Facts, answer: Answer, change: Change, change_device: Change
) -> None:
    facts = change_device(gpu_machine, compute_capability="10.0", least_cuda_version="12.8")
    facts = change(change(facts, "driver", cuda_version="11.8"), "torch", import_error="broken")
    assert answer(facts, "torch.import").remedy == "pip install --force-reinstall torch"


def _failed(error: str) -> dict[str, Any]:
    return {"calculations": (DeviceCalculation(0, error),)}


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        (_failed("AcceleratorError: no kernel image is available"), "no kernel image", "cu130"),
        (_failed("OutOfMemoryError: CUDA out of memory"), "cuda:0", "CUDA_VISIBLE_DEVICES"),
        (_failed("ArithmeticError: [1, 2, 3] * 2 gave [0]"), "gave [0]", "xid"),
        ({"calculations": (), "stopped": "did not end within 120 s at calculation"}, "did not end", "xid"),
        ({"product_error": "RuntimeError: CUBLAS_STATUS_NOT_INITIALIZED"}, "CUBLAS", "torch"),
        ({"product_error": "CUBLAS", "shadowed": (("/a/x.so", "/b/x.so"),)}, "CUBLAS", "unset LD"),
        ({"has_product": False, "stopped": "died of SIGSEGV at matrix product"}, "SIGSEGV", "xid"),
    ],
)  # fmt: skip
def test_a_calculation_that_fails(
    on_gpu: Change, answer: Answer, changes: dict[str, Any], words: str, remedy: str
) -> None:
    facts = on_gpu(torch=changes)
    outcome = answer(facts, "gpu.calculation")
    assert outcome.verdict is Verdict.PROBLEM
    assert words in outcome.reason
    assert remedy in (outcome.remedy or "")
    assert not diagnose(facts).can_profile


def test_libraries_of_ld_library_path_in_place_of_torchs_own(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    pairs = (
        ("/opt/cuda/lib/libcublas.so.13", "/s/libcublas.so.13"),
        ("/opt/cuda/lib/libcudnn.so.9", "/s/libcudnn.so.9"),
    )
    outcome = answer(change(gpu_machine, "torch", shadowed=pairs), "torch.libraries")
    assert outcome.verdict is Verdict.WARNING
    assert "/opt/cuda/lib/libcublas.so.13 and 1 more" in outcome.reason
    assert outcome.remedy == "unset LD_LIBRARY_PATH"
