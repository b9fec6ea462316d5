"""NVTX ranges: operators that PyTorch pushed, annotations of users, and ranges that own device work."""

import numpy as np

from fakes import ExportBuilder
from opscope.analysis.arrays import columns
from opscope.analysis.summary import Summary
from opscope.ingest.nsys_reading import owning_ranges
from opscope.model.queries import sql


def owners(session):
    """Name of each activity and of its operator, in the order of their starts."""
    return session.query(
        """SELECT n.name, o.name FROM device_activities a JOIN kernel_names n USING (name_id)
        LEFT JOIN operators o USING (operator_id) ORDER BY a.start_ns"""
    )


def operator_names(session):
    return [name for (name,) in session.query("SELECT name FROM operators ORDER BY operator_id")]


def annotation_names(session):
    return [name for (name,) in session.query("SELECT name FROM annotations ORDER BY start_ns")]


class TestEmittedRanges:
    def test_a_text_is_taken_apart(self, load_export):
        session = load_export(
            ExportBuilder()
            .range("aten::linear, op_id = 5, sizes = [[8, 16], [16, 16], []], input_op_ids = [(4,0)]", 0, 100)
            .range("aten::addmm, seq = 7, op_id = 6, sizes = [[16], [8, 16], [16, 16], [], []]", 10, 50)
            .launch(20).kernel("gemm", 90, 30)
        )  # fmt: skip
        assert session.query(
            """SELECT name, external_id, sequence_number, input_shapes::VARCHAR, parent_id, start_ns,
                duration_ns, self_device_ns, total_device_ns FROM operators ORDER BY operator_id"""
        ) == [
            ("aten::linear", 5, None, "[[8, 16], [16, 16], []]", None, 0, 100, 0, 30),
            ("aten::addmm", 6, 7, "[[16], [8, 16], [16, 16], [], []]", 0, 10, 50, 30, 30),
        ]
        assert session.scalar("SELECT count(*) FROM annotations") == 0

    def test_shapes_that_mislead_are_left_out(self, load_export):
        session = load_export(
            ExportBuilder()
            .range("aten::cat, op_id = 1, sizes = [[2], [3], []]", 0, 5)
            .range("mylib::fused, op_id = 2, sizes = [[2], [3]]", 10, 5)
            .range("aten::relu, op_id = 3, sizes = [[2]]", 20, 5)
        )
        shapes = session.query("SELECT name, input_shapes::VARCHAR FROM operators ORDER BY start_ns")
        assert shapes == [("aten::cat", None), ("mylib::fused", None), ("aten::relu", "[[2]]")]

    def test_operators_and_what_users_name_are_told_apart(self, load_export):
        operators = [
            "aten::mm, op_id = 1", "mylib::scale, op_id = 2", "c10d::allreduce_, op_id = 3",
            "FlashAttnFunc, seq = 4, op_id = 4", "AddmmBackward0, seq = 4, op_id = 5",
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 6",
            "torch::autograd::AccumulateGrad, op_id = 7", "detach_, op_id = 8",
            "record_param_comms, op_id = 9", "Torch-Compiled Region: 0/0, op_id = 10",
            "triton_poi_fused_add_0, op_id = 11", "aten::mul", "aten::add, seq = 3",
        ]  # fmt: skip
        users = [
            "ProfilerStep#7, op_id = 20", "Optimizer.step#AdamW.step, op_id = 21", "forward, op_id = 22",
            "FSDP::pre_forward (blocks.3), op_id = 23", "nccl:all_to_all, op_id = 24", "Solver::step",
            "layer 1", "x, y = 3", "ProfilerStep#8, op_id = 25",
        ]  # fmt: skip
        builder = ExportBuilder()
        for index, text in enumerate(operators + users):
            builder.range(text, 10 * index, 5)
        session = load_export(builder)
        assert operator_names(session) == [
            text.partition(", op_id")[0].partition(", seq")[0] for text in operators
        ]
        assert annotation_names(session) == [text.partition(", op_id")[0] for text in users]
        steps = session.query("SELECT step, start_ns, duration_ns FROM steps ORDER BY step")
        assert steps[0] == (7, 10 * len(operators), 5) and len(steps) == 2

    def test_a_registered_text_is_looked_up_and_an_open_range_left_out(self, load_export):
        session = load_export(ExportBuilder().range(None, 0, 5, textId="aten::mm, op_id = 1"))
        assert operator_names(session) == ["aten::mm"]
        session = load_export(ExportBuilder().launch(1).range("main", 0, None))
        assert annotation_names(session) == []
        assert "trace.events_without_time" in {finding.code for finding in session.findings()}


def test_marks_domains_and_ranges_that_end_elsewhere(load_export):
    session = load_export(
        ExportBuilder()
        .launch(1)
        .range("NCCL", 0, None, eventType=75, domainId=3)
        .range("ncclAllReduce", 10, 5, domainId=3)
        .range("aten::mm", 20, 5, domainId=3)
        .range(None, 30, 5)
        .range("checkpoint", 40, 0, eventType=34)
        .range("request", 50, 500, eventType=60, endGlobalTid=10 << 24 | 99)
    )
    assert session.query("SELECT name, start_ns, duration_ns FROM annotations ORDER BY start_ns") == [
        ("NCCL:ncclAllReduce", 10, 5),
        ("NCCL:aten::mm", 20, 5),
        ("(unnamed range)", 30, 5),
        ("checkpoint", 40, 0),
        ("request", 50, 500),
    ]
    assert operator_names(session) == []


class TestOwners:
    def test_the_innermost_range_owns_what_no_operator_launched(self, load_export):
        session = load_export(
            ExportBuilder()
            .range("iteration", 0, 1000).range("forward", 10, 400).launch(20).kernel("a", 100, 50)
            .range("backward", 500, 300).launch(600).kernel("b", 700, 20)
            .launch(900).kernel("c", 950, 5)
            .range("iteration", 2000, 100).range("never", 2010, 10)
            .launch(3000).kernel("d", 3010, 1)
        )  # fmt: skip
        assert owners(session) == [("a", "forward"), ("b", "backward"), ("c", "iteration"), ("d", None)]
        assert session.query("SELECT name, total_device_ns, depth FROM operators ORDER BY operator_id") == [
            ("iteration", 75, 0),
            ("forward", 50, 1),
            ("backward", 20, 1),
            ("iteration", 0, 0),
        ]
        assert annotation_names(session) == ["iteration", "forward", "backward", "iteration", "never"]
        assert session.query(
            "SELECT DISTINCT attribution, operator_id IS NULL FROM device_activities ORDER BY 1"
        ) == [("correlation", False), ("outside_operator", True)]

    def test_a_step_owns_nothing_and_a_range_the_kernels_of_the_graph_it_replayed(self, load_export):
        session = load_export(ExportBuilder().range("ProfilerStep#1", 0, 100).launch(10).kernel("a", 20, 5))
        assert owners(session) == [("a", None)]
        assert session.query("SELECT step, device_ns FROM steps") == [(1, 5)]
        builder = ExportBuilder().range("replay", 0, 100).launch(10, name="cudaGraphLaunch_v10000")
        session = load_export(builder.kernel("a", 20, 5, graphNodeId=3).kernel("b", 30, 5, graphNodeId=4))
        assert owners(session) == [("a", "replay"), ("b", "replay")]
        assert session.query("SELECT DISTINCT attribution FROM device_activities") == [("graph",)]

    def test_the_launching_threads_ranges_own_and_none_around_queries(self, load_export):
        builder = ExportBuilder().range("here", 0, 100, thread=1).range("there", 0, 100, thread=2)
        session = load_export(builder.launch(10, thread=2).kernel("a", 20, 5))
        assert owners(session) == [("a", "there")]
        builder = ExportBuilder().range("poll", 0, 100).launch(10, name="cudaEventQuery_v3020")
        session = load_export(builder.launch(200).kernel("a", 300, 5))
        assert operator_names(session) == []

    def test_ranges_that_overlap_without_nesting(self):
        def column(*values):
            return np.array(values, dtype=np.int64)

        placed = ("thread", "start_ns", "duration_ns", "range_id", "name_hash")
        rows = ((0, 0, 0), (0, 50, 60), (100, 100, 5), (3, 4, 5), (1, 2, 3))
        none = {name: column() for name in placed}
        ranges = {name: column(*values) for name, values in zip(placed, rows, strict=True)}
        for thread, owning in ((0, [4]), (1, [])):
            launches = {"thread": column(thread), "start_ns": column(120)}
            assert owning_ranges(none, ranges, launches).tolist() == owning


def test_the_host_is_busy_in_operators_and_not_in_the_ranges_around_them(load_export):
    session = load_export(
        ExportBuilder()
        .range("step", 0, 1000).range("aten::mm, op_id = 1", 100, 100).launch(110).kernel("a", 200, 5)
        .launch(500).kernel("b", 600, 5)
    )  # fmt: skip
    assert operator_names(session) == ["step", "aten::mm"]
    found = columns(session, sql("opscope.analysis.timeline", "timeline:host_operators"), [[0]])
    assert found["start_ns"].tolist() == [100]
    assert found["is_outermost"].tolist() == [True]
    # What recording an event costs the host is known of torch's profiler, not of nsys.
    (host,) = Summary(session).timeline.host
    assert host.launches == 2
    assert host.recorder_ns is None
