"""Document → GitHub-flavored Markdown.

Every character of a name survives: a kernel name full of `<`, `|` and backticks reads in the rendered page as
it was recorded, and no text of a trace can start a heading, a table cell or an HTML tag.
"""

from __future__ import annotations

import re
from functools import singledispatch
from urllib.parse import quote

from opscope.report.document import (
    Align,
    BarList,
    Block,
    BulletList,
    Code,
    CodeBlock,
    Document,
    FactList,
    FindingList,
    Inline,
    Link,
    Meaning,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    inlines,
)
from opscope.visible_text import visible

_SPECIAL = re.compile(r"([\\`*<>|\[\]~$])|(&)(?=#?\w+;)")
_FLANKING_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_LINE_START = re.compile(r"^(\s*\d*)([#+>.)=-])(?=[#=-]*(?:\s|$))")
_BACKTICKS = re.compile(r"`+")
# Control characters would break the line structure, and C1 controls some terminals showing the file.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNSAFE_IN_ADDRESS = re.compile(r"[\x00-\x20\x7f-\x9f\s()<>|\\`\[\]]")
_DEEPEST_HEADING = 6


def render_markdown(document: Document) -> str:
    """The document as Markdown, ending in a newline."""
    parts = [f"# {_prose(document.title)}", *(_block(block) for block in document.blocks)]
    for section in document.sections:
        parts.extend(_section(section, depth=2))
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section, *, depth: int) -> list[str]:
    number = ""
    if section.number is not None:
        number = f"{section.number} " if "." in section.number else f"{section.number}. "
    heading = f"{'#' * min(depth, _DEEPEST_HEADING)} {number}{_prose(section.title)}"
    parts = [heading, *(_block(block) for block in section.blocks)]
    for child in section.sections:
        parts.extend(_section(child, depth=depth + 1))
    return parts


@singledispatch
def _block(block: Block) -> str:
    raise NotImplementedError(type(block).__name__)


@_block.register
def _(block: Paragraph) -> str:
    return _at_line_start(_text(block.text))


@_block.register
def _(block: Meaning) -> str:
    return f"→ {_text(block.text)}"


@_block.register
def _(block: Table) -> str:
    lines = [
        _row(tuple(_prose(column.title) for column in block.columns)),
        _row(tuple("---:" if column.align is Align.RIGHT else "---" for column in block.columns)),
    ]
    lines += [_row(tuple(_text(cell, in_table=True) for cell in row)) for row in block.rows]
    table = "\n".join(lines)
    return table if block.caption is None else f"{_text(block.caption)}\n\n{table}"


@_block.register
def _(block: BarList) -> str:
    return _block(block.table)


@_block.register
def _(block: FactList) -> str:
    return "\n".join(f"- {_prose(label)}: {_text(value)}" for label, value in block.facts)


@_block.register
def _(block: CodeBlock) -> str:
    text = block.text.rstrip().expandtabs(4)
    fence = "`" * max(3, 1 + _longest_backtick_run(text))
    return f"{fence}{block.language}\n{visible(text, most=len(text))}\n{fence}"


@_block.register
def _(block: BulletList) -> str:
    return "\n".join(f"- {_at_line_start(_text(item))}" for item in block.items)


@_block.register
def _(block: FindingList) -> str:
    lines = []
    for finding in block.findings:
        suggestion = f" {_prose(finding.suggestion)}" if finding.suggestion else ""
        message = f"{_prose(finding.message)}{suggestion}"
        severity = block.severities.get(finding.severity, str(finding.severity))
        lines.append(f"- **{severity}** {_code(finding.code, in_table=False)}: {message}")
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(text: Text, *, in_table: bool = False) -> str:
    return "".join(_inline(part, in_table=in_table) for part in inlines(text))


def _inline(part: Inline, *, in_table: bool) -> str:
    if isinstance(part, Code):
        return _code(part.text, in_table=in_table)
    if isinstance(part, Link):
        name = _code(part.text, in_table=in_table)
        # A saved session is a stranger's file too: nothing but a page is linked.
        return f"[{name}]({_address(part.url)})" if part.url.startswith("https://") else name
    return f"**{_prose(part.text)}**" if isinstance(part, Strong) else _prose(part)


def _address(url: str) -> str:
    return _UNSAFE_IN_ADDRESS.sub(lambda match: quote(match.group(0)), url)


def _code(text: str, *, in_table: bool) -> str:
    text = _one_line(text)
    if not text.strip():
        return "(empty)"
    fence = "`" * (1 + _longest_backtick_run(text))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    # A table cell ends at any bare "|", even inside code; GitHub removes this backslash there and only there.
    return fence + pad + (text.replace("|", "\\|") if in_table else text) + pad + fence


def _prose(text: str) -> str:
    escaped = _SPECIAL.sub(lambda match: "\\" + match.group(0), _one_line(text))
    # One flanking underscore (`aten::_softmax`) cannot open and close emphasis: the name stays greppable.
    if len(_FLANKING_UNDERSCORE.findall(escaped)) > 1:
        escaped = _FLANKING_UNDERSCORE.sub(r"\\_", escaped)
    return escaped


def _at_line_start(markdown: str) -> str:
    return _LINE_START.sub(r"\1\\\2", markdown)


def _one_line(text: str) -> str:
    return visible(_CONTROL.sub(" ", text), most=len(text))


def _longest_backtick_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
