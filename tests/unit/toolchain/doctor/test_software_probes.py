"""Probes of the machine, its folders, packages, compilers and tools, on machines made of files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opscope.errors import DependencyError
from opscope.toolchain.doctor import software_probes as tools
from opscope.toolchain.doctor.facts import ProgramFacts
from opscope.toolchain.doctor.gpu_probes import probe_counters, probe_driver_files, read_counters
from opscope.toolchain.doctor.software_probes import (
    probe_build,
    probe_cuobjdump,
    probe_folders,
    probe_machine,
    probe_ncu,
    probe_nsys,
    probe_packages,
    probe_python,
)
from opscope.toolchain.doctor.surroundings import Surroundings
from opscope.toolchain.programs import ProgramExit

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


NVCC = """
case "$1" in
--version) echo "Cuda compilation tools, release 13.0, V13.0.88";;
*) echo "$@" > {log}; exit {code};;
esac
"""
RAW_PAGE = (
    "==PROF== Connected to process 1\n"
    'opscope-doctor {"launched": true}\n'
    "==PROF== Disconnected from process 1\n"
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","sm__cycles_elapsed.max"\n'
    '"","","","","","","","","","","","cycle"\n'
    '"0","1","python","127.0.0.1","opscope_doctor","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","2,816"\n'
)


def _no_tool(search_path: str | None) -> str:
    raise DependencyError("not installed")


@pytest.mark.parametrize(
    ("probe", "name", "said", "version"),
    [
        (probe_nsys, "nsys", "NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0", "2025.3.2.474"),
        (probe_ncu, "ncu", "Nsight Compute CLI\nVersion 2025.3.1.0 (build 36398880)", "2025.3.1.0"),
        (probe_cuobjdump, "cuobjdump", "Cuda compilation tools, release 13.0, V13.0.85", "13.0"),
    ],
)  # fmt: skip
def test_versions_of_tools(
    surroundings: Make, probe: Callable[[Surroundings], ProgramFacts], name: str, said: str, version: str
) -> None:
    facts = probe(surroundings(programs={name: f"cat <<'END'\n{said}\nEND"}, variables={"PATH": ""}))
    assert facts.path is None
    here = surroundings(programs={name: f"printf '%s\\n' '{said}'"})
    facts = probe(here)
    assert (facts.name, facts.version, facts.failure) == (name, version, None)
    assert (facts.path or "").startswith(here.environment["PATH"])


@pytest.fixture(autouse=True)
def _no_installed_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools in the usual places of the machine that runs the tests are not those of the test."""
    for finder, name in (("find_nsys", "nsys"), ("find_ncu", "ncu")):

        def find(search_path: str | None, name: str = name) -> str:
            return shutil.which(name, path=search_path) or _no_tool(search_path)

        monkeypatch.setattr(tools, finder, find)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo broken >&2; exit 5", "broken"),
        ("exit 5", "exit code 5"),
        ("echo hello", "no version"),
        ("echo version 1.2.3; exit 1", "version 1.2.3"),
    ],
)
def test_a_tool_that_does_not_answer(surroundings: Make, script: str, words: str) -> None:
    facts = probe_nsys(surroundings(programs={"nsys": script}))
    assert facts.path is not None
    assert words in (facts.failure or "")


def test_cuobjdump_of_the_toolkit_or_of_triton(surroundings: Make, tmp_path: Path) -> None:
    inside = tmp_path / "site" / "triton" / "backends" / "nvidia" / "bin"
    inside.mkdir(parents=True)
    shutil.copy(_program(tmp_path, "cuobjdump", "release 12.8"), inside)
    assert probe_cuobjdump(surroundings()).version == "12.8"
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    shutil.copy(_program(tmp_path, "cuobjdump", "release 13.0"), home / "bin")
    assert probe_cuobjdump(surroundings(variables={"CUDA_HOME": str(home)})).version == "13.0"


def _program(folder: Path, name: str, said: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="utf-8")
    file.chmod(0o755)
    return file


def _nvcc(log: Path, code: int = 0, said: str = "") -> str:
    return NVCC.format(log=log, code=code).replace("*) echo", f"*) echo '{said}' >&2; echo")


@pytest.mark.parametrize(
    ("first_line", "kind", "version"),
    [
        ("c++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "gcc", "11.4.0"),
        ("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-4)", "gcc", "8.5.0"),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-1) 13.3.0", "gcc", "13.3.0"),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", "clang", "14.0.0"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "clang", "15.0.0"),
        ("icpx 2025.0.0", None, "2025.0.0"),
    ],
)
def test_kinds_of_compilers(surroundings: Make, first_line: str, kind: str | None, version: str) -> None:
    facts = probe_build(surroundings(programs={"c++": f"echo '{first_line}'"}), None)
    assert (facts.compiler_kind, facts.compiler.version, facts.compiles) == (kind, version, True)


def test_the_configured_compiler_is_tried_with_torchs_standard(surroundings: Make, tmp_path: Path) -> None:
    utils = tmp_path / "torch" / "utils"
    utils.mkdir(parents=True)
    (utils / "cpp_extension.py").write_text("cuda_flags.append('-std=c++20')\n", encoding="utf-8")
    fail = 'echo "x: error: no c++20" >&2; exit 1'
    script = f'echo "$@" >> {tmp_path}/log; [ "$1" = --version ] && echo "g++ (GCC) 7.5.0" || {{ {fail}; }}'
    here = surroundings(programs={"g++-7": script}, variables={"CXX": "g++-7 -O2"})
    facts = probe_build(here, str(tmp_path / "torch"))
    assert (facts.compiler.name, facts.compiler.version, facts.cxx_standard) == ("g++-7", "7.5.0", 20)
    assert (facts.compiles, facts.compiler_message) == (False, "x: error: no c++20")
    assert "-std=c++20 -fsyntax-only" in (tmp_path / "log").read_text(encoding="utf-8")


def test_nvcc_is_tried_with_the_compiler_torch_passes_on(surroundings: Make, tmp_path: Path) -> None:
    facts = probe_build(
        surroundings(programs={"nvcc": _nvcc(tmp_path / "log")}, variables={"CC": "gcc-13"}), None
    )
    assert (facts.nvcc.version, facts.nvcc_starts, facts.nvcc_message) == ("13.0.88", True, "")
    assert (tmp_path / "log").read_text(encoding="utf-8").startswith("-ccbin gcc-13 -E ")


def test_what_nvcc_says_against_the_compiler(surroundings: Make, tmp_path: Path) -> None:
    said = "host_config.h:137:2: error: #error -- unsupported GNU version!"
    facts = probe_build(surroundings(programs={"nvcc": _nvcc(tmp_path / "log", 1, said)}), None)
    assert (facts.nvcc_starts, facts.nvcc_message) == (False, said)


def test_the_toolkit_folder_by_torchs_rule(surroundings: Make, tmp_path: Path) -> None:
    bare = probe_build(surroundings(), None)
    assert (bare.cuda_home, bare.has_cuda_headers, bare.nvcc.path, bare.compiles) == (None, None, None, None)
    files = {
        "/usr/local/cuda-12.8/include/cuda_runtime.h": "",
        "/usr/local/cuda-9.2/include/cuda_runtime.h": "",
    }
    assert probe_build(surroundings(files=files), None).cuda_home is None
    usual = probe_build(surroundings(files={"/usr/local/cuda/include/cuda_runtime.h": ""}), None)
    root = tmp_path / "root"
    assert (usual.cuda_home, usual.has_cuda_headers) == (str(root / "usr/local/cuda"), True)
    assert usual.toolkits == tuple(
        str(root / "usr/local" / name) for name in ("cuda", "cuda-12.8", "cuda-9.2")
    )
    on_path = probe_build(surroundings(programs={"nvcc": _nvcc(tmp_path / "log")}), None)
    assert (on_path.cuda_home, on_path.has_cuda_headers) == (str(tmp_path), False)
    named = probe_build(surroundings(variables={"CUDA_HOME": "/opt/none"}), None)
    assert (named.cuda_home, named.cuda_home_from, named.has_cuda_headers) == (
        "/opt/none",
        "CUDA_HOME",
        False,
    )
    assert named.nvcc.path == on_path.nvcc.path, "opscope itself would use it"


def test_ninja_beside_python_is_told(surroundings: Make, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "ninja").write_text("", encoding="utf-8")
    facts = probe_build(surroundings(python=str(venv / "python")), None)
    assert (facts.ninja.path, facts.ninja_beside_python) == (None, str(venv / "ninja"))
    assert probe_build(surroundings(programs={"ninja": "echo 1.12.1"}), None).ninja.version == "1.12.1"


def test_a_counter_that_was_read() -> None:
    facts = read_counters(ProgramExit(0, RAW_PAGE, ""))
    assert (facts.is_readable, facts.value, facts.failure) == (True, 2816.0, None)


@pytest.mark.parametrize(
    ("out", "is_denied", "is_taken", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", True, False, "permission"),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable.\n",
            False,
            True,
            "unavailable",
        ),
        ("==ERROR== LibraryNotLoaded\n" + RAW_PAGE, False, False, "LibraryNotLoaded"),
        ("==PROF== nothing\n", False, False, "exit code 1"),
        (RAW_PAGE.replace("2,816", "n/a"), False, False, "no counter"),
    ],
)
def test_a_counter_that_was_not_read(out: str, is_denied: bool, is_taken: bool, words: str) -> None:
    facts = read_counters(ProgramExit(1, out, ""))
    assert facts.is_readable is False
    assert (facts.is_denied, facts.is_taken) == (is_denied, is_taken)
    assert words in (facts.failure or "")


def test_counters_are_read_with_ncu_of_doctors_own_kernel(surroundings: Make, tmp_path: Path) -> None:
    page = tmp_path / "page.csv"
    page.write_text(RAW_PAGE, encoding="utf-8")
    here = surroundings(programs={"ncu": f'echo "$@" > {tmp_path}/log; /bin/cat {page}'})
    facts = probe_counters(here, ProgramFacts("ncu", here.find("ncu")))
    assert facts.is_readable
    words = (tmp_path / "log").read_text(encoding="utf-8").split()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[-2].endswith("child.py")
    assert words[-1] == "driver"
    assert probe_counters(here, ProgramFacts("ncu")).is_readable is None
