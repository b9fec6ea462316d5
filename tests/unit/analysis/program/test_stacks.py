"""Stacks and their weights, on hand-made traces."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.program.stacks import StackBasis, StackWeight, stack_profiles
from opscope.errors import InputError

ENGINE = "autograd::engine::evaluate_function: MmBackward0"


@pytest.fixture
def load(load_once):
    return load_once


def trace():
    """Two steps of `train.py`: forward in a module on thread 1, backward on thread 2, and a leaked kernel."""
    one = TraceBuilder().kernel("leaked", 1, 7, correlation=1)
    for step in range(2):
        at = 1000 * step + 10
        one.step(step, at, 900)
        one.frame("train.py(3): step", at + 10, 600).frame(
            "<built-in method f of X object at 0x7f12>", at + 20, 60
        )
        one.frame("nn.Module: Net_0", at + 30, 40, module=0)
        one.operator("aten::linear", at + 35, 20, **{"Sequence number": step + 1, "Fwd thread id": 0})
        one.operator("aten::mm", at + 40, 10).launch(at + 42).kernel("gemm", 5000 + at, 10 + step)
        args = {"Sequence number": step + 1, "Fwd thread id": 1}
        one.operator(ENGINE, at + 200, 60, thread=2, **args)
        one.operator("MmBackward0", at + 205, 40, thread=2, **args).differentiates(at + 35, at + 205)
        one.launch(at + 210, thread=2).kernel("gemm", 5100 + at, 20)
        one.launch(at + 300).kernel("own", 5200 + at, 3)
    return one


def stacks(profile):
    paths = (" > ".join(profile.names[one] for one in stack) for stack in profile.stacks)
    return dict(zip(paths, profile.weights, strict=True))


def only(session, **options):
    (profile,) = stack_profiles(session, **options)
    return stacks(profile)


def test_python_frames_stand_above_operators_and_the_backward_pass_where_it_ran(load):
    net = "train.py(3): step > <built-in method f of X> > nn.Module: Net_0"
    assert only(load(trace())) == {
        f"{net} > aten::linear > aten::mm > gemm": 21_000,
        f"[no Python stack] > {ENGINE} > MmBackward0 > gemm": 40_000,
        "train.py(3): step > own": 6_000,
        "[unattributed: before_window] > leaked": 7_000,
    }


@cases("by", "above", "backward")
def test_by_module_or_operator(load, by, above, backward):
    assert only(load(trace()), by=StackBasis(by)) == {
        f"{above}aten::linear > aten::mm > gemm": 21_000,
        f"{backward}{ENGINE} > MmBackward0 > gemm": 40_000,
        "[unattributed: outside_operator] > own": 6_000,
        "[unattributed: before_window] > leaked": 7_000,
    }


@cases("by", "message")
def test_what_was_not_recorded_is_said(load, by, message):
    one = TraceBuilder().step(0, 0, 50).operator("aten::mm", 0, 20).launch(5).kernel("gemm", 50, 4)
    with pytest.raises(InputError, match=message):
        only(load(one), by=StackBasis(by))


def test_without_a_device_there_is_host_time(load):
    session = load(TraceBuilder().step(0, 0, 50).operator("aten::mm", 0, 20))
    with pytest.raises(InputError, match=r"no device activity was recorded\. Use --weight cpu"):
        only(session)
    assert only(session, weight=StackWeight.CPU) == {"aten::mm": 20_000}


def test_subtrees_that_wait_for_each_other_stay_where_they_ran(load):
    """Two backward operators of which each holds the forward operator of the other."""
    one = TraceBuilder().frame("nn.Module: Net_0", 300, 40, module=0)
    for number, at in enumerate((0, 100)):
        one.operator("MmBackward0", at, 50, **{"Sequence number": number, "Fwd thread id": 1})
        one.operator("aten::mm", at + 10, 20, **{"Sequence number": 1 - number, "Fwd thread id": 0})
        one.launch(at + 12).kernel("gemm", 500 + at, 4)
    one.differentiates(110, 0).differentiates(10, 100)
    found = only(load(one), by=StackBasis.MODULE)
    assert found == {"[no module] > MmBackward0 > aten::mm > gemm": 8_000}
