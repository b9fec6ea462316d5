"""`opscope ncu`: reports read, programs run under a stand-in for ncu, and what is said of failures."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from case_tables import cases
from opscope import example_trace
from opscope.toolchain.ncu_report import SECTIONS

pytestmark = pytest.mark.skipif(find_spec("ncu_report") is None, reason="ncu-report is not installed")

# Takes ncu's options as ncu does, runs the program, and gives a report recorded elsewhere for its own.
STAND_IN = Path(__file__).with_name("stand_in_for_ncu.py.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def packed(shared):
    return shared / "ncu" / "ops.ncu-rep.gz"


@pytest.fixture
def ncu_run(tmp_path, packed, monkeypatch, stand_in, opscope_and_programs):
    """Runs `opscope ncu` with the stand-in on PATH."""
    stand_in("ncu", STAND_IN)
    monkeypatch.setenv("NCU_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("NCU_REPORT", str(packed))
    monkeypatch.chdir(tmp_path)
    return partial(opscope_and_programs, "ncu")


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


SAYS = [sys.executable, "-c", "import sys; print('said', *sys.argv[1:])"]


@cases("arguments", "message")
def test_what_cannot_be_read_or_run(opscope, arguments, message):
    opscope("ncu", *arguments).fails(message)


def test_versions_of_a_kernel_stand_side_by_side(opscope, packed, tmp_path):
    files = [shutil.copy(packed, tmp_path / f"v{number}.ncu-rep.gz") for number in (1, 2, 3)]
    shown = opscope("compare", *files).fine().out
    assert "Hardware counters of 3 reports" in shown
    assert "1.13 ms, 5 kernels" in shown
    assert "at least" not in shown.partition("What to change")[0]
    opscope("compare", files[0], example_trace(), files[1]).fails("more than two are given")


def test_a_program_is_run_and_its_words_stay_on_standard_output(ncu_run, tmp_path):
    outcome = ncu_run("--kernel", "soft|layer", "--", *SAYS, "--json", "-o", "x").fine(
        out="said --json -o x\n"
    )
    assert "cunn_SoftMaxForwardReg" in outcome.err
    assert outcome.err.rstrip().endswith("Wrote opscope.ncu-rep")
    (call,) = calls(tmp_path)
    assert call["program"] == [*SAYS, "--json", "-o", "x"]
    assert call["options"]["--kernel-name"] == ["regex:soft|layer"]
    assert call["options"]["--launch-count"] == ["20"]
    assert call["options"]["--clock-control"] == ["none"]
    assert call["options"]["--section"] == [*SECTIONS]


def test_without_a_choice_a_first_run_makes_it(ncu_run, tmp_path):
    outcome = ncu_run("--", *SAYS)
    assert outcome.out == "said\n"  # once: the first run's goes to standard error
    first, second = calls(tmp_path)
    assert first["options"]["--metrics"] == ["gpu__time_duration.sum"]
    assert "--kernel-name" not in first["options"]
    assert second["options"]["--kernel-name-base"] == ["mangled"]
    pattern = second["options"]["--kernel-name"][0]
    assert "elementwise_kernelILi128" in pattern
    assert "SoftMaxForwardReg" in pattern
    assert (second["options"]["--launch-count"], second["options"].get("--launch-skip")) == (["5"], None)
    assert "5 launches of 5 kernels stand for 100% of the kernel time" in outcome.err


@pytest.mark.exhaustive(few=False)
def test_a_trace_chooses_too(ncu_run, trace, tmp_path):
    outcome = ncu_run("--trace", trace, "--", *SAYS).fine()
    (call,) = calls(tmp_path)
    assert "gemm" in call["options"]["--kernel-name"][0]
    assert call["options"]["--launch-count"] == ["2"]
    assert "Without a certain call in the recording" in outcome.err


def test_what_is_asked_for_comes_on_top(ncu_run, tmp_path):
    own = ("--launch-skip=3", "--launch-count=2", "--set=full", "--section=PmSampling")
    options = [f"--ncu-option={one}" for one in own]
    ncu_run("--kernel", "x", *options, "--metrics", "a.sum", "-o", "deep/mine.ncu-rep", "--", *SAYS)
    (call,) = calls(tmp_path)
    found = call["options"]
    assert (found["--launch-skip"], found["--launch-count"]) == (["3"], ["2"])
    assert found["--set"] == ["full"]
    assert found["--section"][-1] == "PmSampling"
    assert found["--metrics"][0].endswith(",a.sum")
    assert found["--export"] == ["deep/mine.ncu-rep"]
    assert (tmp_path / "deep/mine.ncu-rep").exists()


@cases("log", "message")
def test_what_ncu_could_not_do_is_one_error(ncu_run, monkeypatch, log, message):
    monkeypatch.setenv("NCU_LOG", log)
    monkeypatch.setenv("NCU_REPORT", "")
    ncu_run("--kernel", "x", "--", *SAYS).fails(message, out="said\n")


def test_an_interrupt_ends_both_and_keeps_what_there_is(ncu_run, tmp_path):
    """In a process group of its own, as a terminal interrupts it."""
    script = "import time; print('ready', flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "opscope", "ncu", "--kernel", "x", "--", sys.executable, "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True, cwd=tmp_path)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "opscope/" not in err  # no traceback of ours


@pytest.mark.torch
def test_both_versions_of_an_extracted_call_stand_side_by_side(ncu_run, tmp_path):
    pytest.importorskip("torch")
    text = (
        "import torch\nDEVICE = 'cpu'\n"
        "def make_inputs(device, seed):\n    return (torch.ones(1_000_000, device=device),)\n"
        "def reference(self):\n    return self + 1\ndef mine(self):\n    return self + 1\n"
    )
    (tmp_path / "call.py").write_text(text)
    ncu_run("call.py", "--trace", "trace.json").fails("the file says itself what its call is")
    outcome = ncu_run("call.py", "--json", "-o", "both.md").fine()
    runs = calls(tmp_path)
    assert [one["program"][-2] for one in runs] == ["reference", "mine"]
    assert all(one["options"]["--profile-from-start"] == ["off"] for one in runs)
    assert "--kernel-name" not in runs[0]["options"]
    told = (tmp_path / "both.md").read_text("utf-8")
    assert "The call moves at least 8.00 MB" in told
    for row in ("Time", "DRAM", "Through L2", "Limited by", "Occupancy", "Tensor cores", "Warp stalls"):
        assert row in told
    assert "× the least" in told
    assert (tmp_path / "call.mine.ncu-rep").exists()
    document = outcome.json
    assert document["min_bytes"] == 8_000_000
    assert document["mine"]["kernels"] == document["reference"]["kernels"]
    (tmp_path / "call.py").write_text(text.replace("def reference(self):", "def reference(self):\n    1 / 0"))
    ncu_run("call.py", "--force").fails("ZeroDivisionError", code=1, out=None)
