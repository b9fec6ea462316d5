"""The numbers of a Summary, worked out by hand on small traces."""

import pytest
from msgspec.structs import replace

import opscope
from fakes import TraceBuilder
from opscope.analysis.summary import StepTotal, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, OperatorTotal
from opscope.launches.facts import LaunchGeometry


def training():
    """Two linear layers in one step, a copy, and a kernel from before the window; 100 us of device time."""
    properties = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132,
                  "totalGlobalMem": 1 << 30}  # fmt: skip
    built = TraceBuilder(deviceProperties=[properties], distributedInfo={"rank": 0}).step(1, 0, 200)
    wide = {"registers per thread": 64, "shared memory": 1024, "est. achieved occupancy %": 50}
    for index, kernel_us in enumerate((30, 40)):
        start = 100 * index
        built.operator("aten::linear", start, 60, **{"Input Dims": [[8, 16]]})
        built.operator("aten::addmm", start + 10, 40, **{"Input Dims": [[8, 16], [16, 4 + index]]})
        built.launch(start + 20).kernel("gemm", 300 + start, kernel_us, **wide)
    built.operator("aten::copy_", 170, 20).launch(175, name="cudaMemcpyAsync")
    built.kernel("Memcpy HtoD", 320, 20, category="gpu_memcpy", stream=8, bytes=4096, grid=None, block=None)
    return built.kernel("leaked", 5, 10, correlation=3)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    with opscope.load(training().write(tmp_path_factory.mktemp("training") / "trace.json")) as session:
        return opscope.summarize(session)


def without_provenance(operator):
    kernels = tuple(map(measured, operator.kernels))
    return replace(operator, native_functions=(), called_operators=(), source=None, kernels=kernels)


def measured(kernel):
    geometries = tuple(replace(geometry, example_operator_id=None) for geometry in kernel.geometries)
    return replace(kernel, facts=None, geometries=geometries)


class TestTotals:
    def test_of_the_session(self, summary):
        assert summary.device_time_ns == 100_000
        assert summary.attributed_ns == 90_000
        assert summary.attributed_fraction == 0.9
        assert summary.unattributed_ns == {"before_window": 10_000}
        assert summary.cpu_time_ns == 140_000
        assert (summary.kernel_launches, summary.activity_count) == (3, 4)
        assert (summary.operator_calls, summary.operator_names) == (5, 3)
        assert summary.has_device
        assert summary.ranks == (0,)
        assert summary.traces[0].endswith("trace.json")
        assert summary.window_ns is None
        assert summary.steps == (StepTotal(0, 1, 200_000, 90_000, 2, 140_000),)
        assert [finding.code for finding in summary.findings] == ["attribution.before_window"]

    def test_of_operators(self, summary):
        gemm = KernelTotal(
            "gemm", "kernel", 2, 70_000, 30_000, 40_000, 0.7, None,
            (LaunchGeometry((4, 1, 1), (128, 1, 1), 64, 1024, 0.5, 2, 70_000),),
        )  # fmt: skip
        copy = KernelTotal("Memcpy HtoD", "memcpy", 1, 20_000, 20_000, 20_000, 0.2, 4096)
        shapes = (("[[8,16],[16,4]]", 1), ("[[8,16],[16,5]]", 1))
        assert tuple(map(without_provenance, summary.operators)) == (
            OperatorTotal("aten::addmm", None, "matrix", 2, 70_000, 70_000, 80_000, 80_000, 2, 0.7, 0.7,
                          shapes, (gemm,)),
            OperatorTotal("aten::copy_", None, "memory", 1, 20_000, 20_000, 20_000, 20_000, 0, 0.2, 0.2,
                          (), (copy,)),
            OperatorTotal("aten::linear", None, "matrix", 2, 0, 70_000, 40_000, 120_000, 0, 0.0, 0.7,
                          (("[[8,16]]", 2),)),
        )  # fmt: skip
        assert tuple(map(measured, summary.kernels)) == (
            gemm, copy,
            KernelTotal("leaked", "kernel", 1, 10_000, 10_000, 10_000, 0.1, None,
                        (LaunchGeometry((4, 1, 1), (128, 1, 1), None, None, None, 1, 10_000),)),
        )  # fmt: skip

    def test_of_categories(self, summary):
        assert summary.categories == (
            CategoryTotal("matrix", 70_000, 120_000, 0.7, 4),
            CategoryTotal("memory", 20_000, 20_000, 0.2, 1),
            CategoryTotal("other", 10_000, 0, 0.1, 1, without_operator=True),
        )


def test_recursion_is_counted_once(load):
    built = (
        TraceBuilder().operator("aten::to", 0, 100).operator("aten::add", 5, 80).operator("aten::to", 10, 50)
    )
    built.launch(20).kernel("a", 200, 7)
    built.operator("aten::to", 90, 5).launch(91).kernel("b", 300, 5)
    built.launch(98).kernel("c", 400, 1).operator("aten::to", 150, 10)
    by_name = {operator.name: operator for operator in Summary(load(built)).operators}
    to = by_name["aten::to"]
    assert (to.calls, to.self_device_ns, to.total_device_ns) == (4, 13_000, 13_000)
    assert (to.self_cpu_ns, to.total_cpu_ns) == (15_000 + 50_000 + 5_000 + 10_000, 110_000)
    add = by_name["aten::add"]
    assert (add.self_device_ns, add.total_device_ns, add.self_cpu_ns, add.total_cpu_ns) == (
        0, 7_000, 30_000, 80_000,
    )  # fmt: skip


def test_the_most_frequent_shapes_come_first_at_most_three(load):
    built = TraceBuilder()
    for index, size in enumerate([1, 2, 2, 3, 3, 3, 4]):
        built.operator("a", 10 * index, 5, **{"Input Dims": [[size]]})
    (operator,) = Summary(load(built)).operators
    assert operator.input_shapes == (("[[3]]", 3), ("[[2]]", 2), ("[[1]]", 1))


def test_an_overload_is_named_if_all_calls_have_it(load):
    built = TraceBuilder()
    recorded = "add.Tensor add.Tensor mul.Tensor mul.Scalar div.Tensor div"
    for index, name in enumerate(recorded.split()):
        built.operator(f"aten::{name}", 10 * index, 5)
    operators = Summary(load(built)).operators
    assert {(operator.name, operator.overload, operator.calls) for operator in operators} == {
        ("aten::add", "Tensor", 2), ("aten::mul", None, 2), ("aten::div", None, 2),
    }  # fmt: skip


def test_a_saved_session_says_the_same(load, tmp_path, summary):
    saved = load(training()).save(tmp_path / "s.opscope")
    again = opscope.summarize(load(saved)).having(traces=summary.traces, recorded=summary.recorded)
    assert vars(again) == vars(summary)


def test_operators_without_a_name(load):
    built = TraceBuilder().operator("x", 0, 10, **{"Input Dims": []}).launch(1).kernel("k", 20, 5)
    built.events[0]["name"] = None
    (operator,) = Summary(load(built)).operators
    assert (operator.name, operator.category, operator.self_device_ns) == ("", "other", 5_000)
    assert operator.kernels[0].name == "k"
    assert operator.input_shapes == (("[]", 1),)


def test_of_a_long_trace_the_steps_in_the_middle_are_simulated(load, monkeypatch):
    built = TraceBuilder()
    for step, kernel_us in enumerate((40, 10, 12, 40)):
        start = 200 * step
        built.step(step + 1, start, 150).operator("aten::mm", start + 10, 20)
        built.launch(start + 15).kernel("gemm", start + 30, kernel_us)
    monkeypatch.setattr("opscope.analysis.timeline.host._MOST_KEPT", 0)
    monkeypatch.setattr("opscope.analysis.summary._MOST_SIMULATED_CALLS", 2)
    model = Summary(load(built)).step_model
    assert (model.graph.steps, model.busy_ns) == (2, 11_000)
