import re

import pytest

from opscope.capture.cycle import Cycle, Phase, Position, Schedule, export_chrome_trace, tensorboard_trace
from opscope.errors import CaptureError, InputError


def test_phases_follow_each_other_and_end():
    schedule = Schedule(wait=1, warmup=2, active=3, repeat=2)
    cycle = [Phase.WAIT, Phase.WARMUP, Phase.WARMUP, Phase.ACTIVE, Phase.ACTIVE, Phase.ACTIVE]
    assert [schedule.position(step).phase for step in range(12)] == cycle * 2
    assert schedule.position(12) == Position(2, Phase.DONE) == schedule.position(10**6)
    assert schedule.total_steps == 12


@pytest.mark.parametrize("counts", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)])
def test_impossible_schedules_are_refused(counts):
    with pytest.raises(InputError, match="no schedule"):
        Schedule(*counts)


@pytest.fixture
def cycle(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    return Cycle(2, trace, tmp_path / "trace.opscope.json", sidecar=None)


def test_traces_are_copied_under_a_pattern(tmp_path, cycle):
    export_chrome_trace(tmp_path / "a")(cycle)
    export_chrome_trace(tmp_path / "a", "{stem}-{index}.json")(cycle)
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["trace-2.json", "trace.json"]
    assert (tmp_path / "a" / "trace-2.json").read_text() == "{}"
    assert cycle.trace_path.exists()


def test_a_copy_replaces_nothing_unless_asked_and_needs_a_folder(tmp_path, cycle):
    export_chrome_trace(tmp_path / "a")(cycle)
    with pytest.raises(InputError, match="exists"):
        export_chrome_trace(tmp_path / "a")(cycle)
    export_chrome_trace(tmp_path / "a", overwrite=True)(cycle)
    with pytest.raises(CaptureError, match="cannot be written"):
        export_chrome_trace(cycle.trace_path / "sub")(cycle)


@pytest.mark.parametrize("pattern", ["{step}", "{0}", "{"])
def test_unknown_patterns_are_refused_before_anything_runs(tmp_path, pattern):
    with pytest.raises(InputError, match="not a pattern"):
        export_chrome_trace(tmp_path, pattern)


def test_tensorboard_finds_its_names(tmp_path, cycle):
    # kineto, tb_plugin/torch_tb_profiler/consts.py
    worker_pattern = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
    handler = tensorboard_trace(tmp_path / "log", "rank0")
    handler(cycle)
    handler(cycle)
    tensorboard_trace(tmp_path / "log")(cycle)
    workers = [worker_pattern.match(file.name).group(1) for file in (tmp_path / "log").iterdir()]
    assert len(workers) == 3
    assert sorted(workers)[1:] == ["rank0", "rank0"]
