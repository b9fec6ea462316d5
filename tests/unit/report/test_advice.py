"""What the first screen says of a change: its gain if that is known, its code if that is whole."""

import pytest

from case_tables import cases
from fakes import H200, TraceBuilder
from opscope.advice import assess
from opscope.advice.rules import rule_book
from opscope.model.finding import Finding, Severity
from opscope.report import document as doc
from opscope.report.advice import gain_text, headline, short_edit
from opscope.report.analysis import recording_document


def finding(change=None, interval=None):
    gain = {"estimated_gain_ns_per_step": 2e6, "gain_interval_ns_per_step": interval}
    return Finding("advice.x", Severity.INFO, "A message.", **gain, change=change)


@cases("interval", "text")
def test_a_gain_known_to_no_better_than_a_factor_of_three_is_no_number(interval, text):
    assert gain_text(finding(interval=interval), "a step") == text


@cases("rule", "edit")
def test_code_is_whole_or_not_there(rule, edit):
    assert short_edit(finding(rule_book().rules[f"advice.{rule}"].change)) == edit


def test_what_was_not_simulated_is_bound_by_nothing(load):
    """As where pages of unified memory move for long after the one kernel."""
    builder = TraceBuilder().launch(0, 5).kernel("add", 10, 2000)
    for number in range(40):
        at = 2500 + 250 * number
        builder.kernel("Memcpy Unified", at, 9, correlation=900 + number, category="gpu_memcpy", stream=9)
    assert doc.plain(dict(headline(assess(load(builder))).facts)["GPU busy"]) == "19.3 % recorded"


@pytest.mark.parametrize(("kernel", "said"), [("gemm", "GPU-bound"), ("ncclDevKernel", "exposed communi")])
def test_a_device_that_waits_for_other_ranks_decides_nothing(load, kernel, said):
    builder = TraceBuilder(deviceProperties=[H200]).step(1, 0, 10_000).step(2, 10_000, 10_000)
    for at in (0, 10_000):
        builder.operator("aten::mm", at + 10, 1000).launch(at + 15).kernel("gemm", at + 20, 1000)
        builder.operator("comms", at + 1020, 3000).launch(at + 1030).kernel(kernel, at + 1036, 8500)
        builder.launch(at + 4030, 5510, name="cudaDeviceSynchronize")
    assert said in doc.plain(dict(headline(assess(load(builder))).facts)["GPU busy"])


def test_operators_of_a_step_stand_in_the_order_of_its_figures(load):
    builder = TraceBuilder(deviceProperties=[H200]).operator("aten::mm", 0, 40)
    builder.launch(5).kernel("gemm", 20, 5000).step(1, 6000, 2000)
    for at, name, duration in ((6010, "aten::mm", 100), (6500, "aten::add", 900)):
        builder.operator(name, at, 40).launch(at + 5).kernel("kernel", at + 20, duration)
    sections = recording_document(assess(load(builder)), is_screen=True).sections
    rows = next(one.blocks[0].rows for one in sections if one.title == "Top operators")
    assert [doc.plain(row[1]) for row in rows] == ["aten::add", "aten::mm"]
