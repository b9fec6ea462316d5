"""`assess`: the Summary of a Session with what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opscope.advice.engine import advise
from opscope.analysis.summary import Summary, summarize
from opscope.model.session import Session

__all__ = ["assess"]


def assess(
    session: Session, *, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> Summary:
    """The Summary with advice; arguments and errors are those of `summarize`."""
    summary = summarize(session, measured_dir=measured_dir, ceilings_file=ceilings_file)
    return replace(summary, advice=advise(session, summary))
