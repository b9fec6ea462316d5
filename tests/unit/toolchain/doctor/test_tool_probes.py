"""Probes of programs, with programs made for the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.errors import DependencyError
from opscope.toolchain.doctor import software_probes as tools
from opscope.toolchain.doctor.facts import ProgramFacts
from opscope.toolchain.doctor.gpu_probes import probe_counters, read_counters
from opscope.toolchain.doctor.software_probes import probe_build, probe_cuobjdump, probe_ncu, probe_nsys
from opscope.toolchain.doctor.surroundings import Surroundings
from opscope.toolchain.programs import ProgramEnd

Make = Callable[..., Surroundings]

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
    facts = read_counters(ProgramEnd(0, RAW_PAGE, ""))
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
    facts = read_counters(ProgramEnd(1, out, ""))
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
