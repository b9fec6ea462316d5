"""`opscope extract` on the packaged recording: a list, a file, and what can be done with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import cases
from fakes import TraceBuilder


def test_calls_are_listed_with_what_they_cost(opscope, example):
    shown = opscope("extract", example, "--top", 2).fine().out
    assert "aten::linear" in shown.partition("Calls that can be run alone")[2]


@pytest.mark.torch
def test_a_call_is_written_runs_alone_and_is_compared(opscope, example, tmp_path):
    pytest.importorskip("torch")
    target = tmp_path / "call.py"
    opscope("extract", example, "tanh", "-o", target).fine(out=f"Wrote {target}\n")
    text = target.read_text()
    assert "as recorded in bert_h200.json.opscope" in text
    assert "return torch.ops.aten.tanh(self)" in text
    done = subprocess.run([sys.executable, target], capture_output=True, text=True, check=True)
    assert done.stdout == "mine computes what the reference does\n"
    options = ("--samples", "2", "--time-budget", "0.01", "--skip", "ceilings", "--device", "cpu", "--json")
    document = json.loads(opscope("bench", target, *options).fine().out)
    assert [one["name"] for one in document["rows"]] == ["reference", "mine"]


@cases("asked", "said")
def test_a_call_that_is_not_there_is_refused(opscope, example, tmp_path, asked, said):
    opscope("extract", example, asked, "-o", tmp_path / "call.py").fails(said, code=1)
    assert not (tmp_path / "call.py").exists()


def test_what_cannot_be_written_is_marked_with_its_reason(opscope, tmp_path):
    given = {"Input Dims": [[4, 7], []], "Input type": ["float", ""], "Input Strides": [[7, 1], []]}
    recorded = TraceBuilder().operator("aten::index", 0, 10, **given, **{"Concrete Inputs": ["", ""]})
    file = recorded.launch(2).kernel("index_kernel", 20, 5).write(tmp_path / "trace.json")
    listed = opscope("extract", file).fine().out
    assert "none" in listed
    assert "1: aten::index: PyTorch records no lists in which tensors may be missing ('indices')." in listed


@pytest.mark.torch
def test_a_list_is_written_as_a_suite_and_its_gain_in_the_program_is_told(opscope, example, tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "calls"
    opscope("extract", example, "--all", folder, "--start", "aten", "--top", 12).fine()
    files = sorted(one.name for one in folder.iterdir())
    assert [one for one in files if "softmax" in one or "README" in one] == ["09_softmax.py", "README.md"]
    assert "| 9 | `aten::softmax` | `8×12×128×128` | 12 |" in (folder / "README.md").read_text()
    opscope("extract", example, "--all", folder).fails("it exists", code=1)
    for one in folder.glob("*.py"):
        if one.name not in {"10_linear.py", "12_to.py"}:
            one.unlink()
    options = ("--samples", "10", "--time-budget", "0.01", "--skip", "ceilings", "--device", "cpu")
    slow = folder / "10_linear.py"
    slow.write_text(
        slow.read_text().replace(
            "return reference(input, weight, bias)",
            "[reference(input, weight, bias) for _ in range(9)]\n    return reference(input, weight, bias)",
        )
    )
    measured = opscope("bench", folder, *options, "--in", example, "--fail-on", "slower", "--json")
    document = json.loads(measured.out)
    assert measured.code == 3
    assert "fails --fail-on slower: 10_linear: mine" in measured.err
    assert [one["parameters"] for one in document["points"]] == [{"call": "10_linear"}, {"call": "12_to"}]
    slower, _ = document["in_program"]
    assert slower["operator"] == "aten::linear"
    assert slower["calls"] == 1
    assert slower["ratio"] > 5
    assert slower["gain"]["ns"] < 0
    other = ("bench", slow, "--in", Path(__file__).parents[1] / "golden/traces/own_kernels.json.gz")
    opscope(*other).fails("no call that its make_inputs and reference stand for", code=1)
    opscope("bench", "gelu", "--in", example).fails("--in needs a file", code=1)


def test_a_folder_without_calls_is_no_suite(opscope, tmp_path):
    opscope("bench", tmp_path).fails("it holds no file with a reference and mine", code=1)


def test_a_folder_is_loaded_before_any_of_it_is_measured(opscope, tmp_path, monkeypatch):
    monkeypatch.delenv("SET_BY_B", raising=False)
    text = "import os\nimport torch\n{}\ndef make_inputs(device, seed):\n    return torch.ones(4)\n\n"
    text += "def reference(x):\n    return x + int(os.environ['SET_BY_B'])\n\n"
    text += "def mine(x):\n    return reference(x)\n"
    (tmp_path / "a.py").write_text(text.format(""))
    (tmp_path / "b.py").write_text(text.format("os.environ['SET_BY_B'] = '1'"))
    done = opscope("bench", tmp_path, "--samples", "2", "--device", "cpu", "--json", "--skip", "ceilings")
    assert done.code == 0, done.err
    monkeypatch.delenv("SET_BY_B")
