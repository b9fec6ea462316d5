"""What a report says of modules and lines."""

from msgspec.structs import replace

from opscope.analysis.program.places import LineKind, LineTotal, ModuleTotal, ProgramTotals
from opscope.report.document import Document, Section, blocks
from opscope.report.markdown import render_markdown
from opscope.report.timeline import program_sections, recording_hint


def module(path, class_name, depth, total_ns, own_ns=0):
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


def test_what_is_said_of_modules_and_lines(summary, cpu_summary, expect):
    totals = ProgramTotals(MODULES, LINES, 8_000_000, 8_600_000, has_modules=True, has_stacks=True)
    program = summary.having(program=totals)
    stacks_alone = summary.having(program=ProgramTotals(lines=LINES, has_stacks=True))
    hints = {"nothing recorded": recording_hint(summary), "no modules": recording_hint(stacks_alone)}
    shown = [
        *program_sections(program, 10),
        *(replace(one, title=f"{one.title}, cut") for one in program_sections(program, 1)),
        *(Section(name, blocks(one)) for name, one in hints.items()),
    ]
    expect("program.txt", render_markdown(Document("", sections=tuple(shown))))
    assert program_sections(summary, 10) == ()
    assert recording_hint(cpu_summary) is recording_hint(program) is None
