"""Checks of Python and of the packages that belong to one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.toolchain.doctor.diagnosis import diagnose
from opscope.toolchain.doctor.facts import CaptureFacts, CounterFacts, Facts, Pin, ProgramFacts
from opscope.toolchain.doctor.outcome import Outcome, Verdict

Answer = Callable[[Facts, str], Outcome]
Change = Callable[..., Facts]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("3.9.18", Verdict.PROBLEM), ("3.10.0", Verdict.OK), ("3.14.0rc1", Verdict.OK), ("", Verdict.UNKNOWN)],
)
def test_python_older_than_3_10_is_a_problem(
    gpu_machine: Facts, answer: Answer, change: Change, version: str, verdict: Verdict
) -> None:
    outcome = answer(change(gpu_machine, "python", version=version), "python.version")
    assert outcome.verdict is verdict
    assert (outcome.remedy is not None) == (verdict is Verdict.PROBLEM)


def test_missing_headers_name_the_package_of_this_python(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    outcome = answer(change(gpu_machine, "python", headers=None), "build.python_headers")
    assert outcome.verdict is Verdict.WARNING
    assert outcome.remedy == "sudo apt-get install python3.11-dev"


def _triton(installed: str | None, is_met: bool) -> tuple[Pin, ...]:
    return (Pin("torch", "triton", "==3.6.0", installed, is_met),)


@pytest.mark.parametrize("installed", ["3.4.0", None])
def test_another_triton_than_the_one_torch_pins(
    gpu_machine: Facts, answer: Answer, change: Change, installed: str | None
) -> None:
    facts = change(gpu_machine, "packages", pins=_triton(installed, False))
    outcome = answer(facts, "triton.version")
    assert outcome.verdict is Verdict.WARNING
    assert "torch asks for triton==3.6.0" in outcome.reason
    assert (installed or "none") in outcome.reason
    assert outcome.remedy == "pip install 'triton==3.6.0'"


def test_a_triton_nobody_can_use_is_not_missed(cpu_machine: Facts, answer: Answer, change: Change) -> None:
    facts = change(cpu_machine, "packages", pins=_triton(None, False))
    assert answer(facts, "triton.version").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    "changes",
    [{"pins": ()}, {"versions": {}}, {"pins": _triton("3.4.0", False), "versions": {"triton": "3.4.0"}}],
)
def test_no_pin_and_no_torch_ask_for_no_triton(
    gpu_machine: Facts, answer: Answer, change: Change, changes: dict[str, Any]
) -> None:
    assert (
        answer(change(gpu_machine, "packages", **changes), "triton.version").verdict is Verdict.NOT_APPLICABLE
    )


def test_requirements_that_cannot_be_read_are_unknown(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "packages", failure="package requirements cannot be read", pins=())
    for code in ("triton.version", "packages.companions", "vllm.torch"):
        assert answer(facts, code).verdict is Verdict.UNKNOWN


def test_two_packages_of_triton_overwrite_each_other(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "packages", triton_packages=("triton", "pytorch-triton"))
    outcome = answer(facts, "triton.single")
    assert outcome.verdict is Verdict.WARNING
    assert outcome.remedy == (
        "pip uninstall -y triton pytorch-triton && pip install --force-reinstall triton"
    )
    none = change(gpu_machine, "packages", triton_packages=())
    assert answer(none, "triton.single").verdict is Verdict.NOT_APPLICABLE


def test_a_torch_vllm_was_not_compiled_for(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    pins = (Pin("vllm", "torch", "==2.9.1", "2.11.0+cu130", False),)
    outcome = answer(change(gpu_machine, "packages", pins=pins), "vllm.torch")
    assert outcome.verdict is Verdict.PROBLEM
    assert outcome.reason == "vllm asks for torch==2.9.1, and 2.11.0+cu130 is installed"
    assert outcome.remedy == "pip install 'torch==2.9.1'"
    without = change(gpu_machine, "packages", versions={"torch": "2.11.0"})
    assert answer(without, "vllm.torch").verdict is Verdict.NOT_APPLICABLE


def test_companions_are_mended_by_upgrading_them(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    pins = (
        Pin("vllm", "torch", "==2.9.1", "2.11.0", False),
        Pin("torchvision", "torch", "==2.10.0", "2.11.0", False),
        Pin("torchaudio", "torch", "==2.11.0", "2.11.0", True),
    )
    outcome = answer(change(gpu_machine, "packages", pins=pins), "packages.companions")
    assert outcome.verdict is Verdict.PROBLEM
    assert "torchvision asks for torch==2.10.0" in outcome.reason
    assert "vllm" not in outcome.reason
    assert outcome.remedy == "pip install --upgrade torch torchvision"
    alone = change(gpu_machine, "packages", pins=())
    assert answer(alone, "packages.companions").verdict is Verdict.NOT_APPLICABLE


Judge = Callable[..., Outcome]


def _capture(**changes: Any) -> CaptureFacts:
    return replace(CaptureFacts(("CPU", "CUDA"), 16, 8, 8), **changes)


@pytest.mark.parametrize(
    ("capture", "verdict", "words"),
    [
        (_capture(), Verdict.OK, "8 of 8 kernels"),
        (_capture(kernels_recorded=0, messages="CUPTI_ERROR_X"), Verdict.PROBLEM, "(CUPTI_ERROR_X)"),
        (_capture(kernels_recorded=5), Verdict.WARNING, "5 of 8 kernels"),
        (_capture(error="RuntimeError: Can't use Kineto"), Verdict.PROBLEM, "Can't use Kineto"),
        (None, Verdict.PROBLEM, "gave no answer"),
    ],
)
def test_a_recording_without_kernels_is_none(
    on_gpu: Change, answer: Answer, capture: CaptureFacts | None, verdict: Verdict, words: str
) -> None:
    facts = on_gpu(torch={"capture": capture})
    outcome = answer(facts, "profiler.records")
    assert outcome.verdict is verdict
    assert words in outcome.reason
    assert diagnose(facts).can_profile == (verdict is not Verdict.PROBLEM)


@pytest.mark.parametrize(
    ("capture", "variables", "remedy"),
    [
        (_capture(kernels_recorded=0), {"CUDA_INJECTION64_PATH": "/x.so"}, "unset CUDA_INJECTION64_PATH"),
        (_capture(kernels_recorded=0, messages="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), {}, "NVreg_"),
        (_capture(kernels_recorded=0, activities=("CPU",)), {}, "pip install"),
        (_capture(kernels_recorded=0), {}, "end other profilers"),
    ],
)
def test_what_mends_a_profiler_depends_on_what_it_said(
    judge: Judge, capture: CaptureFacts, variables: dict[str, str], remedy: str
) -> None:
    outcome = judge("profiler.records", torch={"capture": capture}, machine={"variables": variables})
    assert remedy in (outcome.remedy or "")


def test_on_the_cpu_operators_are_enough(cpu_machine: Facts, answer: Answer, change: Change) -> None:
    assert answer(cpu_machine, "profiler.records").verdict is Verdict.OK
    facts = change(cpu_machine, "torch", capture=CaptureFacts(("CPU",), operator_count=0))
    assert answer(facts, "profiler.records").verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("variables", "tools", "words"),
    [
        ({"CUDA_INJECTION64_PATH": "/opt/tool.so"}, (), "CUDA_INJECTION64_PATH=/opt/tool.so"),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, (), "NSYS_PROFILING_SESSION_ID"),
        ({}, ("dynolog",), "dynolog runs"),
    ],
)
def test_another_tool_holds_cupti(
    judge: Judge, variables: dict[str, str], tools: tuple[str, ...], words: str
) -> None:
    outcome = judge("profiler.taken", machine={"variables": variables, "tools_running": tools})
    assert outcome.verdict is Verdict.WARNING
    assert words in outcome.reason
    assert outcome.remedy is not None


@pytest.mark.parametrize(("value", "verdict"), [("1", Verdict.WARNING), ("0", Verdict.OK), ("", Verdict.OK)])
def test_settings_that_distort_times(
    gpu_machine: Facts, answer: Answer, change: Change, value: str, verdict: Verdict
) -> None:
    facts = change(gpu_machine, "machine", variables={"CUDA_LAUNCH_BLOCKING": value})
    outcome = answer(facts, "profiler.settings")
    assert outcome.verdict is verdict
    assert (outcome.remedy == "unset CUDA_LAUNCH_BLOCKING") == (verdict is Verdict.WARNING)


@pytest.mark.parametrize(
    ("counters", "words", "remedy"),
    [
        (CounterFacts(True, 5.0), "read a counter", None),
        (CounterFacts(False, failure="ERR_NVGPUCTRPERM", is_denied=True), "does not let", "NVreg_"),
        (CounterFacts(False, failure="resource", is_taken=True), "another tool", "dcgmi"),
        (CounterFacts(False, failure="LibraryNotLoaded"), "LibraryNotLoaded", "ncu"),
        (CounterFacts(None, failure="ncu is not installed"), "and this process is one", None),
    ],
)
def test_counters_are_tested(
    gpu_machine: Facts, answer: Answer, counters: CounterFacts, words: str, remedy: str | None
) -> None:
    facts = replace(gpu_machine, counters=counters)
    outcome = answer(facts, "counters.access")
    expected = {True: Verdict.OK, False: Verdict.PROBLEM, None: Verdict.UNKNOWN}
    assert outcome.verdict is expected[counters.is_readable]
    assert words in outcome.reason
    assert (remedy is None) == (outcome.remedy is None)
    assert (remedy or "") in (outcome.remedy or "")
    assert diagnose(facts).can_profile, "counters are ncu's; recording goes without"


@pytest.mark.parametrize(
    ("admin_only", "is_admin", "words"),
    [
        (None, True, "not shown"),
        (False, False, "everyone"),
        (True, False, "is none"),
        (True, None, "may be one"),
    ],
)
def test_where_counters_were_not_tried_the_setting_is_told(
    on_gpu: Change, answer: Answer, admin_only: bool | None, is_admin: bool | None, words: str
) -> None:
    facts = on_gpu(driver={"admin_only_counters": admin_only, "is_admin": is_admin})
    facts = replace(facts, counters=CounterFacts(failure="ncu is not installed"))
    assert words in answer(facts, "counters.access").reason


def test_a_monitor_matters_where_counters_could_not_be_read(
    gpu_machine: Facts, answer: Answer, change: Change
) -> None:
    facts = change(gpu_machine, "machine", tools_running=("nv-hostengine",))
    assert answer(facts, "counters.monitor").verdict is Verdict.OK
    facts = replace(facts, counters=CounterFacts(False, is_taken=True))
    assert answer(facts, "counters.monitor").verdict is Verdict.WARNING
    assert answer(facts, "counters.monitor").remedy == "dcgmi profread --pause"


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_a_tool_is_missed_only_where_there_is_a_gpu(
    gpu_machine: Facts, cpu_machine: Facts, answer: Answer, change: Change, name: str
) -> None:
    outcome = answer(change(gpu_machine, name, path=None, version=None), f"tools.{name}")
    assert outcome.verdict is Verdict.WARNING
    assert "opscope" in outcome.reason, "what to use instead"
    assert outcome.remedy is not None
    assert answer(cpu_machine, f"tools.{name}").verdict is Verdict.NOT_APPLICABLE
    broken = change(gpu_machine, name, failure="exec format error")
    assert answer(broken, f"tools.{name}").verdict is Verdict.WARNING


def test_cuobjdump_reads_kernels_on_any_machine(cpu_machine: Facts, answer: Answer) -> None:
    facts = replace(cpu_machine, cuobjdump=ProgramFacts("cuobjdump"))
    assert answer(facts, "tools.cuobjdump").verdict is Verdict.WARNING
    assert answer(facts, "tools.cuobjdump").remedy == "pip install triton"


def test_no_compiler(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    facts = change(gpu_machine, "build", compiler=ProgramFacts("c++"), compiles=None, compiler_kind=None)
    outcome = answer(facts, "build.compiler")
    assert outcome.verdict is Verdict.WARNING
    assert outcome.remedy == "sudo apt-get install g++"


def test_a_compiler_too_old_for_torchs_headers(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    facts = change(
        gpu_machine, "build", compiler=ProgramFacts("c++", "/usr/bin/c++", "7.5.0"), compiles=False,
        cxx_standard=20, compiler_message="error: unrecognized command line option '-std=c++20'",
    )  # fmt: skip
    outcome = answer(facts, "build.compiler")
    assert outcome.verdict is Verdict.PROBLEM
    assert "gcc 7.5.0 does not compile C++20" in outcome.reason
    assert "unrecognized" in outcome.reason
    assert answer(change(gpu_machine, "build", compiles=None), "build.compiler").verdict is Verdict.UNKNOWN


def test_no_nvcc(gpu_machine: Facts, cpu_machine: Facts, answer: Answer, change: Change) -> None:
    facts = change(gpu_machine, "build", nvcc=ProgramFacts("nvcc"), nvcc_starts=None)
    outcome = answer(facts, "build.nvcc")
    assert outcome.verdict is Verdict.WARNING
    assert (
        outcome.remedy == "sudo apt-get install cuda-nvcc-13-0  # or conda install -c nvidia cuda-nvcc=13.0"
    )
    for code in ("build.nvcc_version", "build.nvcc_host"):
        assert answer(facts, code).verdict is Verdict.NOT_APPLICABLE
    assert answer(cpu_machine, "build.nvcc").verdict is Verdict.NOT_APPLICABLE


def test_an_nvcc_that_does_not_answer(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    broken = ProgramFacts("nvcc", "/usr/local/cuda/bin/nvcc", failure="did not end within 15 s")
    assert answer(change(gpu_machine, "build", nvcc=broken), "build.nvcc").verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [
        ("13.0.88", Verdict.OK, "13.0"),
        ("13.1.20", Verdict.OK, "minor version only"),
        ("12.9.41", Verdict.PROBLEM, "older"),
        ("14.0.1", Verdict.PROBLEM, "newer"),
        (None, Verdict.NOT_APPLICABLE, "no nvcc"),
    ],
)
def test_nvcc_of_another_cuda_than_torchs(
    judge: Judge, version: str | None, verdict: Verdict, words: str
) -> None:
    nvcc = ProgramFacts("nvcc", "/usr/local/cuda/bin/nvcc", version)
    outcome = judge("build.nvcc_version", build={"nvcc": nvcc})
    assert outcome.verdict is verdict
    assert words in outcome.reason
    assert ("cuda-nvcc-13-0" in (outcome.remedy or "")) == (verdict is Verdict.PROBLEM)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            "137:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
            "sudo apt-get install g++-13 && export CC=gcc-13 CXX=g++-13",
        ),
        (
            "error: unsupported clang version! clang version must be less than 19 and greater than 3.2 .",
            "sudo apt-get install clang-18 && export CC=clang-18 CXX=clang++-18",
        ),
        ("nvcc fatal: Failed to preprocess host compiler properties.", "unset CC NVCC_CCBIN"),
    ],
)
def test_a_compiler_that_nvcc_does_not_take(
    gpu_machine: Facts, answer: Answer, change: Change, message: str, remedy: str
) -> None:
    outcome = answer(change(gpu_machine, "build", nvcc_starts=False, nvcc_message=message), "build.nvcc_host")
    assert outcome.verdict is Verdict.PROBLEM
    assert message in outcome.reason
    assert outcome.remedy == remedy
    untried = change(gpu_machine, "build", nvcc_starts=None)
    assert answer(untried, "build.nvcc_host").verdict is Verdict.UNKNOWN


def test_a_folder_that_is_no_toolkit(gpu_machine: Facts, answer: Answer, change: Change) -> None:
    wrapper = ProgramFacts("nvcc", "/usr/local/bin/nvcc", "13.0.88")
    facts = change(gpu_machine, "build", nvcc=wrapper, cuda_home="/usr/local", has_cuda_headers=False)
    outcome = answer(facts, "build.cuda_home")
    assert outcome.verdict is Verdict.WARNING
    assert outcome.remedy == "export CUDA_HOME=/usr/local/cuda"

    stale = change(
        gpu_machine, "build", cuda_home="/opt/cuda-11", cuda_home_from="CUDA_HOME", has_cuda_headers=False
    )
    outcome = answer(stale, "build.cuda_home")
    assert outcome.verdict is Verdict.PROBLEM
    assert "/opt/cuda-11 (by CUDA_HOME)" in outcome.reason
    none = change(gpu_machine, "build", cuda_home=None)
    assert answer(none, "build.cuda_home").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("ninja", "beside", "remedy"),
    [
        (ProgramFacts("ninja"), None, "pip install ninja"),
        (ProgramFacts("ninja"), "/venv/bin/ninja", "export PATH=/venv/bin:$PATH"),
        (ProgramFacts("ninja", "/usr/bin/ninja", failure="no"), None, "pip install --force-reinstall ninja"),
    ],
)
def test_no_ninja(judge: Judge, ninja: ProgramFacts, beside: str | None, remedy: str) -> None:
    outcome = judge("build.ninja", build={"ninja": ninja, "ninja_beside_python": beside})
    assert (outcome.verdict, outcome.remedy) == (Verdict.WARNING, remedy)


MIB = 1024**2


def _with(facts: Facts, purpose: str, **changes: Any) -> Facts:
    folders = tuple(replace(one, **changes) if one.purpose == purpose else one for one in facts.folders)
    assert folders != facts.folders
    return replace(facts, folders=folders)


@pytest.mark.parametrize(
    ("purpose", "code", "remedy"),
    [
        ("output", "folders.output", "--output"),
        ("temporary", "folders.temporary", "export TMPDIR"),
        ("opscope cache", "folders.caches", "export XDG_CACHE_HOME=FOLDER"),
    ],
)
def test_folders_that_cannot_be_written(
    gpu_machine: Facts, answer: Answer, purpose: str, code: str, remedy: str
) -> None:
    facts = _with(gpu_machine, purpose, is_writable=False, failure="/x: Read-only file system")
    outcome = answer(facts, code)
    assert outcome.verdict is (Verdict.WARNING if code == "folders.caches" else Verdict.PROBLEM)
    assert "/x: Read-only file system" in outcome.reason
    assert remedy in (outcome.remedy or "")
    assert diagnose(facts).can_profile == (purpose != "temporary")


@pytest.mark.parametrize(
    ("purpose", "free_bytes", "verdict"),
    [
        ("output", 3000 * MIB, Verdict.OK),
        ("output", 500 * MIB, Verdict.WARNING),
        ("output", 50 * MIB, Verdict.PROBLEM),
        ("opscope cache", 50 * MIB, Verdict.WARNING),
        ("shared memory", 0, Verdict.OK),
    ],
)
def test_little_room(
    gpu_machine: Facts, answer: Answer, purpose: str, free_bytes: int, verdict: Verdict
) -> None:
    outcome = answer(_with(gpu_machine, purpose, free_bytes=free_bytes), "folders.space")
    assert outcome.verdict is verdict
    assert (outcome.remedy is None) == (verdict is Verdict.OK)


def test_folders_of_one_disk_are_told_once(gpu_machine: Facts, answer: Answer) -> None:
    folders = tuple(replace(one, free_bytes=500 * MIB, file_system=7) for one in gpu_machine.folders)
    outcome = answer(replace(gpu_machine, folders=folders), "folders.space")
    assert outcome.reason == "little room: 500 MiB for output (/0)"


def test_little_shared_memory(gpu_machine: Facts, answer: Answer) -> None:
    outcome = answer(_with(gpu_machine, "shared memory", total_bytes=64 * MIB), "folders.shared_memory")
    assert outcome.verdict is Verdict.WARNING
    assert "64 MiB" in outcome.reason
    assert "--shm-size" in (outcome.remedy or "")


def test_folders_nobody_looked_at_are_unknown(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, folders=())
    for code in ("folders.output", "folders.temporary", "folders.caches", "folders.space"):
        assert answer(facts, code).verdict is Verdict.UNKNOWN
    assert answer(facts, "folders.shared_memory").verdict is Verdict.NOT_APPLICABLE


def test_probes_that_failed_are_named(gpu_machine: Facts, answer: Answer) -> None:
    facts = replace(gpu_machine, failed_probes={"folders": "gave no answer within 10 s"})
    outcome = answer(facts, "doctor.probes")
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reason == "not found out: folders: gave no answer within 10 s"
