from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from opscope.analysis.summary import Summary
from opscope.report.compose import analysis_report, overview_document
from opscope.report.document import (
    Align,
    BulletList,
    Code,
    CodeBlock,
    Column,
    Document,
    FindingList,
    Paragraph,
    Section,
    Table,
)
from opscope.report.terminal import render_terminal


def rendered(document: Document, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(render_terminal(document))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_console_and_no_number_is_cut(summary: Summary, width: int) -> None:
    text = rendered(overview_document(summary), width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("6.00 ms", "60.0 %", "999,999 ns", "800 µs"):
        assert number in text
    assert "before_window" in text


def test_a_long_name_loses_its_middle(summary: Summary) -> None:
    text = rendered(overview_document(summary), 80)
    assert "sm80_xmma" in text
    assert "_execute" in text
    assert summary.kernels[0].name not in text


def test_a_name_that_fits_is_whole(summary: Summary) -> None:
    assert summary.kernels[0].name in rendered(overview_document(summary), 200)


def test_kernels_that_differ_in_the_middle_still_differ(summary: Summary) -> None:
    name = summary.kernels[0].name
    twin = replace(summary.kernels[0], name=name.replace("tilesize128", "tilesize64"))
    text = rendered(overview_document(replace(summary, kernels=(summary.kernels[0], twin))), 100)
    assert "size128" in text
    assert "size64" in text


def test_the_full_report_renders_too(summary: Summary, cpu_summary: Summary) -> None:
    assert "4.1 aten::addmm" in rendered(analysis_report(summary), 120)
    assert "ranked by CPU time" in rendered(analysis_report(cpu_summary), 80)


def test_bars_are_drawn_where_there_is_room(summary: Summary) -> None:
    assert "█" in rendered(overview_document(summary), 120)
    assert "█" not in rendered(overview_document(summary), 50)


def test_control_sequences_of_a_trace_do_not_reach_the_terminal(summary: Summary) -> None:
    operator = replace(summary.operators[0], name="evil\x1b[2J\u202e" * 20)
    text = rendered(overview_document(replace(summary, operators=(operator,))), 80)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_markup_in_names_is_text(summary: Summary) -> None:
    operator = replace(summary.operators[0], name="[bold]x[/bold]")
    assert "[bold]x[/bold]" in rendered(overview_document(replace(summary, operators=(operator,))), 120)


def test_every_block_renders() -> None:
    table = Table((Column("n", Align.RIGHT), Column("name")), (("1", Code("x")),), caption="Caption")
    blocks = (Paragraph("text"), BulletList(("point",)), CodeBlock("code", "c"), FindingList(()), table)
    text = rendered(Document("Title", blocks, (Section("", (Paragraph("plain"),)),)), 80)
    for word in ("Title", "text", "• point", "code", "Caption", "x", "plain"):
        assert word in text
