"""`advise`: asks every rule, estimates what each change is worth, and ranks by that.

Each gain is what its change alone would bring. Changes that touch the same time do not add up, so nothing
here adds them. A change that brings less than can be told from noise is left out; one that the slower host
hides today is kept if it is a large part of the device's work, with a gain of none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opscope.advice import (
    attention,
    communication,
    copies,
    data_loading,
    fusion,
    host,
    launches,
    memory,
    optimizer,
    precision,
    shapes,
    synchronization,
)
from opscope.advice.case import Advice, Case
from opscope.advice.limits import at_limit
from opscope.advice.rule_book import Rule, rule_book
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import StepTime
from opscope.analysis.summary import Summary
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.units import format_duration

__all__ = ["FUNCTIONS", "advise"]

FUNCTIONS: Mapping[str, RuleFunction] = {
    **precision.RULES,
    **attention.RULES,
    **fusion.RULES,
    **launches.RULES,
    **synchronization.RULES,
    **copies.RULES,
    **optimizer.RULES,
    **shapes.RULES,
    **memory.RULES,
    **data_loading.RULES,
    **communication.RULES,
    **host.RULES,
}
_AT_LIMIT = "advice.at_limit"
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def advise(session: Session, summary: Summary) -> tuple[Finding, ...]:
    """What to change, the largest estimated gain first, those without an estimate last; empty if all is well.

    Args:
        session: The Session.
        summary: Its Summary, with efficiency, timeline and program filled.
    """
    if not summary.has_device:
        return ()
    case = Case(session, summary)
    rules = rule_book().rules
    found = _findings(case, {code: rules[code] for code in FUNCTIONS}, FUNCTIONS)
    if any(finding.estimated_gain_ns_per_step for finding in found):
        found += _findings(case, {_AT_LIMIT: rules[_AT_LIMIT]}, {_AT_LIMIT: at_limit})
    return tuple(sorted(found, key=_rank))


def _findings(case: Case, rules: Mapping[str, Rule], functions: Mapping[str, RuleFunction]) -> list[Finding]:
    found = []
    for code, rule in rules.items():
        for advice in functions[code](case, rule):
            finding = _finding(case, rule, advice)
            if finding is not None:
                found.append(finding)
    return found


def _finding(case: Case, rule: Rule, advice: Advice) -> Finding | None:
    """The finding of one advice; None if it is not worth a word."""
    worth = _worth(case, advice)
    if worth is None:
        return None
    return Finding(
        code=rule.code,
        severity=Severity.INFO if worth.is_deferred else advice.severity or rule.severity,
        message=advice.message,
        suggestion=advice.suggestion or rule.suggestion,
        trace_id=advice.trace_id,
        evidence=dict(advice.evidence),
        estimated_gain_ns_per_step=worth.gain_ns,
        gain_basis="; ".join(part for part in (advice.basis, worth.words) if part) or None,
        change=advice.change or rule.change,
    )


@dataclass(frozen=True)
class _Worth:
    """What an advice is worth; `is_deferred` where the slower host hides it today."""

    gain_ns: float | None = None
    words: str | None = None
    is_deferred: bool = False


def _worth(case: Case, advice: Advice) -> _Worth | None:
    """The gain of an advice, and whether to give it; None if it is not worth a word."""
    saving, step = advice.saving, case.step
    if saving is None and advice.gain_ns is None:
        return _Worth()
    gain_ns = advice.gain_ns
    if gain_ns is None and saving is not None and step is not None:
        gain_ns = step.gain_ns(saving)
    if gain_ns is None or step is None:
        is_saving = saving is not None and max(saving.device_ns, saving.host_ns, saving.waiting_ns) > 0
        words = "not turned into a gain: the host's side of a step is unknown"
        return _Worth(words=words) if is_saving else None
    if gain_ns >= case.book.number("least_gain_fraction") * step.total_ns:
        return _Worth(gain_ns, _sides(step) if saving is not None else None)
    least_ns = case.book.number("deferred_fraction") * step.device_ns
    if saving is None or not step.is_host_bound or saving.device_ns < least_ns:
        return None
    return _Worth(0.0, f"nothing now, for the host is the slower side: {_sides(step)}", is_deferred=True)


def _sides(step: StepTime) -> str:
    """The two sides of a step that a gain is taken from."""
    host = "unknown" if step.host_ns is None else format_duration(step.host_ns)
    error = f" ± {format_duration(step.host_error_ns)}" if step.host_error_ns else ""
    return (
        f"a step takes the longer of {format_duration(step.device_ns)} on the device and {host}{error} on "
        "the host without the recorder"
    )


def _rank(finding: Finding) -> tuple[bool, float, int, str, str]:
    gain_ns = finding.estimated_gain_ns_per_step
    return (
        gain_ns is None,
        -(gain_ns or 0.0),
        _SEVERITIES.index(finding.severity),
        finding.code,
        finding.message,
    )
