"""Document → rich renderables, for terminals of 80 to 200 columns.

Names too long for their column lose their middle, but keep the part in which they differ;
numbers are never cut.
Nothing here prints: the command line hands the result to a console.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text as Words

from opscope.model.finding import Severity
from opscope.report import document as doc
from opscope.report.names import fitting_names, is_operator_name, least_width, shorten_middle
from opscope.visible_text import visible

GAP = 2  # blanks between columns
_SHORTEST_NAME = 24


Widths = tuple[int, int, int]


def column_widths(column: doc.Column, cells: Sequence[doc.Text]) -> Widths:
    """What a column takes at the very least, before its cells suffer (its heading wrapped), and in full.

    In cells of a terminal: one for most characters, two for a Chinese one. Numbers, operators never suffer.
    """
    texts = [doc.plain(cell) for cell in cells]
    longest = max(map(cell_len, texts), default=0)
    heading, full = _longest_word(column.title), max(longest, cell_len(column.title))
    floor, names = max(4, heading), [doc.plain(cell) for cell in cells if _holds_name(cell)]
    if column.is_number:
        least = floor = max(longest, heading)
    elif names:
        least = max(min(longest, max(_SHORTEST_NAME, least_width(texts))), heading)
        floor = max(min(least, _SHORTEST_NAME), heading) if all(map(is_operator_name, names)) else floor
    else:
        # Short texts are kept on one line.
        kept = (count for count in map(len, texts) if count <= 16)
        least = max([heading, *map(_longest_word, texts), *kept])
    return floor, least, full


def fit_widths(columns: Sequence[Widths], available: int) -> list[int]:
    """Widths of the columns, together at most `available` where that is possible.

    What is beyond the least that each needs, or missing to it, they share by what they can use or spare.
    """
    if sum(full for *_, full in columns) <= available:
        return [full for *_, full in columns]
    share = available - sum(least for _, least, _ in columns)
    usable = [full - least if share > 0 else least - floor for floor, least, full in columns]
    whole = sum(usable) or 1
    return [
        least + max(-most, share * most // whole) for (_, least, _), most in zip(columns, usable, strict=True)
    ]


# Chinese has no blanks between words: lines break between any two characters, best not after one alone.
_WIDE_WORD = re.compile("[\u3000-\u9fff\uff00-\uffef]{1,3}")


def _longest_word(text: str) -> int:
    return max(map(cell_len, _WIDE_WORD.sub(r"\g<0> ", text).split()), default=0)


_NAME_STYLE = "cyan"
_PLAIN_ADDRESS = re.compile(r"https://[\w./#~%+-]+")  # what rich takes as one word of a style
_SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render_terminal(document: doc.Document) -> RenderableType:
    """The document as one renderable: its own blocks in a panel, then its sections."""
    parts: list[RenderableType] = []
    title = _printable(document.title)
    body = Group(*(_block(block) for block in document.blocks))
    if document.blocks and all(isinstance(block, doc.FactList) for block in document.blocks):
        name = Words(shorten_middle(title, 60), style="bold")
        parts.append(Panel(body, title=name, title_align="left", border_style="dim", expand=False))
    elif title or document.blocks:
        parts += [Words(title, style="bold"), *([body] if document.blocks else [])]
    for section in document.sections:
        parts.extend(_section(section))
    return Group(*parts)


class _Name:
    def __init__(self, words: Words) -> None:
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._words.cell_len <= options.max_width:
            yield self._words
        else:
            (short,) = fitting_names([self._words.plain], options.max_width)
            yield Words(short, style=_NAME_STYLE, no_wrap=not is_operator_name(short))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = self._words.cell_len
        return Measurement(min(longest, _SHORTEST_NAME), longest).with_maximum(options.max_width)


class _FittedTable:
    """A table whose columns are fitted to the console.

    Where they need more than there is, spare columns are left out, the last of them first, and named below.
    """

    def __init__(self, table: doc.Table) -> None:
        self._table = table
        self._cells = [[row[index] for row in table.rows] for index in range(len(table.columns))]
        self._needs = [column_widths(*pair) for pair in zip(table.columns, self._cells, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles, needs, width = self._table.columns, self._needs, options.max_width
        shown = list(range(len(needs)))
        spare = sorted(
            (index for index in shown if titles[index].spare), key=lambda at: (titles[at].spare, at)
        )
        while spare and sum(needs[index][1] + GAP for index in shown) - GAP > width:
            shown.remove(spare.pop())
        available = width - GAP * (len(shown) - 1)
        widths = fit_widths([needs[index] for index in shown], available)
        # The box draws one blank between columns, the padding the other.
        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        columns = []
        for index, each in zip(shown, widths, strict=True):
            justify: JustifyMethod = "right" if titles[index].is_number else "left"
            grid.add_column(titles[index].title, justify=justify, width=each, overflow="fold")
            columns.append(_cells(self._cells[index], each))
        for row in zip(*columns, strict=True):
            grid.add_row(*row)
        yield grid
        if hidden := [one.title for index, one in enumerate(titles) if index not in shown]:
            yield Words(self._table.left_out.format(", ".join(hidden)), style="dim")


def _section(section: doc.Section) -> Iterator[RenderableType]:
    heading = f"{section.number} {section.title}" if section.number else section.title
    if heading:
        yield Words(f"\n{_printable(heading)}", style="bold")
    for previous, block in zip((None, *section.blocks), section.blocks, strict=False):
        if previous is not None and not isinstance(previous, doc.Paragraph):
            yield Words("")
        yield _block(block)
    for child in section.sections:
        yield from _section(child)


def _block(block: doc.Block) -> RenderableType:  # noqa: PLR0911 - a case for each kind
    match block:
        case doc.Paragraph(text):
            words = _words(text)
            if isinstance(text, doc.Link):  # an address stays in one piece, however narrow the terminal
                words.no_wrap, words.overflow = True, "ignore"
            return words
        case doc.Meaning(text):
            return _bulleted([(Words("→", style="bold"), _words(text))])
        case doc.Table(caption=caption):
            table = _FittedTable(block)
            return table if caption is None else Group(_words(caption), table)
        case doc.FactList(facts):
            grid = Grid.grid(padding=(0, 2))
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(overflow="fold")
            for label, value in facts:
                match doc.inlines(value):
                    case (doc.Link() | doc.Code(is_whole=False),):  # one name, which may be shortened
                        grid.add_row(label, _Name(_words(value)))
                    case _:
                        grid.add_row(label, _words(value))
            return grid
        case doc.CodeBlock(code):
            # Copied from a terminal it must still be code: a line that is too long is not broken.
            text = code.rstrip().expandtabs(4)
            lines = visible(text, most=len(text)).split("\n")
            return Group(*(Words(f"  {line}", no_wrap=True, overflow="ignore") for line in lines))
        case doc.BulletList(items):
            return _bulleted([(Words("•"), _words(item)) for item in items])
        case doc.FindingList(findings, severities):
            rows = []
            for one in findings:
                severity = severities.get(one.severity, str(one.severity))
                said = _printable(" ".join(filter(None, (one.message, one.suggestion))))
                rows.append((Words(severity, style=_SEVERITY_STYLES[one.severity]), Words(said)))
            return _bulleted(rows)


def _bulleted(rows: list[tuple[Words, Words]]) -> Grid:
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, words in rows:
        grid.add_row(mark, words)
    return grid


def _cells(texts: Sequence[doc.Text], width: int) -> list[RenderableType]:
    """The cells of one column; names that do not fit keep what tells them apart, operators everything."""
    names = [doc.plain(text) for text in texts if _holds_name(text)]
    short = dict(zip(names, fitting_names(names, width), strict=True))
    return [
        Words(_printable(short[doc.plain(text)]), style=_NAME_STYLE, no_wrap=True)
        if _holds_name(text) and len(doc.plain(text)) > width and not is_operator_name(doc.plain(text))
        else _words(text)
        for text in texts
    ]


def _holds_name(text: doc.Text) -> bool:
    return any(isinstance(part, doc.Code | doc.Link) for part in doc.inlines(text))


def _words(text: doc.Text) -> Words:
    words = Words()
    for part in doc.inlines(text):
        style = _NAME_STYLE if isinstance(part, doc.Code | doc.Link) else ""
        if isinstance(part, doc.Link) and _PLAIN_ADDRESS.fullmatch(part.url):
            style = f"{_NAME_STYLE} link {part.url}"
        words.append(_printable(doc.plain(part)), style="bold" if isinstance(part, doc.Strong) else style)
    return words


def _printable(text: str) -> str:
    # A trace is a stranger's file: its names must not reach the terminal as control sequences.
    return "".join(character if character.isprintable() else "�" for character in text)
