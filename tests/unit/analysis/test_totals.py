"""Totals by operator, kernel, category and annotation."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.analysis.totals import range_totals
from opscope.provenance.categories import category_of


def one(summary, name):
    return next(operator for operator in summary.operators if operator.name == name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["misc_ops_fp32", "bert_compile_bf16", "bert_train_bf16"])
def test_category_times_are_the_operators_times_to_the_nanosecond(load, shared, name):
    summary = Summary(load(shared / "traces" / "h200" / f"{name}.json.gz"))
    own_ns = sum(operator.self_device_ns for operator in summary.operators)
    of_operators = [category for category in summary.categories if not category.without_operator]
    assert sum(category.device_ns for category in of_operators) == own_ns > 0
    assert sum(category.device_ns for category in summary.categories) == summary.device_time_ns
    assert sum(category.cpu_ns for category in summary.categories) == summary.cpu_time_ns
    assert sum(category.calls for category in of_operators) == summary.operator_calls


def test_a_unit_of_which_no_line_is_known_is_linked_as_a_whole(load):
    """The template of the scan lies in a header, its unit is one `.cu` file."""
    scan = "void at::native::tensor_kernel_scan_outer_dim<float, unsigned int, std::plus<float> >(float*, float const*, unsigned int, unsigned int, unsigned int, float, std::plus<float>)"  # noqa: E501
    built = TraceBuilder().operator("aten::cumsum", 0, 10).launch(1).kernel(scan, 20, 5)
    source = one(Summary(load(built)), "aten::cumsum").source
    assert (source.file, source.line) == ("aten/src/ATen/native/cuda/CumsumKernel.cu", None)
    assert (source.url or "").endswith("/aten/src/ATen/native/cuda/CumsumKernel.cu")


@cases("category", "operators")
def test_the_categories_of_operators(category, operators):
    assert {name: category_of(name) for name in operators} == dict.fromkeys(operators, category)


def annotated(*ranges, thread=1):
    trace = TraceBuilder()
    for name, start, duration in ranges:
        trace.event("user_annotation", name, start, duration, thread, {})
    return trace


def totals(session, by=None):
    whole = int(session.scalar("SELECT coalesce(sum(duration_ns), 0) FROM device_activities"))
    return {one.name: one for one in range_totals(session, by, whole)}


def test_steps_of_an_engine_by_phase_with_tokens_and_layers(load):
    trace = annotated(
        ("step[DECODE bs=2]", 0, 50), ("step[DECODE bs=4]", 100, 50), ("step[EXTEND bs=1 toks=9]", 200, 50)
    )
    for start, kernels in ((10, 2), (110, 2), (210, 3)):
        for at in range(kernels):
            trace.launch(start + at).kernel("kernel_unified_attention_2d", start + 20 + 5 * at, 4)
    found = totals(load(trace))
    decode, prefill = found["decode"], found["prefill"]
    assert (decode.calls, decode.requests, decode.tokens, decode.device_ns) == (2, 6, 6, 16_000)
    assert (decode.layers, decode.device_ns_per_layer, decode.device_ns_per_token) == (2, 4000, 16_000 / 6)
    assert (prefill.tokens, prefill.device_ns, prefill.layers) == (9, 12_000, 3)
    assert decode.device_fraction + prefill.device_fraction == pytest.approx(1)


def test_an_expression_groups_by_what_it_finds(load):
    trace = annotated(("layer 1 forward", 0, 10), ("layer 2 forward", 10, 10), ("other", 20, 10))
    for start in (2, 12, 22):
        trace.launch(start).kernel("k", start + 100, 3)
    session = load(trace)
    assert {name: one.calls for name, one in totals(session, "range:layer").items()} == {"layer": 2}
    assert set(totals(session, r"range:(layer \d)")) == {"layer 1", "layer 2"}
    assert totals(session, "range:nothing") == {}


def test_steps_of_an_engine_are_known_whatever_is_asked_for(load):
    session = load(annotated(("step[DECODE bs=2]", 0, 50)).launch(10).kernel("k", 20, 4))
    asked = Summary(session, by="range:nothing")
    assert (asked.ranges, asked.engine_steps) == ((), Summary(session).ranges)


@cases("ranges", "expected")
def test_what_lies_in_several_ranges_counts_once(load, ranges, expected):
    trace = annotated(*ranges)
    for start in (5, 15, 25):
        trace.launch(start).kernel("k", start + 100, 3)
    found = totals(load(trace), "range:^(?:outer|inner|a|b)$")
    assert {name: one.device_ns for name, one in found.items()} == expected


def test_a_range_that_never_closes_is_none(load):
    trace = annotated(("step[DECODE bs=1]", 0, 10))
    trace.events.append(
        {"ph": "B", "cat": "user_annotation", "name": "step[DECODE bs=8]", "pid": 1, "tid": 1, "ts": 12}
    )
    del trace.events[0]["dur"]
    assert totals(load(trace.launch(14).kernel("k", 20, 1))) == {}


def test_launches_of_other_threads_belong_to_no_range_of_this_one(load):
    trace = annotated(("step[DECODE bs=1]", 0, 10))
    assert totals(load(trace.launch(5, thread=2).kernel("k", 20, 1)))["decode"].device_ns == 0
