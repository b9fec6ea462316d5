"""Checks of what building extensions needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.toolchain.doctor.facts import Facts, ProgramFacts
from opscope.toolchain.doctor.outcome import Outcome, Verdict

Answer = Callable[[Facts, str], Outcome]
Change = Callable[..., Facts]
Judge = Callable[..., Outcome]


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
