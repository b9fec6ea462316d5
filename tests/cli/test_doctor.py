"""`opscope doctor`: on this machine as it is, and on machines made for the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope import api
from opscope.toolchain.doctor import gather
from opscope.toolchain.doctor.diagnosis import CHECKS
from opscope.toolchain.doctor.facts import (
    CaptureFacts,
    Facts,
    MachineFacts,
    PackageFacts,
    PythonFacts,
    TorchFacts,
)

Run = Callable[..., Any]

MACHINE = MachineFacts("Linux 6.1 x86_64", pci_gpu_count=0)
READY = Facts(
    MACHINE,
    PythonFacts("3.12.1", headers="/usr/include/python3.12"),
    PackageFacts({"torch": "2.11.0+cpu"}),
    torch=TorchFacts("2.11.0+cpu", capture=CaptureFacts(("CPU",), operator_count=8)),
)
BARE = Facts(MACHINE, PythonFacts("3.12.1"))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Facts], None]:
    """Makes the probes find a machine."""

    def place(facts: Facts) -> None:
        monkeypatch.setattr(gather, "gather_facts", lambda *arguments: facts)

    return place


def test_this_machine_as_it_is(opscope: Run) -> None:
    outcome = opscope("doctor", "--json")
    document = outcome.json
    assert outcome.err == ""
    assert document["schema_version"] == 1
    assert [one["code"] for one in document["checks"]] == [one.code for one in CHECKS]
    required = {one["code"]: one["verdict"] for one in document["checks"] if one["is_required"]}
    assert document["can_profile"] == ("problem" not in required.values()) == (outcome.code == 0)
    assert document["facts"]["failed_probes"] == {}
    assert document["facts"]["python"]["version"] in (
        one["reason"].split()[-1] for one in document["checks"][:1]
    )
    folders = {one["purpose"]: one["is_writable"] for one in document["facts"]["folders"]}
    assert folders["temporary"] is True


def test_a_machine_that_is_ready(opscope: Run, on: Callable[[Facts], None]) -> None:
    on(READY)
    outcome = opscope("doctor")
    assert outcome.code == 0
    assert "Ready: programs can be profiled on the CPU" in outcome.out
    assert "8 CPU operators recorded" in outcome.out
    assert "not applicable" in outcome.out


def test_what_stands_badly_comes_with_what_mends_it(opscope: Run, on: Callable[[Facts], None]) -> None:
    on(BARE)
    outcome = opscope("doctor")
    words = " ".join(outcome.out.split())
    assert outcome.code == 1
    assert "Programs cannot be profiled on this machine" in words
    assert "problem torch.installed: torch is not installed" in words
    assert "→ pip install torch" in words
    assert words.index("problem ") < words.index("warning ") < words.index("unknown ")


def test_json_says_what_the_screen_says(opscope: Run, on: Callable[[Facts], None]) -> None:
    on(BARE)
    outcome = opscope("doctor", "--json")
    document = outcome.json
    assert (outcome.code, document["verdict"], document["can_profile"]) == (1, "problem", False)
    (first, *_) = [one for one in document["checks"] if one["verdict"] == "problem"]
    assert first == {
        "code": "torch.installed",
        "question": "torch installed",
        "is_required": True,
        "verdict": "problem",
        "reason": "torch is not installed; traces made elsewhere can be read",
        "remedy": "pip install torch",
    }
    assert document["facts"]["torch"] is None


def test_the_hardware_table_says_which_cuda_builds_for_a_gpu() -> None:
    assert api._cuda_versions("10.0") == ("12.8", None)
    assert api._cuda_versions("7.0") == ("9.0", "12.9")
    assert api._cuda_versions("99.0") == (None, None)
