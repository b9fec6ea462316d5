"""Findings on what was recorded, in the words of `findings.toml`, whose head says what it holds."""

from __future__ import annotations

import pkgutil
import string
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import tomli

from opscope.model.finding import Finding, Severity
from opscope.units import counted

if TYPE_CHECKING:
    from opscope.model.session import Session


class _Wording(string.Formatter):
    """`{count:event}` is a count with its noun."""

    def format_field(self, value: Any, format_spec: str) -> str:
        is_noun = format_spec[:1].isalpha()
        return counted(value, format_spec) if is_noun else str(super().format_field(value, format_spec))


@cache
def _book() -> dict[str, dict[str, Any]]:
    text = (pkgutil.get_data(__package__, "findings.toml") or b"").decode()
    book: dict[str, dict[str, Any]] = tomli.loads(text)
    return book


def finding(
    code: str,
    trace_id: int | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    severity: Severity | None = None,
    **words: Any,
) -> Finding:
    """The finding of a code; evidence and other words fill its message."""
    entry, known = _book()[code], dict(evidence or {})
    entry = entry | entry.get(kind or "", {})
    message = _Wording().vformat(entry["message"], (), {**known, **words})
    if "effect" in entry:
        known |= {"effect": entry["effect"], "withholds": entry.get("withholds", False)}
    severity = severity or Severity(entry.get("severity", "info"))
    return Finding(code, severity, message, entry.get("suggestion") or None, trace_id, known)


def asked(session: Session, *codes: str, trace_id: int | None = None) -> Iterator[Finding]:
    """The findings of these codes that a Session gives reason for."""
    for code in codes:
        for row in session.records(_book()[code]["sql"], () if trace_id is None else (trace_id,)):
            evidence = {name: value for name, value in row.items() if name[0] != "_"}
            yield finding(code, trace_id, evidence, **{name: row[name] for name in row.keys() - evidence})
