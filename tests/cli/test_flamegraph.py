from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_json_is_for_speedscope(opscope, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "stacks.json"
    opscope("flamegraph", trace, "-o", target).fine(out=f"Wrote {target}\n")
    document = json.loads(target.read_text())
    assert document["name"] == str(trace)
    (profile,) = document["profiles"]
    assert (profile["name"], profile["endValue"]) == ("trace.json", 452_125)
    assert opscope("flamegraph", trace, "-o", target, "--force", "--weight", "launches").code == 0
    assert json.loads(target.read_text())["profiles"][0]["endValue"] == 3


def test_nothing_is_printed_on_a_terminal(opscope, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    opscope("flamegraph", trace).fails("--output stacks.json")
