"""Launches of distinct calls: which waited for the host, which did all of their call's work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.analysis.roofline import Launches, read_launches, work_by_kernel, work_of_call
from opscope.analysis.session_limits import common_device
from opscope.model.session import Session
from opscope.testing import TraceBuilder

from .conftest import cost, launches

Load = Callable[..., Session]

GEMM = "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4"
REDUCE = "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>)"  # noqa: E501


def read(load: Load, built: TraceBuilder) -> dict[int, tuple[Launches, ...]]:
    """Launches by call; each operator name, and all that has none (999), is one call."""
    session = load(built)
    session.replace_rows(
        "activity_costs",
        [
            {"activity_id": activity_id, "call_id": 999 if name is None else int(name[-1])}
            for activity_id, name in session.query(
                "SELECT activity_id, o.name FROM device_activities LEFT JOIN operators o USING (operator_id)"
            )
        ],
    )
    return read_launches(session, common_device(session))


def only(found: dict[int, tuple[Launches, ...]], call_id: int) -> Launches:
    (one,) = found[call_id]
    return one


def test_a_call_shorter_than_its_host_time_on_an_empty_stream_is_launch_bound(load: Load) -> None:
    built = TraceBuilder().operator("op0", 0, 20).launch(2, 4).kernel("k", 8, 5)
    found = only(read(load, built), 0)
    assert (found.total_ns, found.launch_bound_ns) == (5_000, 5_000)


@pytest.mark.parametrize(
    ("kernel_start", "duration", "expected"),
    [
        (8, 21, 0),  # longer than the host needs
        (8, 20, 0),
        (8, 19.999, 19_999),
        (16, 5, 5_000),  # 10 us after the launch call returned
        (16.001, 5, 0),  # it waited for something else
    ],
)
def test_launch_bound_is_held_to_the_host_time_and_the_start(
    load: Load, kernel_start: float, duration: float, expected: int
) -> None:
    built = TraceBuilder().operator("op0", 0, 20).launch(2, 4).kernel("k", kernel_start, duration)
    assert only(read(load, built), 0).launch_bound_ns == expected


def test_a_stream_that_was_busy_when_the_launch_returned_hides_it(load: Load) -> None:
    built = TraceBuilder().operator("op0", 0, 20).launch(2, 4).kernel("k", 8, 19)
    built.operator("op1", 20, 20).launch(21, 4).kernel("k", 27, 3)  # behind op0's until 27, launched by 25
    built.operator("op2", 40, 20).launch(41, 4).kernel("k", 47, 3, stream=9)
    found = read(load, built)
    assert [only(found, call).launch_bound_ns for call in (0, 1, 2)] == [19_000, 0, 3_000]


def test_other_streams_do_not_matter(load: Load) -> None:
    built = TraceBuilder().kernel("long", 0, 1_000, stream=9)
    built.operator("op0", 0, 20).launch(2, 4).kernel("k", 8, 5)
    assert only(read(load, built), 0).launch_bound_ns == 5_000


@pytest.mark.parametrize("waiting", ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMalloc"])
def test_time_in_which_the_host_waits_is_not_launching(load: Load, waiting: str) -> None:
    built = TraceBuilder().operator("op0", 0, 100).launch(2, 4).kernel("k", 8, 30)
    built.event("cuda_runtime", waiting, 10, 80, 1, {"correlation": 7, "External id": 1})
    assert only(read(load, built), 0).launch_bound_ns == 0
    built.events[-1]["dur"] = 60
    assert only(read(load, built), 0).launch_bound_ns == 30_000


def test_host_time_is_that_of_the_operator_alone(load: Load) -> None:
    built = TraceBuilder().operator("op1", 0, 100).operator("op0", 10, 20).launch(12, 4).kernel("k", 18, 30)
    assert only(read(load, built), 0).launch_bound_ns == 0


def test_several_kernels_of_a_call_count_together(load: Load) -> None:
    built = TraceBuilder().operator("op0", 0, 20)
    built.launch(2, 4).kernel("a", 8, 8).launch(8, 4).kernel("b", 17, 9)
    found = read(load, built)[0]
    assert [(one.kernel, one.launch_bound_ns) for one in found] == [("b", 9_000), ("a", 8_000)]
    built.launch(14, 4).kernel("c", 27, 4)
    assert {one.launch_bound_ns for one in read(load, built)[0]} == {0}  # 21 us of device time


def test_outside_operators_the_launch_call_is_the_host_s_time(load: Load) -> None:
    built = TraceBuilder().launch(2, 4).kernel("k", 8, 3.9)
    assert only(read(load, built), 999).launch_bound_ns == 3_900
    assert only(read(load, TraceBuilder().launch(2, 4).kernel("k", 8, 4)), 999).launch_bound_ns == 0
    assert only(read(load, TraceBuilder().kernel("k", 8, 1)), 999).launch_bound_ns == 0  # no call recorded


def test_a_graph_launch_is_shared_by_its_kernels(load: Load) -> None:
    built = TraceBuilder().operator("op0", 0, 500).launch(2, 10, name="cudaGraphLaunch")
    for index in range(5):
        built.kernel("k", 14 + index, 1, **{"graph id": 1, "graph node id": index})
    found = read(load, built)[0]
    assert only({0: found}, 0).count == 5
    assert only({0: found}, 0).launch_bound_ns == 1_000  # the first; the others stand behind it


def test_work_is_the_main_kernel_s_alone_where_the_rest_helps(load: Load) -> None:
    built = TraceBuilder().operator("op0", 0, 30)
    built.launch(1, 1, name="cudaMemsetAsync").kernel("Memset (Device)", 5, 1, category="gpu_memset")
    built.launch(3).kernel(GEMM, 10, 8).launch(5).kernel(REDUCE, 20, 2)
    built.operator("op0", 40, 30).launch(41).kernel(GEMM, 50, 6).launch(45).kernel("other", 60, 2)
    found = {one.kernel: one for one in read(load, built)[0]}
    assert [found[name].is_helper for name in ("Memset (Device)", GEMM, REDUCE, "other")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert (found[GEMM].count, found[GEMM].sole_count, found[GEMM].sole_ns) == (2, 1, 8_000)
    assert (found[REDUCE].sole_count, found["other"].sole_count) == (0, 0)


def test_a_kernel_has_its_call_s_cost_as_often_as_it_did_it_alone() -> None:
    alone, shared = (
        launches("a", 80, count=4, sole_count=3, sole_ns=50),
        launches("b", 20, sole_count=0, sole_ns=0),
    )
    call = work_of_call((alone, shared), cost(10, 20), 4)
    assert (call.device_ns, call.costed_ns, call.repeats) == (100, 100, 4)
    by_kernel = dict(work_by_kernel(call))
    assert (by_kernel["a"].device_ns, by_kernel["a"].costed_ns, by_kernel["a"].repeats) == (80, 50, 3)
    assert (by_kernel["b"].device_ns, by_kernel["b"].costed_ns, by_kernel["b"].repeats) == (20, 0, 0)


def test_launches_that_are_more_than_the_calls_share_their_work() -> None:
    call = work_of_call((launches("a", 80, count=4), launches("b", 20, count=4)), cost(10, 20), 4)
    assert [(part.costed_ns, part.repeats) for _, part in work_by_kernel(call)] == [(0, 0), (0, 0)]


def test_unknown_costs_cost_no_time() -> None:
    call = work_of_call((launches(),), cost(None, 20), 1)
    assert call.costed_ns == 0
    assert [part.costed_ns for _, part in work_by_kernel(call)] == [0]


def test_helpers_alone_are_the_work() -> None:
    helper = launches("Memset (Device)", is_helper=True)
    assert work_of_call((helper,), cost(), 1).main == (helper,)
