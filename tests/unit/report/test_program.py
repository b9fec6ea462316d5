"""What a report says of modules and lines."""

from __future__ import annotations

import pytest

from opscope.analysis.program.values import LineKind, LineTotal, ModuleTotal, ProgramTotals
from opscope.analysis.summary import Summary
from opscope.report.document import Document, Meaning, Table, plain
from opscope.report.markdown import render_markdown
from opscope.report.program import module_blocks, program_sections, recording_hint

from .conftest import cells


def module(path: str, class_name: str, depth: int, total_ns: int, own_ns: int = 0) -> ModuleTotal:
    return ModuleTotal(path, class_name, depth, 2, own_ns, total_ns, total_ns, 0, 3)


MODULES = (
    module("Net_0", "Net", 0, 8_000_000),
    module("Net_0.layers.1", "Block", 1, 5_000_000, 1_000_000),
    module("Net_0.layers.1.Linear_1", "Linear", 2, 4_000_000, 4_000_000),
    module("Net_0.layers.0", "Block", 1, 2_000_000),
    module("Net_0.layers.0.Linear_0", "Linear", 2, 2_000_000, 2_000_000),
    module("Net_0.head", "Linear", 1, 1_000_000, 1_000_000),
)
LINES = (
    LineTotal("net.py", 7, "forward", 2, 8_000_000, 3_000_000, 5_000_000, 9, LineKind.EXECUTED),
    LineTotal("net.py", 3, "helper", None, 500_000, 500_000, 0, 1, LineKind.FUNCTION),
    LineTotal("train.py", 40, "main", 1, 100_000, 100_000, 0, 1, LineKind.RUNNING),
)


@pytest.fixture
def program(summary: Summary) -> Summary:
    totals = ProgramTotals(MODULES, LINES, 8_000_000, 8_600_000, has_modules=True, has_stacks=True)
    return summary.having(program=totals)


def rows(block: object) -> list[list[str]]:
    assert isinstance(block, Table)
    return cells(block)


def test_modules_of_one_part_share_a_row(program: Summary) -> None:
    found = rows(program_sections(program, 10)[0].blocks[0])
    assert [row[0] for row in found] == [
        "Net", "· layers.*: Block ×2", "· · Linear ×2", "· head: Linear",
    ]  # fmt: skip
    assert found[1][1:] == ["4", "7.00 ms", "70.0 %", "1.00 ms", "7.00 ms", "0 ns", "6"]


def test_a_cut_tree_is_whole_above_what_it_shows(program: Summary) -> None:
    table, meaning = module_blocks(program, 1)
    assert isinstance(meaning, Meaning)
    assert [row[0] for row in rows(table)] == ["Net", "· layers.*: Block ×2"]
    assert isinstance(table, Table)
    assert plain(table.caption or "") == (
        "The 2 of 4 parts with the most device time. 2.00 ms (20.0 %) of all device time is in no module."
    )


def test_lines_say_what_their_number_is(program: Summary) -> None:
    table, meaning = program_sections(program, 10)[1].blocks
    assert plain(meaning.text) == "net.py:7 launches the most: 80.0 % of device time."  # type: ignore[union-attr]
    assert [row[:3] for row in rows(table)] == [
        ["net.py:7", "forward", "2"],
        ["net.py:3 def", "helper", "–"],
        ["train.py:40 running", "main", "1"],
    ]
    assert isinstance(table, Table)
    caption = plain(table.caption or "")
    assert caption.startswith("1.40 ms (14.0 %) of all device time is under no line of the program.")
    assert "marked “def”" in caption
    assert "marked “running”" in caption


def test_notes_are_made_only_where_they_apply(program: Summary) -> None:
    table, _ = program_sections(program, 1)[1].blocks
    assert isinstance(table, Table)
    assert plain(table.caption or "").startswith("The first 1 of 3 lines. ")
    assert "marked" not in plain(table.caption or "")


def test_without_either_there_is_no_section_but_a_hint(summary: Summary, cpu_summary: Summary) -> None:
    assert program_sections(summary, 10) == ()
    hint = recording_hint(summary)
    assert hint is not None
    assert "opscope run --record stack --record modules" in plain(hint.text)
    assert recording_hint(cpu_summary) is None


def test_the_hint_names_what_is_missing(summary: Summary, program: Summary) -> None:
    assert recording_hint(program) is None
    hint = recording_hint(summary.having(program=ProgramTotals(lines=LINES, has_stacks=True)))
    assert hint is not None
    assert plain(hint.text).startswith("Device time by nn.Module is not known")


def test_it_renders(program: Summary) -> None:
    text = render_markdown(Document("Report", sections=program_sections(program, 10)))
    assert "| · · `Linear` ×2 | 4 | 6.00 ms |" in text
    assert "## By source line" in text
