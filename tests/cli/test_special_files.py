"""What is no plain file: inputs named as outputs, pipes, devices, streams that are closed or full."""

import gzip
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from case_tables import cases
from fakes import TraceBuilder


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = TraceBuilder().operator("aten::add", 10, 20).launch(12, 4).kernel("add", 20, 5)
    (tmp_path / "trace.json").write_text(builder.text())
    return Path("trace.json")


@cases("arguments")
def test_no_input_is_replaced(opscope, trace, arguments):
    before = trace.read_bytes()
    Path("link.json").hardlink_to(trace)
    opscope(*arguments, "--force").fails("it is read by this command. Write to another file")
    assert trace.read_bytes() == before


@cases("command")
def test_a_file_that_exists_is_kept_unless_forced(opscope, trace, recording, command):
    file = command.rsplit(maxsplit=1)[-1]
    arguments = [str(recording) if word == "RECORDING" else word for word in shlex.split(command)]
    existing = Path(file)
    existing.write_text("mine")
    refused = opscope(*arguments)
    assert (refused.code, refused.out, existing.read_text()) == (1, "", "mine")
    assert refused.err == f"error: {file}: the file exists. Overwrite it with --force\n"
    assert opscope(*arguments, "--force").code == 0
    assert existing.read_bytes() != b"mine"


@pytest.mark.exhaustive(few=False)
def test_a_folder_is_no_output_and_a_device_is_written_to(opscope, trace, tmp_path):
    outcome = opscope("analyze", trace, "--save", str(tmp_path), "--force")
    assert (outcome.code, outcome.err) == (1, f"error: {tmp_path}: it is a folder. Name a file\n")
    assert opscope("analyze", trace, "--save", os.devnull).code == 0
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("packed", [False, True])
def test_traces_come_from_standard_input(opscope, trace, packed):
    data = trace.read_bytes()
    given = Path("given")
    given.write_bytes(gzip.compress(data) if packed else data)
    kept = os.dup(0)
    try:
        with given.open("rb") as file:
            os.dup2(file.fileno(), 0)
            outcome = opscope("analyze", "-")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert (outcome.code, outcome.err) == (0, "")
    assert "GPU busy" in outcome.out


def test_traces_come_from_pipes(opscope, trace):
    os.mkfifo("pipe")
    with subprocess.Popen(["cp", "trace.json", "pipe"]) as writer:
        outcome = opscope("analyze", "pipe")
        writer.kill()
    assert (outcome.code, outcome.err) == (0, "")
    assert "GPU busy" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("/dev/zero", "error: /dev/zero: a device, not a trace"),
        (f"{'x' * 300}.json", "no such file or folder"),
    ],
)
def test_what_cannot_be_read_is_one_error(opscope, arguments, words):
    opscope("analyze", arguments).fails(words, lines=1)


@cases("arguments", "words")
@pytest.mark.exhaustive(few=False)
def test_what_cannot_be_written_is_one_error(trace, arguments, words):
    command = f"exec {sys.executable} -m opscope {arguments}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.exhaustive(few=False)
def test_what_is_said_to_closed_streams_is_lost_and_files_are_whole(trace):
    command = f"exec {sys.executable} -m opscope analyze trace.json -o report.md >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], timeout=60, check=False).returncode == 0
    assert Path("report.md").read_text(encoding="utf-8").startswith("#")


@pytest.mark.exhaustive(few=False)
def test_text_that_grows_a_thousandfold_is_given_up(opscope, trace):
    text = b"{" + b" " * (200 << 20) + trace.read_bytes().lstrip()[1:]
    Path("bomb.json.zst").write_bytes(zstandard.compress(text))
    opscope("analyze", "bomb.json.zst").fails("more than 1,000 times its own size")
