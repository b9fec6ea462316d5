"""Reports of Nsight Systems, exported by a stand-in for nsys."""

import shutil
from pathlib import Path

import pytest

from fakes import ExportBuilder
from opscope.api import load
from opscope.cli import main
from opscope.toolchain import nsys as running

STAND_IN = """
import os, shutil, sys
(output,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--output=")]
shutil.copy(os.environ["NSYS_EXPORT"], output)
"""


@pytest.fixture
def report(tmp_path, monkeypatch, stand_in):
    """A report in the current folder, and nsys on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "find_cuda_tool", shutil.which)
    stand_in("nsys", STAND_IN)
    export = ExportBuilder().launch(1).kernel("add(int, float *, float *)", 10, 500).copy(600, 40)
    monkeypatch.setenv("NSYS_EXPORT", str(export.write(tmp_path / "made_elsewhere.sqlite")))
    Path("r.nsys-rep").write_text("report")
    return "r.nsys-rep"


def test_every_verb_exports_a_report_for_itself(report, capsys):
    assert main(["stats", report]) == 0
    assert "CUDA_KERNEL  add(int, float *, float *)" in capsys.readouterr().out
    with load(report) as session:
        assert session.query("SELECT source, format FROM traces") == [(report, "nsys")]
    assert not Path("r.sqlite").exists()
