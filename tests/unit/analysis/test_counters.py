"""Hardware counters: what to profile, launches found in a recording, and what their counters say."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from case_tables import cases
from fakes import H200, TraceBuilder
from opscope import load
from opscope.analysis.counters import (
    CountedCall,
    CountedKernel,
    Launch,
    Match,
    Topic,
    alike_launches,
    analyze_counters,
    best_window,
    counter_findings,
    join_counters,
    kernel_filter,
    plan_by_profile,
    plan_by_recording,
    unmeasured,
)
from opscope.analysis.summary import Summary
from opscope.errors import CaptureError, InputError
from opscope.operators.effects import CallCost
from opscope.provenance.kernel_names.decoder import decode
from opscope.toolchain.ncu_command import NameBase
from opscope.toolchain.ncu_report import NcuDevice, Occupancy, Quantity, read_report


def launched(*calls, grid=4):
    """Operators with a shape, one after the other, each launching one kernel."""
    trace = TraceBuilder()
    for number, (operator, shape, kernel) in enumerate(calls):
        start = 100 * number
        arguments = {"Input Dims": [shape], "Input type": ["float"], "Input Strides": [[1]]}
        trace.operator(operator, start, 20, **arguments).launch(start + 1)
        trace.kernel(kernel, start + 30, 10 + number, grid=[grid, 1, 1])
    return trace


def test_every_launch_alike_of_one_call_settles_it(load, report_of):
    session = load(
        launched(("aten::square", [8], "k"), ("aten::square", [8], "k"), ("aten::abs", [8], "other"))
    )
    (found,) = join_counters(report_of("k"), session)
    assert (found.match, found.operators, found.launches) == (Match.SAME_CALL, ("aten::square",), 2)
    assert (found.call.shapes, found.call.calls, found.call.activities_per_call) == ("[[8]]", 2, 1)
    assert found.recorded_ns == 10_000


def test_a_launch_of_another_geometry_is_not_recorded(load, report_of, kernel):
    session = load(launched(("aten::square", [8], "k")))
    found = join_counters(report_of(kernel("k", grid=(5, 1, 1)), "none"), session)
    assert [one.match for one in found] == [Match.NOT_RECORDED, Match.NOT_RECORDED]
    assert [one.launches for one in found] == [0, 0]


def test_order_tells_calls_apart_that_launch_alike(load, report_of):
    def matches(kernels, *calls):
        found = join_counters(report_of(*kernels.split()), load(launched(*calls)))
        assert all(one.no_ratio_reason == one.match.meaning for one in found if one.call is None)
        assert [one.call is None for one in found] == [len(one.operators) != 1 for one in found]
        return [(one.match.name, *one.operators) for one in found]

    first, second, between = ("aten::abs", [2], "k"), ("aten::neg", [3], "k"), ("aten::sin", [4], "other")
    told = [("ORDER", "aten::abs"), ("ORDER", "aten::neg"), ("SAME_CALL", "aten::sin")]
    assert matches("k other k", first, second, between, ("aten::exp", [5], "k")) == [
        *told[1:],
        ("ORDER", "aten::exp"),
    ]
    assert matches("k", first, second) == [("AMBIGUOUS", "aten::abs", "aten::neg")]
    # Repeated, it settles what every place agrees on; a launch that the recording lacks does not disturb it.
    assert matches("k k other", *[first, second, between] * 2) == told
    assert matches("k unknown k", first, second) == [told[0], ("NOT_RECORDED",), told[1]]


def test_launches_from_before_the_recording_leave_no_doubt(load, report_of):
    trace = launched(("aten::abs", [2], "k"))
    trace.kernel("k", -50, 10, grid=[4, 1, 1], correlation=7)
    (found,) = join_counters(report_of("k"), load(trace))
    assert (found.match, found.operators, found.launches) == (Match.SAME_CALL, ("aten::abs",), 1)


def test_a_launch_of_no_operator_says_how_it_was_launched(load, report_of):
    (found,) = join_counters(report_of("k"), load(TraceBuilder().launch(1).kernel("k", 60, 5)))
    assert (found.call.operator, found.call.attribution) == (None, "outside_operator")


def test_a_call_of_several_kernels_has_no_ratio(load, report_of):
    trace = TraceBuilder().operator("aten::sum", 0, 50, **{"Input Dims": [[8]], "Input type": ["float"]})
    trace.launch(1).kernel("first", 60, 5).launch(3).kernel("second", 70, 5)
    (found,) = join_counters(report_of("first"), load(trace))
    assert found.call is not None
    assert found.min_bytes is None
    assert found.no_ratio_reason == "a call issues 2 device activities, of which this is one"


@cases("name")
def test_launches_of_a_real_recording_are_found_again_and_never_wrongly(
    load, report_of, kernel, shared, name
):
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


WAITING = {Quantity.SM_FRACTION: 0.3, Quantity.MEMORY_FRACTION: 0.4, Quantity.DRAM_FRACTION: 0.4}
LIMITED_BY_DRAM = {Quantity.SM_FRACTION: 0.3, Quantity.MEMORY_FRACTION: 0.9, Quantity.DRAM_FRACTION: 0.9}


def counted(counters, **fields):
    return CountedKernel(counters, counters.mangled_name, decode(counters.mangled_name), **fields)


def only(*kernels):
    (finding,) = counter_findings(kernels)
    return finding


def test_what_is_said_of_kernels_made_to_be_slow():
    """32 threads in one bank, a transpose that writes columns, reads of every 33rd float, and a copy."""
    pytest.importorskip("ncu_report")
    recorded = Path(__file__).parents[2] / "golden/recorded/four_kernels.ncu-rep.gz"
    analysis = analyze_counters(read_report(recorded))
    titles = {one.counters.index: one.decoded.title for one in analysis.kernels}
    assert [(one.code, [titles[at] for at in one.evidence["launches"]]) for one in analysis.findings] == [
        ("counters.bank_conflicts", ["conflicts"]),
        ("counters.scattered", ["strided", "transposed"]),  # the copy takes 2 % of the time
    ]
    # NVIDIA's rules estimate 0.94 and 0.77 of the time of these kernels.
    shares = [one.evidence["estimated_speedup_fraction"] for one in analysis.findings]
    assert shares == pytest.approx([0.93, 0.74], abs=0.01)


def describe(
    kernel,
    *,
    sm=0.1,
    memory=0.1,
    stalls=None,
    unit=None,
    block=(128, 1, 1),
    waves=3.0,
    block_limits=None,
    **values,
):
    """A kernel of 1 ms on 100 multiprocessors with these counters."""
    known = {"duration_ns": 1_000_000, "sm_throughput_fraction": sm, "memory_throughput_fraction": memory}
    few = (0.25, 0.2, waves, block_limits) if block_limits else (None, None, waves)
    return counted(
        kernel(
            values={Quantity(name): value for name, value in {**known, **values}.items()},
            stalls=stalls or {},
            busiest_unit=unit,
            device=NcuDevice(sm_count=100),
            grid=(400, 1, 1),
            block=tuple(block),
            occupancy=Occupancy(*few),
        )
    )


@cases("codes", "counters")
def test_what_counters_say(kernel, codes, counters):
    findings = counter_findings([describe(kernel, **counters)])
    assert [one.code.removeprefix("counters.") for one in findings] == codes
    assert all(one.suggestion and 0 < one.evidence["estimated_time_fraction"] < 1 for one in findings)


def test_where_one_was_not_measured_no_change_is_told(kernel):
    one, failed = describe(kernel, stalls={"barrier": 4.0}), counted(kernel(values={}, mangled_name="other"))
    assert unmeasured([one, failed]) == [failed]
    assert unmeasured([one, counted(kernel(values={}))]) == []  # others of it were measured
    assert unmeasured([one]) == unmeasured([failed]) == []  # of a report without times


def test_remedies_fit_what_limits(kernel):
    few = only(describe(kernel, block_limits={"blocks": 2, "threads": 4}))
    assert few.suggestion == "Larger blocks: a multiprocessor holds only so many blocks."
    loads = only(describe(kernel, sm=0.8, memory=0.8, unit="loads_and_stores"))
    assert "tiles in shared memory" in loads.suggestion
    message = only(describe(kernel, waves=0.05)).message
    assert message.endswith("400 blocks of 128 threads: 5.0 % of what 100 multiprocessors hold at once.")


def recorded(kernel, *, moved, least, read=None, **fields):
    values = {**LIMITED_BY_DRAM, Quantity.DURATION: 1000, Quantity.DRAM_BYTES: moved}
    if read is not None:
        values[Quantity.DRAM_READ_BYTES] = read
    cost = CallCost(read_bytes=least // 2, written_bytes=least // 2)
    call = CountedCall(call_id=0, name="aten::x", calls=1, activities_per_call=1.0, cost=cost)
    return counted(kernel(values=values), match=Match.SAME_CALL, call=call, **fields)


MB = 10**6


def test_traffic_beyond_the_least(kernel):
    finding = only(recorded(kernel, moved=300 * MB, least=200 * MB, read=200 * MB))
    assert finding.code == "counters.extra_traffic"
    assert "1.50 × the minimum (it reads its inputs 2.0 times)" in finding.message
    assert finding.estimated_gain_ns_per_step is None  # no steps
    gain = only(
        recorded(kernel, moved=300 * MB, least=200 * MB, recorded_ns=9000, launches_per_step=2.0)
    ).estimated_gain_ns_per_step
    assert gain == pytest.approx(6000)


@pytest.mark.parametrize(("moved", "least"), [(210 * MB, 200 * MB), (195 * MB, 200 * MB), (90 * MB, 30 * MB)])
def test_traffic_near_the_least_or_of_what_fits_the_cache(kernel, moved, least):
    assert counter_findings([recorded(kernel, moved=moved, least=least)]) == ()


def test_a_gain_is_promised_only_where_memory_limits(kernel):
    found = recorded(kernel, moved=300 * MB, least=200 * MB, recorded_ns=9000, launches_per_step=2.0)
    waiting = replace(found, counters=replace(found.counters, values={**found.counters.values, **WAITING}))
    assert only(waiting).estimated_gain_ns_per_step is None


PRODUCTS = {
    "fp32 on CUDA cores": (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
        "execute_kernel__5x_cublas"
    ),
    "bf16 on tensor cores": "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT",
    "no product": "square_kernel",
}


@cases("name", "active", "fires")
def test_tensor_cores_left_idle(kernel, name, active, fires):
    values = {Quantity.DURATION: 1000, Quantity.TENSOR_FRACTION: active}
    findings = counter_findings([counted(kernel(PRODUCTS[name], values=values))])
    assert [one.code for one in findings] == (["counters.idle_tensor_cores"] if fires else [])
    if fires:
        assert findings[0].change == 'torch.set_float32_matmul_precision("high")'


def test_changes_come_by_what_they_may_bring_of_all_time(kernel):
    """The same words are one change, of all its kernels; one of 1 % of the time is none."""

    def one(index, name, duration_ns, stall):
        counters = kernel(
            name, index=index, stalls={stall: 1.0, "selected": 1.0},
            values={**WAITING, Quantity.DURATION: duration_ns},
        )  # fmt: skip
        return counted(counters)

    launches = [one(0, "rare", 10, "wait"), one(1, "long", 400, "barrier"), one(2, "other", 300, "wait")]
    launches += [one(3 + number, "often", 100 - number, "wait") for number in range(3)]
    findings = counter_findings(launches)
    assert [(one.code, one.evidence["launches"]) for one in findings] == [
        ("counters.stall", [2, 3]),
        ("counters.stall", [1]),
    ]
    first = findings[0]
    assert first.message.startswith("other (launch 2): its warps spend 50 % of their time")
    assert first.evidence["time_fraction"] == pytest.approx(597 / 1007)
    assert first.evidence["estimated_time_fraction"] == pytest.approx(0.5 * 597 / 1007)
    assert [(one.longest.counters.index, one.launches) for one in alike_launches(launches)] == [
        (1, 1), (2, 1), (3, 3), (0, 1),
    ]  # fmt: skip


GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::Iterator&)>(int)"


def trace(*kernels, steps=0):
    """Kernels with times in µs, launching by `aten::KERNEL`; the same again for every step."""
    made = TraceBuilder()
    for step in range(max(1, steps)):
        start = 10_000 * step
        if steps:
            made.step(step + 1, start, 9_000)
        for number, (kernel, duration) in enumerate(kernels):
            at = start + 200 * number
            made.operator(f"aten::{kernel[:6]}", at, 20).launch(at + 1).kernel(kernel, at + 30, duration)
    return made


def test_the_longest_kernels_of_one_step_and_one_launch_of_each(load):
    session = load(trace(("small", 1), ("gemm", 100), ("gemm", 100), ("norm", 50), ("gemm", 100), steps=3))
    plan = plan_by_recording(session, kernels=2, limit=20)
    assert plan.names == ("gemm", "norm")
    assert plan.kernels.pattern == r"\bgemm\b|\bnorm\b"
    assert (plan.launch_skip, plan.launch_count) == (0, 3)
    assert plan.covered_fraction == pytest.approx(350 / 351)


def test_launches_are_passed_over_only_if_the_limit_asks_for_it(load):
    session = load(trace(*[("gemm", 10.0)] * 5, ("norm", 50)))
    assert plan_by_recording(session, kernels=2, limit=6).launch_skip == 0
    plan = plan_by_recording(session, kernels=2, limit=3)
    assert (plan.launch_skip, plan.launch_count) == (4, 2)


def test_a_recording_without_kernels(load):
    with pytest.raises(InputError, match="no kernels"):
        plan_by_recording(load(TraceBuilder().operator("aten::mm", 0, 1)), kernels=1, limit=1)


def test_a_profile_gives_exact_names_and_the_last_window(report_of, kernel):
    report = report_of("_Z5setupv", "_Z4gemmv", "_Z4normv", "_Z4gemmv", "_Z4normv")
    plan = plan_by_profile(report, kernels=2, limit=20)
    assert (plan.kernels.base, plan.kernels.pattern) == (NameBase.MANGLED, "^(_Z4gemmv|_Z4normv)$")
    assert (plan.launch_skip, plan.launch_count) == (2, 2)
    assert plan.names == ("gemm()", "norm()")
    assert plan.covered_fraction == pytest.approx(0.8)
    with pytest.raises(CaptureError, match="no kernel times"):
        plan_by_profile(report_of(kernel("k", values={})), kernels=1, limit=1)


@cases("name", "pattern")
def test_a_filter_is_as_narrow_as_the_name_allows(name, pattern):
    matches = kernel_filter([name])
    assert matches.pattern == pattern
    assert matches.covers(name)


def test_every_kernel_of_real_recordings_passes_its_own_filter(shared, load):
    for name in ("misc_ops_fp32", "bert_train_bf16", "own_kernels"):
        session = load(shared / "traces" / "h200" / f"{name}.json.gz")
        for (kernel,) in session.query("SELECT name FROM kernel_names WHERE kind = 'kernel'"):
            assert kernel_filter([kernel]).covers(kernel)


def launches(text):
    """`a b2 c`: kernels of one letter, with a time of 10 ns or as written."""
    return [Launch((word[0], (1, 1, 1), None), int(word[1:] or 10)) for word in text.split()]


@given(
    text=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    limit=st.integers(min_value=1, max_value=12),
    names=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_no_window_of_the_limit_covers_more_or_is_shorter(text, limit, names):
    sequence = launches(" ".join(text))

    def covered(start, end):
        kinds = {one.kind[0] for one in sequence[start:end]} & names
        return sum(one.duration_ns for one in sequence if one.kind[0] in kinds)

    every = [
        (covered(start, end), start - end)
        for start in range(len(sequence))
        for end in range(start + 1, min(start + limit, len(sequence)) + 1)
    ]
    found = best_window(sequence, names, limit)
    if not names & set(text):
        assert found is None
        return
    assert (found[2], found[0] - found[1]) == max(every)
    assert found[2] == covered(*found[:2])


def improvement_of(tmp_path, builder, operator):
    with load(builder.write(tmp_path / "trace.json")) as session:
        return Summary(session).improvements[operator]


def known(found, topic):
    return next(one.known for one in found.topics if one.topic is topic)


def launching(name, duration=50, **args):
    arguments = {"registers per thread": 32, "shared memory": 0, "block": [128, 1, 1], "grid": [4096, 1, 1]}
    made = TraceBuilder(deviceProperties=[H200]).operator("aten::op", 0, 20).launch(2)
    return made.kernel(name, 30, duration, **(arguments | args))


@cases("topic", "words", "launch")
def test_what_a_launch_tells_without_counters(tmp_path, topic, words, launch):
    found = improvement_of(tmp_path, launching(**{"name": "k", **(launch or {})}), "aten::op")
    assert known(found, Topic(topic)) == words


def test_the_command_names_the_kernel(tmp_path):
    words = shlex.split(improvement_of(tmp_path, launching(GELU), "aten::op").command)
    assert words[:3] == ["opscope", "ncu", "--kernel"] and words[-3:] == ["--", "python", "script.py"]
    assert words[3] == kernel_filter([GELU]).pattern


def test_several_kernels_of_a_call_pass_results_through_memory(tmp_path):
    trace = launching("a", 5).launch(4).kernel("b", 36, 6)
    found = improvement_of(tmp_path, trace, "aten::op")
    assert known(found, Topic.FUSION) == "2.0 kernels per call pass their results through device memory"
    assert found.kernel == "b"
