"""Every module and line of a real recording, counted again with nothing but the JSON text and stacks."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal

import pytest

import opscope
from opscope.analysis.program.places import program_totals
from opscope.analysis.program.stacks import StackBasis, stack_profiles

TRACE = "traces/h200/bert_train_bf16.json.gz"
ENGINE = "autograd::engine::evaluate_function: "


class Recount:
    """Charges every device activity by hand: one sweep per thread, recorded arrows for the backward pass."""

    def __init__(self, events):
        self.own_ns: dict[str, int] = defaultdict(int)
        self.line_ns: dict[str, int] = defaultdict(int)
        self.backward_ns = 0
        operators = [event for event in events if event.get("cat") == "cpu_op"]
        self._note_callers(operators + [event for event in events if event.get("cat") == "python_function"])
        self._note_arrows(events, operators)
        by_id = {operator["args"]["External id"]: operator for operator in operators}
        calls = {
            event["args"]["correlation"]: event["args"].get("External id")
            for event in events
            if event.get("cat") in {"cuda_runtime", "cuda_driver"}
        }
        for event in events:
            if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
                operator = by_id.get(calls.get(event["args"]["correlation"]))
                if operator is not None:
                    self._charge(operator, event["end"] - event["start"])

    @staticmethod
    def _note_callers(intervals):
        stacks = defaultdict(list)
        for event in sorted(intervals, key=lambda e: (e["start"], -e["end"])):
            stack = stacks[event["tid"]]
            while stack and stack[-1]["end"] <= event["start"]:
                stack.pop()
            event["caller"] = stack[-1] if stack else None
            stack.append(event)

    @staticmethod
    def _note_arrows(events, operators):
        """Give each backward operator, and the engine's range around it, its forward operator."""
        numbered = [operator for operator in operators if "Sequence number" in operator["args"]]
        at = {}
        for operator in numbered:
            at.setdefault((operator["tid"], operator["start"]), operator)
        arrows = [event for event in events if event.get("cat") == "fwdbwd"]
        heads = {event["id"]: at[event["tid"], event["start"]] for event in arrows if event["ph"] == "s"}
        for event in arrows:
            if event["ph"] == "f":
                backward = at[event["tid"], event["start"]]
                backward["forward"] = heads[event["id"]]
                if backward["caller"]["name"].startswith(ENGINE):
                    backward["caller"]["forward"] = heads[event["id"]]

    def _charge(self, operator, duration_ns):
        around = list(self._callers(operator))
        if any(one["name"].startswith(ENGINE) for one in around):
            self.backward_ns += duration_ns
        forward = next((one["forward"] for one in around if "forward" in one), None)
        names = [one["name"] for one in self._callers(forward or operator)]
        path = [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]
        line = next((name for name in names if name.startswith("first_look.py")), None)
        if path:
            self.own_ns[".".join(reversed(path))] += duration_ns
        if line:
            self.line_ns[line] += duration_ns

    @staticmethod
    def _callers(event):
        while event is not None:
            yield event
            event = event["caller"]


@pytest.fixture(scope="module")
def recount(shared):
    text = gzip.decompress((shared / TRACE).read_bytes())
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    for event in events:
        event["start"] = int(Decimal(event.get("ts", 0)) * 1000)
        event["end"] = event["start"] + int(Decimal(event.get("dur", 0)) * 1000)
    return Recount(events)


@pytest.fixture(scope="module")
def session(shared):
    with opscope.load(shared / TRACE) as one:
        yield one


@pytest.fixture(scope="module")
def totals(session):
    return program_totals(session)


def test_every_module_has_the_time_counted_by_hand(recount, totals):
    assert len(totals.modules) == 215
    own_ns = {module.path: module.self_device_ns for module in totals.modules}
    assert {path: ns for path, ns in own_ns.items() if ns} == recount.own_ns
    for module in totals.modules:
        inside = [
            ns
            for path, ns in recount.own_ns.items()
            if path == module.path or path.startswith(f"{module.path}.")
        ]
        assert module.total_device_ns == sum(inside) == module.forward_ns + module.backward_ns


def test_every_line_has_the_time_counted_by_hand(recount, totals):
    found = {f"{line.file}({line.line}): {line.function}": line.self_device_ns for line in totals.lines}
    assert found == recount.line_ns
    assert sum(line.backward_ns for line in totals.lines) == recount.backward_ns


def test_stacks_by_module_hold_each_modules_time(session, totals):
    (profile,) = stack_profiles(session, by=StackBasis.MODULE)
    found = defaultdict(int)
    for stack, weight in zip(profile.stacks, profile.weights, strict=True):
        names = [profile.names[one] for one in stack]
        path = [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]
        for length in range(1, len(path) + 1):
            found[".".join(path[:length])] += weight
    assert found == {module.path: module.total_device_ns for module in totals.modules}


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize(
    "trace", [TRACE, "traces/public/kineto/worker0.1623143089861.pt.trace.json.gz"], ids=["ns", "us"]
)
def test_stacks_by_operator_hold_each_trees_time(shared, trace):
    with opscope.load(shared / trace) as session:
        (profile,) = stack_profiles(session, by=StackBasis.OPERATOR)
        expected = dict(
            session.query(
                "SELECT name, sum(total_device_ns)::BIGINT AS ns FROM operators WHERE depth = 0 "
                "GROUP BY name HAVING ns > 0"
            )
        )
    found = defaultdict(int)
    for stack, weight in zip(profile.stacks, profile.weights, strict=True):
        found[profile.names[stack[0]]] += weight
    assert {name: ns for name, ns in found.items() if not name.startswith("[")} == expected
