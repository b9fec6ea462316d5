"""`opscope extract` on the packaged recording: a list, a file, and what can be done with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opscope import example_trace


def test_calls_are_listed_with_what_they_cost(opscope) -> None:
    shown = opscope("extract", example_trace(), "--top", 2).fine().out
    assert "aten::linear" in shown.partition("Calls that can be run alone")[2]


@pytest.mark.torch
def test_a_call_is_written_runs_alone_and_is_compared(opscope, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    target = tmp_path / "call.py"
    opscope("extract", example_trace(), "linear 8×128×768", "-o", target).fine(out=f"Wrote {target}\n")
    text = target.read_text()
    assert "as recorded in bert_h200.json.gz" in text
    assert "return torch.ops.aten.linear(input, weight, bias)" in text
    done = subprocess.run([sys.executable, target], capture_output=True, text=True, check=True)
    assert done.stdout == "mine computes what the reference does\n"
    options = ("--samples", "2", "--time-budget", "0.01", "--skip", "ceilings", "--device", "cpu", "--json")
    document = json.loads(opscope("bench", target, *options).fine().out)
    assert [one["name"] for one in document["rows"]] == ["reference", "mine"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("0", "there is no call 0"),
        ("999", "there is no call 999"),
        ("convolution", "no call has 'convolution'"),
    ],
)
def test_a_call_that_is_not_there_is_refused(opscope, tmp_path: Path, asked: str, said: str) -> None:
    opscope("extract", example_trace(), asked, "-o", tmp_path / "call.py").fails(said, code=1)
    assert not (tmp_path / "call.py").exists()
