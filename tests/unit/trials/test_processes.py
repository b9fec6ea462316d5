"""Runs of a program in processes of their own: what they find, what they leave, what ends them."""

import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opscope.trials.processes import ProgramRuns
from opscope.trials.rounds import TrialRequest

pytestmark = pytest.mark.torch
exhaustive = pytest.mark.exhaustive(few=False)  # processes that import torch

PROGRAM = Path(__file__).with_name("endless.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def request_of_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return TrialRequest(
        kind="script", target=str(tmp_path / "program.py"), steps="forward", seconds=0.02, is_constant=True
    )


@pytest.fixture
def runs():
    processes = ProgramRuns(in_place=False)
    with processes.open():
        yield processes
        assert list(processes.scratch.iterdir()) in ([], [processes.scratch / "inductor"])
    assert not processes.scratch.exists()


def found(answer):
    run, said = answer
    assert run is not None, said
    return run


@exhaustive
def test_a_run_finds_the_program_in_a_folder_of_its_own(runs, request_of_program, tmp_path):
    run, said = runs.start(request_of_program).result(60)
    assert run is not None, said
    work, temporary, arguments = said.split(" ", 2)
    assert Path(work).parent.parent == Path(temporary).parent == runs.scratch
    assert arguments == "[]"
    assert run.is_enough
    assert run.first_steps["outputs"]
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@exhaustive
def test_a_run_that_does_not_end_is_ended_and_the_next_goes_on(runs, request_of_program):
    waiting = TrialRequest(kind="script", target=request_of_program.target, arguments=("wait",))
    assert runs.start(waiting).result(2) == (None, "no end after 2 s")
    assert runs.scratch.exists()
    assert found(runs.start(request_of_program).result(60)).is_enough


TWO_KINDS = Path(__file__).with_name("two_kinds.py.txt").read_text(encoding="utf-8")


@exhaustive
@pytest.mark.parametrize(
    ("arguments", "taken"), [(("5", "train"), "optimizer"), (("50",), "forward"), (("1",), "none")]
)
def test_steps_are_recognized_and_what_was_counted_before_is_cleared(runs, tmp_path, arguments, taken):
    (tmp_path / "program.py").write_text(TWO_KINDS)
    request = TrialRequest(
        kind="script", target=str(tmp_path / "program.py"), arguments=arguments, seconds=0.02,
        is_constant=True,
    )  # fmt: skip
    run = found(runs.start(request).result(60))
    assert run.taken == taken
    assert bool(run.step_ns) is run.is_enough is (taken != "none")
    if taken == "optimizer":
        assert max(run.step_ns) < 0.2e9


def test_a_run_that_is_killed_says_so_at_once(runs, tmp_path):
    (tmp_path / "killed.py").write_text(
        "import os, time\nprint('begun', flush=True)\nos.kill(os.getpid(), 9)\ntime.sleep(60)\n"
    )
    began = time.monotonic()
    request = TrialRequest(kind="script", target=str(tmp_path / "killed.py"), steps="forward")
    assert runs.start(request).result(60) == (None, "ended by SIGKILL (signal 9): begun")
    assert time.monotonic() - began < 30
