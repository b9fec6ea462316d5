"""What failed once never fails again; a minute of new inputs; rewritings that change nothing."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

import opscope
from opscope.model.schema import TABLES

from . import devices
from .fuzz import TARGETS, Target, check, corpus, minimized, trace_text

SEED, SECONDS = 20261123, 60


@pytest.mark.parametrize(("target", "file"), [pytest.param(*one, id=one[1].name) for one in corpus()])
def test_what_failed_once_is_refused_or_read(target, file, tmp_path):
    assert check(target, file.read_bytes(), tmp_path) is None


def test_a_device_that_cannot_be_divides_by_nothing():
    devices.fuzz(2_000, SEED)


@pytest.mark.parametrize(
    "target",  # of the longest something like it is read elsewhere too
    [
        pytest.param(one, marks=pytest.mark.exhaustive(few=False) if one in ("rank", "verbs") else ())
        for one in TARGETS
    ],
)
def test_a_sound_input_is_read(target: str, tmp_path: Path) -> None:
    place = tmp_path / "seed"
    place.mkdir()
    data = TARGETS[target].seed(place)
    path = tmp_path / f"input{TARGETS[target].suffix}"
    path.write_bytes(data)
    TARGETS[target].read(path)


@pytest.mark.exhaustive(few=False)
def test_damaged_sessions_are_one_error_or_whole(tmp_path):
    place = tmp_path / "seed"
    place.mkdir()
    data = TARGETS["session"].seed(place)
    for part in (1, 4, 8):
        at = len(data) * part // 9
        for damaged in (data[:at], data[:at] + b"\xff" * 64 + data[at + 64 :]):
            assert check("session", damaged, tmp_path) is None, at


@pytest.mark.exhaustive(few=False)
def test_a_minute_of_new_inputs():
    command = [sys.executable, Path(__file__).with_name("fuzz.py"), f"--seed={SEED}", f"--seconds={SECONDS}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # pytest finds `fakes` for this process
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=6 * SECONDS, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive(few=False)
def test_a_failing_input_is_made_as_small_as_it_can_be(tmp_path, monkeypatch):
    def read(path):
        data = path.read_bytes()
        if b"{" in data and b"bad" in data[data.index(b"{") :]:
            raise KeyError(len(data))

    monkeypatch.setitem(TARGETS, "broken", Target(lambda _: b"", read, ".bin"))
    data = bytes(range(200)) * 3 + b"b{x" + b"bad" + bytes(300)
    assert check("broken", data, tmp_path) is not None
    assert minimized("broken", data) == b"{bad"
    assert minimized("broken", b"sound") == b"sound"


def tables(path):
    """Every row of a recording, but for the name of its file and its size."""
    with opscope.load(path) as session:
        return {
            one.name: sorted(session.query(f'SELECT * FROM "{one.name}"'), key=repr)
            for one in TABLES
            if one.name != "traces"
        }


REWRITINGS = {
    "packed.json.gz": lambda text: gzip.compress(text.encode()),
    "packed.json.zst": lambda text: zstandard.compress(text.encode()),
    "spaces.json": lambda text: json.dumps(json.loads(text), indent=7, separators=(" ,\t", " : ")).encode(),
    "dense.json": lambda text: json.dumps(json.loads(text), separators=(",", ":")).encode(),
    "windows.json": lambda text: text.replace("\n", "\r\n").encode(),
    "marked.json": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "sorted.json": lambda text: json.dumps(dict(sorted(json.loads(text).items(), reverse=True))).encode(),
    "keys.json": lambda text: json.dumps(json.loads(text), sort_keys=True).encode(),
}


@pytest.mark.exhaustive(few=False)
def test_another_way_to_write_it_changes_nothing(tmp_path):
    plain = tmp_path / "plain.json"
    plain.write_text(trace_text())
    expected = tables(plain)
    for name, rewriting in REWRITINGS.items():
        (tmp_path / name).write_bytes(rewriting(trace_text()))
        assert tables(tmp_path / name) == expected, name


@pytest.mark.exhaustive(few=False)
def test_ranks_in_files_of_their_own_are_as_in_a_packed_folder(tmp_path):
    """Each file written another way: the job stays the same."""
    ways = list(REWRITINGS.items())[::2]
    for folder in ("plain", "rewritten"):
        (tmp_path / folder).mkdir()
    for rank in range(len(ways)):
        document = json.loads(trace_text())
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(ways)}
        text = json.dumps(document)
        name, rewritten = ways[rank]
        (tmp_path / f"plain/rank{rank}.json").write_text(text)
        (tmp_path / f"rewritten/rank{rank}{name[name.index('.') :]}").write_bytes(rewritten(text))
    assert tables(tmp_path / "rewritten") == tables(tmp_path / "plain")
