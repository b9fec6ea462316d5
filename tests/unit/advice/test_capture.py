"""What of a step a CUDA graph can hold, and what stands in the way."""

import json

import pytest

import opscope
from fakes import sidecar
from opscope.advice.profiled_run import ProfiledRun, capture_of, differing
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause
from opscope.model.finding import Applicability, ApplicabilityStatus, Blocker
from opscope.model.sidecar import ProgramLine, RecordedDataflow, ThreadOperators, sidecar_path, write_sidecar

from .conftest import MS, host, only, partition, trace


def forwards(*waits_after, steps=2, rows=8, last_rows=8, name="aten::mm"):
    """Steps of 40 launches of one kernel each; `aten::nonzero` waits behind the launches of these numbers."""
    builder = trace()
    for step in range(steps):
        start = 1_000 * step
        builder.step(step + 1, start, 990)
        shapes = [[last_rows if step == steps - 1 else rows, 8]]
        for number in range(40):
            at = start + 10 + 20 * number
            builder.operator(name, at, 8, **{"Input Dims": shapes}).launch(at + 2).kernel("gemm", at + 4, 6)
            if number in waits_after:
                builder.operator("aten::nonzero", at + 9, 8).launch(at + 10, 6, name="cudaStreamSynchronize")
    return builder


@pytest.fixture
def captured(tmp_path):
    """What is said of a trace."""

    def ask(builder):
        with opscope.load(builder.write(tmp_path / "trace.json")) as session:
            return capture_of(ProfiledRun(session, Summary(session).complete()))

    return ask


def test_the_same_launches_in_each_step_can_be_captured(captured):
    assert captured(forwards()) == Applicability()
    assert captured(forwards(steps=1)).status is ApplicabilityStatus.UNKNOWN
    assert captured(forwards(39)).status is ApplicabilityStatus.APPLICABLE


def test_what_waits_or_has_other_shapes_within_a_step_stands_in_the_way(captured):
    found = captured(forwards(10, 20))
    assert (found.status, found.blocked_by) == (
        ApplicabilityStatus.BLOCKED,
        (Blocker("aten::nonzero", None, 2),),
    )
    assert captured(forwards(10, steps=1)).status is ApplicabilityStatus.BLOCKED
    found = captured(forwards(last_rows=9))
    assert (found.status, found.blocked_by) == (ApplicabilityStatus.BLOCKED, (Blocker("aten::mm", None, 40),))


def test_a_graph_that_cannot_be_is_no_numbered_change(advise_on):
    """The same host, once with kernels of other shapes in its second step."""

    def told(builder):
        idle = [partition(10 * MS, {IdleCause.HOST_LAUNCH: 5 * MS})]
        return only(
            advise_on(builder, partitions=idle, hosts=[host(2 * MS, 10 * MS, launches=1000)]), "launch_bound"
        )

    assert told(forwards()).estimated_gain_ns_per_step
    blocked = told(forwards(last_rows=9))
    assert (blocked.estimated_gain_ns_per_step, blocked.change) == (None, None)
    assert "No CUDA graph can hold it as it is: steps differ in aten::mm." in blocked.message
    assert "CUDAGraph" not in json.dumps([blocked.message, blocked.suggestion])
    # A model can be compiled around what no graph can hold: how much that brings nobody knows.
    compiled = told(forwards(last_rows=9, name="aten::addmm"))
    assert (compiled.change or "").startswith("model = torch.compile(model)   #")
    assert compiled.is_to_try
    assert not compiled.is_gain_known
    assert [one.operator for one in compiled.applicability.blocked_by] == ["aten::addmm"]


@pytest.mark.parametrize(("lengths", "grows"), [(8, True), (3, False)])
def test_a_loop_that_generates_has_other_shapes_for_each_token(tmp_path, lengths, grows):
    builder = forwards(steps=1)
    for held in range(lengths):
        shapes = [[[1, 12, held + 16, 64], [1, 12, 1, 64]], []]
        builder.operator("aten::cat", 900 + 10 * held, 8, **{"Input Dims": shapes})
    with opscope.load(builder.write(tmp_path / "trace.json")) as session:
        found = differing(ProfiledRun(session, Summary(session).complete()))
    assert found == ((Blocker("aten::cat", None, float(lengths)),) if grows else ())


@pytest.mark.parametrize(
    ("waits", "last_rows", "line"),
    [(10, 8, "train.py:3 encode"), (30, 8, "train.py:2 embed"), (35, 8, "train.py:2 embed"), (10, 9, None)],
)
def test_where_a_step_cannot_be_captured_a_line_of_it_can(tmp_path, waits, last_rows, line):
    """Lines 2 and 3 share 40 operators; `aten::nonzero` waits within one of them."""
    names = ["aten::mm"] * (waits + 1) + ["aten::nonzero"] + ["aten::mm"] * (39 - waits)
    order = " ".join("1" if name == "aten::nonzero" else "0" for name in names)
    lines = (
        ProgramLine("train.py:9 main", -1, 1, ()),
        ProgramLine("train.py:2 embed", 0, 1, ((0, 15),)),
        ProgramLine("train.py:3 encode", 0, 1, ((15, 41),)),
    )
    recorded = RecordedDataflow((ThreadOperators(1, ("aten::mm", "aten::nonzero"), order),), lines=lines)
    path = forwards(waits, last_rows=last_rows).write(tmp_path / "trace.json")
    write_sidecar(sidecar_path(path), sidecar(dataflow=recorded))
    with opscope.load(path) as session:
        summary = Summary(session)
        found = ProfiledRun(session, summary, summary.step_model).line_to_capture
        assert (found and found.line) == line
