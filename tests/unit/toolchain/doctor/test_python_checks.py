"""Checks of Python and of the packages that belong to one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.toolchain.doctor.facts import Facts, Pin
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
