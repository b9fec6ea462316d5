"""Probes of what files, variables and metadata tell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opscope.toolchain.doctor.facts import ProgramFacts
from opscope.toolchain.doctor.gpu_probes import probe_driver_files
from opscope.toolchain.doctor.software_probes import (
    probe_folders,
    probe_machine,
    probe_packages,
    probe_python,
)
from opscope.toolchain.doctor.surroundings import Surroundings

Make = Callable[..., Surroundings]

GPU = "/sys/bus/pci/devices/0000:1b:00.0"


def test_gpus_are_counted_on_the_bus(surroundings: Make) -> None:
    files = {
        f"{GPU}/vendor": "0x10de\n", f"{GPU}/class": "0x030200\n",
        "/sys/bus/pci/devices/0000:1c:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:1c:00.0/class": "0x068000\n",  # a switch of theirs
        "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
        "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    }  # fmt: skip
    assert probe_machine(surroundings(files=files)).pci_gpu_count == 1


def test_without_a_list_of_the_bus_the_count_is_not_known(surroundings: Make) -> None:
    assert probe_machine(surroundings()).pci_gpu_count is None


def test_the_machine_from_its_files(surroundings: Make) -> None:
    files = {
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\n",
        "/proc/meminfo": "MemTotal:       131072 kB\n",
        "/proc/12/comm": "nv-hostengine\n",
        "/proc/13/comm": "bash\n",
    }
    facts = probe_machine(surroundings(files=files, variables={"CUDA_LAUNCH_BLOCKING": "1", "SECRET": "x"}))
    assert facts.processor == "AMD EPYC 9654"
    assert facts.memory_bytes == 131072 * 1024
    assert facts.tools_running == ("nv-hostengine",)
    assert facts.variables == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert facts.container is None


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, {}, "kubepods"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, {}, None),
    ],
)
def test_kinds_of_containers(
    surroundings: Make, files: dict[str, str], variables: dict[str, str], kind: str | None
) -> None:
    assert probe_machine(surroundings(files=files, variables=variables)).container == kind


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
    ],
)
def test_the_driver_from_its_files(surroundings: Make, text: str) -> None:
    files = {
        "/proc/driver/nvidia/version": text,
        "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n",
        "/proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n",
        "/dev/nvidia0": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/null": "",
    }  # fmt: skip
    facts = probe_driver_files(surroundings(files=files, programs={"nvidia-smi": "exit 0"}))
    assert facts.version == "580.95.05"
    assert facts.admin_only_counters is True
    assert facts.is_admin is False, "what docker leaves to root lacks SYS_ADMIN"
    assert facts.device_files == ("nvidia-uvm", "nvidia0", "nvidiactl")
    assert Path(facts.smi.path or "").name == "nvidia-smi"


def test_a_machine_without_files_of_the_driver(surroundings: Make) -> None:
    facts = probe_driver_files(surroundings(files={"/proc/self/status": "CapEff:\t000001ffffffffff\n"}))
    assert (facts.version, facts.admin_only_counters, facts.is_admin) == (None, None, True)
    assert (facts.device_files, facts.smi) == ((), ProgramFacts("nvidia-smi"))
    assert (
        probe_driver_files(surroundings(files={"/sys/module/nvidia/version": "570.1\n"})).version == "570.1"
    )


def test_the_python_of_this_process(surroundings: Make) -> None:
    facts = probe_python(surroundings())
    assert facts.version.startswith(".".join(map(str, sys.version_info[:2])))
    assert facts.headers is None or (Path(facts.headers) / "Python.h").exists()


def _install(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_pins_are_read_from_metadata(surroundings: Make, tmp_path: Path) -> None:
    site = tmp_path / "site"
    _install(
        site, "torch", "2.11.0+cu130", "filelock", 'triton==3.6.0; platform_system == "Linux"',
        'pytorch-triton-rocm==3.6.0; platform_system == "Nowhere"', 'triton>=9; extra == "other"',
        "not a [requirement",
    )  # fmt: skip
    (site / "torch").mkdir()
    _install(site, "triton", "3.4.0")
    _install(site, "vllm", "0.20.0", "torch==2.11.0", "numpy")
    _install(site, "torchvision", "0.25.0", "torch (==2.10.0)", "pillow")
    facts = probe_packages(surroundings())
    assert facts.versions["torch"] == "2.11.0+cu130"
    assert facts.versions["transformers"] is None
    assert facts.triton_packages == ("triton",)
    assert facts.torch_folder == str(site / "torch")
    assert [(one.package, one.requires, one.specifier, one.installed, one.is_met) for one in facts.pins] == [
        ("torch", "triton", "==3.6.0", "3.4.0", False),
        ("vllm", "torch", "==2.11.0", "2.11.0+cu130", True),
        ("torchvision", "torch", "==2.10.0", "2.11.0+cu130", False),
    ]


def test_a_missing_requirement_is_not_met(surroundings: Make, tmp_path: Path) -> None:
    _install(tmp_path / "site", "torch", "2.11.0", "triton==3.6.0")
    (pin,) = probe_packages(surroundings()).pins
    assert (pin.installed, pin.is_met) == (None, False)


def test_without_packaging_versions_are_still_known(
    surroundings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path / "site", "torch", "2.11.0", "triton==3.6.0")
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    facts = probe_packages(surroundings())
    assert (facts.versions["torch"], facts.pins) == ("2.11.0", ())
    assert "packaging" in (facts.failure or "")


def test_packages_of_this_process(surroundings: Make) -> None:
    here = Surroundings(dict(os.environ), sys.executable, Path(), Path())
    assert probe_packages(here).versions["numpy"] is not None


def test_folders_that_exist_and_that_do_not(surroundings: Make, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    variables = {"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "home" / "triton")}
    by_purpose = {one.purpose: one for one in probe_folders(surroundings(variables=variables))}
    output, triton = by_purpose["output"], by_purpose["Triton cache"]
    assert (output.exists, output.is_writable, output.failure) == (True, True, None)
    assert (triton.exists, triton.is_writable) == (False, True)
    assert triton.path == str(tmp_path / "home" / "triton")
    assert not (tmp_path / "home" / "triton").exists(), "nothing is made"
    assert list((tmp_path / "work").iterdir()) == [], "the file is gone"
    assert 0 < (output.free_bytes or 0) < (output.total_bytes or 0)
    assert output.file_system == (tmp_path / "work").stat().st_dev
    assert by_purpose["compile cache"].path.startswith(str(tmp_path / "torchinductor_"))
    assert by_purpose["extension cache"].path == str(tmp_path / "home" / ".cache" / "torch_extensions")


def test_a_file_in_place_of_a_folder(surroundings: Make, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("", encoding="utf-8")
    output = probe_folders(surroundings())[0]
    assert output.is_writable is False
    assert "Not a directory" in (output.failure or "")


def test_a_folder_in_which_nothing_can_be_made(surroundings: Make) -> None:
    output = probe_folders(replace(surroundings(), folder=Path("/proc")))[0]
    assert (output.exists, output.is_writable) == (True, False)
    assert (output.failure or "").startswith("/proc: ")


def test_a_user_without_a_home(surroundings: Make, tmp_path: Path) -> None:
    purposes = [one.purpose for one in probe_folders(surroundings(variables={"HOME": ""}))]
    assert "Triton cache" not in purposes
    assert "output" in purposes
