"""A small trace as a file, and a way to run one command in this process."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fakes import TraceBuilder
from opscope import example_trace, load, summarize
from opscope.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def said(self):
        """Standard error on one line."""
        return " ".join(self.err.split())

    @property
    def words(self):
        """Standard output on one line, without the borders of its boxes."""
        return " ".join(self.out.replace("│", " ").split())

    def fine(self, *words, out=None):
        """It did what it was asked to, and standard output holds these words."""
        assert self.code == 0, self.err
        assert out in (None, self.out)
        assert [one for one in words if one not in self.out and one not in self.words] == []
        return self

    def fails(self, *words, code=1, out="", lines=None):
        """It ended with such a code and an error of these words, not with a defect."""
        assert self.code == code, self.err
        assert out in (None, self.out)
        assert lines in (None, self.err.count("\n"))
        assert [one for one in words if one not in self.err and one not in self.said] == []
        assert "internal error" not in self.err and "/opscope/cli/" not in self.err
        return self


Run = Callable[..., Outcome]


def running(streams):
    def run(*arguments):
        streams.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *streams.readouterr())

    return run


@pytest.fixture
def opscope(capsys):
    """Runs `opscope ARGUMENTS…` in this process."""
    return running(capsys)


@pytest.fixture
def opscope_and_programs(capfd):
    """The same, with what programs print that it starts: both streams as a terminal sees them."""
    return running(capfd)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a Python program of a name before all others on PATH."""

    def place(name, text):
        program = tmp_path / "bin" / name
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n{text}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return place


def script(name):
    """A module of `scripts`."""
    path = Path(__file__).resolve().parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """Other work on this machine adds no line to what a verb says."""
    monkeypatch.setattr("opscope.capture.environment.cpu_pressure_fraction", lambda: None)


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    """`trace`, read and saved as a Session once: verbs say the same of it, much sooner."""
    folder = tmp_path_factory.mktemp("recording")
    return saved(write_trace(folder / "trace.json"))


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The packaged recording, read and saved as a Session once."""
    folder = tmp_path_factory.mktemp("example")
    return saved(Path(shutil.copy(example_trace(), folder)))


def saved(trace):
    """A trace, read and saved beside it as a Session."""
    with load(trace, threads=1) as session:
        summarize(session).complete()
        return session.save(trace.with_suffix(".opscope"))


@pytest.fixture
def trace(tmp_path):
    """Two operators, three kernels, one of them launched before the window opened."""
    return write_trace(tmp_path / "trace.json")


def write_trace(path):
    launch = {
        "grid": [96, 1, 1], "registers per thread": 200, "shared memory": 49_152,
        "est. achieved occupancy %": 12,
    }  # fmt: skip
    builder = TraceBuilder().step(2, 0, 1_000)
    builder.operator("aten::linear", 10, 200, **{"Input Dims": [[8, 16], [16, 16]]})
    builder.operator("aten::addmm", 20, 150, **{"Input Dims": [[16], [8, 16], [16, 16]]})
    builder.launch(30, 5).kernel("gemm|<float, 64>", 40, 400, **launch)
    builder.operator("aten::gelu", 300, 100, **{"Input Dims": [[8, 16]]})
    builder.launch(310, 5).kernel("gelu_kernel", 450, 50.125, **launch)
    return builder.kernel("leaked", 1, 2, correlation=5, **launch).write(path)
