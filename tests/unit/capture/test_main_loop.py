"""Which loop of a program is its main one, whose rounds are steps."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from opscope.capture import main_loop
from opscope.capture.main_loop import ROUND, MainLoop


class Clock:
    """Seconds that pass where the program says so, and memory that it takes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.allocations = 0

    def work(self, seconds: float, *, on_device: bool = True) -> None:
        self.now += seconds
        self.allocations += on_device


@pytest.fixture
def steps_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Runs a program that calls `work(seconds)`; when a step ended."""

    def run(text: str, **facts: Any) -> list[float]:
        clock, ends, loop = Clock(), list[float](), MainLoop(**facts)
        monkeypatch.setattr(main_loop.time, "perf_counter", lambda: clock.now)
        monkeypatch.setattr(main_loop, "_device_allocations", lambda: clock.allocations)
        tree = ast.parse(text)
        loop.mark(tree, text)
        loop.watch(lambda: ends.append(clock.now))
        exec(compile(tree, "program.py", "exec"), {ROUND: loop.round, "work": clock.work})
        return ends

    return run


SIMULATION = """
def solve():
    for _ in range(10):
        work(0.01)
for _ in range(30):
    work(0.1)
    solve()
"""
# A wave takes 10 s, and there are two of them.
SERVER = """
class Model:
    def __init__(self):
        self.layers = []
        for _ in range(24):
            work(0.01)
            self.layers.append(lambda: work(0.01))
    def __call__(self):
        for layer in self.layers:
            layer()
def serve():
    model = Model()
    for wave in range(2):
        work(1.0)
        for token in range(40):
            model()
serve()
"""
COMPILED = """
def step():
    for _ in range(5):
        work(0.02)
def check():
    for _ in range(3):
        step()
def main():
    fast = compile_it(step)
    for _ in range(30):
        fast()
def compile_it(one, compile=None):
    return one
main()
"""
BATCHES = """
def batches():
    while True:
        work(0.01, on_device=False)
        yield 1
for number, _ in enumerate(batches()):
    work(0.2)
    if number == 20:
        break
"""
# A run takes longer than a step, and is over before its loop is known for the main one.
RUNS = """
def fit(begin):
    work(begin)
    for _ in range(12):
        work(0.06)
for run in range(8):
    fit(2.5 if run == 0 else 0.1)
"""
READ_BY_OTHERS = """
def script(one):
    return one
@script
def run():
    for _ in range(30):
        work(0.1)
run()
"""


@pytest.mark.parametrize(
    ("text", "step_s", "least"),
    [(SIMULATION, 0.2, 20), (SERVER, 0.24, 40), (COMPILED, 0.1, 15), (BATCHES, 0.21, 10), (RUNS, 0.06, 70)],
    ids=["simulation", "server", "compiled", "batches", "runs"],
)
def test_a_step_is_a_round_of_the_outermost_loop_that_comes_round_soon(steps_of, text, step_s, least):
    ends = steps_of(text)
    assert len(ends) >= least
    apart = [after - before for before, after in itertools.pairwise(ends)]
    # Between two waves a token takes as long as the prompt does beside.
    assert sum(one == pytest.approx(step_s) for one in apart) >= 0.9 * len(apart) - 1


@pytest.mark.parametrize(
    "text",
    [
        "for _ in range(30): work(0.1, on_device=False)",  # data are prepared
        "for _ in range(24): work(0.01)",  # weights are made
        "for _ in range(5): work(3.0)",
        "import torch.optim\nfor _ in range(30): work(0.1)",  # has steps of another kind
        READ_BY_OTHERS,
    ],
    ids=["host alone", "too short", "too long", "optimizer", "read by others"],
)
def test_other_loops_are_no_steps(steps_of: Callable[..., list[float]], text: str) -> None:
    assert not steps_of(text)


def test_asked_for_rounds_are_steps_whatever_the_program_is_made_of(steps_of):
    assert steps_of("import torch.optim\nfor _ in range(30): work(0.1)", is_asked_for=True)


def test_nothing_is_marked_that_torch_compile_may_read_and_lines_stay() -> None:
    tree = ast.parse(COMPILED)
    MainLoop().mark(tree, COMPILED)
    marked = {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and ROUND in ast.unparse(one)}
    assert marked == {"main"}
    text = "def f(values):\n    for value in values:\n\n        print(\n            value / 0)\n"
    marked = ast.parse(text)
    MainLoop().mark(marked, text)
    loop: Any = marked.body[0]
    inserted, own = loop.body[0].body
    assert (inserted.lineno, inserted.value.func.id, own.lineno) == (own.lineno, ROUND, 4)
