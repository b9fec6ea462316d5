"""`assess`: the Summary of a Session with what to change."""

from __future__ import annotations

from pathlib import Path

from opscope.advice.engine import advise
from opscope.analysis.summary import Summary
from opscope.model.session import Session

__all__ = ["assess"]


def assess(
    session: Session, *, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> Summary:
    """The Summary with advice; arguments and errors are those of `Summary`."""
    summary = Summary(session, measured_dir=measured_dir, ceilings_file=ceilings_file)
    return summary.having(advice=advise(session, summary)).complete()
