"""Runs of a program in processes started anew and forked: what they find, what they leave, what ends them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opscope.trials.child import TrialRequest, TrialRun
from opscope.trials.processes import ProgramRuns

pytestmark = pytest.mark.torch
exhaustive = pytest.mark.exhaustive(few=False)  # processes that import torch

PROGRAM = """
import os, sys, tempfile, torch
print(os.getcwd(), tempfile.gettempdir(), os.environ.get("GIVEN"), sys.argv[1:], flush=True)
open("here.txt", "w").write("x")
model = torch.nn.Linear(8, 8)
while True:
    if os.environ.get("GIVEN") == "wait" or "wait" in sys.argv:
        import time; time.sleep(60)
    model(torch.randn(4, 8))
"""


@pytest.fixture
def request_of_program(tmp_path: Path) -> TrialRequest:
    (tmp_path / "program.py").write_text(PROGRAM)
    return TrialRequest(kind="script", target=str(tmp_path / "program.py"), steps="forward", seconds=0.02)


@pytest.fixture
def runs() -> Iterator[ProgramRuns]:
    processes = ProgramRuns(in_place=False)
    with processes.open():
        yield processes
        assert list(processes.scratch.iterdir()) in ([], [processes.scratch / "inductor"])
    assert not processes.scratch.exists()


def found(answer: tuple[TrialRun | None, str]) -> TrialRun:
    run, said = answer
    assert run is not None, said
    return run


@pytest.mark.exhaustive(few=False)
def test_a_run_with_its_imports_made_finds_what_one_started_anew_does(
    runs: ProgramRuns, request_of_program: TrialRequest, tmp_path: Path
) -> None:
    def took_s(environment: dict[str, str]) -> float:
        began = time.monotonic()
        run, said = runs.run(request_of_program, environment, 60)
        took = time.monotonic() - began
        assert run is not None, said
        work, temporary, given, arguments = said.split(" ", 3)
        assert Path(work).parent.parent == Path(temporary).parent == runs.scratch
        assert (given, arguments) == (environment.get("GIVEN", "None"), "[]")
        assert run.observation == anew.observation
        assert run.facts == anew.facts
        assert run.is_enough
        assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
        return took

    anew = found(runs.run(request_of_program, {}, 60))
    assert "torch" in anew.modules
    assert "__main__" not in anew.modules
    runs.fork_from(anew.modules, seed=0, limit_s=60)
    assert runs.are_forked
    took_s({})
    assert took_s({}) < took_s({"GIVEN": "value"}), "the one with a variable of its own starts anew"


@pytest.mark.parametrize("how", [pytest.param("anew", marks=exhaustive), "forked"])
def test_a_run_that_does_not_end_is_ended_and_the_next_goes_on(
    runs: ProgramRuns, request_of_program: TrialRequest, how: str
) -> None:
    if how != "anew":
        runs.fork_from(["torch"], seed=0, limit_s=60)
    waiting = TrialRequest(kind="script", target=request_of_program.target, arguments=("wait",))
    assert runs.run(waiting, {}, 2) == (None, "no end after 2 s")
    assert runs.are_forked is (how == "forked")
    assert runs.scratch.exists()
    assert found(runs.run(request_of_program, {}, 60)).is_enough


@exhaustive
@pytest.mark.parametrize("how", ["anew", "forked", "forked from one that is killed"])
def test_a_run_that_is_killed_says_so_at_once(
    runs: ProgramRuns, request_of_program: TrialRequest, how: str
) -> None:
    if how != "anew":
        runs.fork_from(["torch"], seed=0, limit_s=60)
    process = "getppid" if how == "forked from one that is killed" else "getpid"
    Path(request_of_program.target).write_text(
        f"import os, time\nprint('begun', flush=True)\nos.kill(os.{process}(), 9)\ntime.sleep(60)\n"
    )
    began = time.monotonic()
    assert runs.run(request_of_program, {}, 60) == (None, "ended by SIGKILL (signal 9): begun")
    assert time.monotonic() - began < 30
    Path(request_of_program.target).write_text(PROGRAM)
    assert found(runs.run(request_of_program, {}, 60)).is_enough
    assert runs.are_forked is (how == "forked")


FORK = """
import os, signal, sys, time
from opscope.trials.child import end_with_parent
parent = os.getpid()
if os.fork():
    sys.stdin.readline()
    os.kill(parent, 9)
os.setsid()
end_with_parent(sys.argv[1], parent)
print(flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told on Linux alone")
def test_a_fork_whose_parent_alone_is_killed_leaves_the_files_of_other_runs(runs: ProgramRuns) -> None:
    command = [sys.executable, "-c", FORK, str(runs.scratch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.communicate(b"\n", timeout=30)  # until the fork has ended too
    assert process.returncode == -9
    assert runs.scratch.exists()


WAITS = """
import sys, time
from pathlib import Path
from opscope.trials.processes import ProgramRuns
runs = ProgramRuns(in_place=False)
with runs.open():
    runs.fork_from(["json"], 0, 60)
    if sys.argv[1] == "ready":
        runs.are_forked
    print(runs.scratch, runs._imported._process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told on Linux alone")
@pytest.mark.parametrize("state", ["ready", "importing"])
@pytest.mark.exhaustive(few=False)
def test_killed_it_leaves_nothing_that_imports(state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS, state], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        scratch, pid = parent.stdout.readline().split()
        parent.kill()
    deadline = time.monotonic() + 30
    status = Path(f"/proc/{pid}/stat")
    while (Path(scratch).exists() or status.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not Path(scratch).exists()


@pytest.mark.parametrize("why", ["a thread of its own", "it takes too long"])
def test_what_cannot_be_forked_starts_anew(
    runs: ProgramRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    starts = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "package_with_thread.py").write_text(starts)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    limit_s = 60 if why == "a thread of its own" else 0.01
    runs.fork_from(["package_with_thread"], seed=0, limit_s=limit_s)
    assert not runs.are_forked


@exhaustive
def test_variables_set_before_torch_is_imported_are_seen(
    runs: ProgramRuns, request_of_program: TrialRequest
) -> None:
    program = Path(request_of_program.target)
    program.write_text("import os\nos.environ['SET_BY_PROGRAM'] = '1'\n" + PROGRAM)
    assert found(runs.run(request_of_program, {}, 60)).modules == ()
    runs.fork_from((), seed=0, limit_s=60)
    assert not runs.are_forked


TWO_KINDS = """
import sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.randn(4, 8))
    time.sleep(0.2)
while sys.argv[2:]:
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(0.001)
    optimizer.step()
"""


@exhaustive
@pytest.mark.parametrize(
    ("arguments", "taken"), [(("5", "train"), "optimizer"), (("50",), "forward"), (("1",), "none")]
)
def test_steps_are_recognized_and_what_was_counted_before_is_cleared(
    runs: ProgramRuns, tmp_path: Path, arguments: tuple[str, ...], taken: str
) -> None:
    (tmp_path / "program.py").write_text(TWO_KINDS)
    request = TrialRequest(
        kind="script", target=str(tmp_path / "program.py"), arguments=arguments, seconds=0.02
    )
    run = found(runs.run(request, {}, 60))
    assert run.taken == taken
    assert bool(run.samples) is run.is_enough is (taken != "none")
    if taken == "optimizer":
        assert max(one.host_ns / one.step_count for one in run.samples) < 0.2e9
