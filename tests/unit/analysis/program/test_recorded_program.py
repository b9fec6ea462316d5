"""From a program on this machine to its lines and modules: recorded on the CPU, with kernels added."""

import json
import runpy
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("torch")

import opscope
from opscope.analysis.program.places import LineKind, program_totals
from opscope.analysis.program.stacks import stack_profiles

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("program.py.txt").read_text(encoding="utf-8")
# Operators that would each launch something on a GPU.
LAUNCHING = {
    "aten::addmm", "aten::relu", "aten::add", "aten::tanh", "aten::sum", "aten::mm", "aten::add_",
    "aten::tanh_backward", "aten::threshold_backward",
}  # fmt: skip


def with_kernels(path):
    """Add a launch and a kernel of 1 µs to every launching operator of a trace."""
    trace = json.loads(path.read_text(), parse_float=Decimal)
    operators = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    end = max(Decimal(event["ts"]) + Decimal(event["dur"]) for event in operators)
    launching = [event for event in operators if event["name"] in LAUNCHING]
    for number, operator in enumerate(launching, 1_000_000):
        args = {"correlation": number, "External id": operator["args"]["External id"]}
        call = {"ph": "X", "pid": operator["pid"], "tid": operator["tid"], "ts": operator["ts"], "dur": 0}
        trace["traceEvents"] += [
            {**call, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args},
            {
                "ph": "X", "cat": "kernel", "name": "kernel", "pid": 0, "tid": 7, "dur": 1,
                "ts": end + 2 * (number - 1_000_000), "args": {**args, "device": 0, "stream": 7},
            },
        ]  # fmt: skip
    path.write_text(json.dumps(trace, default=float))


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    script = folder / "train.py"
    script.write_text(PROGRAM)
    runpy.run_path(str(script), {"FOLDER": folder}, run_name="__main__")
    with_kernels(folder / "trace.json")
    with opscope.load(folder / "trace.json") as one:
        yield one


@pytest.fixture(scope="module")
def totals(session):
    return program_totals(session)


def line_of(text):
    return PROGRAM.splitlines().index(text) + 1


def counts(session, condition):
    query = f"SELECT count(*) FROM device_activities JOIN operators USING (operator_id) WHERE {condition}"
    return int(session.scalar(query))


def own_lines(totals):
    return {
        (line.line, line.kind): (line.forward_ns, line.backward_ns)
        for line in totals.lines
        if line.file.endswith("train.py")
    }


def test_lines_are_those_that_were_executed(session, totals):
    found = own_lines(totals)
    relu = (line_of("        x = torch.relu(x)"), LineKind.EXECUTED)
    assert found[relu] == (4_000, 4_000)  # 2 blocks, 2 steps; each relu has one threshold_backward
    tanh = (line_of("        return torch.tanh(x)"), LineKind.EXECUTED)
    assert found[tanh] == (2_000, 2_000)
    linear = (line_of("        x = self.inner(x)"), LineKind.EXECUTED)
    assert found[linear][0] == 4_000
    assert found[linear][1] >= 4_000  # mm for the weights, and for the input where it needs a gradient
    optimizer = (line_of("    optimizer.step()"), LineKind.EXECUTED)
    assert found[optimizer][0] > 0
    # `x + 1` calls no function that the tracer sees.
    assert found[line_of("    def forward(self, x):"), LineKind.FUNCTION] == (4_000, 0)


def test_every_kernel_has_a_line_of_the_program(session, totals):
    assert totals.line_ns == session.scalar("SELECT sum(duration_ns)::BIGINT FROM device_activities")
    assert sum(line.kernel_launches for line in totals.lines) == counts(session, "true")
    assert all(line.file.endswith(("train.py", ".py")) for line in totals.lines)


def test_modules_and_stacks_have_their_attribute_names(totals, session):
    found = {module.path: module for module in totals.modules}
    assert set(found) == {
        "Net_0",
        "Net_0.blocks.0",
        "Net_0.blocks.0.inner",
        "Net_0.blocks.1",
        "Net_0.blocks.1.inner",
    }
    assert found["Net_0.blocks.0"].class_name == "Block"
    assert found["Net_0.blocks.0"].calls == 2
    assert found["Net_0.blocks.0.inner"].forward_ns == 2_000
    assert found["Net_0"].self_device_ns == 4_000  # tanh and its backward
    (profile,) = stack_profiles(session)
    assert profile.total == session.scalar("SELECT sum(duration_ns)::BIGINT FROM device_activities")
    assert "nn.Module: blocks.0 (Block_0)" in profile.names
