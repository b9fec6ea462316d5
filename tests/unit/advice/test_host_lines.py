"""Host time by line of the program, from two watched steps and the recorded ones."""

import pytest

import opscope
from fakes import sidecar
from opscope.analysis.watched_steps import HostLine, as_tree, busiest_lines
from opscope.model.sidecar import ProgramLine, RecordedDataflow, ThreadOperators, sidecar_path, write_sidecar
from opscope.report.analysis import recording_document
from opscope.report.markdown import render_markdown

from .conftest import trace

NAMES = ("aten::mm", "aten::exp", "aten::sum", "aten::mul_")


def recorded(folder, kernel_us, period_us=4_000):
    """Three steps of 4 ms: 500 us for a product, after Python for 1 ms a sum, then 1 ms of its backward pass.

    The host waits for that on another thread; then 100 us of an operator that no line calls.
    """
    program = trace()
    for step in range(3):
        at = period_us * step
        program.step(step, at, period_us - 1)
        program.operator("aten::mm", at, 500, **{"Sequence number": step, "Fwd thread id": 0})
        program.launch(at + 5).kernel("kernel", at + 10, kernel_us)
        program.operator("aten::sum", at + 1_500, 100).launch(at + 1_501)
        program.kernel("kernel", at + period_us - 1_000, 9)
        backward = {"Sequence number": step, "Fwd thread id": 1}
        program.operator("MmBackward0", at + 1_700, 1_000, thread=2, **backward).differentiates(
            at, at + 1_700
        )
        program.operator("aten::exp", at + 1_700, 1_000, thread=2)
        program.operator("aten::mul_", at + 3_100, 100)
    path = program.write(folder / "t.json")
    threads = (ThreadOperators(1, NAMES, "0 2 3"), ThreadOperators(2, NAMES, "1"))
    lines = (
        ProgramLine("/home/u/train.py:20 main", -1, 1, ()),
        ProgramLine("model.py:7 forward", 0, 1, ((0, 1),)),
        ProgramLine("model.py:9 forward", 0, 6, ((1, 2),)),
    )
    watched = RecordedDataflow(threads, lines=lines)
    write_sidecar(sidecar_path(path), sidecar(dataflow=watched))
    return opscope.load(path)


def test_time_up_to_an_operator_and_of_its_backward_pass_belongs_to_its_line(tmp_path):
    with recorded(tmp_path, kernel_us=20) as session:
        summary = opscope.summarize(session)
    main, product, reduced = summary.host_lines
    # 1,500 us of 3,200, and between two steps 800; 1,100; the last one waited 500 us of 1,600 for the other.
    whole_us = 3 * 3_200 + 2 * 800
    assert product == HostLine("model.py:7 forward", 0, 1, 1, pytest.approx((3 * 1_500 + 2 * 800) / whole_us))
    assert reduced == HostLine("model.py:9 forward", 0, 6, 1, pytest.approx(3 * 1_100 / whole_us))
    assert main.operators == 2
    assert main.fraction == pytest.approx(product.fraction + reduced.fraction)
    screen = render_markdown(recording_document(summary, is_screen=True))
    assert "54.5 % in `model.py:7 forward`, 29.5 % in `model.py:9 forward`" in screen
    assert "`train.py:20 main`" in screen


def test_where_the_device_decides_no_line_is_told(tmp_path):
    with recorded(tmp_path, kernel_us=38_000, period_us=40_000) as session:
        assert opscope.summarize(session).host_lines == ()


LINES = [
    HostLine("a.py:1 main", -1, 1, 100, 1.0),
    HostLine("a.py:2 step", 0, 1, 90, 0.95),  # to which the first one only leads
    HostLine("a.py:3 loop", 1, 64, 60, 0.6),
    HostLine("a.py:4 other", 1, 1, 20, 0.25),
    HostLine("a.py:5 inner", 2, 64, 30, 0.28),
    HostLine("a.py:6 rest", 2, 64, 2, 0.02),
]


def test_lines_that_lead_to_no_other_of_the_longest_are_named():
    assert [one.line for one in busiest_lines(LINES)] == ["a.py:5 inner", "a.py:4 other"]
    assert [one.line for one in busiest_lines(LINES[:3])] == ["a.py:3 loop"]
    assert busiest_lines(()) == []


@pytest.mark.parametrize(
    ("most", "shown"),
    [(3, [(0, "step"), (1, "loop"), (2, "inner")]),
     (None, [(0, "step"), (1, "loop"), (2, "inner"), (2, "rest"), (1, "other")])],
)  # fmt: skip
def test_the_longest_lines_as_a_tree(most, shown):
    assert [(depth, one.line.split()[1]) for depth, one in as_tree(LINES, most)] == shown
