"""Launches from before the window: matched in order, only whole calls, only where all occurrences agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from opscope.model.session import Session
from opscope.operators.before_window import match_before_window
from opscope.operators.distinct_calls import collect_calls
from opscope.testing import TraceBuilder

Load = Callable[..., Session]
Kernels = tuple[tuple[str, int], ...]  # name, blocks
Step = Iterable[tuple[str, int, Kernels]]  # operator, size of its argument, kernels


def trace(early: Iterable[tuple[str, int]], steps: Iterable[Step]) -> TraceBuilder:
    """Kernels whose launches were not recorded, then steps of operators."""
    built, clock = TraceBuilder(), 0.0
    for number, (name, blocks) in enumerate(early):
        built.kernel(name, clock, 1, correlation=number + 1, grid=[blocks, 1, 1])
        clock += 2
    host = clock  # launched later than all of these started
    for step in steps:
        for operator, size, kernels in step:
            built.operator(operator, host, 10, **{"Input Dims": [[size]], "Input type": ["float"]})
            for offset, (name, blocks) in enumerate(kernels):
                built.launch(host + 1 + offset, 0.5).kernel(
                    name, host + 20 + offset, 0.5, grid=[blocks, 1, 1]
                )
            host += 12
    return built


def matches(session: Session) -> dict[tuple[str, str], int]:
    """Number of matched calls by operator and shapes."""
    session.replace_rows("activity_costs", [])
    calls = {one.call_id: one for one in collect_calls(session)}
    return {
        (calls[one.call_id].name, str(calls[one.call_id].shapes)): one.calls
        for one in match_before_window(session)
    }


A, B, C = ("a", 4), ("b", 8), ("c", 16)
STEP = (("mm", 1, (A,)), ("add", 2, (B,)), ("norm", 3, (B, C)), ("mm", 4, (A,)))


def test_the_end_of_a_step_is_matched_in_order(load: Load) -> None:
    early = [B, B, C, A]
    assert matches(load(trace(early, [STEP, STEP]))) == {
        ("add", "[[2]]"): 1,
        ("norm", "[[3]]"): 1,
        ("mm", "[[4]]"): 1,
    }


def test_a_kernel_that_many_calls_launch_is_told_by_what_follows(load: Load) -> None:
    same: Step = tuple((f"op{size}", size, (A,)) for size in range(4))
    assert matches(load(trace([A, A], [same, same]))) == {("op2", "[[2]]"): 1, ("op3", "[[3]]"): 1}


def test_calls_that_disagree_match_nothing(load: Load) -> None:
    assert matches(load(trace([A], [(("mm", 1, (A,)), ("mm", 2, (A,)))]))) == {}


def test_calls_that_agree_match_wherever_they_are(load: Load) -> None:
    assert matches(load(trace([A], [(("mm", 1, (A,)), ("add", 2, (B,)), ("mm", 1, (A,)))]))) == {
        ("mm", "[[1]]"): 1
    }


def test_a_part_of_a_call_matches_nothing(load: Load) -> None:
    assert matches(load(trace([C, A], [STEP, STEP]))) == {("mm", "[[4]]"): 1}


@pytest.mark.parametrize("other", [("a", 5), ("z", 4)])
def test_another_name_or_geometry_matches_nothing(load: Load, other: tuple[str, int]) -> None:
    assert matches(load(trace([other], [STEP]))) == {}


def test_what_is_unknown_parts_runs_but_hides_nothing(load: Load) -> None:
    assert matches(load(trace([B, ("z", 1), A], [STEP, STEP])))[("mm", "[[4]]")] == 1


def test_without_early_launches_nothing_is_read(load: Load) -> None:
    assert matches(load(trace([], [STEP]))) == {}


def test_streams_are_matched_apart(load: Load, make_trace: Any) -> None:
    built = trace([B], [STEP, STEP])
    built.kernel("a", 0, 1, correlation=50, stream=9, grid=[4, 1, 1])
    assert ("mm", "[[4]]") not in matches(load(built))
