"""Steps cut into their parts, and one of them event by event."""

from fakes import TraceBuilder
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.step_view import LaneKind, step_times, step_view


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
