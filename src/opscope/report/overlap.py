"""How much of communication runs beside computation, by rank: report and JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from opscope.analysis.communication import CommunicationOverlap
from opscope.report.document import Document, Meaning, Paragraph, Section, identifier, number, table
from opscope.report.json_encoding import Keys, encode
from opscope.units import format_duration, format_fraction, format_share


def overlap_json(found: Sequence[CommunicationOverlap]) -> dict[str, Any]:
    keys = Keys("... exposed_ns overlapped_fraction")
    return {"overlap": [encode(one, {CommunicationOverlap: keys}) for one in found]}


def overlap_document(found: Sequence[CommunicationOverlap]) -> Document:
    title = "Communication beside computation"
    if not found:
        return Document("", (), (Section(title, (Paragraph("No device activity was recorded."),)),))
    has_ranks = all(one.rank is not None for one in found)
    rows = table(
        found,
        number("Rank", "rank", str)
        if has_ranks
        else identifier("Trace", lambda one: PurePath(one.trace).name),
        number("Device", "device", str),
        number("Computation", lambda one: format_duration(one.computation_ns)),
        number("Communication", "communication_ns"),
        number("Beside computation", "overlapped_ns"),
        number("Share", lambda one: format_fraction(one.overlapped_fraction)),
        number("Exposed", "exposed_ns"),
    )
    communication_ns = sum(one.communication_ns for one in found)
    exposed_ns = sum(one.exposed_ns for one in found)
    most = max(found, key=attrgetter("exposed_ns"))
    where = f"rank {most.rank}" if most.rank is not None else PurePath(most.trace).name
    meaning = Meaning(
        f"{format_share(communication_ns - exposed_ns, communication_ns)} of communication runs beside "
        f"computation; most of the rest is on {where} ({format_duration(most.exposed_ns)})."
    )
    return Document("", (), (Section(title, (rows, meaning) if communication_ns else (rows,)),))
