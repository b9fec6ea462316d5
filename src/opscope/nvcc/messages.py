"""What the programs behind nvcc say: errors and warnings, each with file and line where it has them.

nvcc's front end, the host compiler, ptxas, nvlink and the linker write in their own ways, and say the same
thing once for every target. The text stays theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opscope.text_enum import TextEnum


class Tool(TextEnum):
    """Who says it."""

    NVCC = "nvcc"
    FRONT_END = "front end"  # cudafe++ and cicc: what reads C++
    PTXAS = "ptxas"
    NVLINK = "nvlink"
    HOST_COMPILER = "host compiler"
    LINKER = "linker"


class Level(TextEnum):
    """How grave it is to the one who says it."""

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


@dataclass(frozen=True)
class Message:
    """One thing said.

    Attributes:
        raw: The line as it was printed.
        text: Its words, without place, level and code.
        file: Where it is, as the tool writes it.
        line: In the file, from 1.
        code: The tool's name for it: `#177-D`, `-Wunused-variable`, `C7510`.
        context: The lines under it: the source, notes.
    """

    tool: Tool
    level: Level
    raw: str
    text: str
    file: str | None = None
    line: int | None = None
    code: str | None = None
    context: tuple[str, ...] = ()

    @property
    def place(self) -> str | None:
        """File and line, `add.cu:4`."""
        if self.file is None:
            return None
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def lines(self) -> tuple[str, ...]:
        """The message as it was printed, with its context."""
        return (self.raw, *self.context)


_LEVELS = {"warning": Level.WARNING, "remark": Level.REMARK, "info": Level.REMARK}  # else an error
# `add.cu(4): warning #177-D: variable "unused" was declared but never referenced`
_FRONT_END = re.compile(
    r"^(?P<file>\S.*?)\((?P<line>\d{1,18})\): (?P<level>(?:catastrophic |internal )?error|warning|remark)"
    r"(?: (?P<code>#\d+(?:-D)?))?: (?P<text>.*)$",
    re.IGNORECASE,
)
# `add.cu:1:10: fatal error: nothing.h: No such file or directory`
_HOST = re.compile(
    r"^(?P<file>[^\s:(][^:(]*):(?P<line>\d{1,18}):(?:\d+:)? (?P<level>fatal error|error|warning): "
    r"(?P<text>.*?)(?: \[(?P<code>-W[^\]]+)\])?$"
)
# `ptxas /tmp/a.ptx, line 27; error   : Not a name of any known instruction: 'wrong'`
_TOOL = re.compile(
    r"^(?P<tool>nvcc|ptxas|nvlink|cudafe\+\+|cicc|fatbinary)(?: (?P<file>\S+), line (?P<line>\d{1,18});)? "
    r"(?P<level>fatal|error|warning|info)\s*: (?:\((?P<code>C\d+)\):? )?(?P<text>.*)$"
)
# What -v makes ptxas and nvlink print.
_REPORT = re.compile(
    r"\d+ bytes gmem|Compiling entry function|Function properties for|[Uu]sed \d+ registers|Compile time =|"
    r"Overriding maximum register limit"
)
_UNDEFINED = re.compile(r"^.*: (?P<warning>)(?P<text>(?:undefined reference to|multiple definition of) .*)$")
_LINKER = re.compile(
    r"^(?:\S*/)?(?:ld|collect2|mold)(?:\.\w+)?: (?:error: |(?P<warning>warning: ))?(?P<text>.*)$"
)
_MISSING = re.compile(r"^(?P<text>\S+: (?:No such file or directory|Permission denied|not found))$")
_SHELL_MISSING = re.compile(r"^sh: (?:\d+: )?(?P<text>\S+: .*not found)$")
_TOOLS = {"ptxas": Tool.PTXAS, "nvlink": Tool.NVLINK, "cudafe++": Tool.FRONT_END, "cicc": Tool.FRONT_END}
_NOTE = re.compile(r"^\S.*?: note: ")


def parse_messages(text: str) -> tuple[Message, ...]:
    """What was said, each thing once, in its order."""
    said = dict.fromkeys(_messages(text.splitlines()))
    distinct: dict[Message, Message] = {}
    for message in said:
        distinct.setdefault(replace(message, context=()), message)
    return tuple(distinct.values())


def error_text(messages: Sequence[Message], output: str, *, most_lines: int = 30) -> str:
    """The errors among what was said, with their context; the end of the output where none was understood."""
    errors = [message for message in messages if message.level is Level.ERROR]
    lines = [line for message in errors for line in message.lines()]
    if not lines:
        lines = output.strip().splitlines()[-most_lines:]
    left_out = len(lines) - most_lines
    return "\n".join([*lines[:most_lines], f"… and {left_out} more lines"] if left_out > 0 else lines)


def _messages(lines: Sequence[str]) -> Iterator[Message]:
    message: Message | None = None
    for line in lines:
        following = _message(line)
        if following is not None:
            if message is not None:
                yield message
            message = following
        elif message is not None and _is_context(line):
            message = replace(message, context=(*message.context, line.rstrip()))
        elif message is not None:
            yield message
            message = None
    if message is not None:
        yield message


def _is_context(line: str) -> bool:
    """Source lines and carets are indented; notes belong to what they explain."""
    return bool(line.strip()) and (line[0] in " \t" or _NOTE.match(line) is not None)


def _message(line: str) -> Message | None:
    for pattern, tool in ((_FRONT_END, Tool.FRONT_END), (_HOST, Tool.HOST_COMPILER)):
        match = pattern.match(line)
        if match is not None:
            level = _LEVELS.get(match["level"].lower(), Level.ERROR)
            place = match["file"], int(match["line"])
            return Message(tool, level, line, match["text"], *place, match["code"])
    return _of_tool(line) or _of_linker(line) or _of_shell(line)


def _of_tool(line: str) -> Message | None:
    match = _TOOL.match(line)
    if match is None or _REPORT.match(match["text"]):
        return None
    number = match["line"]
    return Message(
        _TOOLS.get(match["tool"], Tool.NVCC),
        _LEVELS.get(match["level"], Level.ERROR),
        line,
        match["text"],
        match["file"],
        None if number is None else int(number),
        match["code"],
    )


def _of_linker(line: str) -> Message | None:
    match = _UNDEFINED.match(line) or _LINKER.match(line)
    if match is None:
        return None
    level = Level.WARNING if match["warning"] else Level.ERROR
    return Message(Tool.LINKER, level, line, match["text"])


def _of_shell(line: str) -> Message | None:
    """A program that nvcc could not start; it is the host compiler, for the others are nvcc's own."""
    match = _MISSING.match(line) or _SHELL_MISSING.match(line)
    return None if match is None else Message(Tool.HOST_COMPILER, Level.ERROR, line, match["text"])
