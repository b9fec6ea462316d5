"""Running a compiled program."""

from __future__ import annotations

import os
import signal

import pytest

from opscope.errors import CaptureError
from opscope.toolchain.nvcc.compile import run_compiled


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program"
    file.write_text('#!/bin/sh\necho "$@"\nexec sh -c "$1"\n')
    file.chmod(0o755)
    return file


def test_the_exit_code_and_the_output_are_the_programs(program, capfd):
    assert run_compiled(program, ["exit 7", "--help"], os.environ) == 7
    assert capfd.readouterr().out == "exit 7 --help\n"


def test_its_output_can_go_elsewhere(program, capfd):
    assert run_compiled(program, ["true"], os.environ, stdout=2) == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "true\n")


def test_a_signal_is_told_as_shells_do(program):
    assert run_compiled(program, ["kill -SEGV $$"], os.environ, stdout=2) == 128 + signal.SIGSEGV


def test_what_cannot_be_started_is_an_error(tmp_path):
    with pytest.raises(CaptureError, match="cannot be started"):
        run_compiled(tmp_path / "nothing", [], os.environ)
