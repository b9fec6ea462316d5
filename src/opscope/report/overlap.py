"""How much of communication runs beside computation, by rank: report and JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from opscope.analysis.overlap import CommunicationOverlap
from opscope.report.document import Document, Meaning, Paragraph, Section, Table, identifier, number, table
from opscope.report.json_encoding import Keys, encode
from opscope.units import format_duration, format_fraction, format_share


def overlap_document(found: Sequence[CommunicationOverlap]) -> dict[str, Any]:
    """JSON: one object for each device of each trace, by rank."""
    keys = Keys("... exposed_ns overlapped_fraction")
    return {"overlap": [encode(one, {CommunicationOverlap: keys}) for one in found]}


def overlap_report(found: Sequence[CommunicationOverlap]) -> Document:
    """One row for each device of each trace, by rank."""
    return Document("", (), (Section("Communication beside computation", (_rows(found), *_meaning(found))),))


def _rows(found: Sequence[CommunicationOverlap]) -> Table | Paragraph:
    if not found:
        return Paragraph("No device activity was recorded.")
    has_ranks = all(one.rank is not None for one in found)
    return table(
        found,
        number("Rank", "rank", str) if has_ranks else identifier("Trace", lambda one: _file_name(one.trace)),
        number("Device", "device", str),
        number("Computation", lambda one: format_duration(one.computation_ns)),
        number("Communication", "communication_ns"),
        number("Beside computation", "overlapped_ns"),
        number("Share", lambda one: one.overlapped_fraction, format_fraction),
        number("Exposed", "exposed_ns"),
    )


def _file_name(trace: str) -> str:
    return PurePath(trace).name


def _meaning(found: Sequence[CommunicationOverlap]) -> tuple[Meaning, ...]:
    communication_ns = sum(one.communication_ns for one in found)
    if not communication_ns:
        return ()
    exposed_ns = sum(one.exposed_ns for one in found)
    most = max(found, key=attrgetter("exposed_ns"))
    where = f"rank {most.rank}" if most.rank is not None else _file_name(most.trace)
    return (
        Meaning(
            f"{format_share(communication_ns - exposed_ns, communication_ns)} of communication runs beside "
            f"computation; most of the rest is on {where} ({format_duration(most.exposed_ns)})."
        ),
    )
