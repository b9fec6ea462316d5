"""Document → GitHub-flavored Markdown.

Every character of a name survives: a kernel name full of `<`, `|` and backticks reads in the rendered page as
it was recorded, and no text of a trace can start a heading, a table cell or an HTML tag.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from opscope.report import document as doc
from opscope.visible_text import visible

_SPECIAL = re.compile(r"([\\`*<>|\[\]~$])|(&)(?=#?\w+;)")
_FLANKING_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_LINE_START = re.compile(r"^(\s*\d*)([#+>.)=-])(?=[#=-]*(?:\s|$))")
_BACKTICKS = re.compile(r"`+")
# Control characters would break the line structure, and C1 controls some terminals showing the file.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNSAFE_IN_ADDRESS = re.compile(r"[\x00-\x20\x7f-\x9f\s()<>|\\`\[\]]")


def render_markdown(document: doc.Document) -> str:
    whole = doc.Section(document.title, document.blocks, document.sections)
    return "\n\n".join(part for part in _section(whole, depth=1) if part) + "\n"


def _section(section: doc.Section, *, depth: int) -> list[str]:
    number = section.number or ""
    if number:
        number += " " if "." in number else ". "
    heading = f"{'#' * min(depth, 6)} {number}{_prose(section.title)}"
    below = (part for child in section.sections for part in _section(child, depth=depth + 1))
    return [heading, *map(_block, section.blocks), *below]


def _block(block: doc.Block) -> str:  # noqa: PLR0911 - a case for each kind
    match block:
        case doc.Paragraph(text):
            return _at_line_start(_text(text))
        case doc.Meaning(text):
            return f"→ {_text(text)}"
        case doc.FactList(facts):
            return "\n".join(f"- {_prose(label)}: {_text(value)}" for label, value in facts)
        case doc.BulletList(items):
            return "\n".join(f"- {_at_line_start(_text(item))}" for item in items)
        case doc.CodeBlock(code, language):
            text = code.rstrip().expandtabs(4)
            fence = "`" * max(3, 1 + _longest_backtick_run(text))
            return f"{fence}{language}\n{visible(text, most=len(text))}\n{fence}"
        case doc.Table(columns, rows, caption):
            cells = [[_prose(column.title) for column in columns]]
            cells.append(["---:" if column.is_number else "---" for column in columns])
            cells += [[_text(cell, in_table=True) for cell in row] for row in rows]
            lines = [f"| {' | '.join(row)} |" for row in cells]
            return "\n".join(lines if caption is None else [f"{_text(caption)}\n", *lines])
        case doc.FindingList(findings, severities):
            return "\n".join(
                f"- **{severities.get(one.severity, str(one.severity))}** {_code(one.code, in_table=False)}: "
                + " ".join(map(_prose, filter(None, (one.message, one.suggestion))))
                for one in findings
            )


def _text(text: doc.Text, *, in_table: bool = False) -> str:
    return "".join(_inline(part, in_table=in_table) for part in doc.inlines(text))


def _inline(part: doc.Inline, *, in_table: bool) -> str:
    if isinstance(part, doc.Code):
        return _code(part.text, in_table=in_table)
    if isinstance(part, doc.Link):
        name = _code(part.text, in_table=in_table)
        # A saved session is a stranger's file too: nothing but a page is linked.
        if not part.url.startswith("https://"):
            return name
        return f"[{name}]({_UNSAFE_IN_ADDRESS.sub(lambda match: quote(match[0]), part.url)})"
    return f"**{_prose(part.text)}**" if isinstance(part, doc.Strong) else _prose(part)


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
