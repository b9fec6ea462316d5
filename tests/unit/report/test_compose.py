from __future__ import annotations

import re

from opscope.analysis.summary import Summary
from opscope.model.environment import Environment
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Latency
from opscope.model.session import Session
from opscope.report.compose import analysis_report, configuration_report, overview_document
from opscope.report.document import Section
from opscope.report.markdown import render_markdown


def headings(markdown: str) -> list[str]:
    return re.findall(r"^#+ .*", markdown, flags=re.MULTILINE)


def section(markdown: str, heading: str) -> str:
    return markdown.split(f"\n{heading}", 1)[1].split("\n## ", 1)[0]


def test_the_configuration_report_has_the_sections_of_the_guide(
    summary: Summary, config: dict[str, object], environment: Environment, latency: Latency
) -> None:
    markdown = render_markdown(configuration_report(summary, config, environment, latency))
    assert headings(markdown) == [
        "# Kernel analysis: bert, batch size 8, sequence length 128",
        "## 1. Configuration",
        "## 2. Overview",
        "## 3. Categories",
        "## 4. Top 2 operators in detail",
        "### 4.1 aten::addmm",
        "### 4.2 aten::\\_gelu\\_",
        "## 5. Kernels",
        "## 6. Unattributed time",
        "## 7. Findings",
    ]
    assert "- PyTorch: 2.13.0" in markdown
    assert "median 5.00 ms" in markdown
    assert "1,600.0 sequences/s" in markdown


def test_an_operator_shows_its_real_launch_geometry(summary: Summary) -> None:
    detail = section(render_markdown(analysis_report(summary)), "### 4.1 aten::addmm")
    assert "96×1×1 | 128×1×1 | 200 | 49,152 B | 12.0 %" in detail
    assert "[[768],[1024,768],[768,768]]" in detail
    assert "- CUDA source file: unknown" in detail


def test_an_operator_without_evidence_gets_no_research_points(summary: Summary) -> None:
    gelu = section(render_markdown(analysis_report(summary)), "### 4.2")
    assert "Research points" not in gelu.split("## 5.")[0]


def test_top_cuts_the_operators(summary: Summary) -> None:
    markdown = render_markdown(analysis_report(summary, top=1))
    assert "### 4.1" in markdown
    assert "### 4.2" not in markdown


def test_unattributed_time_is_exact_and_adds_up(summary: Summary) -> None:
    text = section(render_markdown(analysis_report(summary)), "## 6.")
    assert "`before_window` | 999,999 ns | 10.0 % | launched before the recording window opened" in text
    assert "9,000,001 ns + Σ unattributed 999,999 ns = device time 10,000,000 ns, to the nanosecond" in text


def test_figures_that_do_not_add_up_are_called_out(summary: Summary) -> None:
    broken = summary.having(unattributed_ns={"before_window": 1})
    assert "**fails by 999,998 ns.**" in render_markdown(analysis_report(broken))


def test_a_fully_attributed_trace_says_so(summary: Summary) -> None:
    text = section(render_markdown(analysis_report(summary.having(unattributed_ns={}))), "## 6.")
    assert "Every nanosecond of device time belongs to an operator." in text


def test_without_a_device_cpu_time_ranks_and_the_report_says_so(cpu_summary: Summary) -> None:
    markdown = render_markdown(analysis_report(cpu_summary))
    assert "operators are ranked by self CPU time" in section(markdown, "## 4.")
    assert "### 4.1 aten::mm" in markdown
    assert "`report.cpu_time`" in section(markdown, "## 7.")
    assert "Self device" not in markdown


def test_a_report_without_findings_says_none(summary: Summary) -> None:
    assert "\nNone.\n" in section(render_markdown(analysis_report(summary.having(findings=()))), "## 7.")


def test_findings_come_gravest_first(summary: Summary) -> None:
    text = section(render_markdown(analysis_report(summary)), "## 7.")
    assert text.index("trace.truncated") < text.index("trace.before_window")


def test_a_trace_with_nothing_in_it_still_has_its_report() -> None:
    counts = {
        "device_time_ns": 0,
        "attributed_ns": 0,
        "cpu_time_ns": 0,
        "kernel_launches": 0,
        "activity_count": 0,
    }
    empty = Summary(
        Session(),
        traces=(), ranks=(), has_device=False, operator_calls=0, operator_names=0, window_ns=None, devices=(),
        steps=(), accuracy=None, **counts,
    )  # fmt: skip
    markdown = render_markdown(analysis_report(empty))
    assert "## 4. Top operators in detail" in markdown
    assert "none used" in markdown
    assert overview_document(empty).title == "no trace"


def test_what_several_traces_share_is_said_once(summary: Summary) -> None:
    shared = [Finding("trace.absent", Severity.INFO, "Absent: rank.", trace_id=index) for index in range(8)]
    text = render_markdown(analysis_report(summary.having(findings=tuple(shared))))
    assert text.count("trace.absent") == 1
    assert "In 8 traces: Absent: rank." in text


def test_what_differs_in_figures_alone_is_said_once_with_their_range(summary: Summary) -> None:
    shares = ("0.9 % of time (2 activities) in sm90_gemm.", "12.5 % of time (1,087 activities) in sm90_gemm.")
    findings = tuple(
        Finding("trace.early", Severity.INFO, message, trace_id=trace) for trace, message in enumerate(shares)
    )
    two = summary.having(traces=("a.json", "b.json"), ranks=(0, 1), findings=findings)
    text = render_markdown(analysis_report(two))
    assert "In 2 traces: 0.9–12.5 % of time (2–1,087 activities) in sm90_gemm." in text
    assert text.count("% of time") == 1


def test_findings_of_one_trace_stay_apart(summary: Summary) -> None:
    findings = tuple(
        Finding("trace.gap", Severity.INFO, f"Device {device} has a gap.", trace_id=0) for device in (0, 1)
    )
    text = render_markdown(analysis_report(summary.having(findings=findings)))
    assert "Device 0 has a gap." in text
    assert "Device 1 has a gap." in text


def test_a_finding_of_one_of_several_traces_says_whose_it_is(cpu_summary: Summary) -> None:
    own = Finding("trace.truncated", Severity.WARNING, "9 bytes lost.", trace_id=1)
    assert "Rank 1: 9 bytes lost." in render_markdown(analysis_report(cpu_summary.having(findings=(own,))))
    unranked = cpu_summary.having(ranks=(None, None), findings=(own,))
    assert "Trace 1: 9 bytes lost." in render_markdown(analysis_report(unranked))


def test_a_session_that_says_it_has_no_device_is_not_repeated(cpu_summary: Summary) -> None:
    own = Finding("trace.no_device_activity", Severity.WARNING, "No device activity was recorded.")
    text = render_markdown(analysis_report(cpu_summary.having(findings=(own,))))
    assert "report.cpu_time" not in text
    assert "trace.no_device_activity" in text


def test_the_overview_lists_sections_in_order(summary: Summary) -> None:
    document = overview_document(summary)
    assert [found.title for found in document.walk() if isinstance(found, Section)] == [
        "Top operators",
        "Categories",
        "Kernels",
        "Unattributed time",
        "Findings",
    ]
    assert document.title == "runs/bert.json"


def test_the_overview_of_several_traces_counts_them(cpu_summary: Summary) -> None:
    assert overview_document(cpu_summary).title == "2 traces"
