"""Files appear whole or not at all, and nothing of killed processes stays."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.model import files as room
from opscope.model.files import claimed, confined, replacing, scratch_prefix, write_text

HOUR_S = 3600


@pytest.fixture
def ended_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def made(path, *, age_s):
    path.mkdir()
    (path / "spool.json").write_text("{}")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_folders_of_killed_processes_go_and_no_others(tmp_path, monkeypatch, ended_pid):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    space = scratch_prefix.__wrapped__().split("-")[1]
    old = 2 * HOUR_S
    gone = made(tmp_path / f"opscope-{space}-{ended_pid}-a", age_s=old)
    kept = [
        made(tmp_path / f"opscope-{space}-{ended_pid}-b", age_s=60),  # just ended
        made(tmp_path / f"opscope-{space}-{os.getppid()}-c", age_s=old),  # of a living process
        made(tmp_path / f"opscope-1{space}-{ended_pid}-d", age_s=old),  # of another container
        made(tmp_path / "opscope-results", age_s=old),
    ]
    scratch_prefix.__wrapped__()
    assert not gone.exists()
    assert all(folder.exists() for folder in kept)


def test_what_a_killed_process_left_of_a_file_goes_when_it_is_written(tmp_path, ended_pid):
    left = tmp_path / f".a.{ended_pid}.partial.json.wal"
    other = tmp_path / f".b.{ended_pid}.partial.json"
    for file in (left, other):
        file.write_text("{")
        os.utime(file, (time.time() - 2 * HOUR_S,) * 2)
    write_text(tmp_path / "a.json", "{}")
    assert not left.exists()
    assert other.exists()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    write_text(pipe, "text")
    assert reader.communicate()[0] == "text"
    assert pipe.is_fifo()


HOLD = Path(__file__).with_name("holding.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def holder(tmp_path):
    """Another process that has claimed `trace.json`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "trace.json")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_two_processes_exclude_each_other_and_the_holder_is_named(tmp_path, holder):
    with (
        pytest.raises(InputError, match=f"process {holder.pid} on .* is writing it"),
        claimed(tmp_path / "trace.json"),
    ):
        pass
    with claimed(tmp_path / "another.json"):
        pass


def test_a_claim_ends_with_its_process_however_that_ends(tmp_path, holder):
    holder.kill()
    holder.wait()
    with claimed(tmp_path / "trace.json"):
        assert str(os.getpid()) in (tmp_path / ".trace.json.lock").read_text()
    assert not list(tmp_path.iterdir())


def test_where_no_lock_or_file_can_be_made_nothing_is_left(tmp_path):
    with claimed(tmp_path / "no folder" / "trace.json"):
        pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="Is a directory"), replacing(tmp_path) as partial:
        partial.write_text("")
    assert tmp_path.is_dir()
    assert not list(tmp_path.parent.glob("*.partial*"))


def length(file):
    print("a library's own words")
    return len(file.read_bytes())


def refuses(file):
    raise InputError("not of this kind", source=file, byte_offset=3, hint="Copy it again")


def never_ends(file):
    while True:
        pass


def sleeps(file):
    time.sleep(60)


def takes_all(file):
    return len(bytearray(1 << 30))


def crashes(file):
    os.abort()


def fails(file):
    raise KeyError("a name")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"four")
    return path


def test_what_it_returns_comes_back_and_its_own_error_as_it_was(file, capfd):
    assert confined(length, file, reader="a reader") == 4
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InputError) as caught:
        confined(refuses, file, reader="a reader")
    error = caught.value
    assert (error.message, error.source, error.byte_offset, error.hint) == (
        "not of this kind", str(file), 3, "Copy it again",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (never_ends, "a reader found no end of it within 1 s"),
        (sleeps, "a reader found no end of it within 1 s"),
        (takes_all, "a reader took more than 512 MB of memory for it"),
        (crashes, "a reader crashed on it"),
        (fails, "a reader failed on it .KeyError: 'a name'."),
    ],
)
@pytest.mark.exhaustive(few=False)
def test_what_goes_wrong_is_an_error_of_the_file(file, read, said, monkeypatch):
    monkeypatch.setattr(room, "_CPU_S", 1)
    monkeypatch.setattr(room, "_WALL_PER_CPU", 3)
    monkeypatch.setattr(room, "_MEMORY_BYTES", 512 << 20)
    with pytest.raises(InputError, match=said) as caught:
        confined(read, file, reader="a reader")
    assert caught.value.source == str(file)
