"""What to change: each advice with its estimated gain, what it rests on and the change to try."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from opscope.advice.rules import rule_book
from opscope.analysis.summary import Summary
from opscope.model.finding import Finding
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    CodeBlock,
    FactList,
    Inline,
    Meaning,
    Paragraph,
    Section,
    Strong,
    Text,
    blocks,
)
from opscope.report.meanings import advice_meaning
from opscope.units import format_duration, format_quantity

_SHOWN = 6
_CODES = 3
_NOTHING = "Nothing: no rule found anything worth changing in what was recorded."


def advice_blocks(summary: Summary) -> tuple[Block, ...]:
    """The short form: one point each, the largest gain first; the first of them with their code."""
    advice = summary.advice or ()
    if not advice:
        return (Meaning(_NOTHING),)
    blocks: list[Block] = []
    for rank, finding in enumerate(advice[:_SHOWN]):
        blocks.append(BulletList((_point(finding, summary),)))
        if finding.change and rank < _CODES:
            blocks.append(CodeBlock(finding.change, _language(finding.change)))
    rest = len(advice) - _SHOWN
    if rest > 0:
        blocks.append(BulletList((f"{rest} more: --full prints them all.",)))
    return (*_joined_points(blocks), *_apart(summary))


def _joined_points(blocks: list[Block]) -> Iterator[Block]:
    """Points without code between them are one list."""
    for are_points, run in groupby(blocks, lambda block: isinstance(block, BulletList)):
        if are_points:
            yield BulletList(tuple(item for one in run if isinstance(one, BulletList) for item in one.items))
        else:
            yield from run


def advice_sections(summary: Summary) -> tuple[Section, ...]:
    """A section for each, with evidence and code."""
    return tuple(_section(finding, summary) for finding in summary.advice or ())


def advice_notes(summary: Summary) -> tuple[Block, ...]:
    """What stands before the sections: how to read several gains, or that there is no advice."""
    return _apart(summary) if summary.advice else (Meaning(_NOTHING),)


def change_numbers(summary: Summary) -> dict[str, int]:
    """The number of each change with a gain, by code, the largest gain first, unknown ones last."""
    gaining = [one.code for one in summary.advice or () if one.is_to_try]
    return {code: number for number, code in enumerate(dict.fromkeys(gaining), 1)}


def set_text(summary: Summary, codes: Sequence[str]) -> str:
    """`changes 1 + 3`: a set of changes by their numbers."""
    numbers = change_numbers(summary)
    shown = sorted(numbers[code] for code in codes if code in numbers)
    numbered = " + ".join(map(str, shown))
    return f"change {numbered}" if len(shown) == 1 else f"changes {numbered}"


def change_title(finding: Finding) -> str:
    """The change in a few words."""
    rule = rule_book().rules.get(finding.code)
    return finding.code if rule is None else rule.title


def _apart(summary: Summary) -> tuple[Block, ...]:
    """How several gains go together, and how to find out for sure."""
    gains = sum(finding.is_gain_known for finding in summary.advice or ())
    best, together = summary.best_set, None
    if gains > 1 and best is not None:
        gain = f"{format_duration(best.estimated_gain_ns_per_step)} {_period(summary)}"
        together = Paragraph(
            f"Gains do not add up. The best set is {set_text(summary, best.codes)}: −{gain}."
        )
    return blocks(together, advice_meaning(summary))


def _point(finding: Finding, summary: Summary) -> Text:
    parts: list[Inline] = []
    number = change_numbers(summary).get(finding.code)
    if finding.is_to_try:
        parts += [Strong(f"Change {number}"), ": ", Strong(_gain(finding, summary, "−")), ". "]
    parts.append(finding.message)
    if finding.suggestion:
        parts.append(f" {finding.suggestion}")
    return tuple(parts)


def gain_text(finding: Finding, period: str, sign: str = "−") -> str:
    """What a change takes off; no number where that is known to no better than a factor of 3."""
    if not finding.is_gain_known:
        return "unknown, try it"
    return f"{sign}{format_duration(finding.estimated_gain_ns_per_step)} {period}"


def _gain(finding: Finding, summary: Summary, sign: str = "") -> str:
    """The gain, and between what it lies."""
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


def _section(finding: Finding, summary: Summary) -> Section:
    blocks: list[Block] = [Paragraph(finding.message)]
    if finding.suggestion:
        blocks.append(Paragraph(finding.suggestion))
    if finding.change:
        blocks.append(CodeBlock(finding.change, _language(finding.change)))
    facts: list[tuple[str, Text]] = [("Severity", str(finding.severity))]
    if finding.estimated_gain_ns_per_step:
        facts.append(("Estimated gain", _gain(finding, summary)))
    if finding.gain_basis:
        facts.append(("How it was estimated", finding.gain_basis))
    facts += [(_label(key), _value(key, value)) for key, value in finding.evidence.items()]
    facts.append(("Rule", Code(finding.code)))
    number = change_numbers(summary).get(finding.code) if finding.is_to_try else None
    title = change_title(finding)
    return Section(
        title if number is None else f"Change {number}: {title}", (*blocks, FactList(tuple(facts)))
    )


def _language(code: str) -> str:
    return "bash" if re.match(r"\s*(opscope|python|ncu|nsys)\s", code) else "python"


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


def _value(key: str, value: Any) -> Text:
    """A number by the unit in its name; a list by its members."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int | float):
        return format_quantity(key, value)
    if isinstance(value, list | tuple):
        return Code(", ".join(map(str, value)))
    return Code(str(value))
