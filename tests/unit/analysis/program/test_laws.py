"""What holds of any trace: every nanosecond is charged once or not at all, whatever the nesting."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opscope
from fakes import TraceBuilder
from opscope.analysis.program.places import program_totals
from opscope.analysis.program.stacks import StackBasis, stack_profiles

KINDS = (
    "train.py(3): step", "net.py(7): forward", "torch/nn/x.py(1): f", "<built-in function f>",
    "nn.Module: Net_0", "nn.Module: Linear_0", "nn.Module: Linear_1", "aten::mm", "aten::add", "launch",
    "autograd::engine::evaluate_function: MmBackward0", "MmBackward0",
    "<built-in method run_backward of X object at 0x7>",
)  # fmt: skip
trees = st.recursive(
    st.lists(st.tuples(st.sampled_from(KINDS), st.just([])), max_size=3),
    lambda inside: st.lists(st.tuples(st.sampled_from(KINDS), inside), max_size=4),
    max_leaves=25,
)


class Writer:
    """Lays trees out in time, numbers what autograd numbers, and draws arrows from forward to backward."""

    def __init__(self, threads, arrows):
        self.trace = TraceBuilder().kernel("leaked", 90_000, 3, correlation=1)
        self.now = 0
        self.numbered: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for thread, roots in enumerate(threads, 1):
            for root in roots:
                self.write(root, thread)
        for start, thread in self.numbered[True]:
            if self.numbered[False] and arrows.draw(st.booleans()):
                forward_start, forward_thread = arrows.draw(st.sampled_from(self.numbered[False]))
                self.trace.differentiates(forward_start, start, thread=forward_thread, backward_thread=thread)

    def write(self, tree, thread):
        name, inside = tree
        start = self.now
        self.now += 1
        for one in inside:
            self.write(one, thread)
        self.now += 1
        self.event(name, start, thread)

    def event(self, name, start, thread):
        duration, number = self.now - start, len(self.trace.events)
        if name == "launch":
            self.trace.launch(start, thread=thread).kernel("k", 100_000 + 10 * number, 1 + number % 7)
        elif "::" in name or name == "MmBackward0":
            is_backward = "Backward" in name
            args = {"Sequence number": number, "Fwd thread id": int(is_backward)}
            self.trace.operator(name, start, duration, thread=thread, **args)
            self.numbered[is_backward].append((start, thread))
        else:
            module = int(name[-1]) if name.startswith("nn.Module") else None
            self.trace.frame(name, start, duration, thread=thread, module=module)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("laws") / "trace.json"


@given(st.lists(trees, min_size=1, max_size=2), st.data())
@settings(
    max_examples=settings.default.max_examples // 6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_every_nanosecond_is_charged_once_or_not_at_all(path, threads, arrows):
    trace = Writer(threads, arrows).trace
    with opscope.load(trace.write(path)) as session:
        totals = program_totals(session)
        device_ns = session.scalar("SELECT sum(duration_ns)::BIGINT FROM device_activities")
        check_totals(totals, device_ns)
        check_stacks(session, device_ns)
    random.Random(0).shuffle(trace.events)
    with opscope.load(trace.write(path)) as session:
        assert program_totals(session) == totals


def check_totals(totals, device_ns):
    assert sum(module.self_device_ns for module in totals.modules) == totals.module_ns <= device_ns
    assert sum(line.self_device_ns for line in totals.lines) == totals.line_ns <= device_ns
    roots = [module for module in totals.modules if module.depth == 0]
    assert sum(root.total_device_ns for root in roots) == totals.module_ns
    assert all(one.forward_ns + one.backward_ns == one.total_device_ns for one in totals.modules)
    assert all(one.forward_ns + one.backward_ns == one.self_device_ns for one in totals.lines)
    assert len({module.path for module in totals.modules}) == len(totals.modules)


def check_stacks(session, device_ns):
    bases = [StackBasis.OPERATOR]
    bases += [StackBasis.PYTHON] if session.scalar("SELECT EXISTS (FROM frames)") else []
    bases += [StackBasis.MODULE] if session.scalar("SELECT EXISTS (FROM modules)") else []
    for by in bases:
        assert stack_profiles(session, by=by)[0].total == device_ns
