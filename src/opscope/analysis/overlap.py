"""How much of a job's communication runs beside computation, by rank: one question, answered by itself.

The device activities of each file are read alone (`ingest.device_spans`); a file that takes more is loaded.
Of recorded steps what they launched counts, whenever it ran; without steps all that was recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from opscope.analysis.timeline.records import Flags, distinct
from opscope.analysis.timeline.spans import merge, overlap, total
from opscope.ingest.device_spans import DeviceSpans, read_device_spans
from opscope.ingest.nesting import Int64
from opscope.ingest.source import TraceFile, find_traces
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names import decode


class CommunicationOverlap(msgspec.Struct, frozen=True):
    """One device of one trace.

    Attributes:
        trace: The file.
        rank: None if the trace does not tell.
        device: Its ordinal.
        computation_ns: Time in which computing kernels ran.
        communication_ns: Time in which communicating ones did.
        overlapped_ns: Time in which both did.
    """

    trace: str
    rank: int | None
    device: int
    computation_ns: int
    communication_ns: int
    overlapped_ns: int

    @property
    def exposed_ns(self) -> int:
        """Communication beside which nothing was computed."""
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
    with tempfile.TemporaryDirectory() as folder:
        found = [
            one
            for trace in traces
            for spans in _read(trace, Path(folder))
            for one in _of_devices(trace.name, spans)
        ]
    return tuple(sorted(found, key=lambda one: (one.rank is None, one.rank or 0)))


def _read(trace: TraceFile, folder: Path) -> list[DeviceSpans]:
    spans = read_device_spans(trace, folder)
    return [spans] if spans is not None else list(_loaded(trace))


def _loaded(trace: TraceFile) -> Iterator[DeviceSpans]:
    """The same of a trace that is loaded for it; one for each that the file holds."""
    from opscope.analysis.timeline.records import read_records  # noqa: PLC0415 - few traces need it
    from opscope.ingest.reader import load  # noqa: PLC0415

    with load([trace.name], merge=True) as session:
        stepped = {trace_id for (trace_id,) in session.query("SELECT DISTINCT trace_id FROM steps")}
        names = dict(session.query("SELECT name_id, coalesce(name, '') FROM kernel_names"))
        texts = tuple(names.get(one, "") for one in range(max(names, default=-1) + 1))
        for one in read_records(session):
            devices = one.devices

            def joined(attribute: str, parts: Sequence[object] = devices) -> Int64:
                columns = [getattr(part, attribute) for part in parts]
                return np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)

            yield DeviceSpans(
                rank=one.rank,
                device=np.concatenate([[], *(np.full(len(part), part.device) for part in devices)]).astype(
                    np.int64
                ),
                start_ns=joined("start_ns"),
                end_ns=joined("end_ns"),
                name=joined("name_id"),
                names=texts,
                is_kernel=joined("is_kernel").astype(np.bool_),
                step=joined("step"),
                has_steps=one.trace_id in stepped,
            )


# What the names of kernels that only compute begin with. Reading a name compiles the rules of all families
# first, which takes longer than reading the activities of a rank.
COMPUTING = ("void at::native::", "triton_", "nvjet_", "ampere_", "sm80_", "sm90_", "Cijk_")


@lru_cache(maxsize=65536)
def _communicates(name: str) -> bool:
    return not name.startswith(COMPUTING) and kernel_category(decode(name)) == "communication"


def _of_devices(name: str, spans: DeviceSpans) -> Iterator[CommunicationOverlap]:
    communicates = np.array([_communicates(one) for one in spans.names] or [False], dtype=np.bool_)
    is_communication = communicates[spans.name] if len(spans.name) else np.empty(0, dtype=np.bool_)
    counted = spans.is_kernel & ((spans.step >= 0) | (not spans.has_steps))
    for device in distinct(spans.device).tolist():
        chosen: Flags = counted & (spans.device == device)
        computation, communication = (
            merge((spans.start_ns[part], spans.end_ns[part]))
            for part in (chosen & ~is_communication, chosen & is_communication)
        )
        yield CommunicationOverlap(
            trace=name,
            rank=spans.rank,
            device=int(device),
            computation_ns=total(computation),
            communication_ns=total(communication),
            overlapped_ns=int(overlap(computation, *communication).sum()),
        )
