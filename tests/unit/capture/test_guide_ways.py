"""Every way in which the guides record a program, in ours: bare, by a schedule, with handlers, in parts."""

import io
import json

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402

pytestmark = pytest.mark.torch


def square():
    torch.square(torch.ones(8, 8))


def operators(path):
    return [
        event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"
    ]


def test_by_a_schedule_with_a_handler_per_cycle(tmp_path):
    """wait=1, warmup=1, active=2, repeat=1 over ten iterations, a table and a copy of the trace per cycle."""
    table = io.StringIO()
    handlers = [
        opscope.print_table(file=table),
        opscope.export_chrome_trace(tmp_path / "copies", "test_trace_{index}.json"),
        opscope.tensorboard_trace(tmp_path / "log"),
    ]
    with opscope.profile(tmp_path, wait=1, warmup=1, active=2, repeat=1, on_cycle=handlers) as profiler:
        for _ in range(10):
            square()
            profiler.step()
    assert "aten::square" in table.getvalue()
    assert operators(tmp_path / "copies" / "test_trace_0.json").count("aten::square") == 2
    (board,) = (tmp_path / "log").iterdir()
    assert board.name.endswith(".pt.trace.json")
    assert operators(board).count("aten::square") == 2
