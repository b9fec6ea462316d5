"""`advise`: asks every rule, estimates what each change is worth, and ranks by that.

Each gain is what its change alone would bring. Changes that touch the same time do not add up, so nothing
here adds them. A change that brings less than can be told from noise is left out; one that the slower host
hides today is kept if it is a large part of the device's work, with a gain of none.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from opscope.advice import (  # noqa: F401 - each registers the functions of its rules
    attention_rules,
    communication,
    copies,
    host,
    kernels,
    optimizer,
    products,
)
from opscope.advice.profiled_run import FINDERS, Advice, ProfiledRun
from opscope.advice.rules import Rule
from opscope.advice.step_time import StepTime
from opscope.analysis.summary import Summary, summarize
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.units import format_duration

__all__ = ["advise", "assess"]

# Bounds what all other advice can bring, so it is given beside other advice alone.
_AT_LIMIT = "advice.at_limit"


def assess(
    session: Session, *, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> Summary:
    """The Summary with advice; arguments and errors are those of `summarize`."""
    # Complete first: some rules read tables that the sections fill.
    summary = summarize(session, measured_dir=measured_dir, ceilings_file=ceilings_file)
    return summary.having(advice=advise(session, summary))


def advise(session: Session, summary: Summary) -> tuple[Finding, ...]:
    """What to change, the largest estimated gain first, those without an estimate last; empty if all is well.

    Args:
        session: The Session.
        summary: Its Summary, with efficiency, timeline and program filled.
    """
    if not summary.has_device:
        return ()
    run = ProfiledRun(session, summary)
    rules = run.book.rules
    found = [one for code, rule in rules.items() if code != _AT_LIMIT for one in _findings(run, rule)]
    if any(finding.estimated_gain_ns_per_step for finding in found):
        found += _findings(run, rules[_AT_LIMIT])
    return tuple(sorted(found, key=_rank))


def _findings(run: ProfiledRun, rule: Rule) -> list[Finding]:
    """What a rule finds, without what is not worth a word."""
    found = []
    for advice in FINDERS[rule.code](run, rule):
        worth = _worth(run, advice)
        if worth is None:
            continue
        basis = "; ".join(part for part in (advice.basis or rule.basis, worth.words) if part)
        found.append(
            Finding(
                code=rule.code,
                severity=Severity.INFO if worth.is_deferred else rule.severity,
                message=advice.message,
                suggestion=advice.suggestion or rule.suggestion,
                trace_id=advice.trace_id,
                evidence=dict(advice.evidence),
                estimated_gain_ns_per_step=worth.gain_ns,
                gain_basis=basis or None,
                change=advice.change or rule.change,
            )
        )
    return found


class _Worth(msgspec.Struct, frozen=True):
    """What an advice is worth; `is_deferred` where the slower host hides it today."""

    gain_ns: float | None = None
    words: str | None = None
    is_deferred: bool = False


def _worth(run: ProfiledRun, advice: Advice) -> _Worth | None:
    """The gain of an advice, and whether to give it; None if it is not worth a word."""
    saving, step = advice.saving, run.step
    if saving is None and advice.gain_ns is None:
        return _Worth()
    gain_ns = advice.gain_ns
    if gain_ns is None and saving is not None and step is not None:
        gain_ns = step.gain_ns(saving)
    if gain_ns is None or step is None:
        is_saving = saving is not None and max(saving.device_ns, saving.host_ns, saving.waiting_ns) > 0
        words = "not turned into a gain: the host's side of a step is unknown"
        return _Worth(words=words) if is_saving else None
    if gain_ns >= run.book.number("least_gain_fraction") * step.total_ns:
        return _Worth(gain_ns, _sides(step) if saving is not None else None)
    least_ns = run.book.number("deferred_fraction") * step.device_ns
    if saving is None or not step.is_host_bound or saving.device_ns < least_ns:
        return None
    return _Worth(0.0, f"nothing now, for the host is the slower side: {_sides(step)}", is_deferred=True)


def _sides(step: StepTime) -> str:
    """The two sides of a step that a gain is taken from."""
    host_side = "unknown" if step.host_ns is None else format_duration(step.host_ns)
    error = f" ± {format_duration(step.host_error_ns)}" if step.host_error_ns else ""
    return (
        f"a step takes the longer of {format_duration(step.device_ns)} on the device and {host_side}{error} "
        "on the host without the recorder"
    )


def _rank(finding: Finding) -> tuple[bool, float, int, str, str]:
    gain_ns = finding.estimated_gain_ns_per_step
    return (
        gain_ns is None,
        -(gain_ns or 0.0),
        finding.severity.rank,
        finding.code,
        finding.message,
    )
