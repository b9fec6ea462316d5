"""The examples of help that need a device, as a user types them in a shell."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from help_examples import NEED_GPU, examples, write_files
from opscope.hardware.driver import find_cuda_tool

pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.torch]

LIMIT_S = 400


@pytest.mark.parametrize("verb", NEED_GPU)
def test_the_examples_of_help_work_on_a_gpu(verb: str, tmp_path: Path) -> None:
    def run(*words: str | Path) -> str:
        ended = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    write_files(tmp_path)
    (tools := tmp_path / "bin").mkdir()
    (python := tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    sources = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    path = os.pathsep.join((str(tools), os.environ.get("PATH", os.defpath)))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": sources, "COLUMNS": "120"}
    opscope = (sys.executable, "-m", "opscope")
    if verb == "trace":
        nvcc = find_cuda_tool("nvcc")
        if nvcc is None:
            pytest.skip("no nvcc")
        run(nvcc, "-arch=native", "-o", "vector_add", "add.cu")
    if verb == "ncu":  # its trace is of the program that it runs
        run(*opscope, "run", "--output-dir", "recorded", "train.py")
        recorded = (tmp_path / "recorded/trace.json").read_bytes()
        (tmp_path / "trace.json.gz").write_bytes(gzip.compress(recorded))
    shown = examples(run(*opscope, verb, "--help"))
    assert shown
    for words in shown:
        run(*opscope, *words)
