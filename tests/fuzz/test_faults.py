"""Full disks, files that fail, clocks that jump, killed processes: what is left is whole."""

import builtins
import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import opscope
from opscope.model.files import scratch_prefix
from opscope.provenance.packaged import kept

from .fuzz import device_code, trace_text

ARGUMENTS = (
    *("analyze", "trace.json", "--save", "out/saved.opscope", "--output", "out/page.html"),
    *("--output", "out/report.md", "--force"),
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A trace, and what an earlier run wrote of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in ("tmp", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "trace.json").write_text(trace_text())
    opscope.load("trace.json").save("out/saved.opscope")
    return tmp_path


def wrong(place):
    """Files that are not whole, and what should be gone."""
    for file in place.glob("out/**/*"):
        if ".partial" in file.name:
            yield f"{file.name} is left"
        elif file.suffix == ".opscope":
            opscope.load(file).close()
        elif file.suffix == ".html" and not file.read_text().endswith("</html>"):
            yield f"{file.name} is cut off"
        elif file.suffix == ".json":
            json.loads(file.read_text())
    yield from (f"tmp/{file.name} is left" for file in place.glob("tmp/opscope-*"))
    if not (place / "out/saved.opscope").exists():
        yield "the earlier result is lost"


_ALL = pytest.mark.exhaustive(few=False)


@pytest.mark.parametrize(
    "most_bytes", [0, 100_000, *(pytest.param(one, marks=_ALL) for one in (1_000, 2_000_000))]
)
@pytest.mark.exhaustive(few=False)
def test_a_disk_that_is_full(place, most_bytes):
    """No file may grow beyond so many bytes."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "opscope", *ARGUMENTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python itself keeps half of such a file
    )
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert not list(wrong(place))


class Failing:
    """File calls, of which one fails; but for those that remove: what they leave, the next start removes.

    Args:
        monkeypatch: What puts them back.
        number: Of the one that fails, from 0.
        error: With what.
    """

    CALLS = (
        (builtins, "open"), (os, "replace"), (os, "rename"), (os, "mkdir"), (Path, "stat"),
        (Path, "read_bytes"), (Path, "read_text"), (Path, "write_text"), (Path, "write_bytes"),
        (Path, "open"), (Path, "replace"), (Path, "mkdir"), (Path, "glob"),
    )  # fmt: skip

    def __init__(self, monkeypatch, number, error):
        self.left = number
        self.error = error
        self.failed: str | None = None
        for owner, name in self.CALLS:
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name), name))

    def _failing(self, original, name):
        def call(*args, **kwargs):
            path = str(args[0]) if args else ""
            is_code = "site-packages" in path or "/src/opscope" in path or "/lib/python" in path
            if self.failed is None and not is_code and not path.startswith(("/proc", "/sys")):
                self.left -= 1
                if self.left < 0:
                    self.failed = f"{name}({path})"
                    raise OSError(self.error, os.strerror(self.error), path)
            return original(*args, **kwargs)

        return call


@pytest.mark.parametrize(
    ("error", "step"),
    [
        pytest.param(errno.ENOSPC, 31, id="some"),
        pytest.param(errno.ENOSPC, 1, id="ENOSPC", marks=_ALL),
        pytest.param(errno.EIO, 1, id="EIO", marks=_ALL),
        pytest.param(errno.EINTR, 1, id="EINTR", marks=_ALL),
    ],
)
def test_a_file_call_that_fails(opscope_verb, place, error, step):
    """Each of them in turn: one error, or the result."""
    opscope_verb(*ARGUMENTS)  # imports what is imported late
    for number in range(0, 400, step):
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, number, error)
            code, said = opscope_verb(*ARGUMENTS)
        if failing.failed is None:
            break
        assert code in {0, 1}, (failing.failed, said)
        assert "internal error" not in said, (failing.failed, said)
        assert not list(wrong(place)), failing.failed
    assert number > 10


@pytest.fixture
def opscope_verb(capsys):
    """Runs the command line in this process: its exit code and what it said."""
    from opscope.cli import main

    def run(*arguments):
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_removes_nothing_of_the_living(place, monkeypatch, years):
    with opscope.load("trace.json") as session:
        folder = session.temporary_directory
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + years * 365 * 86_400)
        scratch_prefix.__wrapped__()
        assert folder.exists()
        session.save("out/saved.opscope", overwrite=True)
    assert not list(wrong(place))


KEEP = """
import sys
from pathlib import Path
from opscope.provenance.binaries.library import cached_library
library = cached_library(sys.argv[1], Path(sys.argv[2]))
print(library.build_id, library.units_of("plain"))
"""


@pytest.mark.exhaustive(few=False)
def test_sixteen_processes_on_one_cache(tmp_path):
    (tmp_path / "lib.so").write_bytes(device_code())
    command = [sys.executable, "-c", KEEP, str(tmp_path / "lib.so"), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(16)]
    said = {process.communicate(timeout=300)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 16
    assert len(said) == 1
    assert said != {""}
    assert len([file for file in (tmp_path / "cache").rglob("*") if file.is_file()]) == 1


def test_what_is_damaged_in_the_cache_is_made_anew(tmp_path):
    path = tmp_path / "kept"
    for damaged in (b"", b"half"):
        path.write_bytes(damaged)
        found = kept(path, lambda content: content if content == b"whole" else None, lambda: b"whole", bytes)
        assert found == path.read_bytes() == b"whole"


@pytest.mark.exhaustive(few=False)
def test_verbs_killed_at_any_moment_leave_no_half_file():
    """A few moments of one; `faults.py` takes as many as one wants, and the other verbs."""
    command = [sys.executable, Path(__file__).with_name("faults.py"), "--moments=4", "--verbs=analyze"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
