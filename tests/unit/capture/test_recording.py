"""torch.autograd.profiler as the engine: the same schedule, files and Session."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from opscope.api import load  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.capture.recording import detached_afterwards  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("version", "environment", "inside"),
    [("12.6", None, "1"), ("13.0", None, "1"), ("12.4", None, None), (None, None, None), ("13.0", "0", "0")],
)
def test_cupti_is_detached_where_that_is_safe_and_the_environment_is_silent(
    monkeypatch, version, environment, inside
):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    if environment is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", environment)
    with detached_afterwards():
        assert os.environ.get("TEARDOWN_CUPTI") == inside
    assert os.environ.get("TEARDOWN_CUPTI") == environment


def work():
    torch.ones(4, 4) @ torch.ones(4, 4)


def test_autograd_records_by_the_same_schedule(tmp_path):
    with Profiler(tmp_path, wait=1, warmup=1, active=2, repeat=2, engine="autograd") as profiler:
        for _ in range(profiler.total_steps):
            work()
            profiler.step()
    assert [cycle.sidecar.steps for cycle in profiler.cycles] == [2, 2]
    assert profiler.cycles[0].sidecar.settings.engine == "autograd"
    for cycle in profiler.cycles:
        with load(cycle.trace_path) as session:
            assert all(not check.violations for check in session.check())
            assert session.scalar("SELECT count(*) FROM operators WHERE name = 'aten::matmul'") == 2
            assert session.scalar("SELECT count(*) FROM steps") == 2


@pytest.mark.parametrize("engine", ["profiler", "autograd"])
def test_memory_shapes_and_modules_are_recorded(tmp_path, engine):
    model = torch.nn.Linear(4, 4)
    options = {"with_modules": True, "profile_memory": True, "engine": engine}
    with Profiler(tmp_path, warmup=0, active=1, **options) as profiler:
        model(torch.ones(2, 4))
    assert profiler.cycles[0].sidecar.settings.with_stack
    trace = json.loads(profiler.cycles[0].trace_path.read_text())["traceEvents"]
    names = {event["name"] for event in trace}
    assert "[memory]" in names
    assert any(name.startswith("nn.Module: Linear") for name in names)
    linear = next(event for event in trace if event["name"] == "aten::linear")
    assert linear["args"]["Input Dims"][0] == [2, 4]


def test_events_are_not_turned_into_objects_when_a_window_closes(tmp_path, monkeypatch):
    def parse(self, *args, **kwargs):
        raise AssertionError("asked for")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", parse)
    with Profiler(tmp_path, warmup=0, active=1) as profiler:
        work()
    assert profiler.cycles


@pytest.mark.exhaustive(few=False)  # a process that imports torch
@pytest.mark.parametrize("asked", [None, "5"])
def test_kineto_does_not_tell_that_it_starts_unless_it_is_asked_to(tmp_path, monkeypatch, asked):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if asked:
        monkeypatch.setenv("KINETO_LOG_LEVEL", asked)
    program = (
        "import os, sys, torch, opscope\n"
        "with opscope.profile(sys.argv[1]):\n    torch.rand(3)\n"
        "print(os.environ.get('KINETO_LOG_LEVEL'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(asked)
    assert ("profiler_start" in run.stderr) is (asked is not None)
