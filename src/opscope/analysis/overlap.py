"""How much of a job's communication runs beside computation, by rank: one question, answered by itself.

Files are loaded one after the other. Of recorded steps what they launched counts, whenever it ran; without
steps all that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from opscope.analysis.timeline.records import WorkKind, read_records
from opscope.analysis.timeline.spans import merge, overlap, total
from opscope.ingest.reader import load
from opscope.ingest.source import TraceFile, find_traces


class CommunicationOverlap(msgspec.Struct, frozen=True):
    """One device of one trace."""

    trace: str  # the file
    rank: int | None  # None if the trace does not tell
    device: int  # its ordinal
    computation_ns: int  # time in which computing kernels ran
    communication_ns: int  # time in which communicating ones did
    overlapped_ns: int  # time in which both did

    @property
    def exposed_ns(self) -> int:
        return self.communication_ns - self.overlapped_ns

    @property
    def overlapped_fraction(self) -> float | None:
        """Share of communication (0–1) beside which something was computed; None without any."""
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None


def communication_overlap(sources: Sequence[str]) -> tuple[CommunicationOverlap, ...]:
    """The overlap on every device of every trace, by rank.

    Args:
        sources: Files, folders of rank files, patterns of names, fsspec addresses.

    Raises:
        InputError: A source cannot be read; names it.
        DependencyError: An address needs a package that is not installed.
    """
    traces = [trace for source in sources for trace in find_traces(source)]
    found = [one for trace in traces for one in _of_trace(trace)]
    return tuple(sorted(found, key=lambda one: (one.rank is None, one.rank or 0)))


def _of_trace(trace: TraceFile) -> Iterator[CommunicationOverlap]:
    with load([trace.name], merge=True) as session:
        stepped = {trace_id for (trace_id,) in session.query("SELECT DISTINCT trace_id FROM steps")}
        for one in read_records(session):
            for device in one.devices:
                counted = device.is_kernel & ((device.step >= 0) | (one.trace_id not in stepped))
                of_kind = (
                    counted & (device.work == kind) for kind in (WorkKind.COMPUTE, WorkKind.COMMUNICATION)
                )
                computation, communication = (
                    merge((device.start_ns[part], device.end_ns[part])) for part in of_kind
                )
                yield CommunicationOverlap(
                    trace=trace.name,
                    rank=one.rank,
                    device=device.device,
                    computation_ns=total(computation),
                    communication_ns=total(communication),
                    overlapped_ns=int(overlap(computation, *communication).sum()),
                )
