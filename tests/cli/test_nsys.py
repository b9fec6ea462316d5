"""`opscope trace --nsys`: programs run under a stand-in for nsys, and what is said of failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fakes import ExportBuilder
from opscope.api import load
from opscope.cli import main
from opscope.toolchain import nsys as running

from .conftest import Run

# Takes the two commands of nsys as nsys does: profile runs the program and writes a report, export copies an
# export made elsewhere.
STAND_IN = """
import json, os, shutil, subprocess, sys
words, options = sys.argv[2:], {}
while words and words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    options[name] = value
with open(os.environ["NSYS_CALLS"], "a") as calls:
    calls.write(json.dumps({"verb": sys.argv[1], "options": options, "words": words}) + "\\n")
if sys.argv[1] == "export":
    if os.environ.get("NSYS_FAILS"):
        sys.exit("Importer error status: version mismatch.")
    shutil.copy(os.environ["NSYS_EXPORT"], options["--output"])
    sys.exit(0)
code = subprocess.call(words)
print("Generating '/tmp/nsys-report-66ad.qdstrm'", flush=True)
if not os.environ.get("NSYS_SILENT"):
    open(options["--output"], "w").write("report")
sys.exit(code)
"""


Calls = Callable[[], list[dict[str, object]]]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opscope_and_programs: Run) -> Run:
    """Runs `opscope trace --nsys` in an empty folder, without nsys."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(running, "_PLACES", ())
    return partial(opscope_and_programs, "trace", "--nsys")


@pytest.fixture
def nsys_run(
    tmp_path: Path, bare: Run, monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[str, str], None]
) -> Run:
    """The same with the stand-in on PATH."""
    stand_in("nsys", STAND_IN)
    export = ExportBuilder().launch(1).kernel("add(int, float *, float *)", 10, 500).copy(600, 40)
    monkeypatch.setenv("NSYS_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("NSYS_EXPORT", str(export.write(tmp_path / "made_elsewhere.sqlite")))
    return bare


class TestPrograms:
    def test_a_program_is_recorded_exported_and_counted(self, nsys_run: Run, calls: Calls) -> None:
        nsys_run("--", sys.executable, "-c", "print('Max error: 0')").fine(
            "Max error: 0",
            "CUDA_KERNEL  add(int, float *, float *)",
            "Wrote opscope_trace/trace.nsys-rep\nWrote opscope_trace/trace.sqlite\n",
        )
        profile, export = calls()
        assert profile == {
            "verb": "profile",
            "options": {
                "--trace": "cuda,nvtx", "--sample": "none", "--cpuctxsw": "none", "--force-overwrite": "true",
                "--output": "opscope_trace/trace.nsys-rep",
            },
            "words": [sys.executable, "-c", "print('Max error: 0')"],
        }  # fmt: skip
        assert export["words"] == ["opscope_trace/trace.nsys-rep"]
        assert sorted(path.name for path in Path("opscope_trace").iterdir()) == [
            "trace.nsys-rep",
            "trace.sqlite",
        ]

    def test_options_and_the_programs_exit_code_are_passed_on(self, nsys_run: Run, calls: Calls) -> None:
        done = nsys_run(
            "--nsys-option=--trace=cuda,cublas", "--nsys-option", "--duration=3", "--output-dir", "deep",
            "--name", "run1", "--json", "--", sys.executable, "-c",
            "import sys; print('x'); sys.exit(7)",
        )  # fmt: skip
        assert done.code == 7
        assert done.json["cuda_gpu_sum"][0]["Category"] == "CUDA_KERNEL"
        assert "x\n" in done.err
        assert "Wrote deep/run1.sqlite" in done.err
        options = calls()[0]["options"]
        assert isinstance(options, dict)
        assert (options["--trace"], options["--duration"], options["--kill"]) == ("cuda,cublas", "3", "none")

    def test_files_are_not_overwritten_unasked(self, nsys_run: Run) -> None:
        Path("opscope_trace").mkdir()
        Path("opscope_trace/trace.sqlite").touch()
        program = ("--", sys.executable, "-c", "print('ran')")
        done = nsys_run(*program).fails("trace.sqlite: the file exists")
        assert "ran" not in done.out
        assert nsys_run("--force", *program).code == 0

    def test_a_run_without_a_report_and_an_export_that_fails(
        self, nsys_run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NSYS_FAILS", "1")
        done = nsys_run("--", sys.executable, "-c", "pass")
        assert (done.code, done.err.count("error:")) == (1, 1)
        assert "Importer error status: version mismatch." in done.err
        monkeypatch.setenv("NSYS_SILENT", "1")
        nsys_run("--name", "other", "--", sys.executable, "-c", "import sys; sys.exit(2)").fails(
            "nsys wrote no report (exit code 2)", out=None
        )

    def test_without_nsys_it_says_what_to_install_and_what_else_there_is(
        self, bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "program"
        program.write_text("#!/bin/sh\ntouch ran\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        done = bare("--", "program").fails()
        for words in ("apt install nsight-systems-cli", "opscope run", "opscope trace -- ./program"):
            assert words in done.err
        assert not Path("ran").exists()

    def test_what_cannot_be_meant(self, bare: Run) -> None:
        assert "nothing to run" in bare().err
        assert "there is no program './missing'" in bare("--", "./missing").err
        done = bare("--max-trace-size", "1GB", "--", sys.executable)
        assert "options of CUPTI's recorder are given, and --nsys" in done.err


class TestReports:
    def test_every_verb_exports_a_report_for_itself(self, nsys_run: Run) -> None:
        Path("r.nsys-rep").write_text("report")
        assert main(["stats", "r.nsys-rep"]) == 0
        with load("r.nsys-rep") as session:
            assert session.query("SELECT source, format FROM traces") == [("r.nsys-rep", "nsys")]
        assert not Path("r.sqlite").exists()
