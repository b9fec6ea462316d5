"""Checks of the GPUs: reachable, theirs to use, in a state in which times mean something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import (
    DeviceCalculation,
    DeviceFacts,
    DeviceProcess,
    DriverFacts,
    Facts,
    ProgramFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.outcome import GpuPresence, Outcome, Verdict, gpu_presence, hides_all

Answer = Callable[[Facts, str], Outcome]
Change = Callable[..., Facts]
Judge = Callable[..., Outcome]

SMI = ProgramFacts("nvidia-smi", "/usr/bin/nvidia-smi", failure="No devices were found")


def test_a_gpu_that_works(gpu_machine: Facts, answer: Answer) -> None:
    assert gpu_presence(gpu_machine) is GpuPresence.PRESENT
    assert answer(gpu_machine, "gpu.reachable").reason == "1 × NVIDIA H200"


def test_a_machine_without_a_gpu_is_ready_for_the_cpu(cpu_machine: Facts, answer: Answer) -> None:
    assert gpu_presence(cpu_machine) is GpuPresence.NONE
    assert answer(cpu_machine, "gpu.reachable").verdict is Verdict.NOT_APPLICABLE
    assert diagnose(cpu_machine).can_profile


def test_the_drivers_packages_without_a_gpu_are_no_gpu(cpu_machine: Facts) -> None:
    facts = replace(cpu_machine, driver=DriverFacts(version="580.95.05", smi=SMI))
    assert gpu_presence(facts) is GpuPresence.NONE


def _unreachable(facts: Facts, *, container: str | None = None, pci: int | None = 1, **driver: Any) -> Facts:
    """The machine with its GPU on the bus, and no CUDA that shows it."""
    return replace(
        facts,
        machine=replace(facts.machine, container=container, pci_gpu_count=pci),
        driver=replace(facts.driver, **driver),
    )


def test_a_gpu_without_a_driver(cpu_machine: Facts, answer: Answer) -> None:
    facts = _unreachable(cpu_machine)
    outcome = answer(facts, "gpu.reachable")
    assert outcome.verdict is Verdict.PROBLEM
    assert "the PCI bus has 1 GPU of NVIDIA" in outcome.reason
    assert "no CUDA driver" in outcome.reason
    assert (outcome.remedy or "").startswith("sudo apt-get install cuda-drivers")
    assert not diagnose(facts).can_profile


@pytest.mark.parametrize("pci", [1, None])
def test_a_container_with_nvidia_smi_and_no_device(
    cpu_machine: Facts, answer: Answer, pci: int | None
) -> None:
    facts = _unreachable(cpu_machine, container="docker", pci=pci, smi=SMI, library="/usr/lib/libcuda.so.1")
    outcome = answer(facts, "gpu.reachable")
    assert outcome.verdict is Verdict.PROBLEM
    assert "nvidia-smi is installed (/usr/bin/nvidia-smi)" in outcome.reason
    assert "this container has no device" in outcome.reason
    assert "--gpus all" in (outcome.remedy or "")
    assert not diagnose(facts).can_profile


def test_a_container_that_was_given_no_gpu_records_on_the_cpu(cpu_machine: Facts, answer: Answer) -> None:
    facts = _unreachable(cpu_machine, container="docker", version="580.95.05")
    outcome = answer(facts, "gpu.reachable")
    assert gpu_presence(facts) is GpuPresence.ON_HOST
    assert outcome.verdict is Verdict.WARNING
    assert "--gpus all" in (outcome.remedy or "")
    assert diagnose(facts).can_profile


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", "nvidia-fabricmanager"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: mismatch", "reboot"),
        ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: x", "cuda-compat"),
        ("CUDA_ERROR_STUB_LIBRARY: x", "stubs"),
        ("CUDA_ERROR_OPERATING_SYSTEM: x", "ls -l /dev/nvidia*"),
        ("CUDA_ERROR_UNKNOWN: unknown error", "nvidia-modprobe"),
        ("CUDA_ERROR_DEVICE_UNAVAILABLE: busy", "another process"),
        ("the program that asks the driver did not end within 60 s", "dmesg"),
    ],
)
def test_a_driver_that_does_not_start(cpu_machine: Facts, answer: Answer, error: str, remedy: str) -> None:
    facts = _unreachable(
        cpu_machine, device_files=("nvidia0",), library="/usr/lib/libcuda.so.1", init_error=f"cuInit: {error}"
    )
    outcome = answer(facts, "gpu.reachable")
    assert outcome.verdict is Verdict.PROBLEM
    assert error in outcome.reason
    assert remedy in (outcome.remedy or "")


def test_a_driver_that_was_not_asked(cpu_machine: Facts, answer: Answer) -> None:
    facts = replace(_unreachable(cpu_machine), failed_probes={"driver": "OSError: x"})
    assert "OSError: x" in answer(facts, "gpu.reachable").reason


def test_a_driver_that_shows_no_device(cpu_machine: Facts, answer: Answer) -> None:
    facts = _unreachable(cpu_machine, library="/usr/lib/libcuda.so.1", devices=())
    assert "CUDA shows none" in answer(facts, "gpu.reachable").reason


def test_a_partitioned_gpu_without_an_instance(
    gpu_machine: Facts, answer: Answer, change: Change, change_device: Change
) -> None:
    facts = change_device(gpu_machine, mig_mode=True, mig_instance_count=0, is_visible=None)
    assert answer(facts, "gpu.mig").verdict is Verdict.PROBLEM
    facts = change(change(facts, "driver", devices=()), "torch", devices=())
    outcome = answer(facts, "gpu.reachable")
    assert outcome.verdict is Verdict.PROBLEM
    assert "nvidia-smi mig -cgi" in (outcome.remedy or "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False), ("", True), ("-1", True), ("NoDevFiles", True), ("0", False), ("1,-1", False),
        ("-1,0", True), ("GPU-5f5a", False), ("MIG-1", False), (" 2", False),
    ],
)  # fmt: skip
def test_what_hides_every_device(value: str | None, expected: bool) -> None:
    assert hides_all(value) is expected


def test_hidden_gpus_leave_the_cpu(
    gpu_machine: Facts, answer: Answer, change: Change, change_device: Change
) -> None:
    facts = change_device(gpu_machine, is_visible=False)
    facts = change(
        change(facts, "driver", devices=None, launched=None), "torch", devices=(), is_available=False
    )
    facts = change(facts, "machine", variables={"CUDA_VISIBLE_DEVICES": ""})
    outcome = answer(facts, "gpu.visible")
    assert gpu_presence(facts) is GpuPresence.HIDDEN
    assert outcome.verdict is Verdict.WARNING
    assert outcome.remedy == "unset CUDA_VISIBLE_DEVICES"
    assert diagnose(facts).can_profile


def test_some_gpus_may_be_hidden(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    hidden = replace(gpu_machine.devices[0], index=1, is_visible=False, mig_mode=True, clock_reasons=("x",))
    facts = replace(gpu_machine, devices=(*gpu_machine.devices, hidden))
    facts = change(facts, "machine", variables={"CUDA_VISIBLE_DEVICES": "0"})
    outcome = answer(facts, "gpu.visible")
    assert (outcome.verdict, outcome.reason) == (Verdict.OK, "CUDA_VISIBLE_DEVICES='0' leaves 1 of 2 GPUs")
    assert answer(facts, "gpu.mig").verdict is Verdict.OK, "what is hidden does not matter"


def test_a_kernel_that_the_driver_does_not_run(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    facts = change(
        gpu_machine, "driver", launched=False, launch_error="cuCtxSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE"
    )
    outcome = answer(facts, "driver.launch")
    assert outcome.verdict is Verdict.PROBLEM
    assert "ECC_UNCORRECTABLE" in outcome.reason


@pytest.mark.parametrize(
    ("code", "changes", "verdict", "words"),
    [
        ("gpu.mig", {"mig_mode": True, "mig_instance_count": 2}, Verdict.WARNING, "partitioned"),
        ("gpu.mig", {"mig_mode": None}, Verdict.OK, "no GPU is partitioned"),
        (
            "gpu.processes",
            {"processes": (DeviceProcess(77, "python", 5),)},
            Verdict.WARNING,
            "python (pid 77)",
        ),
        ("gpu.processes", {"memory_used_bytes": 5 * 1024**3}, Verdict.WARNING, "5.0 GiB of GPU 0"),
        ("gpu.processes", {"memory_used_bytes": 600 * 1024**2}, Verdict.OK, "no other process"),
        ("gpu.processes", {"utilization_fraction": 0.97}, Verdict.WARNING, "busy for 97%"),
        ("gpu.processes", {"processes": None, "memory_used_bytes": None}, Verdict.UNKNOWN, "not told"),
        ("gpu.compute_mode", {"compute_mode": "exclusive process"}, Verdict.WARNING, "exclusive process"),
        ("gpu.compute_mode", {"compute_mode": "prohibited"}, Verdict.PROBLEM, "no program may use it"),
        ("gpu.compute_mode", {"compute_mode": None}, Verdict.NOT_APPLICABLE, "tells"),
        ("gpu.persistence", {"persistence_mode": False}, Verdict.WARNING, "persistence mode is off"),
        ("gpu.persistence", {"persistence_mode": None}, Verdict.NOT_APPLICABLE, "tells"),
        ("gpu.clocks", {"clock_reasons": ("hw thermal slowdown",)}, Verdict.WARNING, "hw thermal slowdown"),
        ("gpu.clocks", {"clock_reasons": ("applications clocks setting",)}, Verdict.WARNING, "applications"),
        ("gpu.clocks", {"sm_clock_mhz": None}, Verdict.UNKNOWN, "not told"),
    ],
)
def test_the_state_of_a_gpu(
    judge: Judge, code: str, changes: dict[str, Any], verdict: Verdict, words: str
) -> None:
    outcome = judge(code, device=changes)
    assert outcome.verdict is verdict
    assert words in outcome.reason


def test_clock_remedies_differ_by_what_holds_them(
    gpu_machine: Facts, answer: Answer, change_device: Change
) -> None:
    def remedy(reason: str) -> str:
        return answer(change_device(gpu_machine, clock_reasons=(reason,)), "gpu.clocks").remedy or ""

    assert remedy("applications clocks setting") == "sudo nvidia-smi -i 0 -rac -rgc"
    assert "TEMPERATURE" in remedy("sw thermal slowdown")
    assert "POWER" in remedy("sw power cap")


def test_a_gpu_that_only_torch_tells_of(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, devices=(DeviceFacts(0, "NVIDIA H200", "torch"),))
    for code, verdict in (("gpu.processes", Verdict.UNKNOWN), ("gpu.clocks", Verdict.UNKNOWN)):
        assert answer(facts, code).verdict is verdict
        assert answer(facts, code).remedy == "pip install 'opscope[nvml]'"


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
