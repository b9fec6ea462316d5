"""What to change: each advice with its estimated gain, what it rests on and the change to try."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from opscope.advice.rules import rule_book
from opscope.analysis.summary import Summary
from opscope.model.finding import Finding
from opscope.report import document as doc
from opscope.units import format_duration, format_quantity

_SHOWN = 6
_CODES = 3
_OF_A_BLOCK = 2
_LONGEST_CODE = 140
_NOTHING = "Nothing: no rule found anything worth changing in what was recorded."


def advice_blocks(summary: Summary, *, is_full: bool) -> tuple[doc.Block, ...]:
    """One point each unless sections tell them in full, then how several gains go together."""
    advice, together = summary.advice or (), None
    if not advice:
        return (doc.Meaning(_NOTHING),)
    points = [] if is_full else [*_points(summary, advice[:_SHOWN])]
    if points and len(advice) > _SHOWN:
        points.append(doc.BulletList((f"{len(advice) - _SHOWN} more: --full prints them all.",)))
    best = summary.best_set
    if best is not None and sum(finding.is_gain_known for finding in advice) > 1:
        gain = f"{format_duration(best.estimated_gain_ns_per_step)} {_period(summary)}"
        together = doc.Paragraph(
            f"Gains do not add up. The best set is {set_text(summary, best.codes)}: −{gain}."
        )
    told: doc.Text = "No gain could be estimated for these."
    if any(one.is_to_try for one in advice):
        told = "Gains are simulated, each for that change alone."
        if summary.is_of_torch:
            told = (
                "Gains are simulated, each for that change alone. ",
                doc.Code("opscope try SCRIPT", is_whole=True),
                " applies changes to the program and measures them.",
            )
    return doc.blocks(*_joined_points(points), together, doc.Meaning(told))


def remarks(summary: Summary) -> tuple[doc.Block, ...]:
    """What the first lines have no room for: changes of longer code, and what has no gain to name."""
    found = [
        one for one in summary.advice or () if not one.is_to_try or (one.change and short_edit(one) is None)
    ]
    points = dict.fromkeys(_points(summary, found[:_CODES]))  # code that two have in common stands once
    if len(found) > _CODES:
        points[doc.BulletList((f"{len(found) - _CODES} more: --section change.",))] = None
    return tuple(_joined_points(points))


def _points(summary: Summary, findings: Sequence[Finding]) -> Iterator[doc.Block]:
    numbers = change_numbers(summary)
    for rank, finding in enumerate(findings):
        parts: list[doc.Inline] = []
        if finding.is_to_try and finding.code in numbers:
            number, gain = f"Change {numbers[finding.code]}", _gain(finding, summary, "−")
            parts = [doc.Strong(number), ": ", doc.Strong(gain), ". "]
        parts += [finding.message, f" {finding.suggestion}" if finding.suggestion else ""]
        yield doc.BulletList((tuple(filter(None, parts)),))
        if finding.change and rank < _CODES:
            yield _code(finding.change)


def _code(change: str) -> doc.CodeBlock:
    is_command = re.match(r"\s*(opscope|python|ncu|nsys)\s", change)
    return doc.CodeBlock(change, "bash" if is_command else "python")


def short_edit(finding: Finding) -> str | None:
    """The first of the code's alternatives, whole and on one line; None if that is too long, or cannot be."""
    first = (finding.change or "").strip().partition("\n\n")[0].splitlines()
    lines = [line.partition("   #")[0].rstrip() for line in first]
    lines = [line for line in lines if line and not line.startswith("#")]
    opens = bool(lines) and lines[0].endswith(":")
    edit = " ".join(map(str.strip, lines)) if opens and len(lines) == _OF_A_BLOCK else "; ".join(lines)
    if not edit or len(edit) > _LONGEST_CODE:
        return None
    try:
        ast.parse(edit)
    except SyntaxError:
        return edit if len(lines) == 1 and not opens else None  # a command
    return edit


def _joined_points(points: Iterable[doc.Block]) -> Iterator[doc.Block]:
    """Points without code between them are one list."""
    for kind, run in groupby(points, type):
        if kind is not doc.BulletList:
            yield from run
        else:
            lists = (one.items for one in run if isinstance(one, doc.BulletList))
            yield doc.BulletList(tuple(chain.from_iterable(lists)))


def advice_sections(summary: Summary) -> tuple[doc.Section, ...]:
    numbers, shown = change_numbers(summary), []
    for one in summary.advice or ():
        title = change_title(one)
        if one.is_to_try and one.code in numbers:
            title = f"Change {numbers[one.code]}: {title}"
        known = doc.facts(
            ("Severity", str(one.severity)),
            ("Estimated gain", _gain(one, summary) if one.estimated_gain_ns_per_step else None),
            ("How it was estimated", one.gain_basis),
            *((_label(key), _value(key, value)) for key, value in one.evidence.items()),
            ("Rule", doc.Code(one.code)),
        )
        told = (
            doc.Paragraph(one.message),
            doc.Paragraph(one.suggestion) if one.suggestion else None,
            _code(one.change) if one.change else None,
            known,
        )
        shown.append(doc.Section(title, doc.blocks(*told)))
    return tuple(shown)


def change_numbers(summary: Summary) -> dict[str, int]:
    """The number of each change to try, by code, the most promising first.

    One call of torch.compile is one change, whatever for.
    """
    to_try: dict[str, str] = {}
    for one in summary.advice or ():
        if one.is_to_try:
            to_try.setdefault(one.code, one.change or "")
    compiling = [code for code, change in to_try.items() if "torch.compile(" in change]
    numbered = (code for code in to_try if code not in compiling[1:])
    return {code: number for number, code in enumerate(numbered, 1)}


def set_text(summary: Summary, codes: Sequence[str]) -> str:
    """`changes 1 + 3`: a set of changes by their numbers."""
    numbers = change_numbers(summary)
    shown = sorted(numbers[code] for code in codes if code in numbers)
    numbered = " + ".join(map(str, shown))
    return f"change {numbered}" if len(shown) == 1 else f"changes {numbered}"


def change_title(finding: Finding) -> str:
    rule = rule_book().rules.get(finding.code)
    return finding.code if rule is None else rule.title


def gain_text(finding: Finding, period: str, sign: str = "−") -> str:
    """What a change takes off; no number where that is known to no better than a factor of 3."""
    if not finding.is_gain_known:
        return "unknown, try it"
    return f"{sign}{format_duration(finding.estimated_gain_ns_per_step)} {period}"


def _gain(finding: Finding, summary: Summary, sign: str = "") -> str:
    text, interval = gain_text(finding, _period(summary), sign), finding.gain_interval_ns_per_step
    if interval is None or not finding.is_gain_known:
        return text
    low, high = map(format_duration, interval)
    return text if low == high else f"{text} ({low} to {high})"


def _period(summary: Summary) -> str:
    """A recording without steps counts as one."""
    if summary.steps:
        return "per step"
    return "of the recording" if len(summary.traces) < 2 else "per trace"


_SUFFIXES = (("_ns_per_step", " per step"), ("_ns", " time"), ("_fraction", " share"))


def _label(key: str) -> str:
    """`device_ns` as Device time, `device_fraction` as Device share."""
    for suffix, words in _SUFFIXES:
        if key.endswith(suffix):
            key = key.removesuffix(suffix)
            key += "" if "share" in key else words
            break
    words = key.replace("_", " ")
    return words[:1].upper() + words[1:]


def _value(key: str, value: Any) -> doc.Text:
    """A number by the unit in its name; a list by its members."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int | float):
        return format_quantity(key, value)
    if isinstance(value, list | tuple):
        return doc.Code(", ".join(map(str, value)))
    return doc.Code(str(value))
