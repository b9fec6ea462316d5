"""Which loop of a program is its main one, whose rounds are steps."""

import ast
import itertools
from pathlib import Path

import pytest

from case_tables import cases, tables
from opscope.capture import main_loop
from opscope.capture.main_loop import ROUND, MainLoop


class Clock:
    """Seconds that pass where the program says so, and memory that it takes."""

    def __init__(self):
        self.now = 0.0
        self.allocations = 0

    def work(self, seconds, *, on_device=True):
        self.now += seconds
        self.allocations += on_device


@pytest.fixture
def steps_of(monkeypatch):
    """Runs a program that calls `work(seconds)`; when a step ended."""

    def run(text, **facts):
        clock, ends, loop = Clock(), list[float](), MainLoop(**facts)
        monkeypatch.setattr(main_loop.time, "perf_counter", lambda: clock.now)
        monkeypatch.setattr(main_loop, "_device_allocations", lambda: clock.allocations)
        tree = ast.parse(text)
        loop.mark(tree, text)
        loop.watch(lambda: ends.append(clock.now))
        exec(compile(tree, "program.py", "exec"), {ROUND: loop.round, "work": clock.work})
        return ends

    return run


@cases("text", "step_s", "least")
def test_a_step_is_a_round_of_the_outermost_loop_that_comes_round_soon(steps_of, text, step_s, least):
    ends = steps_of(text)
    assert len(ends) >= least
    apart = [after - before for before, after in itertools.pairwise(ends)]
    # Between two waves a token takes as long as the prompt does beside.
    assert sum(one == pytest.approx(step_s) for one in apart) >= 0.9 * len(apart) - 1


@cases("text")
def test_other_loops_are_no_steps(steps_of, text):
    assert not steps_of(text)


def test_asked_for_rounds_are_steps_whatever_the_program_is_made_of(steps_of):
    assert steps_of("import torch.optim\nfor _ in range(30): work(0.1)", is_asked_for=True)


def test_nothing_is_marked_that_torch_compile_may_read_and_lines_stay():
    programs = tables(Path(__file__).with_suffix(".toml"))
    steps = programs["a_step_is_a_round_of_the_outermost_loop_that_comes_round_soon"]
    compiled = next(one["text"] for one in steps if one["id"] == "compiled")
    tree = ast.parse(compiled)
    MainLoop().mark(tree, compiled)
    marked = {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and ROUND in ast.unparse(one)}
    assert marked == {"main"}
    text = "def f(values):\n    for value in values:\n\n        print(\n            value / 0)\n"
    marked = ast.parse(text)
    MainLoop().mark(marked, text)
    loop = marked.body[0]
    inserted, own = loop.body[0].body
    assert (inserted.lineno, inserted.value.func.id, own.lineno) == (own.lineno, ROUND, 4)
