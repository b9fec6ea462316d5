"""What a reader of a recording must know of it: what is missing, and why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from opscope.model.finding import Finding, Severity
from opscope.toolchain.injection.events import ProcessEvents
from opscope.toolchain.injection.record_format import FileState, UnifiedState
from opscope.toolchain.injection.recording import Recording

__all__ = ["recording_findings", "signal_name"]

_FLUSH_PERIOD = "0.2 s"  # FLUSH_PERIOD_MS in native/recorder.c


def recording_findings(recording: Recording, events: ProcessEvents) -> tuple[Finding, ...]:
    """Findings on one process's recording, whatever is missing first."""
    return (
        *_missing(recording),
        *_cut_off(recording, events),
        *_unified(recording, events),
    )


def signal_name(number: int) -> str:
    """`SIGTERM` of 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _missing(recording: Recording) -> Iterator[Finding]:
    outcome = recording.outcome
    if outcome.dropped_count:
        yield Finding(
            "recorder.dropped",
            Severity.WARNING,
            f"CUPTI dropped {_count(outcome.dropped_count, 'record')}: counts and times are too small.",
            "Record a shorter run.",
            evidence={"dropped_count": outcome.dropped_count},
        )
    if outcome.lost_count:
        reason = os.strerror(outcome.write_errno)
        yield Finding(
            "recorder.lost",
            Severity.WARNING,
            f"{_count(outcome.lost_count, 'record')} could not be written ({reason}): counts and times are "
            "too small.",
            "Have more room where the trace goes (--output-dir), or record a shorter run.",
            evidence={"lost_count": outcome.lost_count, "reason": reason},
        )
    if outcome.unreadable_count:
        yield Finding(
            "recorder.unreadable",
            Severity.WARNING,
            f"CUPTI could not read {_count(outcome.unreadable_count, 'buffer')} to the end: records are "
            "missing.",
            evidence={"buffer_count": outcome.unreadable_count},
        )


def _cut_off(recording: Recording, events: ProcessEvents) -> Iterator[Finding]:
    outcome = recording.outcome
    if outcome.state is not FileState.ENDED:
        yield Finding(
            "recorder.not_ended",
            Severity.WARNING,
            f"The process ended without its exit handlers (killed, or by _exit): what it did in its last "
            f"{_FLUSH_PERIOD} may be missing.",
            "Let it end by exit, by returning from main, or by SIGTERM.",
            evidence={"truncated_bytes": outcome.truncated_bytes},
        )
    elif outcome.signal is not None:
        yield Finding(
            "recorder.signal",
            Severity.INFO,
            f"The process was ended by {signal_name(outcome.signal)}; it is recorded until then.",
            evidence={"signal": outcome.signal},
        )
    if events.unfinished_count:
        yield Finding(
            "recorder.unfinished",
            Severity.INFO,
            f"Left out, because it had not ended when the recording did: "
            f"{_count(events.unfinished_count, 'activity', 'activities')}.",
            evidence={"activity_count": events.unfinished_count},
        )


def _unified(recording: Recording, events: ProcessEvents) -> Iterator[Finding]:
    outcome = recording.outcome
    if outcome.unified is UnifiedState.RECORDED:
        return
    if outcome.unified is UnifiedState.REFUSED:
        reason = f"CUPTI refuses them here ({outcome.unified_refusal})"
    elif outcome.unified is UnifiedState.UNWANTED:
        reason = "they were switched off"
    else:
        reason = "CUPTI was not ready for them"
    yield Finding(
        "recorder.unified_memory",
        Severity.WARNING if events.uses_managed_memory else Severity.INFO,
        f"Copies of unified memory were not recorded: {reason}."
        + (" The program allocates such memory." if events.uses_managed_memory else ""),
        evidence={"reason": reason},
    )
