"""Machines with given answers, one with a GPU on which all is well, one without; and one made of files."""

import os
import sys

import pytest

from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.machine import (
    CaptureFacts,
    Counters,
    Driver,
    ExaminedMachine,
    Gpu,
    MachineFacts,
    ProgramFacts,
    Torch,
)

GIB = 1024**3
UUID = "GPU-5f5a1c52-0000-1111-2222-333344445555"


def given(answers):
    """A machine that gives these answers."""
    return ExaminedMachine({}, "", answers=answers)


H200 = CudaDevice(0, "NVIDIA H200", "9.0", 132, 150_109_880_320, UUID)


@pytest.fixture
def cpu_machine():
    """A machine without a GPU and without anything of NVIDIA's, with torch for the CPU."""
    return {
        "machine": MachineFacts("Linux 6.1 x86_64", "AMD EPYC", 8, 32 * GIB),
        "packages": {"torch": "2.11.0+cpu"},
        "nvcc": ProgramFacts("nvcc"),
        "driver": Driver(library_failure="libcuda.so.1: cannot open shared object file"),
        "devices": (),
        "torch": Torch(
            "2.11.0+cpu", is_available=False, import_s=1.2, capture=CaptureFacts(("CPU",), operator_count=16)
        ),
        "counters": Counters(failure="there is no GPU"),
        "nsys": ProgramFacts("nsys"),
        "ncu": ProgramFacts("ncu"),
        "cuobjdump": ProgramFacts("cuobjdump", "/x/cuobjdump", "13.0"),
    }


@pytest.fixture
def gpu_machine(cpu_machine):
    """A machine with an H200 on which every check is content."""
    return {
        **cpu_machine,
        "machine": MachineFacts("Linux 6.1 x86_64", "AMD EPYC", 8, 32 * GIB, pci_gpu_count=1),
        "packages": {"torch": "2.11.0+cu130", "triton": "3.6.0", "vllm": "0.20.0"},
        "nvcc": ProgramFacts("nvcc", "/usr/local/cuda/bin/nvcc", "13.0.88"),
        "driver": Driver(
            "580.95.05", "13.0", ("nvidia0", "nvidiactl"), devices=(H200,),
            library="/usr/lib/libcuda.so.1",
        ),
        "devices": (
            Gpu(H200, memory_used_bytes=0, utilization_fraction=0.0, processes=()),
        ),
        "torch": Torch(
            "2.11.0+cu130", "13.0", None, "abcdef0123456789", import_s=2.0, cudnn="9.10.2",
            architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
            is_available=True, devices=(H200,), has_calculated=True,
            capture=CaptureFacts(("CPU", "CUDA"), 16, 8, 8),
        ),
        "counters": Counters(is_readable=True),
        "nsys": ProgramFacts("nsys", "/usr/local/bin/nsys", "2025.3.2"),
        "ncu": ProgramFacts("ncu", "/usr/local/bin/ncu", "2025.3.1.0"),
    }  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine made of files, with Python's packages in the folder `site`.

    `programs` are shell scripts by name, in a folder that is all of PATH; `files` are contents by
    absolute path.
    """
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    for name in ("nvidia", "triton"):  # of the machine that runs the tests
        monkeypatch.delitem(sys.modules, name, raising=False)

    def make(*, programs=None, files=None, variables=None, python=sys.executable, **answers):
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
        # The shell's own programs (cat, sleep) stay in reach of the scripts, not of the machine.
        own = {"PATH": str(binaries), "HOME": str(tmp_path / "home"), "BASE": os.defpath}
        environment = {**own, **(variables or {})}
        return ExaminedMachine(environment, python, root=root, answers=answers)

    return make
