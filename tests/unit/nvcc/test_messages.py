"""What nvcc and the programs behind it say; texts of nvcc 13.0, 12.9, 12.1, 11.4 and gcc 12."""

from __future__ import annotations

import pytest

from opscope.nvcc.messages import Level, Tool, error_text, parse_messages

UNUSED = """\
add.cu(4): warning #177-D: variable "unused" was declared but never referenced
     int unused;
         ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

"""
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3addiPfS_' for 'sm_80'
ptxas info    : Function properties for _Z3addiPfS_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers, 376 bytes cmem[0]
ptxas info    : Compile time = 6.148 ms
ptxas info    : Overriding maximum register limit 256 for '_Z3addiPfS_' with  24 of maxrregcount option
"""
HOST = """\
gw.cu: In function \u2018int main()\u2019:
gw.cu:2:28: warning: format \u2018%s\u2019 expects argument of type \u2018char*\u2019 [-Wformat=]
    2 | int main() { printf("%s", 5); }
      |                      ~^   ~
gw.cu:2:9: note: declared here
"""
# nvcc 13.0, with the line of the temporary file.
PTXAS = """\
ptxas /tmp/tmpxft_00002e45-6_asm.ptx, line 27; error   : Not a name of any known instruction: 'wrong'
ptxas fatal   : Ptx assembly aborted due to errors
"""
LINKER = """\
/usr/bin/ld: /usr/lib/gcc/x86_64-linux-gnu/12/../../../x86_64-linux-gnu/Scrt1.o: in function `_start':
(.text+0x17): undefined reference to `main'
collect2: error: ld returned 1 exit status
"""


def test_a_warning_said_for_every_target_is_one_with_its_context():
    (message,) = parse_messages((UNUSED + REPORT) * 3)
    assert (message.tool, message.level) == (Tool.FRONT_END, Level.WARNING)
    assert message.text == 'variable "unused" was declared but never referenced'
    assert (message.place, message.code) == ("add.cu:4", "#177-D")
    assert message.context == ("     int unused;", "         ^")


def test_a_report_alone_is_no_message():
    assert parse_messages(REPORT) == ()


def test_notes_belong_to_the_host_compilers_warning():
    (message,) = parse_messages(HOST)
    assert (message.tool, message.line, message.code) == (Tool.HOST_COMPILER, 2, "-Wformat=")
    assert message.context[-1] == "gw.cu:2:9: note: declared here"


def test_an_error_of_ptxas_has_its_line():
    first, last = parse_messages(PTXAS)
    assert (first.file, first.line) == ("/tmp/tmpxft_00002e45-6_asm.ptx", 27)
    assert first.level is last.level is Level.ERROR


@pytest.mark.parametrize(
    ("line", "tool", "level", "text"),
    [
        # nvcc 11.4: without numbers of warnings.
        ('a.cu(4): warning: variable "x" was declared but never referenced', Tool.FRONT_END, Level.WARNING,
         'variable "x" was declared but never referenced'),
        ('a.cu(7): error: identifier "wrong" is undefined', Tool.FRONT_END, Level.ERROR,
         'identifier "wrong" is undefined'),
        ('a (1).cu(7): catastrophic error: cannot open source file "b.h"', Tool.FRONT_END, Level.ERROR,
         'cannot open source file "b.h"'),
        ('pw.cu(2): remark #20200-D: #pragma message: "hello"', Tool.FRONT_END, Level.REMARK,
         '#pragma message: "hello"'),
        ("a.cu:1:10: fatal error: nothing.h: No such file or directory", Tool.HOST_COMPILER, Level.ERROR,
         "nothing.h: No such file or directory"),
        ("nvcc fatal   : Unsupported gpu architecture 'sm_99'", Tool.NVCC, Level.ERROR,
         "Unsupported gpu architecture 'sm_99'"),
        # nvcc 12.9.
        ("nvcc warning : Support for offline compilation for architectures prior to "
         "'<compute/sm/lto>_75' will be removed in a future release (Use -Wno-deprecated-gpu-targets to "
         "suppress warning).", Tool.NVCC, Level.WARNING, None),
        # nvcc 12.1.
        ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized "
         "due to non wgmma instructions defining accumulator registers in the function 'gemm'", Tool.PTXAS,
         Level.REMARK, None),
        ("ptxas warning : Too big maxrregcount value specified 300, will be ignored", Tool.PTXAS,
         Level.WARNING, "Too big maxrregcount value specified 300, will be ignored"),
        ("nvlink error   : Undefined reference to '_Z1fi' in '/tmp/ud.o'", Tool.NVLINK, Level.ERROR,
         "Undefined reference to '_Z1fi' in '/tmp/ud.o'"),
        ("gcc: No such file or directory", Tool.HOST_COMPILER, Level.ERROR, "gcc: No such file or directory"),
        ("sh: 1: gcc: not found", Tool.HOST_COMPILER, Level.ERROR, "gcc: not found"),
        ("/usr/bin/ld: warning: a.o: missing .note.GNU-stack section implies executable stack", Tool.LINKER,
         Level.WARNING, None),
    ],
)  # fmt: skip
def test_each_tool_is_understood(line, tool, level, text):
    (message,) = parse_messages(line)
    assert (message.tool, message.level) == (tool, level)
    assert message.raw == line
    if text is not None:
        assert message.text == text


def test_the_code_of_a_remark_of_ptxas_is_kept():
    (message,) = parse_messages("ptxas info    : (C7510) Potential Performance Loss: serialized")
    assert (message.code, message.text) == ("C7510", "Potential Performance Loss: serialized")


def test_errors_are_shown_as_they_were_printed_without_warnings():
    output = UNUSED + PTXAS
    assert error_text(parse_messages(output), output) == PTXAS.strip()


def test_of_what_is_not_understood_the_end_is_shown():
    output = "\n".join(f"Segmentation fault {number}" for number in range(100))
    text = error_text(parse_messages(output), output)
    assert text.splitlines()[-1] == "Segmentation fault 99"
    assert len(text.splitlines()) == 30


def test_a_thousand_errors_are_cut_with_their_number():
    output = "\n".join(f'a.cu({number}): error: identifier "x{number}" is undefined' for number in range(100))
    lines = error_text(parse_messages(output), output).splitlines()
    assert lines[0].startswith("a.cu(0): error")
    assert lines[-1] == "… and 70 more lines"


def test_an_undefined_main_is_told_by_the_linker():
    assert [one.tool for one in parse_messages(LINKER)] == [Tool.LINKER] * 3
    assert "undefined reference to `main'" in [one.text for one in parse_messages(LINKER)]
