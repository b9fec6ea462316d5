"""Launches that ncu profiled, found in a recording by name, geometry and order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.counters import CounterLimit, Match, join_counters, recorded_name
from opscope.model.session import Session
from opscope.testing import TraceBuilder
from opscope.toolchain.ncu_report import KernelCounters, NcuReport

Load = Callable[..., Session]
ReportOf = Callable[..., NcuReport]
Kernel = Callable[..., KernelCounters]


def launched(*calls: tuple[str, Any, str], grid: int = 4) -> TraceBuilder:
    """Operators with a shape, one after the other, each launching one kernel."""
    trace = TraceBuilder()
    for number, (operator, shape, kernel) in enumerate(calls):
        start = 100 * number
        arguments = {"Input Dims": [shape], "Input type": ["float"], "Input Strides": [[1]]}
        trace.operator(operator, start, 20, **arguments).launch(start + 1)
        trace.kernel(kernel, start + 30, 10 + number, grid=[grid, 1, 1])
    return trace


def test_a_mangled_name_reads_as_kineto_writes_it(real_report: NcuReport) -> None:
    names = [recorded_name(one) for one in real_report.kernels]
    assert names[0].startswith(
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float, float, float"
    )
    assert names[3] == real_report.kernels[3].name


def test_without_a_recording_nothing_is_said_of_operators(report_of: ReportOf) -> None:
    (found,) = join_counters(report_of("square_kernel"))
    assert (found.match, found.call, found.operators) == (None, None, ())
    assert found.no_ratio_reason == "no recording was given"


def test_every_launch_alike_of_one_call_settles_it(load: Load, report_of: ReportOf) -> None:
    session = load(
        launched(("aten::square", [8], "k"), ("aten::square", [8], "k"), ("aten::abs", [8], "other"))
    )
    (found,) = join_counters(report_of("k"), session)
    assert (found.match, found.operators, found.launches) == (Match.SAME_CALL, ("aten::square",), 2)
    assert found.call is not None
    assert (found.call.shapes, found.call.calls, found.call.activities_per_call) == ("[[8]]", 2, 1)
    assert found.recorded_ns == 10_000


def test_a_launch_of_another_geometry_is_not_recorded(
    load: Load, report_of: ReportOf, kernel: Kernel
) -> None:
    session = load(launched(("aten::square", [8], "k")))
    found = join_counters(report_of(kernel("k", grid=(5, 1, 1)), "none"), session)
    assert [one.match for one in found] == [Match.NOT_RECORDED, Match.NOT_RECORDED]
    assert [one.launches for one in found] == [0, 0]


def test_order_tells_calls_apart_that_launch_alike(load: Load, report_of: ReportOf) -> None:
    session = load(
        launched(
            ("aten::abs", [2], "k"),
            ("aten::neg", [3], "k"),
            ("aten::sin", [4], "other"),
            ("aten::exp", [5], "k"),
        )
    )
    found = join_counters(report_of("k", "other", "k"), session)
    assert [one.operators for one in found] == [("aten::neg",), ("aten::sin",), ("aten::exp",)]
    assert [one.match for one in found] == [Match.ORDER, Match.SAME_CALL, Match.ORDER]


def test_what_order_leaves_open_stays_open(load: Load, report_of: ReportOf) -> None:
    session = load(launched(("aten::abs", [2], "k"), ("aten::neg", [3], "k")))
    (found,) = join_counters(report_of("k"), session)
    assert (found.match, found.call) == (Match.AMBIGUOUS, None)
    assert found.operators == ("aten::abs", "aten::neg")
    assert found.no_ratio_reason == Match.AMBIGUOUS.meaning


def test_a_repeated_order_settles_what_every_place_agrees_on(load: Load, report_of: ReportOf) -> None:
    step = [("aten::abs", [2], "k"), ("aten::neg", [3], "k"), ("aten::sin", [4], "other")]
    session = load(launched(*step, *step))
    found = join_counters(report_of("k", "k", "other"), session)
    assert [one.operators for one in found] == [("aten::abs",), ("aten::neg",), ("aten::sin",)]


def test_a_launch_the_recording_lacks_does_not_disturb_the_order(load: Load, report_of: ReportOf) -> None:
    session = load(launched(("aten::abs", [2], "k"), ("aten::neg", [3], "k")))
    found = join_counters(report_of("k", "unknown", "k"), session)
    assert [one.operators for one in found] == [("aten::abs",), (), ("aten::neg",)]


def test_launches_from_before_the_recording_leave_no_doubt(load: Load, report_of: ReportOf) -> None:
    trace = launched(("aten::abs", [2], "k"))
    trace.kernel("k", -50, 10, grid=[4, 1, 1], correlation=7)
    (found,) = join_counters(report_of("k"), load(trace))
    assert (found.match, found.operators, found.launches) == (Match.SAME_CALL, ("aten::abs",), 1)


def test_a_launch_of_no_operator_says_how_it_was_launched(load: Load, report_of: ReportOf) -> None:
    trace = TraceBuilder().launch(1).kernel("k", 60, 5)
    (found,) = join_counters(report_of("k"), load(trace))
    assert found.call is not None
    assert (found.call.operator, found.call.attribution) == (None, "outside_operator")


def test_a_call_of_several_kernels_has_no_ratio(load: Load, report_of: ReportOf) -> None:
    trace = TraceBuilder().operator("aten::sum", 0, 50, **{"Input Dims": [[8]], "Input type": ["float"]})
    trace.launch(1).kernel("first", 60, 5).launch(3).kernel("second", 70, 5)
    (found,) = join_counters(report_of("first"), load(trace))
    assert found.call is not None
    assert found.min_bytes is None
    assert found.no_ratio_reason == "a call issues 2 device activities, of which this is one"


def test_an_empty_recording_and_an_empty_report(load: Load, report_of: ReportOf) -> None:
    session = load(TraceBuilder().operator("aten::abs", 0, 5))
    assert [one.match for one in join_counters(report_of("k"), session)] == [Match.NOT_RECORDED]
    assert join_counters(report_of(), session) == ()


def test_bytes_of_streaming_kernels_are_near_the_least_and_layer_norms_are_not(
    load: Load, real_report: NcuReport, its_trace: TraceBuilder
) -> None:
    found = {one.operators[0]: one for one in join_counters(real_report, load(its_trace))}
    for operator in ("aten::_softmax", "aten::gelu", "aten::copy_"):
        assert found[operator].min_bytes == 2 * 4 * 8192**2
        assert found[operator].traffic_ratio == pytest.approx(1.0, abs=0.05)
    norm = found["aten::native_layer_norm"]
    # Input and output, scale and shift, and the mean and deviation of each row.
    assert norm.min_bytes == 2 * 4 * 8192**2 + 4 * 4 * 8192
    assert norm.traffic_ratio == pytest.approx(1.44, abs=0.005)
    assert (norm.launches, norm.launches_per_step, norm.recorded_ns) == (2, 1.0, 210_784)


def test_what_limits_each_kernel(real_report: NcuReport) -> None:
    limits = [one.limit for one in join_counters(real_report)]
    assert limits == [
        CounterLimit.LATENCY,
        CounterLimit.DRAM,
        CounterLimit.CACHES,
        CounterLimit.COMPUTE,
        CounterLimit.DRAM,
    ]


@pytest.mark.parametrize(
    "name", ["bert_bs8_seq128_infer", "bert_train_bf16", "gpt2_generate_fp16", "misc_ops_fp32"]
)
def test_launches_of_a_real_recording_are_found_again_and_never_wrongly(
    load: Load, report_of: ReportOf, kernel: Kernel, shared: Path, name: str
) -> None:
    """A report is made of some kernels' launches from the middle of the recording, as a filter would."""
    session = load(shared / "traces" / "h200" / f"{name}.json.gz")
    rows = session.query(
        "SELECT n.name, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], o.name, "
        "o.input_shapes::VARCHAR FROM device_activities a JOIN kernel_names n USING (name_id) "
        "LEFT JOIN operators o USING (operator_id) WHERE a.kind = 'kernel' ORDER BY a.start_ns, a.activity_id"
    )
    kept = sorted({row[0] for row in rows})[::3]
    chosen = [row for row in rows if row[0] in kept]
    part = chosen[len(chosen) // 2 :][:40]
    report = report_of(*(kernel(row[0], grid=tuple(row[1]), block=tuple(row[2])) for row in part))
    found = join_counters(report, session)
    settled = [(one.call, row) for one, row in zip(found, part, strict=True) if one.call is not None]
    # The token loop concatenates ever longer tensors in the same geometry, which no order tells apart.
    assert len(settled) >= 0.6 * len(part)
    for call, row in settled:
        assert (call.operator, call.shapes) == (row[3], row[4])
