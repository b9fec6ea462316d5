"""Steps cut into their parts, and one of them event by event."""

from pathlib import Path

from fakes import TraceBuilder
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.measure import measure_timeline
from opscope.analysis.timeline.step_view import LaneKind, step_times, step_view

BERT = Path(__file__).parents[4] / "src/opscope/data/bert_h200.json.gz"


def test_steps_tile_the_window_exactly(shared_session):
    session = shared_session(BERT)
    records = read_session(session)
    times = step_times(records, most=24)
    for one in times:
        parts = one.compute_ns + one.exposed_communication_ns + one.exposed_copy_ns
        assert parts + sum(one.idle_by_cause.values()) == one.end_ns - one.start_ns
    (partition,) = measure_timeline(session, records).partitions
    assert sum(one.end_ns - one.start_ns for one in times) == partition.span_ns
    assert sum(one.compute_ns for one in times) == partition.compute_ns
    assert sum(sum(one.idle_by_cause.values()) for one in times) == partition.idle_ns


def test_a_step_of_no_time_has_no_view(load):
    """As a recording that is cut off ends."""
    trace = TraceBuilder().operator("aten::mm", 0, 10).launch(2).kernel("gemm", 20, 5).step(0, 200, 0)
    assert step_times(read_session(load(trace)), most=24) == ()


def test_lanes_and_arrows_of_a_step(load):
    trace = TraceBuilder()
    for number, start in ((1, 0), (2, 100)):
        trace.step(number, start, 100).operator("outer", start + 1, 30).operator("inner", start + 2, 10)
        trace.launch(start + 5).kernel("k", start + 10, 40).launch(start + 60)
        trace.kernel("Memcpy DtoH (Device -> Pageable)", start + 70, 5, category="gpu_memcpy")
    session = load(trace)
    records = read_session(session)
    view = step_view(session, records, step_times(records, most=24)[1:], ())
    kinds = [lane.kind for lane in view.lanes]
    assert kinds == [
        LaneKind.OPERATORS, LaneKind.OPERATORS, LaneKind.CALLS, LaneKind.STREAM, LaneKind.IDLE,
    ]  # fmt: skip
    assert [lane.names for lane in view.lanes[:2]] == [("outer",), ("inner",)]
    assert view.arrows == ((2, 105_000, 3, 110_000), (2, 160_000, 3, 170_000))
