"""Findings in the words of a `findings.toml`; the head of the one here says what such a file holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from opscope.data import packaged_toml
from opscope.model.finding import Finding, Severity, worded

if TYPE_CHECKING:
    from opscope.model.session import Session


def finding(
    code: str,
    trace_id: int | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    severity: Severity | None = None,
    package: str = __package__,
    **words: Any,
) -> Finding:
    """The finding of a code of a package; evidence and other words fill its message."""
    entry, known = packaged_toml(package, "findings.toml")[code], dict(evidence or {})
    entry = entry | entry.get(kind or "", {})
    if "effect" in entry:
        known |= {"effect": entry["effect"], "withholds": entry.get("withholds", False)}
    return worded(code, entry, known, words, severity=severity, trace_id=trace_id)


def asked(session: Session, *codes: str, trace_id: int | None = None) -> Iterator[Finding]:
    """The findings of these codes that a Session gives reason for."""
    for code in codes:
        query = packaged_toml(__package__, "findings.toml")[code]["sql"]
        for row in session.records(query, () if trace_id is None else (trace_id,)):
            evidence = {name: value for name, value in row.items() if name[0] != "_"}
            yield finding(code, trace_id, evidence, **{name: row[name] for name in row.keys() - evidence})
