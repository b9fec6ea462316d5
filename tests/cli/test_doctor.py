"""`opscope doctor`: on this machine as it is, and on machines made for the test."""

import platform

import pytest

from opscope.toolchain.doctor import machine as asked
from opscope.toolchain.doctor.checks import CHECKS
from opscope.toolchain.doctor.machine import (
    CaptureFacts,
    Driver,
    ExaminedMachine,
    MachineFacts,
    ProgramFacts,
    Torch,
)

BARE = {
    "machine": MachineFacts("Linux 6.1 x86_64"), "packages": {}, "driver": Driver(), "devices": (),
    "torch": None, **{name: ProgramFacts(name) for name in ("nsys", "ncu", "cuobjdump", "nvcc")},
}  # fmt: skip
READY = {**BARE, "torch": Torch("2.11.0+cpu", capture=CaptureFacts(("CPU",), operator_count=8))}


@pytest.fixture
def on(monkeypatch):
    """Makes doctor look at another machine."""

    def place(answers):
        monkeypatch.setattr(asked, "ExaminedMachine", lambda *where: ExaminedMachine(*where, answers=answers))

    return place


def test_this_machine_as_it_is(opscope):
    outcome = opscope("doctor", "--json")
    document = outcome.json
    assert outcome.err == ""
    assert document["schema_version"] == 7
    assert [one["code"] for one in document["checks"]] == [one.code for one in CHECKS]
    required = {one["code"]: one["verdict"] for one in document["checks"] if one["is_required"]}
    assert document["can_profile"] == ("problem" not in required.values()) == (outcome.code == 0)
    assert document["facts"]["python"]["version"] == platform.python_version()


def test_a_machine_that_is_ready(opscope, on):
    on(READY)
    ready = "Ready: programs can be profiled on the CPU"
    opscope("doctor").fine(ready, "8 CPU operators recorded", "not applicable")


def test_what_stands_badly_comes_with_what_mends_it(opscope, on):
    blocking = MachineFacts("Linux", variables={"CUDA_LAUNCH_BLOCKING": "1"})
    on({**BARE, "machine": blocking})
    outcome = opscope("doctor")
    assert outcome.code == 1
    assert "Programs cannot be profiled on this machine" in outcome.words
    assert "problem torch.import: torch is not installed" in outcome.words
    assert "→ pip install torch" in outcome.words
    assert outcome.words.index("problem ") < outcome.words.index("warning ")
    document = opscope("doctor", "--json").json
    assert (document["verdict"], document["can_profile"]) == ("problem", False)
    assert document["facts"]["torch"] is None
    (first, *_) = [one for one in document["checks"] if one["verdict"] == "problem"]
    assert first == {
        "code": "torch.import", "question": "torch can be imported", "is_required": True,
        "verdict": "problem", "remedy": "pip install torch",
        "reason": "torch is not installed; traces made elsewhere can be read",
    }  # fmt: skip
