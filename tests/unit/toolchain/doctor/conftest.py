"""Machines as facts: one with a GPU on which all is well, one without; and surroundings made of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.facts import (
    BuildFacts,
    CaptureFacts,
    CounterFacts,
    DeviceCalculation,
    DriverFacts,
    Facts,
    FolderFacts,
    GpuFacts,
    MachineFacts,
    PackageFacts,
    Pin,
    ProgramFacts,
    PythonFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.surroundings import Surroundings

GIB = 1024**3
UUID = "GPU-5f5a1c52-0000-1111-2222-333344445555"
H200 = CudaDevice(0, "NVIDIA H200", "9.0", 132, 150_109_880_320, UUID)


@pytest.fixture
def cpu_machine() -> Facts:
    """A machine without a GPU and without anything of NVIDIA's, with torch for the CPU."""
    return Facts(
        machine=MachineFacts("Linux 6.1 x86_64", "AMD EPYC", 8, 32 * GIB, pci_gpu_count=0),
        python=PythonFacts("3.11.7", headers="/usr/include/python3.11", executable="/usr/bin/python3"),
        packages=PackageFacts({"torch": "2.11.0+cpu"}),
        build=BuildFacts(
            compiler=ProgramFacts("c++", "/usr/bin/c++", "12.2.0"),
            ninja=ProgramFacts("ninja", "/usr/bin/ninja", "1.11.1"),
            compiler_kind="gcc",
            cxx_standard=17,
            compiles=True,
        ),
        driver=DriverFacts(library_failure="libcuda.so.1: cannot open shared object file"),
        torch=TorchFacts(
            "2.11.0+cpu", is_available=False, import_s=1.2, capture=CaptureFacts(("CPU",), operator_count=16)
        ),
        counters=CounterFacts(failure="there is no GPU"),
        cuobjdump=ProgramFacts("cuobjdump", "/x/cuobjdump", "13.0"),
        folders=tuple(
            FolderFacts(purpose, f"/{number}", True, True, 50 * GIB, 100 * GIB, number)
            for number, purpose in enumerate(("output", "temporary", "opscope cache", "shared memory"))
        ),
    )


@pytest.fixture
def gpu_machine(cpu_machine: Facts) -> Facts:
    """A machine with an H200 on which every check is content."""
    return replace(
        cpu_machine,
        machine=replace(cpu_machine.machine, pci_gpu_count=1),
        packages=PackageFacts(
            {"torch": "2.11.0+cu130", "triton": "3.6.0", "vllm": "0.20.0", "torchvision": "0.26.0"},
            (
                Pin("torch", "triton", "==3.6.0", "3.6.0", True),
                Pin("vllm", "torch", "==2.11.0", "2.11.0+cu130", True),
                Pin("torchvision", "torch", "==2.11.0", "2.11.0+cu130", True),
            ),
            ("triton",),
        ),
        build=replace(
            cpu_machine.build,
            nvcc=ProgramFacts("nvcc", "/usr/local/cuda/bin/nvcc", "13.0.88"),
            cuda_home="/usr/local/cuda",
            cuda_home_from="/usr/local/cuda",
            has_cuda_headers=True,
            toolkits=("/usr/local/cuda",),
            nvcc_starts=True,
        ),
        driver=DriverFacts(
            "580.95.05",
            "13.0",
            ("nvidia0", "nvidiactl"),
            True,
            True,
            ProgramFacts("nvidia-smi", "/usr/bin/nvidia-smi"),
            "/usr/lib/libcuda.so.1",
            devices=(H200,),
            launched=True,
        ),
        devices=(
            GpuFacts(
                0,
                H200.name,
                "nvml",
                UUID,
                "9.0",
                132,
                H200.memory_bytes,
                0,
                345,
                1980,
                3201,
                30,
                75.0,
                700.0,
                0.0,
                True,
                "default",
                False,
                processes=(),
                is_visible=True,
                least_cuda_version="11.8",
            ),
        ),
        torch=TorchFacts(
            "2.11.0+cu130",
            "13.0",
            None,
            "abcdef0123456789",
            import_s=2.0,
            cudnn="9.10.2",
            architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
            is_available=True,
            devices=(H200,),
            calculations=(DeviceCalculation(0),),
            has_product=True,
            capture=CaptureFacts(("CPU", "CUDA"), 16, 8, 8),
            libraries=("/site-packages/nvidia/cu13/lib/libcublas.so.13",),
        ),
        counters=CounterFacts(True, 2816.0),
        nsys=ProgramFacts("nsys", "/usr/local/bin/nsys", "2025.3.2"),
        ncu=ProgramFacts("ncu", "/usr/local/bin/ncu", "2025.3.1.0"),
    )


@pytest.fixture
def surroundings(tmp_path: Path) -> Callable[..., Surroundings]:
    """A machine made of files.

    `programs` are shell scripts by name, in a folder that is all of PATH; `files` are contents by
    absolute path.
    """

    def make(
        *,
        programs: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> Surroundings:
        root, binaries = tmp_path / "root", tmp_path / "bin"
        root.mkdir(exist_ok=True)
        binaries.mkdir(exist_ok=True)
        for name, script in (programs or {}).items():
            program = binaries / name
            program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            program.chmod(0o755)
        for name, content in (files or {}).items():
            file = root / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        # The shell's own programs (cat, sleep) stay in reach of the scripts, not of the probes.
        environment = {
            "PATH": str(binaries),
            "HOME": str(tmp_path / "home"),
            "BASE": os.defpath,
            **(variables or {}),
        }
        return Surroundings(
            environment,
            python,
            tmp_path / "work",
            tmp_path / "home" / ".cache" / "opscope",
            root,
            (str(tmp_path / "site"),),
        )

    return make
