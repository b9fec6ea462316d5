"""What to change: each advice with its estimated gain, what it rests on and the change to try."""

from __future__ import annotations

import re
from typing import Any

from opscope.analysis.summary import Summary
from opscope.model.finding import Finding
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    CodeBlock,
    FactList,
    Inline,
    Paragraph,
    Section,
    Strong,
    Text,
)
from opscope.units import format_byte_rate, format_bytes, format_duration, format_flop_rate, format_fraction

__all__ = ["advice_blocks", "advice_notes", "advice_sections"]


_SHOWN = 6
_ALONE = "Each gain is that of the one change alone: they do not add up."
_NOTHING = "Nothing: no rule found anything worth changing in what was recorded."


def advice_blocks(summary: Summary) -> tuple[Block, ...]:
    """The short form: one point each, the largest gain first."""
    advice = summary.advice or ()
    if not advice:
        return (Paragraph(_NOTHING),)
    points: list[Text] = [_point(finding, summary) for finding in advice[:_SHOWN]]
    rest = len(advice) - _SHOWN
    if rest > 0:
        points.append(f"{rest} more: opscope analyze … --output-dir DIR writes them all.")
    return (BulletList(tuple(points)), *_apart(summary))


def advice_sections(summary: Summary) -> tuple[Section, ...]:
    """A section for each, with evidence and code."""
    return tuple(_section(finding, summary) for finding in summary.advice or ())


def advice_notes(summary: Summary) -> tuple[Block, ...]:
    """What stands before the sections: how to read several gains, or that there is no advice."""
    return _apart(summary) if summary.advice else (Paragraph(_NOTHING),)


def _apart(summary: Summary) -> tuple[Block, ...]:
    """How several gains go together."""
    gains = sum(bool(finding.estimated_gain_ns_per_step) for finding in summary.advice or ())
    best = summary.best_set
    if gains < 2 or best is None:
        return ()
    codes = " + ".join(code.removeprefix("advice.") for code in best.codes)
    return (
        Paragraph(
            f"{_ALONE} Simulated together, the best set is {codes}: "
            f"−{_time(best.estimated_gain_ns_per_step, summary)}."
        ),
    )


def _point(finding: Finding, summary: Summary) -> Text:
    parts: list[Inline] = []
    if finding.estimated_gain_ns_per_step:
        parts += [Strong(f"−{_gain(finding, summary)}:"), " "]
    parts.append(finding.message)
    if finding.suggestion:
        parts.append(f" {finding.suggestion}")
    return tuple(parts)


def _gain(finding: Finding, summary: Summary) -> str:
    """The gain, and between what it lies."""
    text = _time(finding.estimated_gain_ns_per_step, summary)
    if finding.gain_interval_ns_per_step is None:
        return text
    low, high = map(format_duration, finding.gain_interval_ns_per_step)
    return text if low == high else f"{text} ({low} to {high})"


def _time(gain_ns: float | None, summary: Summary) -> str:
    """A recording without steps counts as one."""
    whole = "of the recording" if len(summary.traces) < 2 else "per trace"
    return f"{format_duration(gain_ns)} {'per step' if summary.steps else whole}"


def _section(finding: Finding, summary: Summary) -> Section:
    blocks: list[Block] = [Paragraph(finding.message)]
    if finding.suggestion:
        blocks.append(Paragraph(finding.suggestion))
    if finding.change:
        blocks.append(CodeBlock(finding.change, _language(finding.change)))
    facts: list[tuple[str, Text]] = [("Severity", str(finding.severity))]
    if finding.estimated_gain_ns_per_step is not None:
        facts.append(("Estimated gain", _gain(finding, summary)))
    if finding.gain_basis:
        facts.append(("How it was estimated", finding.gain_basis))
    facts += [(_label(key), _value(key, value)) for key, value in finding.evidence.items()]
    return Section(finding.code, (*blocks, FactList(tuple(facts))))


def _language(code: str) -> str:
    return "bash" if re.match(r"\s*(opscope|python|ncu|nsys)\s", code) else "python"


_UNITS = (
    ("_ns_per_step", format_duration),
    ("_ns", format_duration),
    ("_bytes", format_bytes),
    ("_bytes_per_s", format_byte_rate),
    ("_flop_per_s", format_flop_rate),
    ("_fraction", format_fraction),
)
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
        form = next((form for suffix, form in _UNITS if key.endswith(suffix)), None)
        return (
            form(value) if form is not None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        )
    if isinstance(value, list | tuple):
        return Code(", ".join(map(str, value)))
    return Code(str(value))
