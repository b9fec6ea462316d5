"""Two steps of a program are watched on a device: it computes what it does alone, and the findings hold."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import opscope
from opscope.analysis.watched_steps import dataflow
from opscope.model.sidecar import read_sidecar

pytestmark = pytest.mark.gpu

# What is the same in each step, what is worked out twice in one, rounds that need not wait, a forward pass
# that runs again, and what looks like all that and is not.
PROGRAM = Path(__file__).with_name("dataflow.py.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    (folder / "program.py").write_text(PROGRAM)
    alone, watched = (
        subprocess.run(
            [sys.executable, *command, "program.py"], cwd=folder, capture_output=True, text=True, check=False
        )
        for command in ([], ["-m", "opscope", "run", "--output-dir", "out"])
    )
    assert alone.returncode == watched.returncode == 0, alone.stderr + watched.stderr
    assert watched.stdout == alone.stdout
    return folder / "out"


def test_what_is_worked_out_again_is_seen(recorded):
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    told = {(one.since.value, (one.text or "").partition(" = ")[0]) for one in found.repeated}
    assert {("step", one) for one in ("table", "basis", "filled", "text")} <= told
    assert {("call", "key"), ("forward", "")} <= told
    assert not {text for _, text in told} & {"given", "hidden", "state", "loss"}
    # And the operators are found again in what was recorded: whether they are worth a word, the host decides.
    with opscope.load(recorded / "trace.json") as session:
        watched = dataflow(session, session.scalar("SELECT trace_id FROM traces"), left_out=[])
        made = [one.operators for one in found.repeated if not one.is_from_host]
        assert all(watched.found(operators).device_ns > 0 for operators in made)


def test_what_nothing_reads_is_seen(recorded):
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    unused = [one for one in found.unused if one.line is not None]
    # Nobody reads the gradients of the loop either: `zero_grad` clears them before the step.
    passed = "nn.functional.silu(net.first(given + shift).sin().cos()).mean().backward()"
    assert {(one.text or "").partition(" = ")[0] for one in unused} == {"accuracy", "probe", passed}
    assert all(one.is_whole for one in unused)


def test_rounds_that_need_not_wait_are_told_from_others(recorded):
    found = read_sidecar(recorded / "trace.opscope.json").dataflow
    loops = [(len(one.rounds), one.is_ragged, one.has_backward) for one in found.rounds if one.module is None]
    # Three parts of five are of one size.
    assert sorted(loops) == [(3, False, False), (3, False, True)]
