"""Files read by several processes are as if one had read them all."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from fakes import TraceBuilder
from opscope._version import __version__
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.measure import join_timelines, measure_each
from opscope.errors import DependencyError, InputError
from opscope.ingest import reader
from opscope.ingest.source import find_traces
from opscope.model.schema import TABLES
from opscope.model.session import Session
from opscope.provenance.kernel_names.cxx_name import demangle
from opscope.report.summary_json import analysis_json
from opscope.results import load, summarize

ROWS = {table.name: f"SELECT * FROM {table.name} ORDER BY ALL" for table in TABLES}


def rows(session):
    return {name: session.connection.execute(query).fetchall() for name, query in ROWS.items()}


class Here(Executor):
    """Runs what is submitted at once; `answers` take its place, by their order."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result((self._answers.pop(0) if self._answers else fn)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor keeps it
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Five ranks with kernels of their own and of others, in three groups of files read together."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(5):
        trace = TraceBuilder(distributedInfo={"rank": rank, "world_size": 5}).step(1, 0, 1000)
        trace.operator("aten::mm", 10, 100).operator("aten::mul", 20, 5)
        trace.launch(21).kernel(f"gemm_{rank % 3}", 50, 30 + rank)
        trace.launch(30).kernel(f"other_{rank}", 90, 7)
        trace.write(folder / f"rank{rank}.json")
    return folder


def of_traces(found):
    return {name: table for name, table in found.items() if name not in ("metadata", "findings")}


def parts_of(folder, *executors, said=None):
    session, waiting = Session(), list(executors)
    reader.read_parts(
        session,
        find_traces(str(folder)),
        reader.Workers(lambda: waiting.pop(0)),
        reader.ReadOptions(demangle),
        note=(lambda text: None) if said is None else said.append,
    )
    return of_traces(rows(session))


@pytest.fixture(scope="module")
def alone(ranks):
    """All rows as one process reads them."""
    return rows(load(ranks))


def test_every_row_is_as_if_one_process_had_read_all(ranks, alone):
    assert parts_of(ranks, Here()) == of_traces(alone)


@pytest.mark.exhaustive(few=False)
def test_processes_of_this_machine(ranks, alone):
    counts, said = [], []
    assert rows(load(ranks, workers=2, on_done=counts.append, note=said.append)) == alone
    assert (counts, said) == ([*range(1, 6)], [])


def test_what_they_are_given_to_do_can_be_handed_to_them(ranks, monkeypatch):
    handed = []
    monkeypatch.setattr(
        reader,
        "load",
        lambda *_, demangle, examine, **__: handed.append(pickle.dumps((demangle, examine))),
    )
    load(ranks)
    assert handed


@pytest.mark.exhaustive(few=False)
def test_a_worker_killed_in_the_middle_costs_its_files_alone(ranks, alone):
    def killed(*_):
        raise BrokenProcessPool("a process was killed")

    assert parts_of(ranks, Here(reader.read_part, reader.read_part, killed), Here()) == of_traces(alone)
    with pytest.raises(InputError, match=r"rank0\.json: processes that read it were killed"):
        parts_of(ranks, Here(killed), Here(killed), Here(killed))


@pytest.mark.exhaustive(few=False)
def test_what_a_worker_cannot_do_is_said_and_done_here(ranks, alone):
    def without_opscope(*_):
        raise ModuleNotFoundError("No module named 'opscope'")

    def older(traces, how):
        part = reader.read_part(traces, how)
        part.version = "0.0.1"
        return part

    said = []
    assert parts_of(ranks, Here(without_opscope, older), said=said) == of_traces(alone)
    assert "a worker cannot read" in said[0]
    assert "it has opscope 0.0.1" in said[1]


@pytest.mark.exhaustive(few=False)
def test_what_is_worked_out_where_a_rank_is_read_is_what_would_be_found_here(shared, shared_session):
    job = shared / "traces/h200/ddp_straggler_w4"
    here = summarize(shared_session(job))
    session = load(job, workers=2)
    assert sorted(session.examined) == [0, 1, 2, 3]
    there = summarize(session)
    assert analysis_json(there) == analysis_json(here)
    assert there.timeline == here.timeline
    together = reader.read_part(find_traces(str(job)), reader.ReadOptions(examine=measure_each)).examined
    timeline = Summary(shared_session(job)).timeline
    assert join_timelines([*together.values()], timeline.skews) == timeline


class FakeClient:
    """A cluster whose workers answer so."""

    def __init__(self, **answers):
        self._answers = answers

    def run(self, *_, **__):
        return self._answers


def test_workers_without_this_opscope_are_told_apart():
    client = FakeClient(
        a=__version__, b="0.0.1", c=ModuleNotFoundError("No module named 'opscope'"), d=__version__
    )
    fit, unfit = reader._fit_workers(client)
    assert fit == ["a", "d"]
    assert unfit == {f"opscope 0.0.1 is there, {__version__} here": ["b"], "No module named 'opscope'": ["c"]}


@pytest.mark.exhaustive(few=False)
def test_a_file_that_cannot_be_read_is_one_error_with_its_name(ranks, tmp_path):
    shutil.copytree(ranks, tmp_path, dirs_exist_ok=True)
    (tmp_path / "rank1.json").write_text("[", "utf-8")
    with pytest.raises(InputError) as alone:
        load(tmp_path)
    with pytest.raises(InputError) as together:
        load(tmp_path, workers=2)
    assert str(together.value) == str(alone.value)


@pytest.mark.exhaustive(few=False)
def test_a_dask_cluster(ranks, alone):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert rows(load(ranks, dask=cluster.scheduler_address)) == alone


@pytest.mark.exhaustive(few=False)
def test_no_scheduler_there(ranks):
    pytest.importorskip("distributed")
    with (
        pytest.raises(InputError, match="no Dask scheduler answers"),
        reader.dask_cluster("tcp://127.0.0.1:1"),
    ):
        pass


def test_dask_is_optional(ranks, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(DependencyError, match="dask"):
        load(ranks, dask="tcp://127.0.0.1:1")


def test_few_files_take_no_processes(ranks, monkeypatch):
    asked = []

    def processes(workers, folder):
        asked.append(workers)
        raise InputError("asked")

    monkeypatch.setattr("opscope.ingest.reader.local_processes", processes)
    few = [str(ranks / f"rank{rank}.json") for rank in range(3)]
    load(few, workers=0)
    load(few)
    with pytest.raises(InputError, match="asked"):
        load(few, workers=5)
    assert asked == [3]


READING = Path(__file__).with_name("reading.py.txt").read_text(encoding="utf-8")


def is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_one_that_started_them(tmp_path, number):
    """However it ends, and whatever they compute."""
    script, scratch = tmp_path / "reading.py", tmp_path / "tmp"
    script.write_text(READING)
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        process.send_signal(number)
        process.wait(20)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    if number == signal.SIGINT:
        assert not list(scratch.iterdir())
