"""Checks of the GPUs: reachable, theirs to use, in a state in which times mean something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import DeviceFacts, DeviceProcess, DriverFacts, Facts, ProgramFacts
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
